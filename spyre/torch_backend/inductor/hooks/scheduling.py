"""`SpyreScheduling`: bundles of scheduled operations, and the code that launches them.

After fusion, and before bundles are formed, operations that share a loop become one node
(`CountedLoopSchedulerNode`), which nothing is fused into and which one ``codegen_node`` call
receives whole. Runs of operations on spyre become one bundle each, nodes in the order in which the
fewest bundles do the work: what does not run in bundles keeps its order, as random numbers and
other side effects want it, and comes as early as what it needs allows. A bundle with baked
addresses names its arguments by segments, of which tensors may use seven, one of them for the pool
(hardware reference §4.6, bundle format reference §3.2): such runs are cut.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import sympy
import torch

from spyre.errors import SpyreError, UnsupportedError
from spyre.mlir.builder import MAX_SEGMENTS
from spyre.torch_backend.inductor.base import (
    NO_CALL,
    BaseScheduling,
    CustomSchedulerPass,
    FusedSchedulerNode,
    NopKernelSchedulerNode,
    OrderedSet,
    PythonWrapperCodegen,
    SchedulerNode,
    SubgraphPythonWrapperCodegen,
    V,
    cache_key,
    get_fused_kernel_name,
    get_kernel_metadata,
    kernel_call,
    settings,
    sympy_product,
    tags_of,
    wants_notes,
)
from spyre.torch_backend.inductor.bundles import spec_text, to_op_specs
from spyre.torch_backend.inductor.dynamic import CollectedKernels, RowTile, collecting
from spyre.torch_backend.inductor.hooks.pre_scheduling import name_of_input, printer_of
from spyre.torch_backend.inductor.kernel import HostBuffer, PlannedKernel, SpyreKernel, target_of
from spyre.torch_backend.inductor.lowering import body_of
from spyre.torch_backend.inductor.passes import host_buffer
from spyre.torch_backend.program import Ints

# --- nodes of loops ---------------------------------------------------------------------------


class CountedLoopSchedulerNode(FusedSchedulerNode):  # type: ignore[misc]
    """A loop around scheduler nodes, some of which may be loops themselves.

    ``loop_count``: how often the body runs. Belongs to one scheduler, so to one thread.
    """

    loop_count: sympy.Expr

    def __init__(self, scheduler: Any, snodes: list[Any], loop_count: Any) -> None:
        super().__init__(scheduler, snodes)
        self.loop_count = sympy.sympify(loop_count)

    @classmethod
    def create(cls, snodes: Sequence[Any], loop_count: Any) -> CountedLoopSchedulerNode:
        """A loop around ``snodes``; all nodes in it are known to the scheduler by it."""
        scheduler = snodes[0].scheduler
        loop = cls(scheduler, list(snodes), loop_count)
        for node in (loop, *snodes, *leaf_nodes(loop)):
            scheduler.name_to_fused_node[node.get_name()] = loop
        return loop

    def unpack(self) -> list[Any]:
        """Itself: a loop is generated as a whole."""
        return [self]

    @classmethod
    def can_fuse(cls, producer: Any, consumer: Any) -> bool:
        """Never."""
        return False


def leaf_nodes(node: Any) -> Iterator[Any]:
    """The scheduler nodes of operations in ``node``, in program order."""
    if not isinstance(node, FusedSchedulerNode):
        yield node
        return
    for part in node.snodes:
        yield from leaf_nodes(part)


def build_loop_scheduler_nodes(nodes: Sequence[Any]) -> list[Any]:
    """``nodes`` with every run of one loop group in a CountedLoopSchedulerNode, loops nested.

    SpyreError SPY971 if the nodes of a group do not follow each other, SPY972 if nodes of a loop
    disagree on its count.
    """
    return _build(list(nodes), 0)


def _build(nodes: list[Any], depth: int) -> list[Any]:
    """The nodes of one loop body; those with a path beyond ``depth`` are in inner loops."""
    built: list[Any] = []
    seen: set[int] = set()
    place = 0
    while place < len(nodes):
        key = _key(nodes[place], depth)
        if key is None:
            built.append(nodes[place])
            place += 1
            continue
        if key in seen:
            raise _torn(nodes, depth, key)
        seen.add(key)
        run = [nodes[place]]
        while place + len(run) < len(nodes) and _key(nodes[place + len(run)], depth) == key:
            run.append(nodes[place + len(run)])
        place += len(run)
        count = _count(run, depth)
        built.append(CountedLoopSchedulerNode.create(_build(run, depth + 1), count))
    return built


def _loop_group_id(node: Any) -> tuple[int, ...]:
    """The path of a node's operations; empty outside of loops."""
    groups = {tuple(getattr(leaf.node, "loop_group_id", ())) for leaf in leaf_nodes(node)}
    if len(groups) > 1:
        raise SpyreError(
            "SPY971",
            f"node {node.get_name()} holds operations of several loop groups",
            expected="loop nodes are built before nodes are fused",
            found=", ".join(map(str, sorted(groups))),
        )
    return groups.pop()


