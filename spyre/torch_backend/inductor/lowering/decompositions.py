"""Decompositions of aten operations into ``spyre::run``, and its lowering.

Every aten operation with an eager kernel becomes one node of the FX graph: the kernel runs under a
recorder, which keeps its lowering as a device graph, or as a `DeviceProgram` if it depends on
layouts (joins, gathers, sorting). Inductor's lowering of the node makes one ir.Operation per device
operation. If a kernel refuses its operands, the aten operation stays and runs eagerly between the
bundles. ``spyre::run`` itself runs on constants only; ``spyre::triangle`` makes masks that some
operations need, and ``spyre::slice_scatter`` and the others of `SCATTERS` equal the aten ones.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from operator import getitem
from typing import Any

import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.compat import operator, schema_of
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.compile import Operand, ScalarOperand
from spyre.torch_backend.eager.dispatch import CONVERTED
from spyre.torch_backend.eager.factories import cached_sequence, converted
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.masks import is_number_of, triangle
from spyre.torch_backend.eager.registry import FUNCTIONAL_VARIANTS, eager_kernels
from spyre.torch_backend.eager.scatter import index_put_functional
from spyre.torch_backend.inductor.base import compat
from spyre.torch_backend.inductor.base.compat import OpOverload, tree_leaves, without_tracing
from spyre.torch_backend.inductor.lowering.composite import COMPOSITE_DECOMPOSITIONS, on_each_tensor
from spyre.torch_backend.inductor.lowering.device_graph import (
    DeviceProgram,
    GraphOperations,
    GraphValue,
    LayoutDependent,
    of_another_call,
    program_results,
)
from spyre.torch_backend.inductor.lowering.device_ir import (
    GraphToIr,
    node_strides,
    prevent_inlining,
)
from spyre.torch_backend.program import Ints, LoweringError, NotRecorded, recorded_by

_log = logging.getLogger("spyre.compile")

HOST_MADE = (
    *("_efficientzerotensor", "arange", "eye", "linspace", "nonzero"),
    *("tril_indices", "triu_indices"),
)
"""Prefixes of operations whose kernels run on the host."""

IN_PLACE = ("native_batch_norm",)
"""Operations that write to arguments without declaring it in their schema; Inductor decomposes
them.
"""

COMPOSITES = ("_scaled_dot_product_fused_attention_overrideable_backward",)
"""Operations whose kernels call other aten operations."""
DATA_DEPENDENT = (compat.DataDependentOutputException, compat.GuardOnDataDependentSymNode)
"""Raised for data-dependent numbers, such as those of CPU tensors of rank 0."""
SCALARS = ("add", "sub", "mul", "div")
"""Operations of a tensor and a number with the kernel of two tensors."""

OVERLOADS = {
    **{f"{name}.out": f"{name}.Tensor" for name in ("add", "sub", "mul", "div")},
    **{f"{name}.out": f"{name}.dim" for name in ("mean", "any", "all")},
    "div.out_mode": "div.Tensor_mode",
    "sum.IntList_out": "sum.dim_IntList",
    "prod.int_out": "prod.dim_int",
    "any.all_out": "any",
    "all.all_out": "all",
    "arange.start_out": "arange.start_step",
    "sort.values_stable": "sort.stable",
    "max.dim_max": "max.dim",
    "min.dim_min": "min.dim",
}
"""Functional overloads of ``out`` overloads whose names do not follow `functional_name`."""
RESULT_ARGUMENTS = ("out", "grad_input", "output", "values")
"""Overloads named after the argument that they write; the functional one is the default."""


def functional_name(name: str) -> str:
    """The overload that computes the same as ``name`` into new tensors; "" for in-place ones."""
    if known := OVERLOADS.get(name):
        return known
    packet, _, overload = name.partition(".")
    if packet.endswith("_"):
        return ""
    if overload in RESULT_ARGUMENTS:
        return packet
    return name.removesuffix("_out")


@cache
def functional_kernels() -> dict[Any, tuple[str, Callable[..., Any]]]:
    """Kernel and its aten name by functional operator, which is not decomposed further; a kernel
    for the operator itself wins.
    """
    table: dict[Any, tuple[str, Callable[..., Any]]] = {}
    for name, kernel in eager_kernels().items():
        if name in FUNCTIONAL_VARIANTS:  # the kernel of its ``out`` variant is recorded
            continue
        if functional := functional_name(name):
            op = operator(functional)
            if functional == name or op not in table:
                table[op] = name, kernel
    return table


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Functions that record operations on spyre as ``spyre::run``, by operator.

    They return NotImplemented where the operation stays an aten one.
    """
    table: dict[Any, Callable[..., Any]] = {}
    for op, (name, kernel) in functional_kernels().items():
        if name in COMPOSITES:
            table[op] = partial(_run_composite, kernel)
        elif name not in IN_PLACE and not name.startswith(HOST_MADE):
            table[op] = partial(_run_kernel, op, name, kernel)
    for name in SCALARS:
        table[operator(f"{name}.Scalar")] = table[operator(f"{name}.Tensor")]
    cat = operator("cat")
    table[cat] = partial(_cat_of_some, table[cat])
    table |= {operator(name): getattr(torch.ops.spyre, name) for name in SCATTERS}
    table |= OWN_DECOMPOSITIONS | COMPOSITE_DECOMPOSITIONS
    table = {op: partial(_with_known_values, op, decompose) for op, decompose in table.items()}
    return table | on_each_tensor()


