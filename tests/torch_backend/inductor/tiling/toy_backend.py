"""A small Inductor backend for CPU tensors that interprets tiled loops with numpy.

Like the device's backend it has a separate buffer for every operation, no merged or reordered dims,
a hook on operations before the scheduler, and loop nodes after it. `compiled` returns a function's
result with the operations, scheduler nodes and wrapper code.
"""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import msgspec
import sympy
import torch
from torch._inductor import compile_fx, config, ir
from torch._inductor.codegen import common
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from spyre.errors import SpyreError
from spyre.layout import SpyreTensorLayout
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout
from spyre.torch_backend.inductor.hints import names_of_inputs
from spyre.torch_backend.inductor.hooks.scheduling import (
    CountedLoopSchedulerNode,
    build_loop_scheduler_nodes,
)
from spyre.torch_backend.inductor.tiling.accesses import (
    by_graph_input,
    extents_of,
    propagate_named_dims,
)
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.groups import assign_dim_hints, hints_to_coarse_tile_groups
from tests.torch_backend.inductor.tiling.toy_interpreter import (
    DTYPES,
    Loop,
    Step,
    loads_of,
    run_kernel,
)

kernels: list[list] = []


def tiled_symbols(operation, variables):
    """The variable each enclosing loop advances, 0 where the operation does not follow the loop.

    ``variables``: of the node's iteration, in the order of ranges and reduction ranges.
    """
    dims = getattr(operation, "loop_tiled_dims", [])
    present = iter(variables)
    by_place = [sympy.S.Zero if n == 1 else next(present) for n in extents_of(operation)]
    return [by_place[entry[0]] if entry else sympy.S.Zero for entry in dims]


class Recorder(DefaultHandler):
    """The body of a node as nested tuples."""

    def __init__(self):
        self.stores = []
        self.indices = {}

    def indirect_indexing(self, value, size, check=True, wrap_neg=True):
        symbol = sympy.Symbol(f"indirect{len(self.indices)}", integer=True)
        self.indices[symbol] = getattr(value, "value", value)
        return symbol

    def _default(self, name, args, kwargs):
        return ("op", name, *args)

    def constant(self, value, dtype):
        return ("const", value, DTYPES[dtype])

    def index_expr(self, expr, dtype):
        return ("index", expr, DTYPES[dtype])

    def to_dtype(self, x, dtype, src_dtype=None, use_compute_types=True):
        return ("cast", x, DTYPES[dtype])

    def load(self, name, index):
        return ("load", name, index)

    def reduction(self, dtype, src_dtype, kind, value):
        return ("reduce", kind, value)

    def store(self, name, index, value, mode=None):
        self.stores.append((name, index, value))

    def store_reduction(self, name, index, value):
        self.stores.append((name, index, value))


class ToyKernel(common.Kernel):
    overrides = common.OpOverrides

    def load(self, *args):
        raise NotImplementedError

    store = store_reduction = reduction = load

    def step(self, node):
        sizes = node.get_ranges()
        variables = [
            [sympy.Symbol(f"{p}{n}", integer=True) for n in range(len(s))]
            for p, s in zip("ir", sizes, strict=True)
        ]
        recorder = Recorder()
        with self.set_current_node(node), V.set_ops_handler(recorder):
            node._body(*variables)
        flat = [*itertools.chain(*variables)]
        extents = [int(n) for n in itertools.chain(*sizes)]
        return Step(
            node.get_name(),
            dict(zip(flat, extents, strict=True)),
            len(variables[0]),
            recorder.stores,
            recorder.indices,
            tiled_symbols(node.node, flat),
        )

    def walk(self, node):
        if isinstance(node, CountedLoopSchedulerNode):
            return [Loop(int(node.loop_count), [s for n in node.snodes for s in self.walk(n)])]
        return [self.step(node)]


def buffers_of(steps):
    for step in steps:
        if isinstance(step, Loop):
            yield from buffers_of(step.body)
            continue
        for name, _, value in step.stores:
            yield name, True
            loaded = [value, *step.indices.values()]
            yield from ((n, False) for part in loaded for n in loads_of(part))


def leaves(node):
    if isinstance(node, CountedLoopSchedulerNode):
        return [leaf for n in node.snodes for leaf in leaves(n)]
    return [node]


class ToyScheduling(BaseScheduling):
    def group_fn(self, sizes):
        return tuple(V.graph.sizevars.simplify(sympy_product(s)) for s in sizes)

    def flush(self):
        pass

    def get_backend_features(self, device):
        return OrderedSet()

    def can_fuse_vertical(self, a, b):
        return False

    can_fuse_horizontal = can_fuse_vertical

    def codegen_node(self, node):
        """One kernel per node: arguments are the buffers Inductor thinks the kernel uses."""
        kernel = ToyKernel()
        with kernel:
            steps = kernel.walk(node)
            arguments = {}
            for name, written in buffers_of(steps):
                inner = kernel.args.output(name) if written else kernel.args.input(name)
                arguments[name] = inner
            with V.set_kernel_handler(kernel):
                definitions, call, _, _ = kernel.args.python_argdefs()
                for leaf in leaves(node):
                    leaf.mark_run()
        fixed = {n for n in arguments if is_fixed(n)}
        places = {d.name: place for place, d in enumerate(definitions)}
        kernels.append([steps, {n: places[inner] for n, inner in arguments.items()}, fixed])
        V.graph.wrapper_code.writeline(f"toy.launch({len(kernels) - 1}, [{', '.join(call)}])")
        V.graph.removed_buffers |= kernel.removed_buffers
        self.free_buffers_in_scheduler()