def _key(node: Any, depth: int) -> int | None:
    path = _loop_group_id(node)
    return path[depth] if len(path) > depth else None


def _torn(nodes: Sequence[Any], depth: int, key: int) -> SpyreError:
    members = [n.get_name() for n in nodes if _key(n, depth) == key]
    order = [n.get_name() for n in nodes]
    first, last = order.index(members[0]), order.index(members[-1])
    between = [name for name in order[first:last] if name not in members]
    return SpyreError(
        "SPY971",
        f"the scheduler has torn loop group {key} at depth {depth}",
        expected="its nodes one after the other",
        found=f"{', '.join(between)} between {', '.join(members)}",
        hint="an operation of the group depends on one outside that depends on the group",
    )


def _count(run: Sequence[Any], depth: int) -> Any:
    leaves = [leaf for node in run for leaf in leaf_nodes(node)]
    counts = [next(iter(leaf.node.loop_count[depth:]), None) for leaf in leaves]
    if None in counts or any(count != counts[0] for count in counts):
        raise SpyreError(
            "SPY972",
            f"operations of one loop disagree on its count at depth {depth}",
            expected="one count",
            found=", ".join(
                f"{leaf.node.get_name()}: {count}"
                for leaf, count in zip(leaves, counts, strict=True)
            ),
        )
    return counts[0]


# --- bundles of nodes -------------------------------------------------------------------------


def spyre_fuse_nodes(nodes: list[Any]) -> list[Any]:
    """Every contiguous run of operations on spyre as one node: one bundle."""
    fused: list[Any] = []
    run: list[Any] = []
    for node in in_few_runs(nodes, _is_bundled):
        if isinstance(node, NopKernelSchedulerNode) and not node.unmet_dependencies:
            fused.append(node)  # memory for a loop's results, which nothing has to wait for
            continue
        joins = _is_bundled(node)
        if run and not (joins and node.get_device() == run[-1].get_device()):
            fused += _bundle(run)
            run = []
        (run if joins else fused).append(node)
    return [*fused, *_bundle(run)]


def _is_bundled(node: Any) -> bool:
    return isinstance(node, (SchedulerNode, CountedLoopSchedulerNode)) and _is_on_spyre(node)


def _bundle(run: Sequence[Any]) -> list[Any]:
    """One node; several where addresses are baked in and one bundle cannot name all tensors."""
    if not run:
        return []
    pieces = [list(run)] if settings().bundle_symbolic_args else cut_to_segments(run, _segments)
    return [p[0] if len(p) < 2 else FusedSchedulerNode(p[0].scheduler, p) for p in pieces]


def _segments(nodes: Sequence[Any]) -> int:
    return _kernel_of([leaf for node in nodes for leaf in leaf_nodes(node)]).finished().segments


def _kernel_of(leaves: Sequence[Any]) -> SpyreKernel:
    kernel = SpyreKernel(_GraphBuffers(), _read_outside(leaves))
    for leaf in leaves:
        kernel.add(leaf.node)
    return kernel


def _is_on_spyre(node: Any) -> bool:
    device = node.get_device()
    return device is not None and device.type == "spyre"


