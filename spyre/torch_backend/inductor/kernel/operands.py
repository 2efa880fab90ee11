"""What a device operation reads, as sizes and strides and the same on the card, and the loops
around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

from spyre.layout import (
    DeviceView,
    SpyreTensorLayout,
    contiguous_strides,
    device_view,
    strided_subview,
)
from spyre.torch_backend.inductor.bundles import HostExtents, KernelLoop, KernelOp, UnimplementedOp
from spyre.torch_backend.inductor.lowering import Body, ConstantLoad, Load
from spyre.torch_backend.inductor.tiling import extents_of, shares_of
from spyre.torch_backend.program import Ints, LoweringError, OpKind, Value
from spyre.torch_backend.tensors import argument_base


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """A tensor a kernel is given: host extents and strides (elements), torch dtype name.

    ``layout``: on the card, None for the default one.
    """

    sizes: Ints
    strides: Ints
    dtype: str
    layout: SpyreTensorLayout | None = None

    @property
    def extents(self) -> HostExtents:
        """As generated code says them."""
        known = (self.sizes, self.strides, self.dtype)
        if self.layout is None:
            return known
        return *known, (self.layout.device_size, self.layout.stride_map)


@dataclass(frozen=True, slots=True)
class OperandRead:
    """An operand as the operation takes it: of ``extents``, one stride of a load per dim.

    ``axes``: per dim, the symbol of the body's iteration that goes along it.
    """

    operand: Load | ConstantLoad
    extents: Ints
    axes: Ints = ()

    @property
    def sizes(self) -> Ints:
        """Extents, 1 along dims that repeat one element. ValueError for a number."""
        if isinstance(self.operand, ConstantLoad):
            raise ValueError("a number has no sizes")
        strides = self.operand.strides
        return tuple(n if s else 1 for n, s in zip(self.extents, strides, strict=True))


def reads_of(body: Body) -> tuple[OperandRead, ...]:
    """The operands of a body in their order; reduced dims stand where the operand has them."""
    rank, axes = len(body.ranges), list(range(len(body.ranges)))
    if body.operation.program is not None:
        shapes = enumerate(body.operation.program.shapes)
        return tuple(
            _operand_read(body, k, range(rank, rank + len(shape)), tuple(shape))
            for k, shape in shapes
        )
    if body.operation.kind is OpKind.REDUCTION:
        for k, dim in enumerate(body.operation.dims):
            axes[dim] = rank + k
        return (_operand_read(body, 0, axes),)
    if body.operation.kind is OpKind.MATMUL:
        *batch, row, column = axes
        return _operand_read(body, 0, (*batch, row, rank)), _operand_read(
            body, 1, (*batch, rank, column)
        )
    return tuple(_operand_read(body, number, axes) for number in range(len(body.operands)))


def _operand_read(body: Body, number: int, axes: Sequence[int], extents: Ints = ()) -> OperandRead:
    every = (*body.ranges, *body.reduced)
    extents = extents or tuple(every[k] for k in axes)
    operand = body.operands[number]
    if isinstance(operand, Load):
        operand = replace(operand, strides=tuple(operand.strides[k] for k in axes))
    return OperandRead(operand, extents, tuple(axes))


def argument_view(name: str, buffer: HostBuffer) -> DeviceView:
    """The whole storage of a tensor a kernel is given, in the order of its host elements.

    LoweringError where pitches cannot describe it.
    """
    base = argument_base(*buffer.extents)
    whole = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
    if whole is None:
        raise LoweringError(f"the layout of {name}")
    return whole


def strided_view(value: Value, sizes: Ints, strides: Ints, offset: int) -> Value | None:
    """A tensor of ``sizes`` and ``strides`` over the elements of ``value`` in row-major order."""
    if offset == 0 and sizes == value.sizes and strides == contiguous_strides(sizes):
        return value
    view = strided_subview(value.view, sizes, strides, offset)
    return None if view is None else replace(value, view=view, order=None)


def first_tile(value: Value, places: Mapping[int, int], path: LoopPath) -> Value:
    """The first element of ``value`` along dims of which loops take one element at a time.

    ``places``: by dim, its place in the iteration space. LoweringError where the steps from tile
    to tile differ, or are less than a stick.
    """
    dims, pitches = list(value.view.dims), dict(value.tile_pitches)
    for dim, place in places.items():
        if len(dims[dim]) > 1 or any(f.lane for f in dims[dim]):
            raise LoweringError(f"tiles of one element along {dims[dim]}")
        for factor in dims[dim]:
            steps = path.single_steps(place)
            pitches |= {loop: step * factor.pitch_bytes for loop, step in steps}
        dims[dim] = ()
    view = replace(value.view, dims=tuple(dims))
    return replace(value, view=view, order=None, tile_pitches=tuple(pitches.items()))


def storage_order(strides: Sequence[int]) -> Ints:
    """The dims of a dense buffer with ``strides`` as its elements follow each other."""
    return tuple(sorted(range(len(strides)), key=lambda k: (-strides[k], k)))


def other_lanes(value: Value) -> list[int]:
    """Lane dims to try, the last dims first, in the end one element per stick."""
    lanes = [k for k, n in enumerate(value.sizes) if n > 1 and k != value.lane_dim]
    return [*reversed(lanes), -1]


@dataclass(frozen=True, slots=True)
class LoopPath:
    """Per enclosing loop, the outermost first: its number, how often it runs (a number or an
    expression of sizes), and the dim of the operation that it moves along, None where the
    operation does not follow it. ``shares``: (dim of the operation, cores that are to share it).

    ``singles``: instead of a dim, the place in the iteration space whose tiles have one element: an
    operation's views have no dim there.
    """

    numbers: tuple[int, ...] = ()
    counts: tuple[Any, ...] = ()
    dims: tuple[int | None, ...] = ()
    singles: tuple[int | None, ...] = ()
    shares: tuple[tuple[int, int], ...] = ()

    def seen_as(self, dims: Mapping[int, int | None]) -> LoopPath:
        """The same loops around an operation whose dims have other numbers; None: that it lacks."""
        dims_seen = (None if d is None else dims.get(d, d) for d in self.dims)
        shares = ((dims.get(d, d), cores) for d, cores in self.shares)
        kept = tuple((d, cores) for d, cores in shares if d is not None)
        return replace(self, dims=tuple(dims_seen), shares=kept)

    @property
    def undivided(self) -> LoopPath:
        """The same loops around a copy that is made for the operation: hints do not mean it."""
        return replace(self, shares=()) if self.shares else self

    def single_tiles(self, place: int) -> int:
        """How many tiles there are of one element at a place of the iteration space; 1: none."""
        return prod(n for p, n in zip(self.singles, self.counts, strict=True) if p == place)

    def single_steps(self, place: int) -> list[tuple[int, int]]:
        """(loop, tiles that an iteration of it moves on by) of tiles of one element."""
        steps, step = [], 1
        for loop in reversed(range(len(self.singles))):
            if self.singles[loop] == place:
                steps.append((loop, step))
                step *= self.counts[loop]
        return steps

    def __bool__(self) -> bool:
        return bool(self.numbers)


NO_LOOPS = LoopPath()


def loop_path(operation: Any) -> LoopPath:
    """The loops that coarse tiling has put an ir.Operation in, and how hints divide it."""
    numbers, shares = tuple(getattr(operation, "loop_group_id", ())), shares_of(operation)
    if not numbers:
        return replace(NO_LOOPS, shares=shares) if shares else NO_LOOPS
    places = [entry[0] if entry else None for entry in operation.loop_tiled_dims]
    extents = extents_of(operation)
    single = [place is not None and extents[place] == 1 for place in places]
    dims = tuple(None if one else p for p, one in zip(places, single, strict=True))
    singles = tuple(p if one else None for p, one in zip(places, single, strict=True))
    return LoopPath(numbers, tuple(operation.loop_count), dims, singles, shares)


def looped(
    ops: Sequence[KernelOp], paths: Sequence[LoopPath]
) -> tuple[KernelOp | UnimplementedOp | KernelLoop, ...]:
    """``ops``, one per path, inside their loops; what follows each other shares a loop."""
    return _nested(list(zip(ops, paths, strict=True)), 0)


def _nested(
    pairs: Sequence[tuple[KernelOp, LoopPath]], depth: int
) -> tuple[KernelOp | UnimplementedOp | KernelLoop, ...]:
    nested: list[KernelOp | UnimplementedOp | KernelLoop] = []
    for key, run in groupby(pairs, lambda pair: pair[1].numbers[depth : depth + 1]):
        members = list(run)
        if key:
            nested.append(KernelLoop(members[0][1].counts[depth], _nested(members, depth + 1)))
        else:
            nested += [op for op, _ in members]
    return tuple(nested)