def is_fixed(name):
    return getattr(V.graph.get_buffer(name).get_output_spec(), "per_tile_fixed", False)


class ToyWrapper(PythonWrapperCodegen):
    def __init__(self):
        super().__init__()
        V.graph.sizevars._simplify_loops_impl = lambda v, sizes, f: (sizes, list, list)

    @staticmethod
    def create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures=None):
        assert not is_subgraph
        return ToyWrapper()

    def write_header(self):
        super().write_header()
        self.imports.splice("from tests.torch_backend.inductor.tiling import toy_backend as toy")


def launch(number, tensors):
    run_kernel(*kernels[number], tensors)


class Compiled(msgspec.Struct):
    """Records of a compilation, and the function's result."""

    result: object = None
    operations: list = msgspec.field(default_factory=list)
    nodes: list = msgspec.field(default_factory=list)
    code: list = msgspec.field(default_factory=list)
    texts: list = msgspec.field(default_factory=list)


class _LoopPass(CustomSchedulerPass):
    def __init__(self, found):
        self.found = found

    def __call__(self, nodes):
        self.found.nodes = build_loop_scheduler_nodes(nodes)
        return self.found.nodes

    def __deepcopy__(self, memo):
        return self

    def uuid(self):
        return None


def lay_out(operations):
    """Give all buffers default device layouts, in place of layout propagation."""
    for buffer in [*V.graph.graph_inputs.values(), *operations]:
        if isinstance(buffer, sympy.Symbol):
            continue
        if isinstance(buffer, ir.ComputedBuffer):
            buffer.decide_layout()
        if isinstance(buffer, ir.TensorBox):
            buffer = buffer.data.data
        layout = buffer.get_output_spec()
        if type(layout) is not ir.FixedLayout:
            continue
        if not any(sympy.sympify(n).free_symbols for n in layout.size):
            buffer.layout = tiled(layout)


def tiled(layout):
    size, stride = [int(n) for n in layout.size], [int(n) for n in layout.stride]
    order = sorted(range(len(size)), key=lambda d: -stride[d])
    device = SpyreTensorLayout.from_dim_order(
        size, stride, str(layout.dtype).removeprefix("torch."), order
    )
    return FixedTiledLayout(
        layout.device, layout.dtype, layout.size, layout.stride, device, offset=layout.offset
    )


def by_hints(operations, names):
    propagate_named_dims(operations, names)
    assign_dim_hints(operations)
    coarse_tile(operations, hints_to_coarse_tile_groups(operations))


@contextlib.contextmanager
def backend(found, names, tile):
    """Inductor with the toy for CPU tensors, and ``tile(operations, names)`` as its pass."""
    common.init_backend_registration()
    update = GraphLowering._update_scheduler
    toy = common.DeviceCodegen(ToyScheduling, ToyWrapper)

    def update_scheduler(graph):
        found.operations = graph.operations
        lay_out(graph.operations)
        graph_names = by_graph_input(graph.orig_gm, names)
        tile(graph.operations, graph_names)
        found.texts = [str(op) for op in graph.operations]
        update(graph)

    settings = {
        "split_reductions": False,
        "unroll_reductions_threshold": 1,
        "permute_fusion": False,
        "allow_buffer_reuse": False,
        "online_softmax": False,
        "pick_loop_orders": False,
        "reorder_for_locality": False,
        "reorder_for_peak_memory": False,
        "_post_fusion_custom_pass": _LoopPass(found),
        "force_disable_caches": True,
        "compile_threads": 1,
    }
    with (
        mock.patch.dict(common.device_codegens, {"cpu": toy}),
        mock.patch.object(GraphLowering, "_update_scheduler", update_scheduler),
        mock.patch.object(GraphLowering, "save_output_code", staticmethod(found.code.append)),
        mock.patch.object(ir.Loops, "has_large_inner_fn", return_value=True),
        config.patch(settings),
    ):
        yield


def compiled(function, *arguments, tile=by_hints):
    """Compile with ``tile(operations, names)`` as coarse tiling, run once."""
    found = Compiled()
    torch._dynamo.reset()

    def compile_toy(graph, inputs):
        names = names_of_inputs(inputs)

        def inner(*args, **kwargs):
            with backend(found, names, tile):
                return compile_fx.compile_fx_inner(*args, **kwargs)

        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    found.result = torch.compile(function, backend=compile_toy, fullgraph=True)(*arguments)
    return found


def refused(function, *arguments, tile=by_hints):
    """The SpyreError that coarse tiling stops the compilation with."""
    raised = []

    def attempt(operations, names):
        before = [list(op.data.ranges) for op in operations if isinstance(op, ir.ComputedBuffer)]
        try:
            tile(operations, names)
        except SpyreError as error:
            raised.append(error)
            after = [list(op.data.ranges) for op in operations if isinstance(op, ir.ComputedBuffer)]
            assert after == before, "nothing is changed before everything is checked"
            raise

    try:
        compiled(function, *arguments, tile=attempt)
    except InductorError:
        return raised[0]
    raise AssertionError("tiling was not refused")
