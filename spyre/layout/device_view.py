"""Strided views of device tensors: per dim the factors that one pitch describes each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import prod

import msgspec
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES, find_stored_format
from spyre.layout.tensor_layout import SpyreTensorLayout


class Factor(msgspec.Struct, frozen=True):
    """A piece of a dim that one pitch describes.

    ``extent``: number of elements. ``pitch_bytes``: distance of consecutive elements, 0 if all
    steps read the same one. ``lane``: elements are adjacent in sticks, and ``pitch_bytes`` is the
    distance of consecutive sticks.
    """

    extent: int
    pitch_bytes: int
    lane: bool = False


def take(factors: list[Factor], size: int, lanes: int) -> tuple[Factor, ...] | None:
    """Remove the innermost ``size`` elements from the end of ``factors`` and return them.

    None if constant pitches cannot describe them.
    """
    taken: list[Factor] = []
    while size > 1:
        last = factors.pop()
        if size % last.extent == 0:
            taken.append(last)
            size //= last.extent
            continue
        parts = split(last, size, lanes)
        if parts is None:
            return None
        factors.append(parts[0])
        taken.append(parts[1])
        size = 1
    return tuple(reversed(taken))


def split(factor: Factor, inner: int, lanes: int) -> tuple[Factor, Factor] | None:
    """Split a factor so that the inner one has ``inner`` elements; None if that is impossible."""
    if factor.extent % inner:
        return None
    outer = factor.extent // inner
    if not factor.lane:
        return Factor(outer, factor.pitch_bytes * inner), replace(factor, extent=inner)
    if inner % lanes:
        return None
    pitch = factor.pitch_bytes * (inner // lanes)
    return Factor(outer, pitch), replace(factor, extent=inner)


def joined(dim: Sequence[Factor], lanes: int) -> tuple[Factor, ...]:
    """Join neighbouring factors of a dim that one pitch describes.

    Whole sticks at equal distances always become one lane factor, however they were split.
    """
    factors: list[Factor] = []
    for factor in dim:
        outer = factors[-1] if factors else None
        if outer is not None and not outer.lane and _continues(outer, factor, lanes):
            one_stick = factor.lane and factor.extent == lanes
            pitch = outer.pitch_bytes if one_stick else factor.pitch_bytes
            factors[-1] = replace(factor, extent=outer.extent * factor.extent, pitch_bytes=pitch)
        else:
            factors.append(factor)
    return tuple(factors)


def _continues(outer: Factor, inner: Factor, lanes: int) -> bool:
    """Return True if a step of ``outer`` is as long as all of ``inner``."""
    if not inner.lane:
        return outer.pitch_bytes == inner.extent * inner.pitch_bytes
    if inner.extent % lanes or not outer.pitch_bytes:
        return False
    sticks = inner.extent // lanes
    return sticks == 1 or outer.pitch_bytes == sticks * inner.pitch_bytes


Ints = tuple[int, ...]


class DeviceView(msgspec.Struct, frozen=True, dict=True):
    """The addresses of a tensor's elements on the card.

    ``dims``: the factors of each host dim, the outermost first, none for a dim of size 1.
    ``device_format``: of an element. ``offset_bytes``: of element 0 from the start of the storage;
    it is the first element of its stick. Without a lane factor there is one element per stick, the
    first. ``writable``: the sticks contain only elements of this view and padding.
    """

    dims: tuple[tuple[Factor, ...], ...]
    device_format: str
    offset_bytes: int = 0
    writable: bool = True

    @cached_property
    def sizes(self) -> Ints:
        """Host extents in elements."""
        return tuple(prod(f.extent for f in dim) for dim in self.dims)

    @cached_property
    def elements_per_stick(self) -> int:
        """Number of elements in a stick."""
        return find_stored_format(self.device_format).elements_per_stick

    @cached_property
    def lane_dim(self) -> int:
        """The host dim along the lanes of the sticks; -1 if there is none."""
        for k, dim in enumerate(self.dims):
            if dim and dim[-1].lane:
                return k
        return -1

    @property
    def lane_extent(self) -> int:
        """Elements of the lane factor; 1 if there is none."""
        k = self.lane_dim
        return 1 if k < 0 else self.dims[k][-1].extent

    @property
    def span_bytes(self) -> int:
        """Bytes from the first stick to the end of the last one."""
        span = STICK_BYTES
        for factor in (f for dim in self.dims for f in dim):
            steps = -(-factor.extent // self.elements_per_stick) if factor.lane else factor.extent
            span += (steps - 1) * factor.pitch_bytes
        return span

    def permuted(self, order: Sequence[int]) -> DeviceView:
        """Return the view with its dims in ``order``."""
        return replace(self, dims=tuple(self.dims[k] for k in order))

    def unsqueezed(self, dim: int) -> DeviceView:
        """Insert a dim of size 1 before ``dim``."""
        return replace(self, dims=(*self.dims[:dim], (), *self.dims[dim:]))

    def expanded(self, sizes: Sequence[int]) -> DeviceView:
        """Broadcast to ``sizes``: dims of size 1 are repeated, missing ones are added in front."""
        missing = len(sizes) - len(self.dims)
        dims = ((),) * missing + self.dims
        repeated = tuple(
            (Factor(n, 0),) if not dim and n != 1 else dim
            for n, dim in zip(sizes, dims, strict=True)
        )
        return replace(self, dims=repeated, writable=self.writable and repeated == dims)

    def reshaped(self, sizes: Sequence[int]) -> DeviceView | None:
        """Return the elements, in row-major order, with other ``sizes``; None if impossible."""
        factors = [f for dim in self.dims for f in dim]
        dims: list[tuple[Factor, ...]] = []
        for size in reversed(sizes):
            taken = take(factors, size, self.elements_per_stick)
            if taken is None:
                return None
            dims.append(joined(taken, self.elements_per_stick))
        return replace(self, dims=tuple(reversed(dims)))


class _Walk(msgspec.Struct, frozen=True):
    """One device dim of the elements of a host dim: ``stride`` host elements per step."""

    stride: int
    extent: int
    pitch_bytes: int
    lane: bool


@lru_cache(maxsize=8192)
def device_view(
    layout: SpyreTensorLayout,
    base_sizes: Ints,
    base_strides: Ints,
    sizes: Ints,
    strides: Ints,
    offset: int,
) -> DeviceView | None:
    """Return the view ``sizes``, ``strides``, ``offset`` (host elements) of a tensor.

    ``base_sizes``, ``base_strides``: host extents that ``layout`` was made for. None if constant
    pitches cannot describe the view: it begins within a stick, a dim crosses rows, or the layout is
    unusual.
    """
    walks = _walks(layout, base_sizes, base_strides)
    if walks is None:
        return None
    return _walked(walks, layout.device_dtype, layout.elements_per_stick, sizes, strides, offset)


def strided_subview(
    view: DeviceView, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> DeviceView | None:
    """Return the view ``sizes``, ``strides``, ``offset`` over the row-major elements of ``view``.

    All in elements. None if constant pitches cannot describe it.
    """
    walks, stride = [], 1
    for factor in reversed([f for dim in view.dims for f in dim]):
        walks.append(_Walk(stride, factor.extent, factor.pitch_bytes, factor.lane))
        stride *= factor.extent
    lanes, seen = view.elements_per_stick, None
    for row in (walks[::-1], _merged(walks[::-1])):
        seen = seen or _walked(row, view.device_format, lanes, sizes, strides, offset)
    if seen is None:
        return None
    writable = seen.writable and view.writable
    return replace(seen, offset_bytes=seen.offset_bytes + view.offset_bytes, writable=writable)


def _merged(walks: Sequence[_Walk]) -> list[_Walk]:
    """Join neighbouring walks, sorted by falling stride, where the outer continues the inner."""
    merged: list[_Walk] = []
    for walk in walks:
        outer = merged[-1] if merged else None
        follows = outer is not None and outer.pitch_bytes == walk.extent * walk.pitch_bytes
        if outer is not None and follows and not (outer.lane or walk.lane):
            merged[-1] = replace(walk, extent=outer.extent * walk.extent)
        else:
            merged.append(walk)
    return merged


def _walked(
    walks: list[_Walk],
    device_format: str,
    lanes: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> DeviceView | None:
    reached, rest = _begin(walks, offset)
    dims: list[tuple[Factor, ...]] = []
    for size, stride in zip(sizes, strides, strict=True):
        factors = _factors(walks, size, stride, lanes, reached)
        if factors is None:
            return None
        dims.append(factors)
    return _checked(walks, reached, dims, device_format, lanes, rest, offset)


def _walks(layout: SpyreTensorLayout, sizes: Ints, strides: Ints) -> list[_Walk] | None:
    """Return the walks by falling stride; None unless each host dim has one device dim."""
    if layout.element_arrangement != "STANDARD":
        return None
    item_bytes = layout.data_format.bits // 8
    lanes, steps = layout.elements_per_stick, layout.device_strides
    pitches = {
        stride: step * item_bytes
        for stride, step, size in zip(
            layout.stride_map[:-1], steps[:-1], layout.device_size[:-1], strict=True
        )
        if size > 1 and stride > 0
    }
    lane_stride = layout.stride_map[-1]
    found = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if stride == lane_stride:
            pitch = pitches.pop(stride * lanes, 0) if size > lanes else 0
            if size > lanes and not pitch:
                return None
            found.append(_Walk(stride, size, pitch or STICK_BYTES, True))
        elif stride in pitches:
            found.append(_Walk(stride, size, pitches.pop(stride), False))
        else:
            return None
    return None if pitches else sorted(found, key=lambda walk: -walk.stride)


def _begin(walks: list[_Walk], offset: int) -> tuple[dict[int, int], int]:
    """Return the coordinate of element ``offset`` along every walk, by stride, and the rest."""
    begin = {}
    for walk in walks:
        begin[walk.stride], offset = divmod(offset, walk.stride)
    return begin, offset


def _factors(
    walks: list[_Walk], size: int, stride: int, lanes: int, reached: dict[int, int]
) -> tuple[Factor, ...] | None:
    """Return the factors of one dim of a view, and add its last coordinates to ``reached``."""
    if size == 1:
        return ()
    if stride == 0:
        return (Factor(size, 0),)
    walk = next((w for w in walks if w.stride <= stride), None)
    if walk is None or stride % walk.stride:
        return None
    step = stride // walk.stride
    inside = -(-walk.extent // step)
    outer: tuple[Factor, ...] = ()
    if size > inside:
        if inside == 1 or walk.extent % step or size % inside:
            return None
        outer_factors = _factors(walks, size // inside, stride * inside, lanes, reached)
        if outer_factors is None:
            return None
        outer, size = outer_factors, inside
    factor = _factor(walk, size, step, lanes)
    if factor is None:
        return None
    reached[walk.stride] += (size - 1) * step
    return (*outer, *((factor,) if size > 1 else ()))


def _factor(walk: _Walk, size: int, step: int, lanes: int) -> Factor | None:
    if not walk.lane:
        return Factor(size, walk.pitch_bytes * step)
    if step == 1:
        return Factor(size, walk.pitch_bytes, True)
    if step % lanes:
        return None
    return Factor(size, walk.pitch_bytes * (step // lanes))


def _checked(
    walks: list[_Walk],
    reached: dict[int, int],
    dims: list[tuple[Factor, ...]],
    device_format: str,
    lanes: int,
    rest: int,
    offset: int,
) -> DeviceView | None:
    """Return the view if it is inside every dim and begins with a stick, else None."""
    if rest or any(reached[walk.stride] >= walk.extent for walk in walks):
        return None
    begin, _ = _begin(walks, offset)
    offset_bytes, writable = 0, True
    for walk in walks:
        first = begin[walk.stride]
        if not walk.lane:
            offset_bytes += first * walk.pitch_bytes
            continue
        if first % lanes:
            return None
        offset_bytes += first // lanes * walk.pitch_bytes
        end = reached[walk.stride] + 1
        writable = end == walk.extent or end % lanes == 0
        writable = writable and _covers_lanes(dims, end - first, lanes)
    view = DeviceView(
        tuple(joined(dim, lanes) for dim in dims), device_format, offset_bytes, writable
    )
    return view if _is_nested(view) else None


def _covers_lanes(dims: list[tuple[Factor, ...]], extent: int, lanes: int) -> bool:
    """Return True if all elements of the view's sticks belong to the view."""
    lane = next((f for dim in dims for f in dim if f.lane), None)
    if lane is None:
        return extent == 1
    return lane.extent == extent or lane.extent % lanes == 0


