"""Transfer geometry: the host element at each device position of a layout.

It is computed from a layout and the host extents it was made for. The nests of copies
(:mod:`spyre.layout.conversion`) follow from it. Rule: runtime reference §1, §3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from spyre.errors import LaunchError, UnsupportedError
from spyre.layout.tensor_layout import SpyreTensorLayout, check_arrangement, logical_columns


class TransferGeometry(msgspec.Struct, frozen=True):
    """The walk of a copy, per device dim k and host dim h.

    Host coordinate of h: Σ ``multipliers[k]``·c[k] over the device dims with ``host_dims[k]`` = h.
    A device position holds a host element iff c[k] < ``limits[k]`` for every k, every host
    coordinate < ``host_sizes[h]``, and no device dim of h steps past where the next coarser one
    steps (`coarse_to_fine`); all others are padding. ``host_dims`` is −1 where a device dim
    walks no host dim; then ``limits`` is 1, or the whole extent for an expanded copy (stride 0).
    ``host_strides``: host elements per step of h. All this holds for logical device coordinates;
    an ``arrangement`` other than STANDARD moves elements along the last dim and ``stick_axis``
    (−1: along the last only).

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
    """Like `transfer_geometry`, but only ``exact`` ones, for callers that need single host dims.

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
    """Return True if a storage with ``host_strides`` separates dims that the geometry joins."""
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


def misfit(
    layout: SpyreTensorLayout, sizes: Sequence[int], strides: Sequence[int], found: str
) -> LaunchError:
    """SPY322."""
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
        raise misfit(layout, sizes, strides, "sizes and strides of different rank")
    if layout.device_size[-1] != layout.elements_per_stick:
        raise misfit(layout, sizes, strides, "last device extent is not one stick")


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
        raise misfit(layout, sizes, strides, f"no host dim for stride {step} of device dim {k}")
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
            raise misfit(layout, sizes, strides, found)
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