def _with_known_values(op: Any, decompose: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Decompose a call of ``op`` on spyre, unless it depends on data-dependent sizes or numbers:
    these run eagerly, since programs need known ones.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
    if all(t.device.type != "spyre" for t in tensors):
        return NotImplemented
    kinds = {t.dtype for t in tensors}
    is_masked = op is aten.index.Tensor and bool(kinds & {torch.bool, torch.uint8})
    if is_masked or any(_is_unbacked(v) for v in leaves):
        return NotImplemented
    return decompose(*args, **kwargs)


def _is_unbacked(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(_is_unbacked(n) for n in value.shape)
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return symbolic and bool(compat.free_unbacked_symbols(value))


def _cat_of_some(
    decompose: Callable[..., Any], tensors: Sequence[torch.Tensor], dim: int = 0
) -> Any:
    """aten::cat without the empty tensors among its pieces."""
    kept = [t for t in tensors if t.numel()]
    if len({t.dtype for t in tensors}) > 1 or not kept:
        kept = list(tensors)
    return kept[0].clone() if len(kept) == 1 else decompose(kept, dim)


def _to_copy(x: torch.Tensor, **named: Any) -> Any:
    """aten::_to_copy between dtypes on the card."""
    dtype, device = named.get("dtype"), named.get("device")
    stays = x.device.type == "spyre" and (device is None or device == x.device)
    if not stays or dtype not in CONVERTED or x.dtype not in CONVERTED or not x.numel():
        return NotImplemented
    like = _empty_like(x, named.get("memory_format"))
    parameters = (tuple(map(int, x.shape)), name_of(dtype))
    return _record("copy", converted, [x], parameters, like)[0]


def _clone(x: torch.Tensor, *, memory_format: Any = None) -> Any:
    """aten::clone of a tensor on the card."""
    if x.dtype not in CONVERTED or not x.numel():
        return NotImplemented
    return _record("clone", _copied, [x], (), _empty_like(x, memory_format))[0]


def _empty_like(x: torch.Tensor, memory_format: Any) -> torch.Tensor:
    """A tensor with the strides of a copy of ``x``."""
    with without_tracing():
        return torch.empty_like(x, memory_format=memory_format or torch.preserve_format)


def _copied(builder: Any, x: Any) -> Any:
    return builder.copy(x)


def _run_kernel(op: Any, name: str, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the eager kernel of ``name`` under the recorder, for a call of functional ``op``."""
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    if any(not t.numel() if t.device.type == "spyre" else t.dim() for t in tensors):
        return NotImplemented
    with without_tracing():
        expected = op(*args, **kwargs)
    new = {}
    arguments = schema_of(operator(name)).arguments
    if targets := [a.name for a in arguments if a.alias_info and a.alias_info.is_write]:
        results = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        new = dict(zip(targets, results, strict=True))
    try:
        made = _run_composite(kernel, *args, **kwargs, **new)
        if isinstance(made, tuple):
            return tuple(map(_with_strides_of, expected, made))
        # later views of a tensor that is written in place count by its strides
        is_write = hasattr(aten, f"{op.overloadpacket.__name__}_")
        return _with_strides_of(expected, made, is_write)
    except (LoweringError, LayoutDependent, NotRecorded, *DATA_DEPENDENT):
        return NotImplemented
    except Exception:
        # While a backward graph is traced, ATen loses exceptions raised here.
        _log.exception("%s cannot be recorded", op)
        raise


def _with_strides_of(expected: Any, made: Any, contiguous: bool = False) -> Any:
    """``made`` with the strides of ``expected``, which torch's meta function gives the result, but
    contiguous ones only if ``contiguous``: those of some functions leave channels-last out.
    """
    is_tensor = isinstance(expected, torch.Tensor) and made is not None
    if not is_tensor or (expected.is_contiguous() and not contiguous):
        return made
    with without_tracing():
        is_other = made.stride() != expected.stride()
        is_dense = _is_dense(expected.shape, expected.stride())
    return _record("clone", _copied, [made], (), expected)[0] if is_other and is_dense else made


def _run_composite(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with recorded_by(_record):
        return kernel(*args, **kwargs)


PUT = operator("index_put")
OWN_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    PUT: partial(_run_kernel, PUT, "index_put", index_put_functional),
    operator("_to_copy"): _to_copy,
    operator("clone"): _clone,
}
"""Decompositions that no eager kernel gives, by operator."""


def _record(
    name: str,
    lowering: Callable[..., Any],
    operands: Sequence[Operand],
    parameters: tuple[Any, ...],
    target: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Record an operation as a node of the traced FX graph.

    ``target``: the tensor that eager mode would write, whose strides the result gets.
    """
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    shapes = [tuple(int(n) for n in t.shape) for t in tensors]
    dtypes = [name_of(t.dtype) for t in tensors]
    given = [(o.value, o.dtype) if isinstance(o, ScalarOperand) else None for o in operands]
    parameters = compat.tree_map(lambda v: int(v) if isinstance(v, torch.SymInt) else v, parameters)
    builder = GraphOperations()
    rows = enumerate(zip(shapes, dtypes, strict=True))
    inputs = iter([builder.input(position, *row) for position, row in rows])
    values = [next(inputs) if n is None else builder.constant(*n) for n in given]
    try:
        lowered = lowering(builder, *values, *parameters)
        results = _separate_results(
            builder, [lowered] if isinstance(lowered, GraphValue) else lowered
        )
    except LayoutDependent:
        results = program_results(
            DeviceProgram(name, lowering, parameters, tuple(shapes), tuple(dtypes), tuple(given))
        )
    call = f"{name}{parameters!r} of {', '.join(map(_described, operands))}"
    _graphs_by_call[call] = results
    _runs_by_call[call] = partial(_run_again, name, lowering, parameters, given)
    return tuple(RUN(tensors, call, results_text(results, target)))


def _separate_results(builder: GraphOperations, results: Sequence[GraphValue]) -> list[GraphValue]:
    """The results, with copies of those that are operands or earlier results, as in eager mode."""
    taken: set[int] = set()
    own = []
    for value in results:
        is_shared = value.node.position >= 0 or id(value.node) in taken
        taken.add(id(value.node))
        own.append(builder.copy(value) if is_shared else value)
    return own


def _described(operand: Operand) -> str:
    if isinstance(operand, ScalarOperand):
        return f"{operand.value!r}:{operand.dtype}"
    return f"{name_of(operand.dtype)}{list(operand.shape)}"


LIBRARY = torch.library.Library("spyre", "DEF")
LIBRARY.define("run(Tensor[] operands, str call, str results) -> Tensor[]")
LIBRARY.define(
    "triangle(SymInt rows, SymInt columns, SymInt diagonal, bool lower, Device device) -> Tensor"
)
LIBRARY.define("sequence(str make, Scalar[] numbers, ScalarType dtype, Device device) -> Tensor")
LIBRARY.define("write_at(Tensor(a!) self, int dim, SymInt index, Tensor source) -> ()")
SCATTERS = {
    "slice_scatter": "SymInt dim, SymInt? start, SymInt? end, SymInt step",
    "diagonal_scatter": "int offset=0, int dim1=0, int dim2=1",
    "as_strided_scatter": "SymInt[] size, SymInt[] stride, SymInt? storage_offset=None",
}
"""Parameters of aten's writes to views, which compiled code calls as ``spyre::`` operations."""

_graphs_by_call: dict[str, list[GraphValue]] = {}
"""Device graphs of the results of calls, by call text; operands are inputs in the node's order."""

_runs_by_call: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {}
"""The same calls as eager operations on the node's operands."""


def _run_again(
    name: str,
    lowering: Callable[..., Any],
    parameters: tuple[Any, ...],
    numbers: Sequence[tuple[float, str] | None],
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    rest = iter(tensors)
    operands = [next(rest) if n is None else ScalarOperand(*n) for n in numbers]
    return run(name, lowering, operands, parameters)


def results_text(results: Sequence[GraphValue], target: torch.Tensor | None) -> str:
    """The text of results in a node: ``float16[2,3];bool[2]``, followed by ``@`` and the strides of
    ``target`` if these are not row-major. ``target``: the tensor that eager mode would write.
    """
    with without_tracing():  # symbols of sizes are only compared
        strides = [_strides_as(target, value) for value in results]
    return ";".join(
        f"{v.dtype}[{_listed(v.sizes)}]" + (f"@[{_listed(row)}]" if row else "")
        for v, row in zip(results, strides, strict=True)
    )


def _strides_as(target: torch.Tensor | None, value: GraphValue) -> Ints:
    """The strides (elements) of ``target`` if ``value`` can be a dense buffer with them."""
    if target is None or value.node.number is not None:
        return ()
    if tuple(target.shape) != value.sizes or target.is_contiguous():
        return ()
    strides = tuple(int(n) for n in target.stride())
    dense = _is_dense(value.sizes, strides)
    return strides if dense and node_strides(value, strides) else ()


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor has neither gaps nor elements that share memory."""
    held = sorted((int(s), int(n)) for s, n in zip(strides, sizes, strict=True) if n > 1)
    return all(s == prod(n for _, n in held[:k]) for k, (s, _) in enumerate(held))


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def results_of(text: str) -> list[tuple[torch.dtype, Ints, Ints]]:
    """dtype, sizes and strides of every result of a `results_text`."""
    results = []
    for dtype, *rows in re.findall(r"(\w+)\[([\d,]*)\](?:@\[([\d,]*)\])?", text):
        sizes, strides = (tuple(int(n) for n in row.split(",") if n) for row in rows)
        results.append((getattr(torch, dtype), sizes, strides or contiguous_strides(sizes)))
    return results


def _fake(operands: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    device = operands[0].device
    return [
        torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        for dtype, sizes, strides in results_of(results)
    ]


def _of_constants(operands: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    """``spyre::run`` on real tensors, constants of a traced graph (``torch.tensor([1])``)."""
    with recorded_by(None):
        new = _fake(operands, call, results)
        for target, value in zip(new, _runs_by_call[call](operands), strict=True):
            target.copy_(value)
    return new


def _write_at(x: torch.Tensor, dim: int, index: int, source: torch.Tensor) -> None:
    """``spyre::write_at``: write the elements at an index of ``dim``."""
    x.select(dim, index).copy_(source)


for _name, _parameters in SCATTERS.items():
    LIBRARY.define(f"{_name}(Tensor self, Tensor src, {_parameters}) -> Tensor")
LIBRARY.impl("run", _of_constants, "PrivateUse1")
for _name, _function in {
    **{name: operator(name) for name in SCATTERS},
    "write_at": _write_at,
    "triangle": triangle,
    "sequence": cached_sequence,
}.items():
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
for _name, _function in {
    **{name: operator(name) for name in SCATTERS},
    "run": _fake,
    "triangle": lambda *args: torch.empty(args[:2], dtype=torch.bool, device=args[-1]),
    "sequence": lambda make, numbers, dtype, device: getattr(torch, make)(
        *numbers, dtype=dtype, device=device
    ),
}.items():
    torch.library.register_fake(f"spyre::{_name}", _function, lib=LIBRARY)
RUN = torch.ops.spyre.run.default

aten = torch.ops.aten

LOWERED_BY_INDUCTOR = {
    RUN,
    *map(operator, ("view", "_unsafe_view", "reshape", "permute", "transpose.int", "t", "expand")),
    *map(operator, ("unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", "slice.Tensor")),
    *map(operator, ("select.int", "split.Tensor", "split_with_sizes", "unbind.int", "alias")),
    *map(operator, ("detach", "full", "copy_", "_local_scalar_dense")),
}
"""Operations on spyre tensors that Inductor lowers; all others run eagerly, between bundles."""


def lower_run(operands: Sequence[Any], call: str, results: str) -> list[Any]:
    """The lowering of ``spyre::run``."""
    for box in operands:
        box.realize()
        prevent_inlining(box)
    maker = GraphToIr(operands)
    values = of_another_call(_graphs_by_call[call])
    known = zip(values, results_of(results), strict=True)
    return [maker.result(value, strides) for value, (_, _, strides) in known]


COPIED_VIEWS = {
    aten.as_strided.default: aten.as_strided_copy.default,
    aten.unfold.default: aten.unfold_copy.default,
    aten.diagonal.default: aten.diagonal_copy.default,
}
"""Views whose elements the cores cannot walk in general, and the operations that copy them."""


def copy_strided_views(graph: torch.fx.Graph) -> None:
    """Replace views of `COPIED_VIEWS`, and tensors with gaps or overlapping elements that kernels
    read, by operations that copy them.

    Writes to views are scatters at this point, so a copy has the same elements. Results of the
    graph stay views, made by eager mode, since the graph guarantees their strides.
    """
    _view_arguments(graph)
    returned = _views_for_results(graph)
    for node in list(graph.nodes):
        if node in returned or not _is_on_spyre(node):
            continue
        _copy_gaps(node, [user for user in _readers_of_gaps(node) if user not in returned])
        if node.target not in COPIED_VIEWS:
            continue
        base, *parameters = node.args
        if node.target is aten.as_strided.default:
            base, parameters = _in_storage(node)
        copied = COPIED_VIEWS[node.target]
        value = copied(base.meta["val"], *parameters)
        _replace(node, copied, (base, *parameters), value)


def _copy_gaps(tensor: torch.fx.Node, readers: Sequence[torch.fx.Node]) -> None:
    """Have ``readers`` read a contiguous copy of a tensor that is neither argument nor view. Its
    strides may differ from those of its node if its operands have been copied.
    """
    if readers and tensor.op != "placeholder" and not _is_view(tensor):
        with tensor.graph.inserting_after(tensor):
            copy = tensor.graph.call_function(aten.alias_copy.default, (tensor,))
        copy.meta["val"] = aten.alias_copy.default(tensor.meta["val"])
        for reader in readers:
            reader.replace_input_with(tensor, copy)


def _replace(node: torch.fx.Node, target: OpOverload, args: tuple[Any, ...], value: Any) -> None:
    """Put a call of ``target``, with the result ``value``, in the place of a node."""
    graph = node.graph
    with graph.inserting_before(node):
        new = graph.call_function(target, args)
    new.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _view_arguments(graph: torch.fx.Graph) -> None:
    """Have kernels read arguments with gaps or overlapping elements as aten::as_strided of them."""
    for argument in filter(_is_on_spyre, graph.find_nodes(op="placeholder")):
        readers = _readers_of_gaps(argument)
        if not readers:
            continue
        value = argument.meta["val"]
        once, strides = _elements_once(value), list(value.stride())
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            view = graph.call_function(aten.as_strided.default, (argument, once, strides))
            whole = graph.call_function(aten.expand.default, (view, list(value.shape)))
        view.meta["val"], whole.meta["val"] = value.as_strided(once, strides), value
        for reader in readers:
            reader.replace_input_with(argument, whole)


def _readers_of_gaps(tensor: torch.fx.Node) -> list[torch.fx.Node]:
    """The kernels that read a tensor with gaps or overlapping elements, and views taken of it."""
    value = tensor.meta.get("val")
    is_known = isinstance(value, torch.Tensor) and not _is_unbacked(value)
    dense = not is_known or _is_dense(_elements_once(value), value.stride())
    # writes, and eager operations on memory, take the tensor itself in first place
    users = () if dense else ((u, u.target is RUN or _is_view(u)) for u in tensor.users)
    return [user for user, is_kernel in users if is_kernel or tensor in user.args[1:]]


def _elements_once(x: torch.Tensor) -> list[int]:
    """The sizes of ``x``, 1 along dims that repeat one element."""
    return [n if s else 1 for n, s in zip(x.shape, x.stride(), strict=True)]


def _views_for_results(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Make separate nodes for results that are `COPIED_VIEWS` or view gaps; returns these nodes."""
    separate: dict[torch.fx.Node, torch.fx.Node] = {}
    output = graph.output_node()
    for result in output.all_input_nodes:
        chain = _views_to(result)
        copied = any(node.target in COPIED_VIEWS and _is_on_spyre(node) for node in chain)
        if copied or (chain and _readers_of_gaps(chain[0].args[0])):
            with graph.inserting_before(output):
                for node in chain:
                    if node not in separate:
                        separate[node] = graph.node_copy(node, lambda n: separate.get(n, n))
            output.replace_input_with(result, separate[result])
    return set(separate.values())


def _views_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The chain of views from a tensor that is not a view to ``node``."""
    chain: list[torch.fx.Node] = []
    while _is_view(node):
        chain.append(node)
        node = node.args[0]
    return chain[::-1]


def _in_storage(node: torch.fx.Node) -> tuple[torch.fx.Node, list[Any]]:
    """The base and parameters of an aten::as_strided. Its elements count from the start of the
    storage, so a view of a copied view is based on the tensor that this view was taken of.
    """
    base = source = node.args[0]
    copies = {*COPIED_VIEWS.values(), aten.alias_copy.default}
    while _is_view(source) or source.target in copies:
        copied, source = source.target in copies, source.args[0]
        base = source if copied else base
    if base is node.args[0]:
        return base, list(node.args[1:])
    return base, [*node.args[1:3], node.meta["val"].storage_offset()]


def _is_view(node: torch.fx.Node) -> bool:
    if node.target is getitem:
        return _is_view(node.args[0])
    if not isinstance(node.target, OpOverload):
        return False
    aliases = [result.alias_info for result in schema_of(node.target).returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


_MADE = ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace")
SEQUENCES = tuple(map(operator, _MADE))
MAX_KEPT_ELEMENTS = 1 << 16


def share_sequences(graph: torch.fx.Graph) -> None:
    """Merge equal nodes of `SEQUENCES` on spyre, each of which is made on the host and copied. One
    that only kernels read is cached on the card between calls of the graph.

    Sequences that the graph returns are not merged, as their caller may write to them. The graph is
    still functional, so that nothing else does.
    """
    made: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.target not in SEQUENCES or not _is_on_spyre(node) or _is_returned(node):
            continue
        if node.all_input_nodes:  # of sizes that only a launch knows
            continue
        value = node.meta["val"]
        kind = (node.target, node.args, value.dtype, value.device)
        first = made.setdefault(kind, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    for node in made.values():
        value, make = node.meta["val"], node.target.overloadpacket.__name__
        if value.numel() <= MAX_KEPT_ELEMENTS and _is_only_read(node):
            args = (make, list(node.args), value.dtype, value.device)
            _replace(node, torch.ops.spyre.sequence.default, args, value)


def _is_only_read(node: torch.fx.Node) -> bool:
    """Whether only kernels read a node, and none returns it. An eager operation might reuse its
    memory for a result.
    """
    return all(
        (_is_view(user) and _is_only_read(user))
        or (user.target is RUN and all(v.node.position < 0 for v in _graphs_by_call[user.args[1]]))
        for user in node.users
    )


def _is_returned(node: torch.fx.Node) -> bool:
    """Whether the graph returns a node or a view of it."""
    return any(
        user.op == "output" or (_is_view(user) and _is_returned(user)) for user in node.users
    )


def numbers_as_tensors(graph: torch.fx.Graph) -> None:
    """Compute on the host with numbers read from spyre tensors (``Tensor.item``), and round numbers
    that become tensors.

    AOTAutograd turns such numbers into float64 tensors, which cards have no format for, and
    Inductor cannot pass a bool to eager mode as a tensor. UnsupportedDtype for float64 tensors with
    dims.
    """
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.target is aten.full.default and _is_on_spyre(node):
            size, number = node.args  # rounded as in eager mode, before it is converted
            if value.dtype.is_floating_point and isinstance(number, (int, float)):
                rounded = torch.tensor(number, dtype=value.dtype, device="cpu").item()
                node.args = (size, rounded)
        is_double = isinstance(value, torch.Tensor) and value.dtype is torch.float64
        if is_double and value.device.type == "spyre":
            if value.dim():
                name_of(value.dtype)
            node.meta["val"] = value.to("cpu")
            if node.target is torch.ops.prims.convert_element_type.default:
                node.target = operator("_to_copy")
                node.args, node.kwargs = node.args[:1], {"dtype": torch.float64, "device": "cpu"}
        elif not is_double and node.target is torch.ops.prims.convert_element_type.default:
            if node.args[0].meta["val"].dtype is torch.float64 and _is_on_spyre(node):
                node.target = operator("_to_copy")
                node.kwargs = {"dtype": node.args[1], "device": value.device}
                node.args = node.args[:1]
        elif isinstance(node.target, OpOverload):
            _take_bools_as_tensors(graph, node)


def insert_known_numbers(graph: torch.fx.Graph) -> None:
    """Replace computed sizes that are plain numbers by them: where sizes became constants after the
    graph was traced, Inductor would evaluate `%` and `//` of numbers as those of symbols.
    """
    for node in reversed(graph.nodes):
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, (int, float)):
            node.replace_all_uses_with(value)
            graph.erase_node(node)


def _take_bools_as_tensors(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    pairs = zip(schema_of(node.target).arguments, node.args, strict=False)
    for k, (argument, given) in enumerate(pairs):
        read = isinstance(given, torch.fx.Node) and given.target is aten._local_scalar_dense.default
        if read and str(argument.type) == "Tensor" and isinstance(given.meta["val"], torch.SymBool):
            (tensor,) = given.args
            with graph.inserting_before(node):
                number = graph.call_function(aten.reshape.default, (tensor, []))
            number.meta["val"] = tensor.meta["val"].reshape([])
            node.update_arg(k, number)


def mark_fallbacks(graph: torch.fx.Graph) -> None:
    """Have Inductor call eager mode for every node on spyre that `_is_lowered` is false for.

    Nodes that only order others inherit their marks, which are removed. Inductor would lose writes
    to elements at an index that only a launch knows: they become writes to the whole tensor.
    """
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        part, source = node.args[:2]
        if part.target is aten.select.int and _begins_anywhere(part):
            with graph.inserting_before(node):
                graph.call_function(torch.ops.spyre.write_at.default, (*part.args, source))
            graph.erase_node(node)
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            node.meta.pop("should_fallback", None)
            continue
        # Inductor's own fallbacks refuse operations with a decomposition where CI is set.
        if node.target not in compat.lowering.lowerings:
            compat.lowering.make_fallback(node.target, warn=False, override_decomp=True)
        if not _is_lowered(node) and (_is_on_spyre(node) or _is_host_number(node)):
            node.meta["should_fallback"] = True


GRAPH_PASSES = (
    insert_known_numbers, copy_strided_views, share_sequences, numbers_as_tensors, mark_fallbacks,
)  # fmt: skip
"""Passes over a graph before Inductor lowers it, in order."""


def _is_lowered(node: torch.fx.Node) -> bool:
    """Whether Inductor lowers a node, not for converting copies and fills that need rounding."""
    if node.target is aten.copy_.default:
        target, source = (a.meta["val"] for a in node.args[:2])
        alike = target.dtype == source.dtype and target.device == source.device
        dense = _is_dense(target.shape, target.stride())
        return alike and target.dtype in CONVERTED and target.numel() > 0 and dense
    if node.target is aten.full.default:
        made = node.meta["val"]
        return (
            made.dtype in CONVERTED
            and is_number_of(node.args[1], made.dtype)
            and not _is_unbacked(made)
            and made.numel() > 0
        )
    return node.target in LOWERED_BY_INDUCTOR and not _begins_anywhere(node)


def _begins_anywhere(node: torch.fx.Node) -> bool:
    """Whether a node is a part of a tensor at an index that only a launch knows."""
    is_part = node.target in (aten.select.int, aten.slice.Tensor)
    return is_part and any(_is_unbacked(given.meta["val"]) for given in node.all_input_nodes)


def _is_host_number(node: torch.fx.Node) -> bool:
    """Whether the result is a CPU tensor of rank 0, too small for a kernel compiled by Inductor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim()


def _is_on_spyre(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    given = [a.meta.get("val") for a in node.all_input_nodes]
    tensors = [t for t in (*values, *given) if isinstance(t, torch.Tensor)]
    return any(t.device.type == "spyre" for t in tensors)
