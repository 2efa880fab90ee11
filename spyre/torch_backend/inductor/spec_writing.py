"""From the operations of a program under construction to specs.

A tensor's device dims are read off its pitches: every pitch is the step of one device dim, the dim
outside of it says how many there are. So coordinates are sums of symbols, whatever view they come
from, and a tensor in default layout has the device size of that layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.layout.device_view import DeviceView
from spyre.torch_backend.inductor.op_spec import DataFormats, OpSpec, TensorArg
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.op_spec import OpSpec as Operation
from spyre.torch_backend.program.value import NotExpressible, Value

SEGMENT_BYTES = 1 << 34
FLOOR, MOD = sympy.floor, sympy.Mod


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies. ``argument``: number among the launch arguments, -1 for scratch."""

    name: str
    argument: int
    size_bytes: int


def spec_of(operation: Operation, places: Mapping[int, Place]) -> tuple[OpSpec, tuple[str, ...]]:
    """The operation as a spec whose scratch tensors have no place yet, and its tensors' names.

    ``places``: by region. NotExpressible for kinds that specs do not have.
    """
    values, views, roles = _walked(operation)
    dims = common_iteration(views, roles)
    symbols = [sympy.Symbol(f"c{k}") for k in range(len(dims))]
    args = [
        _arg(places[value.region], view, dims, symbols, number, number < len(values) - 1)
        for number, (value, view) in enumerate(zip(values, views, strict=True))
    ]
    space = {s: (sympy.Integer(dim.extent), 1) for s, dim in zip(symbols, dims, strict=True)}
    is_reduction = operation.kind in (OpKind.REDUCTION, OpKind.MATMUL)
    spec = OpSpec(operation.name, is_reduction, space, args, _info(operation))
    return spec, tuple(places[value.region].name for value in values)


def _walked(operation: Operation) -> tuple[list[Value], list[DeviceView], list[int] | None]:
    """Tensors, their views over one iteration, and roles of its dims, as emission has them."""
    output, values = operation.written, [*operation.inputs, operation.written]
    if operation.kind is OpKind.POINTWISE:
        return values, [v.expanded(output.sizes).view for v in values], None
    if operation.kind is OpKind.RESTICKIFY:
        return values, [v.view for v in values], None
    if operation.kind is OpKind.REDUCTION:
        sizes = values[0].sizes
        roles = [int(k in operation.dims) for k in range(len(sizes))]
        return values, [v.expanded(sizes).view for v in values], roles
    if operation.kind is OpKind.MATMUL:
        return values, *_product(operation)
    raise NotExpressible(f"{operation.kind} in a compiled kernel")


def _product(operation: Operation) -> tuple[list[DeviceView], list[int]]:
    left, right = operation.inputs
    rank = len(operation.output.sizes)
    sizes = (*operation.output.sizes, left.sizes[-1])
    values = (
        left.unsqueezed(rank - 1).expanded(sizes),
        right.transposed(rank - 2, rank - 1).unsqueezed(rank - 2).expanded(sizes),
        operation.output.unsqueezed(rank).expanded(sizes),
    )
    return [v.view for v in values], [*([0] * (rank - 2)), 1, 2, 3]


def _info(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if operation.constants:
        found["constants"] = dict(operation.constants)
    if operation.mask_from:
        found["mask_from"] = operation.mask_from
    if operation.lane_multiple:
        found["lane_multiple"] = operation.lane_multiple
    return found


def _arg(
    place: Place,
    view: DeviceView,
    dims: Sequence[IterationDim],
    symbols: Sequence[sympy.Symbol],
    number: int,
    is_input: bool,
) -> TensorArg:
    lanes = view.elements_per_stick
    steps, lane = _steps(dims, symbols, number, lanes)
    pitches = sorted({STICK_BYTES, *(pitch for pitch, _ in steps)}, reverse=True)
    outer = -(-place.size_bytes // pitches[0])
    sizes = [outer, *(a // b for a, b in itertools.pairwise(pitches))]
    rest, coordinates = view.offset_bytes, []
    for pitch in pitches:
        at, rest = divmod(rest, pitch)
        coordinates.append(sum((step for p, step in steps if p == pitch), sympy.Integer(at)))
    allocation = {"hbm": SEGMENT_BYTES * place.argument} if place.argument >= 0 else {"pool": 0}
    return TensorArg(
        is_input,
        place.argument,
        DataFormats(view.device_format),
        [*sizes, lanes],
        [*coordinates, MOD(lane, lanes) if lane is not None else sympy.Integer(0)],
        allocation,
    )


def _steps(
    dims: Sequence[IterationDim], symbols: Sequence[sympy.Symbol], number: int, lanes: int
) -> tuple[list[tuple[int, sympy.Expr]], sympy.Symbol | None]:
    """(pitch in bytes, what counts it) of everything the operand moves by, and its lane symbol."""
    found: list[tuple[int, sympy.Expr]] = []
    lane = None
    for dim, symbol in zip(dims, symbols, strict=True):
        factor = dim.factors[number]
        if factor.lane:
            lane = symbol
            if factor.extent > lanes:
                found.append((factor.pitch_bytes, FLOOR(symbol / lanes)))
        elif factor.pitch_bytes:
            found.append((factor.pitch_bytes, symbol))
    return found, lane
