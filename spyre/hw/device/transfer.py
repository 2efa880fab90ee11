"""Host ↔ device copies: descriptors of loop nests, executed by compiled kernels.

The way of a copy: layout and host strides → `DataConversionInfo` (:mod:`spyre.layout.conversion`)
→ transfer table (kept) → kernel. Padding is zero-filled on the way in and skipped on the way out.
The slow reference is :mod:`spyre.layout.reference`. Copies to different memory may run in several
threads at once. Rules: runtime reference §3, SDSC reference §6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import Rounding, find_format, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw.device.threads import ThreadPool
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.hw.table import CHUNKS_PER_THREAD, plan as tb, transfer as tt
from spyre.layout import (
    DEVICE,
    HOST,
    AccessMap,
    Axis,
    DataConversionInfo,
    Int64Array,
    SpyreTensorLayout,
    conversion_info,
    drop_unit_axes,
)

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
) -> DataConversionInfo:
    """Fill ``device`` (the tensor's bytes) from ``host``; padding becomes zero.

    Returns the copy's loop nests, with host elements counted from the tensor's first. LaunchError
    SPY324 if one side is too small; other errors as in `plan_transfer`.
    """
    return _copy(host, layout, device, numerics, pool, True)


def copy_to_host(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> DataConversionInfo:
    """Write the tensor's elements from ``device`` into ``host.storage``; as `copy_to_device`."""
    return _copy(host, layout, device, numerics, pool, False)


def _copy(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
    to_device: bool,
) -> DataConversionInfo:
    strides = (host.sizes, host.layout_strides, host.strides)
    plan = plan_transfer(layout, *strides, host.dtype, numerics, to_device)
    if plan.units:
        _check_bounds(host, plan, layout, device)
        first = host.offset + plan.lowest
        start = host.storage.ctypes.data + first * host.storage.itemsize
        _run(plan, start, device.ctypes.data, pool)
    return plan.info


def _run(plan: TransferPlan, host: int, device: int, pool: ThreadPool) -> None:
    from spyre.hw.kernels.pool import run_job
    from spyre.hw.kernels.transfer import run, run_transfer

    if not run.is_loaded and _is_interpreted(plan):
        from spyre.hw import interpreter

        interpreter.transfer(plan.table, host, device, plan.units)
        return
    if pool.threads == 1 or plan.units < 2 or plan.size_bytes < _PARALLEL_BYTES:
        run_transfer(run.address, plan.address, host, device, 0, plan.units)
        return
    pool.prepare()
    chunks = min(plan.units, pool.threads * CHUNKS_PER_THREAD)
    run_job(pool.block, 0, run.address, plan.address, host, device, plan.units, chunks)


def _is_interpreted(plan: TransferPlan) -> bool:
    """True if the copy is interpreted while the copy kernels are compiled."""
    from spyre.hw.interpreter import copy_seconds, meanwhile
    from spyre.hw.kernels.together import TRANSFER

    return meanwhile.stands_in((TRANSFER,), copy_seconds(plan.size_bytes // STICK_BYTES))


def _check_bounds(
    host: HostView,
    plan: TransferPlan,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
) -> None:
    first, last = host.offset + plan.lowest, host.offset + plan.highest
    if plan.info.nests and not (0 <= first <= last < host.storage.size):
        raise LaunchError(
            "SPY324",
            "host storage is too small for the tensor",
            expected=f"elements {first} to {last}",
            found=f"{host.storage.size} elements",
        )
    if device.size < plan.size_bytes:
        raise LaunchError(
            "SPY324",
            "device bytes do not match the tensor layout",
            expected=f"{plan.size_bytes} bytes for {layout}",
            found=f"{device.size} bytes",
        )


_TILE = 16
"""Most runs of a tile that are neighbours on the device."""
_UNIT_RUNS = 2048
"""Most runs of a unit, so that there are several units for the threads."""
_FARTHEST = 1 << 56
_TAIL = 2
"""Space of a row's loops after HOST and DEVICE: steps along the axis that a tail continues."""


@dataclass(frozen=True, slots=True, eq=False)
class TransferPlan:
    """A copy ready to run: its descriptor, relative to the first element of the host tensor.

    ``address``: of ``table``, in host memory. ``lowest``/``highest``: range of the host elements
    copied, both 0 for an empty copy; the table counts host elements from ``lowest`` on, since
    kernels take no negative ones. ``size_bytes``: of the device tensor.
    """

    info: DataConversionInfo
    table: Int64Array
    address: int
    units: int
    lowest: int
    highest: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Run:
    """A nest of runs of ``count`` elements, each followed by ``fill`` zeros."""

    nest: AccessMap
    count: int
    fill: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table: a run, and the run that continues it along ``tail_axis``, if any."""

    run: _Run
    tail: _Run | None = None
    tail_axis: int = 0


@lru_cache(maxsize=1024)
def plan_transfer(
    layout: SpyreTensorLayout,
    sizes: tuple[int, ...],
    layout_strides: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    numerics: Numerics,
    to_device: bool,
) -> TransferPlan:
    """Plan of a copy, cached; errors as in `conversion_info`, UnsupportedError SPY528, SPY529.

    ``sizes``/``layout_strides``: the host tensor that the layout was made for; ``strides``: of the
    host storage. All in elements.
    """
    info = conversion_info(layout, sizes, layout_strides, dtype, to_device, strides)
    if not info.nests and not info.zero_fill:
        return TransferPlan(info, np.zeros(1, np.int64), 0, 0, 0, 0, layout.device_bytes)
    lowest, highest = info.host_range or (0, 0)
    if max(-lowest, highest) > _FARTHEST:
        raise LaunchError(
            "SPY322",
            "the layout's strides lead out of any host memory",
            expected=f"host elements up to {_FARTHEST}",
            found=str(layout),
        )
    rows = _rows(_runs(info.moved(-lowest)))
    table = _table(info, rows, dtype, numerics)
    units = int(table[len(table) - tt.ROW_WORDS + tt.END_UNIT])
    address = table.ctypes.data
    return TransferPlan(info, table, address, units, lowest, highest, layout.device_bytes)


def _runs(info: DataConversionInfo) -> list[_Run]:
    """One run per nest, with the zero fill that completes its sticks, and one per other fill."""
    lanes = (info.output_shape if info.to_device else info.input_shape)[0]
    # All nests of a copy have the same device pitches.
    fills = {(f.first[0], *[a.extent for a in f.axes[:-1]]): f for f in info.zero_fill}
    runs = []
    for nest in info.nests:
        count = nest.axes[-1].extent
        behind = nest.first[DEVICE] + count, *[axis.extent for axis in nest.axes[:-1]]
        zeros = fills[behind].axes[-1].extent if behind in fills else lanes
        fill = zeros if count + zeros <= lanes else 0
        if fill:
            del fills[behind]
        runs.append(_Run(nest, count, fill))
    for places in fills.values():
        axes = tuple(Axis(axis.extent, (0, *axis.pitches)) for axis in places.axes)
        runs.append(_Run(AccessMap((0, *places.first), axes), 0, axes[-1].extent))
    return runs


def _rows(runs: Sequence[_Run]) -> list[_Row]:
    """Rows of one run, or of two runs if the second continues the first."""
    rows: list[_Row] = []
    for run in runs:
        axis = _continued_axis(rows[-1], run) if rows else None
        if axis is None:
            rows.append(_Row(run))
        else:
            rows[-1] = _Row(rows[-1].run, run, axis)
    return rows


def _continued_axis(row: _Row, run: _Run) -> int | None:
    """Axis along which ``run`` is the next step of ``row``; None if there is none."""
    one, two = row.run.nest, run.nest
    pairs = list(zip(one.axes[:-1], two.axes[:-1], strict=True))
    differing = [k for k, (mine, its) in enumerate(pairs) if mine.extent != its.extent]
    if row.tail is not None or not (row.run.count and run.count) or len(differing) != 1:
        return None
    (k,) = differing
    behind = one.at([axis.extent if n == k else 0 for n, axis in enumerate(one.axes)])
    return k if behind == two.first and two.axes[k].extent == 1 else None


def _loops(row: _Row) -> list[Axis]:
    """The loops above the runs that have more than one step, the innermost first.

    They walk host elements, device elements, and steps along the axis that a tail continues.
    """
    loops = []
    for k, axis in enumerate(row.run.nest.axes[:-1]):
        more = int(row.tail is not None and k == row.tail_axis)
        loops.append(Axis(axis.extent + more, (*axis.pitches, more)))
    return drop_unit_axes(loops[::-1])


def _table(
    info: DataConversionInfo, rows: Sequence[_Row], dtype: str, numerics: Numerics
) -> Int64Array:
    table = np.zeros(tt.HEAD_WORDS + len(rows) * tt.ROW_WORDS, np.int64)
    table[tt.ROWS] = len(rows)
    table[tt.TO_DEVICE] = info.to_device
    _write_formats(table, info.device_format, dtype, numerics)
    element_bytes = find_format(info.device_format).bits // 8
    unit = 0
    for k, row in enumerate(rows):
        words = table[tt.HEAD_WORDS + k * tt.ROW_WORDS :][: tt.ROW_WORDS]
        _write_run(words, row, element_bytes)
        _write_axes(words, _tiled_axes(_loops(row)), element_bytes)
        words[tt.FIRST_UNIT] = unit
        unit += int(np.prod(words[tt.EXTENT : tt.EXTENT + tt.AXES - 2]))
        words[tt.END_UNIT] = unit
    return table


def _write_run(words: Int64Array, row: _Row, element_bytes: int) -> None:
    run, tail, nest = row.run, row.tail, row.run.nest
    words[tt.COUNT], words[tt.FILL] = run.count, run.fill
    words[tt.LANE_STRIDE] = nest.axes[-1].pitches[HOST]
    words[tt.HOST_OFFSET] = nest.first[HOST]
    words[tt.DEVICE_OFFSET] = nest.first[DEVICE] * element_bytes
    words[tt.TAIL_AT] = -1
    if tail is not None:
        words[tt.TAIL_COUNT], words[tt.TAIL_FILL] = tail.count, tail.fill
        words[tt.TAIL_AT] = nest.axes[row.tail_axis].extent


def _write_axes(words: Int64Array, axes: Sequence[Axis], element_bytes: int) -> None:
    first = tt.AXES - len(axes)
    words[tt.FIRST_AXIS] = first
    words[tt.EXTENT : tt.EXTENT + tt.AXES] = 1
    for slot, axis in enumerate(axes, first):
        words[tt.EXTENT + slot] = axis.extent
        words[tt.HOST_STEP + slot] = axis.pitches[HOST]
        words[tt.DEVICE_STEP + slot] = axis.pitches[DEVICE] * element_bytes
        words[tt.TAIL_STEP + slot] = axis.pitches[_TAIL]


def _tiled_axes(loops: Sequence[Axis]) -> list[Axis]:
    """Axes by falling host step, the last two of them a tile: see `tt.AXES`.

    Innermost is a part of the loop nearest on the device, before it one nearest on the host.
    """
    if not loops:
        return []
    if len(loops) > tt.MAX_LOOPS:
        raise UnsupportedError(
            "SPY529",
            "a layout of this many device dims cannot be copied",
            expected=f"at most {tt.MAX_LOOPS} device dims larger than 1 above the stick",
            found=f"{len(loops)} of them, extents {[loop.extent for loop in loops[::-1]]}",
        )
    near = min(loops, key=lambda loop: loop.pitches[DEVICE])
    others = [loop for loop in loops if loop is not near]
    others.sort(key=lambda loop: -abs(loop.pitches[HOST]))
    # Neighbours on the device are innermost: a cache line of either side is used once per tile.
    near, inner = near.split(_divisor(near, _TILE))
    if not others:
        return [near, Axis(1, (0, 0, 0)), inner]
    last, within = others[-1].split(_divisor(others[-1], _UNIT_RUNS // inner.extent))
    return [*others[:-1], near, last, within, inner]


def _divisor(axis: Axis, most: int) -> int:
    """The largest number of steps up to ``most`` that divides the axis."""
    if axis.extent <= most:
        return axis.extent
    return next(n for n in range(most, 0, -1) if axis.extent % n == 0)


def _write_formats(table: Int64Array, device: str, dtype: str, numerics: Numerics) -> None:
    row = find_host_dtype(dtype)
    host = row.name
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
    """The two integers of a rule, see :mod:`spyre.hw.kernels.intrinsics`."""
    half = 1 << (dropped_bits - 1)
    return {"away": (half, 0), "trunc": (0, 0), "even": (half - 1, 1)}[rounding]
