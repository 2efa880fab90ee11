"""Where the tiles of a tensor lie: by its own layout, never by the kernel's.

The layout can express a tile if it has the kernel's device dims in the kernel's order, with room
for the tile in each (runtime reference §6, "Layout problem").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spyre.errors import LaunchError
from spyre.hw.address_map import AddressMap
from spyre.hw.nest import Int64Array
from spyre.layout.arrangement import logical_columns
from spyre.runtime.tiling.device_dims import DeviceDims
from spyre.runtime.tiling.launch_tensors import ActualTensor, ExpectedTensor


def tile_map(expected: ExpectedTensor, actual: ActualTensor) -> AddressMap:
    """Byte offsets in the memory of a tile of ``expected`` → in that of ``actual``.

    LaunchError SPY855 when the layouts do not go together, SPY859 for a tile of partial sticks.
    """
    tile, whole = expected.device_dims, actual.device_dims
    _check_form(expected, actual, tile, whole)
    for k in range(len(tile.extents) - 1):
        _check_device_dim(expected, actual, tile, whole, k)
    for host_dim, (small, large) in enumerate(zip(expected.shape, actual.shape, strict=True)):
        if large > small:
            _check_tiled_dim(expected, actual, tile, whole, host_dim)
    return AddressMap(tile.extents[:-1], whole.strides_bytes)


def tile_offsets(actual: ActualTensor, starts: Mapping[int, Int64Array]) -> Int64Array:
    """Byte offset of the tiles that begin at ``starts`` (elements, by host dim), from the layout.

    One 0 for a tensor without tiled dims, which has no ``starts``.
    """
    whole = actual.device_dims
    total = np.zeros(1, np.int64)
    for host_dim, first in starts.items():
        total = total + whole.offsets_bytes(host_dim, first)
    return total


def _refuse(
    expected: ExpectedTensor, actual: ActualTensor, message: str, code: str = "SPY855"
) -> LaunchError:
    return LaunchError(
        code,
        f"the layout of {actual.name} cannot express tiles of {expected.name}: {message}",
        expected=f"like {expected.layout} of {list(expected.shape)}",
        found=f"{actual.layout} of {list(actual.shape)}",
    )


def _check_form(
    expected: ExpectedTensor, actual: ActualTensor, tile: DeviceDims, whole: DeviceDims
) -> None:
    ours, theirs = expected.layout, actual.layout
    if (ours.device_dtype, ours.element_arrangement) != (
        theirs.device_dtype,
        theirs.element_arrangement,
    ):
        raise _refuse(expected, actual, "another format or element arrangement")
    if len(tile.extents) != len(whole.extents):
        raise _refuse(expected, actual, "another number of device dims")
    if tile.stick_host_dim != whole.stick_host_dim:
        raise _refuse(
            expected, actual, f"the stick runs along {_host(whole.stick_host_dim)} instead of "
            f"{_host(tile.stick_host_dim)}",
        )  # fmt: skip


def _host(host_dim: int) -> str:
    return "no host dim" if host_dim < 0 else f"dim {host_dim}"


def _check_device_dim(
    expected: ExpectedTensor, actual: ActualTensor, tile: DeviceDims, whole: DeviceDims, k: int
) -> None:
    walked = tile.host_dims[k], tile.multipliers[k]
    found = whole.host_dims[k], whole.multipliers[k]
    if max(tile.extents[k], whole.extents[k]) > 1 and walked != found:
        raise _refuse(
            expected, actual, f"device dim {k} walks {_host(found[0])} in steps of {found[1]} "
            f"instead of {_host(walked[0])} in steps of {walked[1]}",
        )  # fmt: skip
    if whole.extents[k] < tile.extents[k]:
        raise _refuse(
            expected, actual,
            f"device dim {k} has {whole.extents[k]} of the {tile.extents[k]} steps of a tile",
        )  # fmt: skip


def _check_tiled_dim(
    expected: ExpectedTensor,
    actual: ActualTensor,
    tile: DeviceDims,
    whole: DeviceDims,
    host_dim: int,
) -> None:
    """Tiles of ``host_dim`` must be whole steps of every device dim they cross."""
    if host_dim == tile.stick_host_dim:
        _check_whole_sticks(expected, actual, host_dim)
    walked = whole.walked_by(host_dim)
    if not walked:
        raise _refuse(expected, actual, f"no device dim walks dim {host_dim}")
    size = expected.shape[host_dim]
    for place, k in enumerate(walked):
        step, cycle = whole.multipliers[k], whole.multipliers[k] * whole.extents[k]
        aligned = size % step == 0 or step % size == 0
        if place > 0:
            aligned = aligned and (size % cycle == 0 or cycle % size == 0)
        if not aligned or tile.extents[k] > max(1, -(-size // step)):
            raise _refuse(
                expected, actual, f"tiles of {size} of dim {host_dim} are no whole steps of "
                f"device dim {k} ({tile.extents[k]} steps of {step})",
            )  # fmt: skip


def _check_whole_sticks(expected: ExpectedTensor, actual: ActualTensor, host_dim: int) -> None:
    layout, size = expected.layout, expected.shape[host_dim]
    unit = layout.elements_per_stick
    if layout.element_arrangement != "STANDARD":
        unit = max(unit, logical_columns(layout.element_arrangement).size)
    if size % unit:
        raise LaunchError(
            "SPY859",
            f"tiles of dim {host_dim} of {actual.name} end within a stick",
            expected=f"tiles of a multiple of {unit} elements",
            found=f"tiles of {size} in {actual.shape[host_dim]}",
        )