class PostFusionPasses(CustomSchedulerPass):  # type: ignore[misc]
    """What runs after Inductor's own fusion, which leaves spyre's nodes alone."""

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The nodes to generate code for."""
        return spyre_fuse_nodes(build_loop_scheduler_nodes(nodes))

    def uuid(self) -> str | None:
        """Changes with all that graphs and their inputs do not say."""
        return cache_key()


class SpyreScheduling(BaseScheduling):  # type: ignore[misc]
    """Code generation for nodes on spyre."""

    def group_fn(self, sizes: Iterable[Any]) -> tuple[Any, ...]:
        """Elements of the iteration, and of what is reduced in it."""
        return tuple(V.graph.sizevars.simplify(sympy_product(row)) for row in sizes)

    def flush(self) -> None:
        pass

    def get_backend_features(self, device: torch.device) -> Any:
        """None of the features Inductor asks for."""
        return OrderedSet()

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        return False

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        return False

    def codegen_node(self, node: Any) -> None:
        """One bundle, and its launch."""
        leaves = [leaf for leaf in leaf_nodes(node) if leaf.get_name() not in self._removed]
        kernel = _kernel_of(leaves)
        internal = {leaf.node.get_name() for leaf in leaves} - set(_read_outside(leaves))
        V.graph.removed_buffers |= internal
        finished = kernel.finished(printer_of(V.graph))
        name = self._define(leaves, finished)
        if (collected := collecting()) is not None:
            _collect(collected, name, leaves, kernel, finished)
        for leaf in leaves:
            leaf.mark_run()
        call = self._define_call(leaves, kernel.arguments, finished.made_for)
        arguments = ", ".join([*kernel.arguments, *call])
        V.graph.wrapper_code.writeline(f"{name}.run({arguments})")
        self.free_buffers_in_scheduler()

    @property
    def _removed(self) -> Any:
        return self.scheduler.removed_ops

    def _define(self, leaves: Sequence[Any], finished: PlannedKernel) -> str:
        wrapper = V.graph.wrapper_code
        source = finished.text
        known: str | None = wrapper.src_to_kernel.get(source)
        if known is not None:
            return known
        fused = get_fused_kernel_name(leaves, "original_aten")
        name = f"sdsc_{fused}_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[source] = name
        comments = [*get_kernel_metadata(leaves, wrapper)]
        if wants_notes():
            comments.append(textwrap.indent(spec_text(to_op_specs(finished.kernel)), "# "))
        code = f"async_compile.sdsc({name!r}, {source})"
        wrapper.define_kernel(name, code, "\n".join(comments))
        return name

    def _define_call(
        self, leaves: Sequence[Any], arguments: Sequence[str], made_for: Sequence[int]
    ) -> list[str]:
        """What the call says of itself to the kernel, which may be that of other calls too."""
        tags = [tags_of(leaf.node) for leaf in leaves]
        names = [_name_of_input(name) for name in arguments]
        call = kernel_call(names, [tags[k] if k >= 0 else () for k in made_for], _is_backward())
        if call == NO_CALL:
            return []
        wrapper, source = V.graph.wrapper_code, repr(call)
        if source not in wrapper.src_to_kernel:
            digest = hashlib.sha256(source.encode()).hexdigest()[:12]
            wrapper.src_to_kernel[source] = name = f"call_{digest}"
            wrapper.define_kernel(name, source, None)
        return [f"call={wrapper.src_to_kernel[source]}"]


def _is_backward() -> bool:
    return bool(V.graph.is_backward)


def _name_of_input(buffer: str) -> str:
    """What the function calls an input; "" for others, and for those that the graph writes to,
    which may be other values by then.
    """
    return "" if buffer in V.graph.mutated_inputs else name_of_input(buffer)


def _collect(
    collected: CollectedKernels,
    name: str,
    leaves: Sequence[Any],
    kernel: SpyreKernel,
    finished: PlannedKernel,
) -> None:
    """Hand a kernel over to whoever compiles a tile of rows."""
    operations = [leaf.node for leaf in leaves]
    inside = {operation.get_name() for operation in operations}
    every = {operation.get_name() for operation in V.graph.operations}
    collected.others = sorted(every - inside)
    buffers = _GraphBuffers()
    targets = [target_of(operation) for operation in operations]
    inputs = tuple(V.graph.graph_input_names)
    known = {target: buffers[target] for target in (*targets, *inputs)}
    bodies = tuple(zip(targets, map(body_of, operations), strict=True))
    outputs = tuple(V.graph.get_output_names())
    names = tuple(kernel.arguments)
    views = tuple(_view(output) for output in V.graph.graph_outputs)
    collected.row_tiles.append(
        RowTile(name, finished, names, inputs, outputs, views, known, bodies)
    )


def _view(output: Any) -> tuple[Ints, Ints, int]:
    """Host sizes, strides and offset of a graph's output in its buffer."""
    if not hasattr(output, "maybe_get_layout") or (layout := output.maybe_get_layout()) is None:
        return (), (), 0
    sizes, strides = (tuple(int(n) for n in row) for row in (layout.size, layout.stride))
    return sizes, strides, int(layout.offset)


def _read_outside(leaves: Sequence[Any]) -> list[str]:
    """Buffers that something else reads than these nodes; weak users only come after them."""
    inside = {leaf.get_name() for leaf in leaves}
    outputs = set(V.graph.get_output_names())
    names = []
    for leaf in leaves:
        if (target := target_of(leaf.node)) != leaf.node.get_name():
            names.append(target)
            continue
        for buffer in leaf.get_outputs():
            users = {user.get_name() for user in buffer.users if not user.is_weak}
            if users - inside or buffer.get_name() in outputs:
                names.append(buffer.get_name())
    return names


class _GraphBuffers(dict[str, HostBuffer]):
    """Buffers of the graph as bodies name them; scheduling renames what was mutated."""

    def __missing__(self, name: str) -> HostBuffer:
        buffer = self[name] = host_buffer(V.graph, name)
        return buffer


