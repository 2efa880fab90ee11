"""Transfer geometry: the host element at each device position of a layout.

It is computed from a layout and the host extents it was made for. Copies use it to plan their
nests (:mod:`spyre.layout.conversion`), reports to find the device address of a host element, and
the sanitizer to find the sticks of an output that must be written. Rule: runtime reference §1, §3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from spyre.errors import LaunchError, UnsupportedError
from spyre.layout.tensor_layout import (
    SpyreTensorLayout,
    arrangement_positions,
    check_arrangement,
    logical_columns,
)


@dataclass(frozen=True, slots=True)
class TransferGeometry:
    """The walk of a copy, per device dim k and host dim h.

    Host coordinate of h: Σ ``multipliers[k]``·c[k] over the device dims with ``host_dims[k]`` = h.
    A device position holds a host element iff c[k] < ``limits[k]`` for every k, every host
    coordinate < ``host_sizes[h]``, and no device dim of h steps past where the next coarser one
    steps (`coarse_to_fine`); all others are padding. ``host_dims`` is −1 where a device dim
    walks no host dim; then ``limits`` is 1, or the whole extent for an expanded copy (stride 0).
    ``host_strides``: host elements per step of h. All this holds for logical device coordinates;
    with an ``arrangement`` other than STANDARD `logical_coordinates` first maps the physical
    ones, which moves elements along the last dim and ``stick_axis`` (−1: along the last only).

    ``folded_sizes``: where device dims walk on from one host dim into the next, the sizes of the
    host tensor; ``host_sizes`` then counts all elements along the inner one, and 1 along the other.
    ``exact``: no folding, and the steps of every device dim begin where the finer ones end.
    """

    device_size: tuple[int, ...]
    host_dims: tuple[int, ...]
    multipliers: tuple[int, ...]
    limits: tuple[int, ...]
    host_sizes: tuple[int, ...]
    host_strides: tuple[int, ...]
    arrangement: str = "STANDARD"
    stick_axis: int = -1
    folded_sizes: tuple[int, ...] = ()
    exact: bool = True

    @property
    def expanded(self) -> tuple[bool, ...]:
        """Per device dim: True if all its steps read one host element (stride 0)."""
        dims = zip(self.host_dims, self.limits, strict=True)
        return tuple(dim < 0 and limit > 1 for dim, limit in dims)

    def logical_coordinates(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert physical to logical device coordinates; the first axis is the device dim."""
        return self._permute(coordinates, logical_columns(self.arrangement))

    def physical_coordinates(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert logical to physical device coordinates; the first axis is the device dim."""
        return self._permute(coordinates, arrangement_positions(self.arrangement))

    def _permute(
        self, coordinates: NDArray[np.int64], table: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        moved = coordinates.copy()
        if self.arrangement == "STANDARD":
            return moved
        if self.stick_axis < 0:
            moved[-1] = table[coordinates[-1]]
            return moved
        lanes = self.device_size[-1]
        column = coordinates[self.stick_axis] * lanes + coordinates[-1]
        group = column // table.size
        column = group * table.size + table[column % table.size]
        moved[self.stick_axis], moved[-1] = column // lanes, column % lanes
        return moved


@dataclass(frozen=True, slots=True)
class DevicePosition:
    """The position of one element in a device tensor.

    ``stick``: device coordinates but the last; ``lane``: position in the stick;
    ``byte_offset`` from the start of the tensor.
    """

    stick: tuple[int, ...]
    lane: int
    byte_offset: int


def transfer_geometry(
    layout: SpyreTensorLayout, dma_sizes: Sequence[int], dma_strides: Sequence[int]
) -> TransferGeometry:
    """Geometry of a copy between ``layout`` and host extents ``dma_sizes``/``dma_strides``.

    A device dim with extent > 1 and stride > 0 walks the host dim of size > 1 with the largest
    stride that divides its own. Where that leaves host elements out, host dims that continue each
    other are walked as one. LaunchError SPY322 when no host dim fits or when host elements have no
    place on the device, SPY810 when the device dims of a host dim skip elements, UnsupportedError
    SPY323 for arrangements that cannot be copied.
    """
    sizes, strides = tuple(dma_sizes), tuple(dma_strides)
    _check_extents(layout, sizes, strides)
    try:
        return _geometry_over(layout, sizes, strides)
    except LaunchError:
        folded = fold_sizes(sizes, strides)
        if folded == sizes:
            raise
        with suppress(LaunchError):
            return replace(_geometry_over(layout, folded, strides), folded_sizes=sizes, exact=False)
        raise


def exact_geometry(
    layout: SpyreTensorLayout, dma_sizes: Sequence[int], dma_strides: Sequence[int]
) -> TransferGeometry:
    """As `transfer_geometry`, but only ``exact`` ones, for callers that need single host dims.

    LaunchError SPY322 and SPY810 for the others.
    """
    sizes, strides = tuple(dma_sizes), tuple(dma_strides)
    _check_extents(layout, sizes, strides)
    geometry = _geometry_over(layout, sizes, strides)
    if not geometry.exact:
        raise LaunchError(
            "SPY810",
            "device dims step into what finer ones of their host dim hold",
            expected=f"a layout of host sizes {list(sizes)}, strides {list(strides)}",
            found=str(layout),
        )
    return geometry


def fold_sizes(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the host sizes with dims that continue each other folded into the innermost one."""
    folded = [1] * len(sizes)
    for dim, inner in enumerate(_folded_into(sizes, strides)):
        folded[inner] *= sizes[dim]
    return tuple(folded)


def is_parted(geometry: TransferGeometry, host_strides: Sequence[int]) -> bool:
    """Whether a storage with ``host_strides`` separates dims that the geometry walks as one."""
    sizes, strides = geometry.folded_sizes, geometry.host_strides
    return any(
        host_strides[dim] * strides[inner] != host_strides[inner] * strides[dim]
        for dim, inner in enumerate(_folded_into(sizes, strides) if sizes else ())
        if sizes[dim] > 1
    )


def _folded_into(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return for each host dim the innermost dim that it continues."""
    innermost = list(range(len(sizes)))
    reach, inner = 0, -1
    for dim in sorted(range(len(sizes)), key=lambda d: strides[d]):
        if sizes[dim] <= 1 or strides[dim] <= 0:
            continue
        if inner < 0 or strides[dim] != reach:
            inner = dim
        innermost[dim], reach = inner, strides[dim] * sizes[dim]
    return innermost


def _geometry_over(
    layout: SpyreTensorLayout, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> TransferGeometry:
    walks = [_walk(layout, k, sizes, strides) for k in range(len(layout.device_size))]
    host_dims, multipliers, limits = zip(*walks, strict=True)
    exact = _check_coverage(layout, host_dims, multipliers, sizes, strides)
    arrangement, axis = _find_stick_axis(layout, host_dims, multipliers)
    walked = (layout.device_size, host_dims, multipliers, limits)
    return TransferGeometry(*walked, sizes, strides, arrangement, axis, exact=exact)


def coarse_to_fine(multipliers: Sequence[int], dims: Iterable[int]) -> list[int]:
    """Sort the device dims of one host dim from the coarsest step to the finest.

    A step of one ends before the next step of the one before it. Among equal steps the innermost
    dim takes them and the others stay at their first, but for the stick: it is always finest, and
    so holds one element where the layout has one value per stick.
    """
    last = len(multipliers) - 1
    return sorted(dims, key=lambda k: (-multipliers[k], k == last, -k))


def device_coordinate(
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    index: Sequence[int],
) -> DevicePosition:
    """Return the device position of the host element at ``index`` (a coordinate per host dim).

    LaunchError SPY322 if the layout does not contain it.
    """
    geometry = transfer_geometry(layout, dma_sizes, dma_strides)
    logical = np.zeros(len(layout.device_size), dtype=np.int64)
    for host_dim, coordinate in enumerate(_folded_index(geometry, index)):
        rest = _split_coordinate(geometry, host_dim, coordinate, logical)
        if rest and geometry.host_strides[host_dim] > 0:
            raise _misfit(layout, dma_sizes, dma_strides, f"no device position for {list(index)}")
    physical = [int(c) for c in geometry.physical_coordinates(logical)]
    element = sum(c * s for c, s in zip(physical, layout.device_strides, strict=True))
    offset = element * layout.data_format.bits // 8
    return DevicePosition(tuple(physical[:-1]), physical[-1], offset)


def _folded_index(geometry: TransferGeometry, index: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates along the folded dims of the element at ``index``."""
    if not geometry.folded_sizes:
        return tuple(index)
    offset = sum(i * s for i, s in zip(index, geometry.host_strides, strict=True))
    return host_coordinate_of_offset(offset, geometry.host_sizes, geometry.host_strides)


def host_coordinate_of_offset(
    offset: int, dma_sizes: Sequence[int], dma_strides: Sequence[int]
) -> tuple[int, ...]:
    """Return the host coordinates of the element at ``offset`` of a host tensor's storage.

    It converts an index of a view into one of its base. LaunchError SPY322 if the host tensor has
    no element there.
    """
    coordinate = [0] * len(dma_sizes)
    rest = offset
    for dim in sorted(range(len(dma_sizes)), key=lambda d: -dma_strides[d]):
        if dma_sizes[dim] > 1 and dma_strides[dim] > 0:
            coordinate[dim] = min(rest // dma_strides[dim], dma_sizes[dim] - 1)
            rest -= coordinate[dim] * dma_strides[dim]
    if rest:
        raise LaunchError(
            "SPY322",
            f"storage element {offset} is outside the host tensor",
            expected=f"sizes {list(dma_sizes)}, strides {list(dma_strides)}",
        )
    return tuple(coordinate)


def _misfit(
    layout: SpyreTensorLayout, sizes: Sequence[int], strides: Sequence[int], found: str
) -> LaunchError:
    return LaunchError(
        "SPY322",
        "Invalid device sizes and stride map for host sizes and strides",
        expected=f"a layout of host sizes {list(sizes)}, strides {list(strides)}",
        found=f"{found}; {layout}",
    )


def _check_extents(
    layout: SpyreTensorLayout, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    if len(sizes) != len(strides):
        raise _misfit(layout, sizes, strides, "sizes and strides of different rank")
    if layout.device_size[-1] != layout.elements_per_stick:
        raise _misfit(layout, sizes, strides, "last device extent is not one stick")


def _walk(
    layout: SpyreTensorLayout, k: int, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, int, int]:
    """Host dim (or −1), multiplier and limit of device dim ``k``."""
    extent, step = layout.device_size[k], layout.stride_map[k]
    if extent <= 1 or step < 0:
        return -1, 0, min(extent, 1)
    if step == 0:
        return -1, 0, extent
    fits = [
        h
        for h, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if size > 1 and stride > 0 and step % stride == 0
    ]
    if not fits:
        raise _misfit(layout, sizes, strides, f"no host dim for stride {step} of device dim {k}")
    host_dim = max(fits, key=lambda h: strides[h])
    return host_dim, step // strides[host_dim], extent


def _check_coverage(
    layout: SpyreTensorLayout,
    host_dims: tuple[int, ...],
    multipliers: tuple[int, ...],
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
) -> bool:
    """Check that every host coordinate is reached, so that no elements are lost silently.

    Returns True if no device dim steps into the elements of a finer one of its host dim.
    """
    exact = True
    for host_dim, size in enumerate(sizes):
        walked = zip(host_dims, multipliers, layout.device_size, strict=True)
        reach = 1 + sum(m * (n - 1) for h, m, n in walked if h == host_dim)
        if size > reach and strides[host_dim] > 0:
            found = f"device extents reach {reach} of {size} in host dim {host_dim}"
            raise _misfit(layout, sizes, strides, found)
        exact &= _check_tiling(layout, host_dims, multipliers, host_dim, size)
    return exact


def _check_tiling(
    layout: SpyreTensorLayout,
    host_dims: tuple[int, ...],
    multipliers: tuple[int, ...],
    host_dim: int,
    size: int,
) -> bool:
    """Raise LaunchError SPY810 if a step is longer than the finer axes of its host dim.

    Such a step skips elements. Returns True if no step is shorter, which would cut them short.
    """
    covered, exact = 1, True
    walked = [k for k, h in enumerate(host_dims) if h == host_dim]
    for k in reversed(coarse_to_fine(multipliers, walked)):
        step, extent = multipliers[k], layout.device_size[k]
        exact &= step >= min(covered, size)
        if covered < size and step > covered:
            raise LaunchError(
                "SPY810",
                f"Invalid tiling for dimension {host_dim}",
                expected=f"a step of {covered} elements",
                found=f"a step of {step} elements; {layout}",
            )
        covered = step * (extent - 1) + min(covered, step)
    if walked and covered < size:
        raise LaunchError(
            "SPY810",
            f"Invalid tiling for dimension {host_dim}",
            expected=f"steps that hold {size} elements",
            found=f"steps that hold {covered}; {layout}",
        )
    return exact


def _find_stick_axis(
    layout: SpyreTensorLayout, host_dims: tuple[int, ...], multipliers: tuple[int, ...]
) -> tuple[str, int]:
    """Return the arrangement of the copy, and the dim of the stick count it includes (or −1).

    With one value per stick (no host dim along the stick) it is STANDARD: the value is in lane 0.
    """
    check_arrangement(layout.element_arrangement, layout.device_dtype)
    if layout.element_arrangement == "STANDARD" or host_dims[-1] < 0:
        return "STANDARD", -1
    lanes = layout.device_size[-1]
    if lanes == logical_columns(layout.element_arrangement).size:
        return layout.element_arrangement, -1
    pitch = multipliers[-1] * lanes
    axes = [
        k
        for k in range(len(host_dims) - 1)
        if host_dims[k] == host_dims[-1] and multipliers[k] == pitch
    ]
    if not axes or layout.device_size[axes[0]] % 2:
        raise UnsupportedError(
            "SPY323",
            f"element arrangement {layout.element_arrangement} needs an even number of sticks",
            found=str(layout),
        )
    return layout.element_arrangement, axes[0]


def _split_coordinate(
    geometry: TransferGeometry, host_dim: int, coordinate: int, logical: NDArray[np.int64]
) -> int:
    """Write the device coordinates that add up to ``coordinate``; return the remainder."""
    rest = coordinate
    dims = [k for k, h in enumerate(geometry.host_dims) if h == host_dim]
    for k in coarse_to_fine(geometry.multipliers, dims):
        logical[k] = min(rest // geometry.multipliers[k], geometry.limits[k] - 1)
        rest -= int(logical[k]) * geometry.multipliers[k]
    return rest


def occupied_sticks(geometry: TransferGeometry) -> NDArray[np.bool_]:
    """Return whether a copy to the host reads each stick, shape ``device_size[:-1]``."""
    _, occupied = _first_lanes(geometry)
    return occupied


def host_coordinates_of_stick(geometry: TransferGeometry, stick: Sequence[int]) -> tuple[int, ...]:
    """Return the host coordinates of the first element of a stick."""
    host, _ = _first_lanes(geometry)
    coordinates = tuple(int(coordinate[tuple(stick)]) for coordinate in host)
    if not geometry.folded_sizes:
        return coordinates
    offset = sum(c * s for c, s in zip(coordinates, geometry.host_strides, strict=True))
    return host_coordinate_of_offset(offset, geometry.folded_sizes, geometry.host_strides)


def viewed_sticks(
    geometry: TransferGeometry, shape: Sequence[int], strides: Sequence[int], offset: int
) -> NDArray[np.bool_]:
    """As `occupied_sticks`, limited to the elements of a view of the host storage.

    ``shape``, ``strides`` and ``offset`` of the view are in elements.
    """
    host, valid = host_positions(geometry)
    offsets = np.zeros(geometry.device_size, np.int64)
    for coordinate, stride in zip(host, geometry.host_strides, strict=True):
        offsets += coordinate * stride
    wanted = np.full((), offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        wanted = wanted[..., None] + np.arange(size) * stride
    in_view = valid & np.isin(offsets, wanted)
    return occupied_sticks(geometry) & np.asarray(in_view.any(axis=-1))


def _first_lanes(
    geometry: TransferGeometry,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return `_host_coordinates` of lane 0 of every stick; only of the first copy if expanded."""
    extents = geometry.device_size[:-1]
    physical = np.zeros((len(geometry.device_size), *extents), np.int64)
    if extents:
        physical[:-1] = np.indices(extents, dtype=np.int64)
    host, valid = _host_coordinates(geometry, physical)
    logical = geometry.logical_coordinates(physical)
    for k, expanded in enumerate(geometry.expanded):
        if expanded:
            valid &= logical[k] == 0
    return host, valid


def host_positions(
    geometry: TransferGeometry,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the host coordinates of every device position, and whether it has a host element.

    Shapes: (host dims, *device_size) and device_size. Coordinates of padding are undefined.
    """
    return _host_coordinates(geometry, np.indices(geometry.device_size, dtype=np.int64))


def _host_coordinates(
    geometry: TransferGeometry, physical: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """As `host_positions`, for physical device coordinates [dim, ...]."""
    device = geometry.logical_coordinates(physical)
    host = np.zeros((len(geometry.host_sizes), *device.shape[1:]), dtype=np.int64)
    valid = np.ones(device.shape[1:], dtype=np.bool_)
    for k, limit in enumerate(geometry.limits):
        valid &= device[k] < limit
    for host_dim, size in enumerate(geometry.host_sizes):
        walked = [k for k, h in enumerate(geometry.host_dims) if h == host_dim]
        finest_first = coarse_to_fine(geometry.multipliers, walked)[::-1]
        for k, coarser in zip_longest(finest_first, finest_first[1:]):
            host[host_dim] += geometry.multipliers[k] * device[k]
            valid &= host[host_dim] < (size if coarser is None else geometry.multipliers[coarser])
        valid &= size > 0
    return host, valid
