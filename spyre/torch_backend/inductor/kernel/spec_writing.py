"""From the operations of a program under construction to specs.

A tensor's device dims are read off its pitches: every pitch is the step of one device dim, the dim
outside of it says how many there are. So coordinates are sums of symbols, whatever view they come
from, and a tensor in default layout has the device size of that layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.layout.device_view import DeviceView
from spyre.mlir.builder.operations import BufferAddress as SdscPlace
from spyre.torch_backend.inductor.bundles.op_spec import DataFormats, OpSpec, TensorArg
from spyre.torch_backend.inductor.bundles.views import INDIRECT, ROW, indirect_info
from spyre.torch_backend.inductor.kernel.operands import LoopPath
from spyre.torch_backend.program.emit import iteration_space
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import LoweringError, OpKind, Value
from spyre.torch_backend.program.op_spec import OpSpec as Operation

SEGMENT_BYTES = 1 << 34


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """Where a value lies. ``argument``: number among the launch arguments, -1 for scratch.
    ``moves``: loops go on in it; else it holds a tile, the same memory in all iterations.
    """

    name: str
    argument: int
    size_bytes: int
    moves: bool


def spec_of(
    operation: Operation, places: Mapping[int, RegionPlace], path: LoopPath
) -> tuple[OpSpec, tuple[str, ...]]:
    """The operation as a spec whose scratch tensors have no place yet, and its tensors' names.

    ``places``: by region. ``path``: loops around it. LoweringError for kinds that specs lack.
    """
    values, views, dims, rows = _iterated(operation, path)
    symbols = [sympy.Symbol(f"c{k}") for k in range(len(dims))]
    extents = [_walked_extent(dim, operation.lane_multiple, views) for dim in dims]
    singles = _single_symbols(values, len(dims))
    args = []
    for number, (value, view) in enumerate(zip(values, views, strict=True)):
        tiles = [(pitch, singles[loop]) for loop, pitch in value.tile_pitches if pitch]
        moves = _OperandSteps(dims, _counted(symbols, dims, number, rows), number, extents, tiles)
        args.append(_arg(places[value.region], view, moves, number < len(values) - 1, bool(path)))
    space = {s: (sympy.Integer(n), 1) for s, n in zip(symbols, extents, strict=True)}
    space |= {s: (sympy.Integer(1), 1) for s in singles.values()}
    is_reduction = operation.kind in (OpKind.REDUCTION, OpKind.MATMUL)
    tiled = [
        singles[loop] if loop in singles else _symbol_of(dim, dims, symbols)
        for loop, dim in enumerate(path.dims)
    ]
    info = _info(operation)
    if rows:
        info[INDIRECT] = indirect_info(symbols, dims, rows)
    spec = OpSpec(operation.name, is_reduction, space, args, info, tiled)
    return spec, tuple(places[value.region].name for value in values)


def _iterated(
    operation: Operation, path: LoopPath
) -> tuple[list[Value], Sequence[DeviceView], Sequence[IterationDim], int]:
    """Tensors, their views, the dims of one iteration, and rows of a gather's table."""
    if operation.kind in (OpKind.TOPK, OpKind.GATHER):
        walk = iteration_space(operation, _anywhere)
        if sum(dim.role == 1 for dim in walk.dims) > 1 and walk.rows:
            raise LoweringError("rows of a gather in several steps")
        return [*operation.inputs, operation.written], walk.views, walk.dims, walk.rows
    values, views, roles = _walked(operation)
    if path:  # loops move along single dims
        roles = list(range(len(views[0].sizes)))
    return values, views, common_iteration(views, roles), 0


def _anywhere(value: Value) -> SdscPlace:
    return SdscPlace("somewhere", value.view.offset_bytes)


def _counted(
    symbols: Sequence[sympy.Symbol], dims: Sequence[IterationDim], number: int, rows: int
) -> Sequence[sympy.Symbol]:
    """What counts the dims of an operand: rows of a gather's table are those the index names."""
    if not rows or number:
        return symbols
    return [ROW if dim.role else s for s, dim in zip(symbols, dims, strict=True)]


def _single_symbols(values: Sequence[Value], first: int) -> dict[int, sympy.Symbol]:
    """Symbols of one element, numbered from ``first``, for loops over tiles of one element."""
    moving = sorted({loop for value in values for loop, pitch in value.tile_pitches if pitch})
    return {loop: sympy.Symbol(f"c{first + k}") for k, loop in enumerate(moving)}