def in_few_runs(nodes: Sequence[Any], is_bundled: Callable[[Any], bool]) -> list[Any]:
    """``nodes`` in another order that their dependencies allow; theirs is one already."""
    makers = {b.get_name(): k for k, node in enumerate(nodes) for b in node.get_outputs()}
    needs = [
        {makers[dep.name] for dep in node.unmet_dependencies if dep.name in makers} - {k}
        for k, node in enumerate(nodes)
    ]
    bundled = [k for k, node in enumerate(nodes) if is_bundled(node)]
    others = sorted(set(range(len(nodes))) - set(bundled))
    done: dict[int, None] = {}
    while bundled or others:
        while others and needs[others[0]] <= done.keys():
            done[others.pop(0)] = None
        for k in bundled:
            if needs[k] <= done.keys():
                done[k] = None
        bundled = [k for k in bundled if k not in done]
    return [nodes[k] for k in done]


def cut_to_segments(
    run: Sequence[Any], segments: Callable[[Sequence[Any]], int], limit: int = MAX_SEGMENTS
) -> list[list[Any]]:
    """``run`` in pieces, each as long as fits, in order.

    ``run``: scheduler nodes. ``segments``: how many the bundle of such nodes needs. A piece may
    need fewer than a part of it, as what is read within is no argument, but never fewer than
    tensors it reads from outside. UnsupportedError SPY967 for a node that needs too many alone.
    """
    rest, pieces = list(run), []
    while rest:
        count = _longest(rest, segments, limit)
        if not count:
            raise _too_many(rest[0], segments(rest[:1]), limit)
        pieces.append(rest[:count])
        rest = rest[count:]
    return pieces


def _longest(nodes: Sequence[Any], segments: Callable[[Sequence[Any]], int], limit: int) -> int:
    """How many of the first ``nodes`` fit together, 0 if not even one does."""
    if segments(nodes) <= limit:
        return len(nodes)
    read: set[str] = set()
    made: set[str] = set()
    longest = 0
    for count, node in enumerate(nodes, 1):
        read |= {dep.name for dep in node.read_writes.reads} - made
        made |= set(node.get_buffer_names())
        if len(read) > limit:
            break
        if segments(nodes[:count]) <= limit:
            longest = count
    return longest


def _too_many(node: Any, found: int, limit: int) -> UnsupportedError:
    return UnsupportedError(
        "SPY967",
        f"{node.get_name()} takes more tensors and numbers than a bundle of baked addresses can",
        expected=f"at most {limit}, the pool of intermediate results among them",
        found=str(found),
        hint="leave bundle_symbolic_args (BUNDLE_SYMBOLIC_ARGS) on",
    )


HEADER = """
from spyre.torch_backend.inductor.base.sources import KernelCall
from spyre.torch_backend.inductor.bundles.kernels import SpyreAsyncCompile
from spyre.torch_backend.inductor.bundles.kernel_op import KernelLoop, KernelOp, KernelTensor
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.tensors import empty_strided_on
"""


class _OwnCards:
    """Wrappers whose buffers lie on the card they were compiled for, whatever card is current."""

    def make_allocation(self, name: str, device: torch.device, *args: Any, **named: Any) -> str:
        """Inductor writes the device's type only, and takes current the card of a guard.

        As its wrappers do for other devices, ours allocate without the way through the dispatcher.
        """
        device_text = SimpleNamespace(type=str(device))
        code: str = super().make_allocation(name, device_text, *args, **named)  # type: ignore[misc]
        if device.type != "spyre":
            return code
        return code.replace(" = empty_strided(", " = empty_strided_on(", 1)


class SpyreSubgraphWrapper(_OwnCards, SubgraphPythonWrapperCodegen):  # type: ignore[misc]
    """The wrapper of a part of a graph."""


class SpyreWrapper(_OwnCards, PythonWrapperCodegen):  # type: ignore[misc]
    """A wrapper module whose kernels are bundles."""

    def __init__(self) -> None:
        super().__init__()
        V.graph.sizevars._simplify_loops_impl = _leave_loops

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> Any:
        """The wrapper of a graph, or of a part of it."""
        if is_subgraph:
            return SpyreSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapper()

    def write_header(self) -> None:
        """Imports, and where kernels are made."""
        super().write_header()
        self.imports.splice(HEADER, strip=True)
        chosen = settings()
        form = f"symbolic={chosen.bundle_symbolic_args}, unrolled={chosen.unroll_loops}"
        self.header.writeline(f"async_compile = SpyreAsyncCompile({form})")


def _leave_loops(index_vars: Any, sizes: Any, formulas: Any) -> Any:
    """Dims stay as they are: tiling names them by position."""
    return sizes, lambda x: x, lambda x: x
