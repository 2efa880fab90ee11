"""Decompositions of aten operations into ``spyre::run``: eager kernels, recorded instead of run.

Every aten operation with a kernel becomes one node: as a device graph, or where its lowering is
about layouts (joins, gathers, sorting) as a `DeviceProgram`. What a kernel refuses for its operands
stays an aten operation, which runs as an eager one between the bundles.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from spyre.torch_backend.compat import operator, schema_of
from spyre.torch_backend.dtypes import name_of
from spyre.torch_backend.eager.copies import CONVERTED, converted
from spyre.torch_backend.eager.functional import VARIANTS
from spyre.torch_backend.eager.kernels import Kernel
from spyre.torch_backend.eager.operands import Number, Operand
from spyre.torch_backend.eager.recording import NotRecorded, recorded_by
from spyre.torch_backend.eager.registry import eager_kernels
from spyre.torch_backend.inductor.compat import (
    DataDependentOutputException,
    tree_leaves,
    without_tracing,
)
from spyre.torch_backend.inductor.device_graph import (
    GraphOperations,
    GraphValue,
    NotAGraph,
    program_results,
)
from spyre.torch_backend.inductor.device_program import DeviceProgram
from spyre.torch_backend.inductor.enlargements import enlargement_decompositions
from spyre.torch_backend.inductor.program_op import RUN, register_call, results_text
from spyre.torch_backend.inductor.scatters import scatter_decompositions
from spyre.torch_backend.program.value import NotExpressible

_log = logging.getLogger("spyre.compile")

HOST_MADE = ("arange", "eye", "linspace", "nonzero", "tril_indices", "triu_indices")
"""Beginnings of names whose kernels work on the host."""

COMPOSITES = ("_scaled_dot_product_fused_attention_overrideable_backward",)
"""Operations whose kernels are made of other aten operations."""
FACTORY_OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""Arguments of operations that make tensors, which their out variants do not have."""
SCALARS = ("add", "sub", "mul", "div")
"""Operations of a tensor and a number, which are those of two tensors to the card."""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator overload."""
    kernels = eager_kernels()
    found: dict[Any, Callable[..., Any]] = {}
    for name, kernel in kernels.items():
        op = operator(name)
        if name in VARIANTS or name.startswith(HOST_MADE) or _writes_operands(op):
            continue
        if name in COMPOSITES:
            found[op] = _composite(kernel)
            continue
        for functional in _functional(op):
            if functional not in found or functional is op:
                found[functional] = _decomposition(functional, op, kernel)
    for name in SCALARS:
        found[operator(f"{name}.Scalar")] = found[operator(f"{name}.Tensor")]
    found |= {operator("_to_copy"): _to_copy, operator("clone"): _clone}
    found[operator("celu")] = _celu
    found |= {operator("sort"): _sort, operator("cat"): _cat_of_some(found[operator("cat")])}
    return found | scatter_decompositions() | enlargement_decompositions()


def _cat_of_some(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A join without the empty tensors among its pieces."""

    def decompose(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
        kept = [t for t in tensors if t.numel()]
        if len({t.dtype for t in tensors}) > 1 or not kept:
            kept = list(tensors)
        if len(kept) == 1:
            return kept[0].clone()
        return decomposition(kept, dim)

    return decompose


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """A sort that may change the order of equals keeps it, as eager mode does."""
    stable: Callable[..., Any] = operator("sort.stable")
    return stable(x, stable=True, dim=dim, descending=descending)


def _to_copy(x: torch.Tensor, **named: Any) -> Any:
    """Conversions between dtypes on the card."""
    dtype, device = named.get("dtype"), named.get("device")
    stays = x.device.type == "spyre" and (device is None or device == x.device)
    if not stays or dtype not in CONVERTED or x.dtype not in CONVERTED or not x.numel():
        return NotImplemented
    parameters = (tuple(map(int, x.shape)), name_of(dtype))
    return _record("copy", converted, [x], parameters, _like(x, named.get("memory_format")))[0]


def _celu(x: torch.Tensor, alpha: float = 1.0) -> Any:
    """As eager mode has it."""
    return (
        operator("elu")(x, alpha, 1.0, 1.0 / alpha) if x.device.type == "spyre" else NotImplemented
    )


def _clone(x: torch.Tensor, *, memory_format: Any = None) -> Any:
    """Copies on the card, contiguous ones."""
    contiguous = memory_format in (None, torch.contiguous_format, torch.preserve_format)
    if x.device.type != "spyre" or x.dtype not in CONVERTED or not contiguous or not x.numel():
        return NotImplemented
    return _record("clone", _copied, [x], (), _like(x, memory_format))[0]


def _like(x: torch.Tensor, memory_format: Any) -> torch.Tensor:
    """A tensor with the strides a copy of ``x`` has."""
    with without_tracing():
        return torch.empty_like(x, memory_format=memory_format or torch.preserve_format)


def _copied(low: Any, x: Any) -> Any:
    return low.copy(x)


def eager_operators() -> set[Any]:
    """Operator overloads that eager kernels do: there is no need to take them apart further."""
    return {functional for name in eager_kernels() for functional in _functional(operator(name))}


def _out_arguments(op: Any) -> list[Any]:
    return [
        a for a in schema_of(op).arguments if a.alias_info is not None and a.alias_info.is_write
    ]


def _writes_operands(op: Any) -> bool:
    return any(not argument.kwarg_only for argument in _out_arguments(op))


def _functional(op: Any) -> Iterator[Any]:
    """The overloads that compute the same into new tensors."""
    outs = _out_arguments(op)
    if not outs:
        yield op
        return
    wanted = [a for a in schema_of(op).arguments if a not in outs]
    for overload in op.overloadpacket.overloads():
        other = getattr(op.overloadpacket, overload)
        same = _kinds(schema_of(other).arguments) == _kinds(wanted)
        if same and not _out_arguments(other):
            yield other


def _kinds(arguments: Sequence[Any]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in arguments if a.name not in FACTORY_OPTIONS]


def _decomposition(op: Any, kernel_op: Any, kernel: Kernel) -> Callable[..., Any]:
    targets = [argument.name for argument in _out_arguments(kernel_op)]

    def decompose(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if not tensors or any(t.device.type != "spyre" for t in tensors if t.dim()):
            return NotImplemented
        on_card = [t for t in tensors if t.device.type == "spyre"]
        if not on_card or not all(t.numel() for t in on_card):
            return NotImplemented
        with without_tracing():
            expected = op(*args, **kwargs)
        new = {}
        if targets:
            results = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            new = dict(zip(targets, results, strict=True))
        try:
            with recorded_by(_record):
                return kernel(*args, **kwargs, **new)
        except (NotExpressible, NotAGraph, NotRecorded, DataDependentOutputException):
            return NotImplemented
        except Exception:
            # While a backward graph is traced, ATen loses what is raised here.
            _log.exception("%s cannot be recorded", op)
            raise

    return decompose


def _composite(kernel: Kernel) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        with recorded_by(_record):
            return kernel(*args, **kwargs)

    return decompose


def _record(
    name: str,
    lowering: Callable[..., Any],
    operands: Sequence[Operand],
    parameters: tuple[Any, ...],
    target: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """An operation as a node of the FX graph that is traced; its result as ``target`` is."""
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    shapes = [tuple(int(n) for n in t.shape) for t in tensors]
    dtypes = [name_of(t.dtype) for t in tensors]
    given = [(o.value, o.dtype) if isinstance(o, Number) else None for o in operands]

    def graph() -> list[GraphValue]:
        low = GraphOperations()
        places = iter(range(len(tensors)))
        values = [_operand(low, number, places, shapes, dtypes) for number in given]
        results = lowering(low, *values, *parameters)
        return [results] if isinstance(results, GraphValue) else list(results)

    try:
        results = graph()
    except NotAGraph:
        program = DeviceProgram(
            name, lowering, parameters, tuple(shapes), tuple(dtypes), tuple(given)
        )
        graph = functools.partial(_program_graph, program)
        results = graph()
    call = f"{name}{parameters!r} of {', '.join(map(_described, operands))}"
    register_call(call, graph)
    return tuple(RUN(tensors, call, results_text(results, target)))


def _program_graph(program: DeviceProgram) -> list[GraphValue]:
    """Anew for every call of this text in the graph."""
    return program_results(replace(program))


def _operand(
    low: GraphOperations,
    number: tuple[float, str] | None,
    places: Iterator[int],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> GraphValue:
    if number is not None:
        return low.constant(*number)
    place = next(places)
    return low.input(place, shapes[place], dtypes[place])


def _described(operand: Operand) -> str:
    if isinstance(operand, Number):
        return f"{operand.value!r}:{operand.dtype}"
    return f"{name_of(operand.dtype)}{list(operand.shape)}"