def _symbol_of(
    dim: int | None, dims: Sequence[IterationDim], symbols: Sequence[sympy.Symbol]
) -> sympy.Expr:
    """What counts a dim: the outermost of its symbols, 0 for a dim of one element."""
    found = (s for s, d in zip(symbols, dims, strict=True) if d.role == dim)
    return sympy.Integer(0) if dim is None else next(found, sympy.Integer(0))


def _walked_extent(dim: IterationDim, multiple: int, views: Sequence[DeviceView]) -> int:
    """Elements along a dim; lanes that are walked several sticks at a time, in whole ones.

    ``multiple``: of such lanes, where the operation says so; else they are those of tensors whose
    sticks differ.
    """
    lanes = {v.elements_per_stick for v, f in zip(views, dim.factors, strict=True) if f.lane}
    if not lanes or (not multiple and len(lanes) == 1):
        return dim.extent
    multiple = multiple or max(lanes)
    return -(-dim.extent // multiple) * multiple


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
    raise LoweringError(f"{operation.kind} in a compiled kernel")


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
    return found


@dataclass(frozen=True, slots=True)
class _OperandSteps:
    """How operand ``number`` moves along ``dims``, counted by ``symbols``.

    ``extents``: elements walked along each. ``tiles``: (pitch in bytes, symbol) of what only loops
    move it along.
    """

    dims: Sequence[IterationDim]
    symbols: Sequence[sympy.Symbol]
    number: int
    extents: Sequence[int]
    tiles: Sequence[tuple[int, sympy.Symbol]]

    def count(self, coordinate: sympy.Expr) -> int:
        """Values a coordinate takes within one iteration of the loops."""
        last = {s: dim.extent - 1 for s, dim in zip(self.symbols, self.dims, strict=True)}
        coordinate = coordinate.subs({symbol: 0 for _, symbol in self.tiles})
        first = coordinate.subs(dict.fromkeys(self.symbols, 0))
        return int(coordinate.subs(last) - first) + 1

    def found(
        self, lanes: int, moves_on: bool
    ) -> tuple[list[tuple[int, sympy.Expr]], sympy.Symbol | None]:
        """(pitch in bytes, what counts it) of all it moves by, and its lane symbol.

        ``moves_on``: loops may go on to other sticks.
        """
        steps: list[tuple[int, sympy.Expr]] = list(self.tiles)
        lane = None
        for dim, symbol, extent in zip(self.dims, self.symbols, self.extents, strict=True):
            factor = dim.factors[self.number]
            if factor.lane:
                lane = symbol
                if moves_on or extent > lanes:
                    steps.append((factor.pitch_bytes, sympy.floor(symbol / lanes)))
            elif factor.pitch_bytes:
                steps.append((factor.pitch_bytes, symbol))
        return steps, lane


def _arg(
    place: RegionPlace, view: DeviceView, moves: _OperandSteps, is_input: bool, in_loop: bool
) -> TensorArg:
    """A tensor. What a loop writes of a whole one is a tile of it; tiles alone do not move."""
    lanes = view.elements_per_stick
    given, in_whole = place.argument >= 0, in_loop and place.moves
    steps, lane = moves.found(lanes, in_whole)
    pitches = sorted({STICK_BYTES, *(pitch for pitch, _ in steps)}, reverse=True)
    outer = -(-place.size_bytes // pitches[0])
    sizes = [outer, *(a // b for a, b in pairwise(pitches))]
    rest, coordinates = view.offset_bytes, []
    for pitch in pitches:
        at, rest = divmod(rest, pitch)
        coordinates.append(sum((step for p, step in steps if p == pitch), sympy.Integer(at)))
    allocation = {"hbm": SEGMENT_BYTES * place.argument} if given else {"pool": 0}
    whole = [*sizes, lanes]
    is_tile = in_whole and not is_input
    tile = [*(moves.count(c) for c in coordinates), lanes] if is_tile else whole
    return TensorArg(
        is_input,
        place.argument,
        DataFormats(view.device_format),
        tile,
        [*coordinates, sympy.Mod(lane, lanes) if lane is not None else sympy.Integer(0)],
        allocation,
        per_tile_fixed=in_loop and not in_whole,
        within=whole if tile != whole else (),
    )