def _is_nested(view: DeviceView) -> bool:
    """Return True if sorted pitches divide each other, so that no elements share an address."""
    lanes = view.elements_per_stick
    steps = sorted(
        (f.pitch_bytes, -(-f.extent // lanes) if f.lane else f.extent)
        for dim in view.dims
        for f in dim
        if f.pitch_bytes
    )
    reach = STICK_BYTES
    for pitch, count in steps:
        if count == 1:
            continue
        if pitch < reach or pitch % STICK_BYTES:
            return False
        reach = pitch * count
    return all(larger[0] % smaller[0] == 0 for smaller, larger in itertools.pairwise(steps))


def row_major_view(
    sizes: Sequence[int],
    device_format: str,
    order: Sequence[int],
    lane_dim: int,
    lane_elements: int = 0,
) -> DeviceView:
    """Return the view of a new tensor with the dims of ``order`` from the innermost outwards.

    The lanes are innermost; the sticks of the lane dim are at its position in ``order``.
    ``lane_dim`` -1: one element per stick. ``lane_elements``: the lane dim is rounded up to a
    multiple of it (default: a stick); without a lane dim, the room of each element.
    """
    lanes = find_stored_format(device_format).elements_per_stick
    unit = lane_elements or lanes
    pitch = STICK_BYTES if lane_dim >= 0 else STICK_BYTES * -(-unit // lanes)
    dims: list[tuple[Factor, ...]] = [()] * len(sizes)
    for k in order:
        if sizes[k] == 1:
            continue
        dims[k] = (Factor(sizes[k], pitch, k == lane_dim),)
        pitch *= -(-sizes[k] // unit) * (unit // lanes) if k == lane_dim else sizes[k]
    return DeviceView(tuple(dims), device_format)
