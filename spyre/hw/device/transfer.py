"""Host ↔ device copies: descriptors of loop nests, executed by compiled kernels.

Layout and host strides give a `DataConversionInfo` (:mod:`spyre.layout.conversion`), this gives the
cached table that a kernel executes. Padding is filled with zeros on the way to the device and
skipped on the way to the host. Copies to different memory may run in several threads at once.
Rules: runtime reference §3, SDSC reference §6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import INTEGER_STORAGE, NO_CODE, Rounding, find_format, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw import plan_table as tb, transfer_table as tt
from spyre.hw.device.threads import ThreadPool
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
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


def execute_transfer(
    plan: TransferPlan,
    storage: npt.NDArray[Any],
    offset: int,
    device: npt.NDArray[np.uint8],
    pool: ThreadPool,
) -> DataConversionInfo:
    """Copy between a host tensor and ``device``, the tensor's bytes, in the plan's direction.

    ``storage``: 1-D host storage; ``offset``: its element that is the first of the tensor. Padding
    on the device becomes zero. Returns the descriptor, with host elements counted from the first
    one of the tensor. LaunchError SPY324 if one side is too small.
    """
    if plan.units:
        _check_bounds(plan, storage, offset, device)
        start = storage.ctypes.data + (offset + plan.lowest) * storage.itemsize
        _run(plan, start, device.ctypes.data, pool)
    return plan.info


def _run(plan: TransferPlan, host: int, device: int, pool: ThreadPool) -> None:
    from spyre.hw.kernels.machine_code import TRANSFER, entry_of

    run = entry_of(TRANSFER)
    if not run.is_loaded and _is_interpreted(plan):
        from spyre.hw.interpreter import background

        background.transfer(plan.table, host, device, plan.units)
        return
    if pool.threads == 1 or plan.units < 2 or plan.size_bytes < _PARALLEL_BYTES:
        run_transfer = entry_of("transfer.run_transfer").function
        status = run_transfer(run.address, plan.address, host, device, 0, plan.units)
    else:
        pool.prepare()
        chunks = min(plan.units, pool.threads * tb.CHUNKS_PER_THREAD)
        run_job = entry_of("pool.run_job").function
        copy = run.address, plan.address, host, device
        status = run_job(pool.block, 0, *copy, plan.units, chunks)
    if status == tb.NO_MEMORY:
        raise MemoryError("a copy has no memory on the host")


def _is_interpreted(plan: TransferPlan) -> bool:
    """Return True if the copy is to be interpreted while its kernel is being compiled."""
    from spyre.hw.interpreter.background import background_compiler, copy_seconds
    from spyre.hw.kernels.machine_code import TRANSFER

    return background_compiler.should_interpret(
        (TRANSFER,), copy_seconds(plan.size_bytes // STICK_BYTES)
    )


def _check_bounds(
    plan: TransferPlan, storage: npt.NDArray[Any], offset: int, device: npt.NDArray[np.uint8]
) -> None:
    first, last = offset + plan.lowest, offset + plan.highest
    if plan.info.nests and not (0 <= first <= last < storage.size):
        message = "host storage is too small for the tensor"
        expected = f"elements {first} to {last}"
        raise LaunchError("SPY324", message, expected=expected, found=f"{storage.size} elements")
    if device.size < plan.size_bytes:
        message = "device bytes do not match the tensor layout"
        expected = f"{plan.size_bytes} bytes"
        raise LaunchError("SPY324", message, expected=expected, found=f"{device.size} bytes")


_UNIT_RUNS = 2048
"""At most so many runs are a unit of work, so that several threads have some."""
_FARTHEST = 1 << 56
_TAIL = 2
"""Third space of the loops of a row: steps along the axis of the tail."""


class TransferPlan(msgspec.Struct, frozen=True, eq=False):
    """A copy ready to run.

    ``info``: its descriptor, relative to the first element of the host tensor. ``address``: of
    ``table``, in host memory. ``lowest``/``highest``: the first and the last host element that it
    touches, both 0 for an empty copy; the table counts host elements from ``lowest``, because
    kernels accept no negative ones. ``size_bytes``: of the device tensor.
    """

    info: DataConversionInfo
    table: Int64Array
    address: int
    units: int
    lowest: int
    highest: int
    size_bytes: int


class _Row(msgspec.Struct, frozen=True):
    """A row of the table: runs of ``count`` elements, each followed by ``fill`` zeros.

    ``nest`` walks the elements, or the zeros alone if ``count`` is 0. If ``tail_axis`` is not
    negative, the walk has one more step along this axis, whose runs have the tail's sizes.
    """

    nest: AccessMap
    count: int
    fill: int
    tail_axis: int = -1
    tail_count: int = 0
    tail_fill: int = 0


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
    """Return the cached plan of a copy.

    ``sizes``/``layout_strides``: host extents the layout was made for; ``strides``: those of the
    host storage; all in elements. Errors as in `conversion_info`, and UnsupportedError SPY528 and
    SPY529.
    """
    info = conversion_info(layout, sizes, layout_strides, dtype, to_device, strides)
    if not info.nests and not info.zero_fill:
        return TransferPlan(info, np.zeros(1, np.int64), 0, 0, 0, 0, layout.device_bytes)
    lowest, highest = info.host_range or (0, 0)
    if max(-lowest, highest) > _FARTHEST:
        message = "the layout's strides reach beyond any host memory"
        expected = f"host elements up to {_FARTHEST}"
        raise LaunchError("SPY322", message, expected=expected, found=str(layout))
    rows = _rows(info.moved(-lowest))
    table = _table(info, rows, dtype, numerics)
    units = int(table[len(table) - tt.ROW_WORDS + tt.END_UNIT])
    address = table.ctypes.data
    return TransferPlan(info, table, address, units, lowest, highest, layout.device_bytes)


def _rows(info: DataConversionInfo) -> list[_Row]:
    """Return the rows of a copy.

    Every nest is a row with the zero fill that completes its sticks, and a nest that continues the
    one before is the tail of its row. Other zero fills are rows by themselves.
    """
    lanes = info.device_size[-1]
    # All nests of a copy have the same device pitches.
    fills = {(f.first[0], *[a.extent for a in f.axes[:-1]]): f for f in info.zero_fill}
    rows: list[_Row] = []
    for nest in info.nests:
        count = nest.axes[-1].extent
        behind = nest.first[DEVICE] + count, *[axis.extent for axis in nest.axes[:-1]]
        zeros = fills[behind].axes[-1].extent if behind in fills else lanes
        fill = zeros if count + zeros <= lanes else 0
        if fill:
            del fills[behind]
        axis = _continued_axis(rows[-1], nest) if rows else -1
        if axis < 0:
            rows.append(_Row(nest, count, fill))
        else:
            rows[-1] = replace(rows[-1], tail_axis=axis, tail_count=count, tail_fill=fill)
    for places in fills.values():
        axes = tuple(Axis(axis.extent, (0, *axis.pitches)) for axis in places.axes)
        rows.append(_Row(AccessMap((0, *places.first), axes), 0, axes[-1].extent))
    return rows


def _continued_axis(row: _Row, nest: AccessMap) -> int:
    """Return the axis of ``row`` along which ``nest`` is one more step, or -1."""
    pairs = list(zip(row.nest.axes[:-1], nest.axes[:-1], strict=True))
    differing = [k for k, (mine, its) in enumerate(pairs) if mine.extent != its.extent]
    if row.tail_axis >= 0 or len(differing) != 1:
        return -1
    (k,) = differing
    behind = row.nest.at([a.extent if n == k else 0 for n, a in enumerate(row.nest.axes)])
    return k if behind == nest.first and nest.axes[k].extent == 1 else -1


def _loops(row: _Row) -> list[Axis]:
    """Return the loops around the runs that have more than one step, the innermost first.

    Their spaces are host elements, device elements, and steps along the axis of the tail.
    """
    loops = []
    for k, axis in enumerate(row.nest.axes[:-1]):
        more = int(k == row.tail_axis)
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
    nest = row.nest
    words[tt.COUNT], words[tt.FILL] = row.count, row.fill
    words[tt.LANE_STRIDE] = nest.axes[-1].pitches[HOST]
    words[tt.HOST_OFFSET] = nest.first[HOST]
    words[tt.DEVICE_OFFSET] = nest.first[DEVICE] * element_bytes
    words[tt.TAIL_AT] = -1
    if row.tail_axis >= 0:
        words[tt.TAIL_COUNT], words[tt.TAIL_FILL] = row.tail_count, row.tail_fill
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
    """Return the axes by falling host step; the last two of them are a tile, see `tt.AXES`.

    The innermost is part of the loop with the smallest device step, the one before it part of the
    loop with the smallest host step.
    """
    if not loops:
        return []
    if len(loops) > tt.MAX_LOOPS:
        message = "a layout of this many device dims cannot be copied"
        expected = f"at most {tt.MAX_LOOPS} device dims larger than 1 above the stick"
        found = f"{len(loops)} of them, extents {[loop.extent for loop in loops[::-1]]}"
        raise UnsupportedError("SPY529", message, expected=expected, found=found)
    near = min(loops, key=lambda loop: loop.pitches[DEVICE])
    others = [loop for loop in loops if loop is not near]
    others.sort(key=lambda loop: -abs(loop.pitches[HOST]))
    # Neighbours on the device are innermost, so that a tile touches each cache line only once.
    near, inner = near.split(_divisor(near, tt.TILE))
    if not others:
        return [near, Axis(1, (0, 0, 0)), inner]
    last, within = others[-1].split(_divisor(others[-1], _UNIT_RUNS // inner.extent))
    return [*others[:-1], near, last, within, inner]


def _divisor(axis: Axis, most: int) -> int:
    """Return the largest number of steps, at most ``most``, that divides the axis."""
    if axis.extent <= most:
        return axis.extent
    return next(n for n in range(most, 0, -1) if axis.extent % n == 0)


def _write_formats(table: Int64Array, device: str, dtype: str, numerics: Numerics) -> None:
    row = find_host_dtype(dtype)
    host = row.name
    table[tt.HOST_FORMAT] = row.transfer_code
    stored = find_format(device)
    table[tt.NINF_IS_NAN] = numerics.ninf_to_host == "nan"
    table[tt.ROUND_ADD], table[tt.ROUND_ODD] = _rounding_rule(numerics.dma_rounding, 14)
    table[tt.LARGEST] = 0x7FFE if numerics.saturate else 0x7FFF
    table[tt.BFLOAT16_ADD], table[tt.BFLOAT16_ODD] = _rounding_rule(numerics.bfloat16_rounding, 16)
    errata = numerics.errata if host == "float16" and device == "SEN169_FP16" else ()
    table[tt.FLOAT16_COPIES] = "float16-copies" in errata
    integers = stored.transfer_code != NO_CODE and not stored.computed
    if stored.copied_only or find_format(row.device_format).copied_only:
        integers = device == row.device_format
    floats = row.transfer_code < INTEGER_STORAGE
    if stored.computed and floats:
        is_half = stored.transfer_code == tb.DL16
        table[tt.DEVICE_FORMAT] = _half_code(numerics) if is_half else stored.transfer_code
    elif integers and (not floats or host == "bool"):
        table[tt.DEVICE_FORMAT] = stored.transfer_code
        table[tt.INTEGERS] = 1
    else:
        message = f"a copy between host {host} and device {device} is not simulated"
        expected = "float to float, integer to integer"
        raise UnsupportedError("SPY528", message, expected=expected, found=f"{host} and {device}")


def _half_code(numerics: Numerics) -> int:
    """Return the code of 16-bit device floats; the default DL16 has the fastest kernel."""
    if numerics.mode == "ieee":
        return tb.HALF
    plain = numerics.dma_rounding == "away" and not numerics.saturate
    return tb.DL16 if plain else tt.DEVICE_DL16_AS


def _rounding_rule(rounding: Rounding, dropped_bits: int) -> tuple[int, int]:
    """Return the two integers of a rounding rule, see :mod:`spyre.hw.kernels.intrinsics`."""
    half = 1 << (dropped_bits - 1)
    return {"away": (half, 0), "trunc": (0, 0), "even": (half - 1, 1)}[rounding]
