"""Host ↔ device copies: a layout and host strides become a transfer table, kernels do the rest.

Padding is zero-filled on the way in and skipped on the way out. The slow twin is
:mod:`spyre.layout.reference`. Rules: runtime reference §3, SDSC reference §6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import Rounding, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.kernels import transfer_table as tt
from spyre.hw.nest import Int64Array
from spyre.hw.numerics import Numerics
from spyre.hw.pool_block import CHUNKS_PER_THREAD
from spyre.hw.threads import ThreadPool
from spyre.layout import (
    SpyreTensorLayout,
    TransferGeometry,
    arrangement_positions,
    transfer_geometry,
)

_TILE = 16
_FARTHEST = 1 << 56
_PARALLEL_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class HostView:
    """A host tensor to copy: 1-D storage, first element, strides of the layout's host dims.

    ``dtype``: torch dtype name. ``sizes``/``layout_strides``: the extents and strides the layout
    was made for; ``strides``: those of this storage. All in elements.
    """

    storage: npt.NDArray[Any]
    dtype: str
    sizes: tuple[int, ...]
    layout_strides: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        ranks = {len(self.sizes), len(self.layout_strides), len(self.strides)}
        if len(ranks) > 1:
            raise LaunchError(
                "SPY322",
                "sizes and strides of a host tensor differ in rank",
                expected=f"{len(self.sizes)} strides for sizes {list(self.sizes)}",
                found=f"strides {list(self.strides)} and {list(self.layout_strides)}",
            )

    @classmethod
    def dense(
        cls,
        storage: npt.NDArray[Any],
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
    ) -> HostView:
        """A storage that is laid out exactly as the device layout assumes."""
        return cls(storage, dtype, tuple(sizes), tuple(strides), tuple(strides))


def copy_to_device(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> None:
    """Fill ``device`` (the tensor's bytes) from ``host``; padding becomes zero."""
    _copy(host, layout, device, numerics, pool, True)


def copy_to_host(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> None:
    """Write the tensor's elements from ``device`` into ``host.storage``."""
    _copy(host, layout, device, numerics, pool, False)


def _copy(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
    to_device: bool,
) -> None:
    if layout.device_bytes == 0:
        return
    geometry, table = _plan(
        layout, host.sizes, host.layout_strides, host.strides, host.dtype, numerics
    )
    _check_bounds(host, geometry, layout, device)
    staged = device
    if geometry.arrangement != "STANDARD":
        staged = np.empty(layout.device_bytes, np.uint8)
        if not to_device:
            _reorder(geometry, layout, device, staged, to_device=False)
    start = host.storage.ctypes.data + host.offset * host.storage.itemsize
    _run(table, to_device, start, staged.ctypes.data, layout.device_bytes, pool)
    if to_device and staged is not device:
        _reorder(geometry, layout, staged, device, to_device=True)


def _run(
    table: Int64Array, to_device: bool, host: int, device: int, size_bytes: int, pool: ThreadPool
) -> None:
    from spyre.hw.kernels.pool import run_job
    from spyre.hw.kernels.transfer import run, run_transfer

    words = table.copy()
    words[tt.TO_DEVICE] = to_device
    at, units = words.ctypes.data, int(words[tt.UNITS])
    if pool.threads == 1 or units < 2 or size_bytes < _PARALLEL_BYTES:
        run_transfer(run.address, at, host, device, 0, units)
        return
    pool.prepare()
    chunks = min(units, pool.threads * CHUNKS_PER_THREAD)
    run_job(pool.block, 0, run.address, at, host, device, units, chunks)


@lru_cache(maxsize=512)
def _plan(
    layout: SpyreTensorLayout,
    sizes: tuple[int, ...],
    layout_strides: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    numerics: Numerics,
) -> tuple[TransferGeometry, Int64Array]:
    geometry = transfer_geometry(layout, sizes, layout_strides)
    table = np.zeros(tt.WORDS, np.int64)
    table[tt.LANES] = layout.device_size[-1]
    _write_formats(table, layout, dtype, numerics)
    _write_walk(table, geometry, layout, strides)
    return geometry, table


def _write_formats(
    table: Int64Array, layout: SpyreTensorLayout, dtype: str, numerics: Numerics
) -> None:
    row = find_host_dtype(dtype)
    host, device = row.name, layout.device_dtype
    table[tt.HOST_FORMAT] = tt.HOST_CODES[host]
    table[tt.NINF_IS_NAN] = numerics.ninf_to_host == "nan"
    table[tt.ROUND_ADD], table[tt.ROUND_ODD] = _rounding_rule(numerics.dma_rounding, 14)
    table[tt.LARGEST] = 0x7FFE if numerics.saturate else 0x7FFF
    table[tt.BFLOAT16_ADD], table[tt.BFLOAT16_ODD] = _rounding_rule(numerics.bfloat16_rounding, 16)
    integers = device in tt.DEVICE_INTEGER_CODES
    if {device, row.device_format} & tt.COPIED_FORMATS:
        integers = device == row.device_format
    floats = table[tt.HOST_FORMAT] <= tt.HOST_BOOL
    if device == "SEN169_FP16" and floats:
        table[tt.DEVICE_FORMAT] = _half_code(numerics)
    elif device == "IEEE_FP32" and floats:
        table[tt.DEVICE_FORMAT] = tb.FP32
    elif integers and (not floats or host == "bool"):
        table[tt.DEVICE_FORMAT] = tt.DEVICE_INTEGER_CODES[device]
        table[tt.INTEGERS] = 1
    else:
        raise UnsupportedError(
            "SPY528",
            f"a copy between host {host} and device {device} is not simulated",
            expected="float to float, integer to integer",
            found=f"{host} and {device}",
        )


def _half_code(numerics: Numerics) -> int:
    """Device code of 16-bit floats in copies; the default DL16 has the fastest kernel."""
    if numerics.mode == "ieee":
        return tb.HALF
    plain = numerics.dma_rounding == "away" and not numerics.saturate
    return tb.DL16 if plain else tt.DEVICE_DL16_AS


def _rounding_rule(rounding: Rounding, dropped_bits: int) -> tuple[int, int]:
    """The two integers of a rule, see :mod:`spyre.hw.kernels.rounding`."""
    half = 1 << (dropped_bits - 1)
    return {"away": (half, 0), "trunc": (0, 0), "even": (half - 1, 1)}[rounding]


def _write_walk(
    table: Int64Array,
    geometry: TransferGeometry,
    layout: SpyreTensorLayout,
    strides: tuple[int, ...],
) -> None:
    """Axes by falling host stride, then a tile of device neighbours; checks where needed."""
    device_steps = [s * layout.data_format.bits // 8 for s in layout.device_strides]
    dims = range(len(geometry.device_size))
    host_steps = [
        strides[geometry.host_dims[k]] * geometry.multipliers[k]
        if geometry.host_dims[k] >= 0
        else 0
        for k in dims
    ]
    _check_reach(layout, host_steps)
    table[tt.LANE_STRIDE] = host_steps[-1]
    outer = [k for k in dims[:-1] if geometry.device_size[k] > 1]
    axes = _tiled_axes(geometry, outer, host_steps, device_steps)
    checks = _needed_checks(geometry)
    _check_room(layout, len(axes), len(checks))
    table[tt.CHECKS] = len(checks)
    for c, (host_dim, size) in enumerate(checks):
        table[tt.CHECK_SIZE + c] = size
        table[tt.CHECK_LANE + c] = _check_step(geometry, host_dim, len(geometry.device_size) - 1)
    first = tt.AXES - len(axes)
    table[tt.EXTENT : tt.EXTENT + tt.AXES] = 1
    for place, (k, extent, factor) in enumerate(axes, first):
        table[tt.EXTENT + place] = extent
        table[tt.HOST_STEP + place] = host_steps[k] * factor
        table[tt.DEVICE_STEP + place] = device_steps[k] * factor
        for c, (host_dim, _) in enumerate(checks):
            step = _check_step(geometry, host_dim, k)
            table[tt.CHECK_STEP + c * tt.AXES + place] = step * factor
    table[tt.UNITS] = int(np.prod(table[tt.EXTENT : tt.EXTENT + tt.AXES - 2]))


def _check_reach(layout: SpyreTensorLayout, host_steps: Sequence[int]) -> None:
    reach = max(abs(s) * n for s, n in zip(host_steps, layout.device_size, strict=True))
    if reach > _FARTHEST:
        raise LaunchError(
            "SPY322",
            "the layout's strides lead out of any host memory",
            expected=f"host elements up to {_FARTHEST}",
            found=str(layout),
        )


def _check_room(layout: SpyreTensorLayout, axes: int, checks: int) -> None:
    if axes <= tt.AXES and checks <= tt.MAX_CHECKS:
        return
    raise UnsupportedError(
        "SPY529",
        "a layout of this many device dims cannot be copied",
        expected=f"at most {tt.AXES - 1} device dims larger than 1 above the stick, "
        f"{tt.MAX_CHECKS} of them padded",
        found=str(layout),
    )


def _tiled_axes(
    geometry: TransferGeometry, outer: list[int], host_steps: list[int], device_steps: list[int]
) -> list[tuple[int, int, int]]:
    """(device dim, extent, factor): the device-innermost axis is split into a tile at the end."""
    if not outer:
        return []
    near = min(outer, key=lambda k: device_steps[k])
    others = sorted((k for k in outer if k != near), key=lambda k: -host_steps[k])
    extent = geometry.device_size[near]
    tile = max(t for t in range(1, _TILE + 1) if extent % t == 0)
    axes = [(k, geometry.device_size[k], 1) for k in others]
    last = axes.pop() if axes else (near, 1, 0)
    return [*axes, (near, extent // tile, tile), last, (near, tile, 1)]


def _needed_checks(geometry: TransferGeometry) -> list[tuple[int, int]]:
    """(host dim, size) where device coordinates reach past the host; -1-k: device dim k itself."""
    checks = []
    for host_dim, size in enumerate(geometry.host_sizes):
        reach = 1 + sum(
            m * (n - 1)
            for m, n, h in zip(
                geometry.multipliers, geometry.device_size, geometry.host_dims, strict=True
            )
            if h == host_dim
        )
        if reach > size:
            checks.append((host_dim, size))
    for k, (limit, extent) in enumerate(zip(geometry.limits, geometry.device_size, strict=True)):
        if limit < extent:
            checks.append((-1 - k, limit))
    return checks


def _check_step(geometry: TransferGeometry, host_dim: int, k: int) -> int:
    if host_dim < 0:
        return int(k == -1 - host_dim)
    return geometry.multipliers[k] if geometry.host_dims[k] == host_dim else 0


def _check_bounds(
    host: HostView,
    geometry: TransferGeometry,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
) -> None:
    last = host.offset + sum(
        (n - 1) * s for n, s in zip(host.sizes, host.strides, strict=True) if n > 0
    )
    empty = 0 in host.sizes
    if not empty and not (0 <= host.offset <= last < host.storage.size):
        raise LaunchError(
            "SPY324",
            "host storage is too small for the tensor",
            expected=f"elements {host.offset} to {last}",
            found=f"{host.storage.size} elements",
        )
    if device.size < layout.device_bytes:
        raise LaunchError(
            "SPY324",
            "device bytes do not match the tensor layout",
            expected=f"{layout.device_bytes} bytes for {layout}",
            found=f"{device.size} bytes",
        )


def _reorder(
    geometry: TransferGeometry,
    layout: SpyreTensorLayout,
    source: npt.NDArray[np.uint8],
    target: npt.NDArray[np.uint8],
    to_device: bool,
) -> None:
    """Permute elements between STANDARD order and the layout's element arrangement."""
    word = layout.data_format.bits // 8
    place = arrangement_positions(geometry.arrangement)
    axis = geometry.stick_axis
    elements = source[: layout.device_bytes].reshape(*layout.device_size, word)
    result = target[: layout.device_bytes].reshape(*layout.device_size, word)
    if axis < 0:
        grouped, out = elements, result
    else:
        grouped = np.moveaxis(elements, axis, -3)
        out = np.moveaxis(result, axis, -3)
        shape = (*grouped.shape[:-3], grouped.shape[-3] // 2, place.size, word)
        grouped = grouped.reshape(shape)
    permuted = np.empty(grouped.shape, np.uint8)
    if to_device:
        permuted[..., place, :] = grouped
    else:
        permuted[...] = grouped[..., place, :]
    out[...] = permuted.reshape(out.shape)
