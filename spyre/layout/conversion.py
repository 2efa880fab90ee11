"""Data-conversion descriptors: a host ↔ device copy as plain loop nests.

What a copy between a host tensor and a device tensor does, all of it: its formats, the loop nests
that move elements, and on the way in the nests whose device positions become zero. A nest is an
`AccessMap` over elements, of the host and of the device. The compiled copies execute these
descriptors and nothing else; reports and the sanitizer find elements and sticks in the nests.
`conversion_info` makes them: the device dims become axes (an element arrangement splits two of them
into its digits), the axes of each host dim are cut into boxes, and each choice of one box per host
dim is a nest. Rule: runtime reference §3; arrangements: operations reference §6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.layout.access_map import AccessMap, Axis, sort_axes
from spyre.layout.geometry import (
    TransferGeometry,
    host_coordinate_of_offset,
    is_parted,
    misfit,
    transfer_geometry,
)
from spyre.layout.tensor_layout import Digit, SpyreTensorLayout, arrangement_digits

Span = tuple[int, int]
"""First index and number of steps along one axis."""
Box = tuple[Span, ...]
"""One span per axis."""


def split_boxes(size: int, axes: Sequence[tuple[int, int]]) -> tuple[list[Box], list[Box]]:
    """Boxes of the indices that hold one of ``size`` elements, and of all others; all disjoint.

    ``axes``: (multiplier, extent), from the coarsest to the finest, see `coarse_to_fine` of the
    geometry: each step of an axis contains ``multiplier`` elements of the axes after it. Boxes of
    whole steps come before those of the rest.
    """
    if not axes:
        return ([()], []) if size > 0 else ([], [()])
    (multiplier, extent), rest = axes[0], axes[1:]
    complete, begun = min(extent, size // multiplier), min(extent, -(-size // multiplier))
    occupied: list[Box] = []
    padding: list[Box] = []
    for first, steps, elements in (
        (0, complete, multiplier),
        (complete, begun - complete, size % multiplier),
    ):
        if steps:
            inner_held, inner_padding = split_boxes(elements, rest)
            occupied += [((first, steps), *box) for box in inner_held]
            padding += [((first, steps), *box) for box in inner_padding]
    if begun < extent:
        padding.append(((begun, extent - begun), *((0, n) for _, n in rest)))
    return occupied, padding


Ints = tuple[int, ...]

HOST, DEVICE = 0, 1
"""Spaces of a nest; in both, positions are elements."""


class DataConversionInfo(msgspec.Struct, frozen=True):
    """A copy of one tensor.

    ``host_format``/``device_format``: names in `spyre.dtypes.FORMATS`; ``device_size``: of the
    layout; ``nests``: which element of the host is which of the device, every host element exactly
    once (but for expanded layouts, whose device positions are all written; a host pitch is 0 where
    all steps read one element); ``zero_fill``: all other device positions, empty on the way out.
    Axes go by falling device pitch.
    """

    to_device: bool
    host_format: str
    device_format: str
    device_size: Ints
    nests: tuple[AccessMap, ...]
    zero_fill: tuple[AccessMap, ...] = ()

    @property
    def host_range(self) -> tuple[int, int] | None:
        """Lowest and highest host element that the copy touches; None if it touches none."""
        if not self.nests:
            return None
        lows = min(nest.lowest(HOST) for nest in self.nests)
        return lows, max(nest.highest(HOST) for nest in self.nests)

    def moved(self, host_elements: int) -> DataConversionInfo:
        """The same copy with a host tensor that begins ``host_elements`` later."""
        if host_elements == 0:
            return self
        return replace(self, nests=tuple(n.shifted((host_elements, 0)) for n in self.nests))


class _Axis(msgspec.Struct, frozen=True):
    """A device dim, or a digit of one: its steps, its stride, and the host dim it walks.

    ``multiplier``: host coordinates per step of ``host_dim`` (−1: none); ``limit``: how many steps
    hold host elements where there is no host dim. ``in_stick``: it counts lanes.
    """

    extent: int
    device_stride: int
    host_dim: int
    multiplier: int
    limit: int
    in_stick: bool


class _Group(NamedTuple):
    """The axes of one host dim, or one axis without; its boxes that hold elements or padding."""

    axes: Ints
    held: list[Box]
    padding: list[Box]
    whole: Box


def conversion_info(
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    dtype: str,
    to_device: bool,
    host_strides: Sequence[int] | None = None,
    host_offset: int = 0,
) -> DataConversionInfo:
    """Descriptor of a copy between a host tensor of torch dtype ``dtype`` and a device tensor.

    ``dma_sizes``/``dma_strides``: host extents the layout was made for; ``host_strides``: those of
    the host storage when they differ; ``host_offset``: its first element. All in elements.
    LaunchError SPY322 and SPY810, UnsupportedError SPY323 as in `transfer_geometry`; SPY311 for the
    dtype; LaunchError SPY811 when a copy to the host would write one element several times.
    """
    strides = tuple(dma_strides if host_strides is None else host_strides)
    if len(strides) != len(dma_sizes):
        raise LaunchError(
            "SPY322",
            "sizes and strides of a host tensor differ in rank",
            expected=f"{len(dma_sizes)} strides for sizes {list(dma_sizes)}",
            found=f"strides {list(strides)}",
        )
    if 0 in dma_sizes:
        nests: tuple[AccessMap, ...] = ()
        zero_fill = _fill_all(layout, to_device)
    else:
        geometry = transfer_geometry(layout, dma_sizes, dma_strides)
        _check_folded(geometry, strides)
        walk, groups = _grouped_walk(geometry, layout, to_device, strides, host_offset)
        nests = _nests(walk, groups)
        zero_fill = tuple(_zero_fill(walk.picked((DEVICE,)), groups)) if to_device else ()
    return DataConversionInfo(
        to_device=to_device,
        host_format=find_host_dtype(dtype).host_format,
        device_format=layout.device_dtype,
        device_size=layout.device_size,
        nests=nests,
        zero_fill=zero_fill,
    )


def _fill_all(layout: SpyreTensorLayout, to_device: bool) -> tuple[AccessMap, ...]:
    """Positions that a copy of an empty host tensor fills: all of the device tensor, if any."""
    if layout.device_bytes == 0 or not to_device:
        return ()
    pairs = zip(layout.device_size, layout.device_strides, strict=True)
    return (AccessMap((0,), tuple(Axis(extent, (stride,)) for extent, stride in pairs)),)


def _axes(
    geometry: TransferGeometry, layout: SpyreTensorLayout, to_device: bool
) -> Iterator[_Axis]:
    """All axes by rising device stride."""
    last, strides = len(geometry.device_size) - 1, layout.device_strides
    lane_digits, stick_digits = _digits(geometry)
    for k in range(last, -1, -1):
        extent, stride = geometry.device_size[k], strides[k]
        host_dim, multiplier = geometry.host_dims[k], geometry.multipliers[k]
        digits = {last: lane_digits, geometry.stick_axis: stick_digits}.get(k, ())
        for n, columns in digits:
            yield _Axis(n, stride, host_dim, columns * geometry.multipliers[last], n, k == last)
            extent, stride, multiplier = extent // n, stride * n, multiplier * n
        if k == last and digits:
            continue
        limit = geometry.limits[k] if to_device or host_dim >= 0 else min(extent, 1)
        yield _Axis(extent, stride, host_dim, multiplier, min(limit, extent), k == last)


def _digits(geometry: TransferGeometry) -> tuple[list[Digit], list[Digit]]:
    """Digits of the arrangement that count lanes of a stick, and those that count sticks."""
    lanes: list[Digit] = []
    sticks: list[Digit] = []
    if geometry.arrangement == "STANDARD":
        return lanes, sticks
    position = 1
    for extent, columns in arrangement_digits(geometry.arrangement):
        (lanes if position < geometry.device_size[-1] else sticks).append((extent, columns))
        position *= extent
    return lanes, sticks


def _check_folded(geometry: TransferGeometry, host_strides: Sequence[int]) -> None:
    """Host dims that the layout walks as one have to continue each other in the given storage."""
    sizes = geometry.folded_sizes
    if is_parted(geometry, host_strides):
        raise LaunchError(
            "SPY322",
            "the layout walks several host dims as one, which the strides of the storage part",
            expected=f"strides {list(geometry.host_strides)} of sizes {list(sizes)}, or a multiple",
            found=f"strides {list(host_strides)}",
        )


def _check_targets(axes: Sequence[_Axis], host_strides: Sequence[int]) -> None:
    for axis in axes:
        if axis.host_dim >= 0 and host_strides[axis.host_dim] == 0:
            raise LaunchError(
                "SPY811",
                f"elements along dim {axis.host_dim} of the host tensor share memory",
                expected="a stride other than 0",
                found=f"strides {list(host_strides)}",
            )


def _groups(axes: Sequence[_Axis], host_sizes: Sequence[int]) -> tuple[_Group, ...]:
    """One group per walked host dim and per axis without; the one of the lanes comes last."""
    by_dim: dict[int, list[int]] = {}
    for k, axis in enumerate(axes):
        by_dim.setdefault(axis.host_dim if axis.host_dim >= 0 else -1 - k, []).append(k)
    groups = []
    for dim, members in by_dim.items():
        # as `coarse_to_fine`: members go from the stick outwards
        ordered = sorted(members, key=lambda k: (-axes[k].multiplier, axes[k].in_stick, k))
        size = host_sizes[dim] if dim >= 0 else axes[members[0]].limit
        steps = [(axes[k].multiplier or 1, axes[k].extent) for k in ordered]
        whole = tuple((0, extent) for _, extent in steps)
        groups.append(_Group(tuple(ordered), *split_boxes(size, steps), whole))
    return tuple(groups[::-1])


def _grouped_walk(
    geometry: TransferGeometry,
    layout: SpyreTensorLayout,
    to_device: bool,
    host_strides: Sequence[int],
    host_offset: int,
) -> tuple[AccessMap, tuple[_Group, ...]]:
    """Return the map of all device positions, padding included, and host elements; its groups."""
    axes = tuple(_axes(geometry, layout, to_device))
    if not to_device:
        _check_targets(axes, host_strides)
    loops = []
    for axis in reversed(axes):
        host_stride = host_strides[axis.host_dim] if axis.host_dim >= 0 else 0
        loops.append(Axis(axis.extent, (axis.multiplier * host_stride, axis.device_stride)))
    return AccessMap((host_offset, 0), tuple(loops)), _groups(axes, geometry.host_sizes)


def _nests(walk: AccessMap, groups: Sequence[_Group]) -> tuple[AccessMap, ...]:
    choices = product(*(group.held for group in groups))
    return tuple(walk.part(_spans(groups, boxes)) for boxes in choices)


def _zero_fill(walk: AccessMap, groups: Sequence[_Group]) -> Iterator[AccessMap]:
    """Positions outside of all nests: padding in one group, elements before, anything after."""
    for k in range(len(groups)):
        before, after = [g.held for g in groups[:k]], [(g.whole,) for g in groups[k + 1 :]]
        for boxes in product(*before, groups[k].padding, *after):
            fill = walk.part(_spans(groups, boxes))
            if fill.count:
                yield fill


def _spans(groups: Sequence[_Group], boxes: Sequence[Box]) -> list[Span]:
    """The spans of all axes, the outermost first."""
    by_axis = {
        k: span
        for group, box in zip(groups, boxes, strict=True)
        for k, span in zip(group.axes, box, strict=True)
    }
    return [by_axis[k] for k in reversed(range(len(by_axis)))]


# --- places of elements -------------------------------------------------------------------------


class DevicePosition(msgspec.Struct, frozen=True):
    """The position of one element in a device tensor.

    ``stick``: device coordinates but the last; ``lane``: position in the stick;
    ``byte_offset`` from the start of the tensor.
    """

    stick: tuple[int, ...]
    lane: int
    byte_offset: int


@lru_cache(maxsize=64)
def _nests_between(layout: SpyreTensorLayout, sizes: Ints, strides: Ints) -> tuple[AccessMap, ...]:
    """Nests of a copy to a host tensor of the extents that ``layout`` was made for."""
    if 0 in sizes:
        return ()
    geometry = transfer_geometry(layout, sizes, strides)
    return _nests(*_grouped_walk(geometry, layout, False, geometry.host_strides, 0))


def _counterpart(
    layout: SpyreTensorLayout, sizes: Ints, strides: Ints, position: int, space: int
) -> int | None:
    """Return the position in the other space of one in ``space``; None if no nest has it."""
    element = np.array([position], np.int64)
    for nest in _nests_between(layout, sizes, strides):
        walk = AccessMap(nest.first, tuple(sort_axes(nest.axes, space)))
        if walk.contains(element, space=space)[0]:
            return int(walk.locate(element, space, HOST if space == DEVICE else DEVICE)[0])
    return None


def device_coordinate(
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    index: Sequence[int],
) -> DevicePosition:
    """Return the device position of the host element at ``index`` (a coordinate per host dim).

    LaunchError SPY322 if the layout does not contain it.
    """
    sizes, strides = tuple(dma_sizes), tuple(dma_strides)
    inside = all(0 <= i < n for i, n in zip(index, sizes, strict=True))
    offset = sum(i * s for i, s in zip(index, strides, strict=True))
    element = _counterpart(layout, sizes, strides, offset, HOST) if inside else None
    if element is None:
        raise misfit(layout, sizes, strides, f"no device position for {list(index)}")
    *stick, lane = map(int, np.unravel_index(element, layout.device_size))
    return DevicePosition(tuple(stick), lane, element * layout.data_format.bits // 8)


def occupied_sticks(
    layout: SpyreTensorLayout, dma_sizes: Sequence[int], dma_strides: Sequence[int]
) -> NDArray[np.bool_]:
    """Return whether a copy to the host reads each stick, shape ``device_size[:-1]``."""
    lanes, sticks = layout.elements_per_stick, np.zeros(layout.num_sticks, np.bool_)
    for nest in _nests_between(layout, tuple(dma_sizes), tuple(dma_strides)):
        # one element of each stick is enough
        across = tuple(axis for axis in nest.axes if axis.pitches[DEVICE] >= lanes)
        sticks[AccessMap(nest.first, across).offsets(DEVICE) // lanes] = True
    return sticks.reshape(layout.device_size[:-1])


def viewed_sticks(
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    view: tuple[Sequence[int], Sequence[int], int],
) -> NDArray[np.bool_]:
    """As `occupied_sticks`, limited to the elements of a view of the host storage.

    ``view``: its shape, strides and offset in elements.
    """
    shape, strides, offset = view
    loops = tuple(Axis(size, (step,)) for size, step in zip(shape, strides, strict=True))
    wanted = AccessMap((offset,), loops).offsets()
    lanes, sticks = layout.elements_per_stick, np.zeros(layout.num_sticks, np.bool_)
    for nest in _nests_between(layout, tuple(dma_sizes), tuple(dma_strides)):
        seen = np.isin(nest.offsets(HOST), wanted)
        sticks[nest.offsets(DEVICE)[seen] // lanes] = True
    return sticks.reshape(layout.device_size[:-1])


def host_coordinates_of_stick(
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    stick: Sequence[int],
) -> Ints:
    """Return the host coordinates of the first element of an occupied stick.

    LaunchError SPY322 for another stick.
    """
    sizes, strides = tuple(dma_sizes), tuple(dma_strides)
    first = sum(c * s for c, s in zip(stick, layout.device_strides[:-1], strict=True))
    offset = _counterpart(layout, sizes, strides, first, DEVICE)
    if offset is None:
        raise misfit(layout, sizes, strides, f"no host element in stick {tuple(stick)}")
    return host_coordinate_of_offset(offset, sizes, strides)
