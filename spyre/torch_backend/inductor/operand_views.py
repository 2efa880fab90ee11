"""What a device operation reads: operands as sizes and strides, and the same on the card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spyre.layout import contiguous_strides
from spyre.layout.device_view import DeviceView, device_view, seen_through
from spyre.torch_backend.allocation import default_base
from spyre.torch_backend.inductor.body import Body, Load, Number
from spyre.torch_backend.inductor.loop_paths import LoopPath
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.value import Ints, NotExpressible, Value


@dataclass(frozen=True, slots=True)
class Read:
    """An operand as the operation takes it: of ``extents``, one stride of a load per dim.

    ``axes``: per dim, the symbol of the body's iteration that goes along it.
    """

    operand: Load | Number
    extents: Ints
    axes: Ints = ()

    @property
    def sizes(self) -> Ints:
        """Extents, 1 along dims that repeat one element. ValueError for a number."""
        if isinstance(self.operand, Number):
            raise ValueError("a number has no sizes")
        strides = self.operand.strides
        return tuple(n if s else 1 for n, s in zip(self.extents, strides, strict=True))


def reads_of(body: Body) -> tuple[Read, ...]:
    """The operands of a body in their order; reduced dims stand where the operand has them."""
    rank, axes = len(body.ranges), list(range(len(body.ranges)))
    if body.operation.program is not None:
        shapes = enumerate(body.operation.program.shapes)
        return tuple(
            _read(body, k, range(rank, rank + len(shape)), tuple(shape)) for k, shape in shapes
        )
    if body.operation.kind is OpKind.REDUCTION:
        for k, dim in enumerate(body.operation.dims):
            axes[dim] = rank + k
        return (_read(body, 0, axes),)
    if body.operation.kind is OpKind.MATMUL:
        *batch, row, column = axes
        return _read(body, 0, (*batch, row, rank)), _read(body, 1, (*batch, rank, column))
    return tuple(_read(body, number, axes) for number in range(len(body.operands)))


def _read(body: Body, number: int, axes: Sequence[int], extents: Ints = ()) -> Read:
    every = (*body.ranges, *body.reduced)
    extents = extents or tuple(every[k] for k in axes)
    operand = body.operands[number]
    if isinstance(operand, Load):
        operand = replace(operand, strides=tuple(operand.strides[k] for k in axes))
    return Read(operand, extents, tuple(axes))


def argument_view(name: str, sizes: Ints, strides: Ints, dtype: str) -> DeviceView:
    """The whole storage of a tensor a kernel is given, in the order of its host elements.

    NotExpressible where pitches cannot describe it.
    """
    base = default_base(sizes, strides, dtype)
    whole = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
    if whole is None:
        raise NotExpressible(f"the layout of {name}")
    return whole


def seen(value: Value, sizes: Ints, strides: Ints, offset: int) -> Value | None:
    """A tensor of ``sizes`` and ``strides`` over the elements of ``value`` in row-major order."""
    if offset == 0 and sizes == value.sizes and strides == contiguous_strides(sizes):
        return value
    found = seen_through(value.view, sizes, strides, offset)
    return None if found is None else replace(value, view=found, order=None)


def first_tile(value: Value, places: Mapping[int, int], path: LoopPath) -> Value:
    """The first element of ``value`` along dims of which loops take one element at a time.

    ``places``: by dim, its place in the iteration space. NotExpressible where the steps from tile
    to tile differ, or are less than a stick.
    """
    dims, pitches = list(value.view.dims), dict(value.tile_pitches)
    for dim, place in places.items():
        if len(dims[dim]) > 1 or any(f.lane for f in dims[dim]):
            raise NotExpressible(f"tiles of one element along {dims[dim]}")
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
