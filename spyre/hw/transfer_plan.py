"""From the descriptor of a copy to the table its kernel executes: one row per nest.

Rows do what the descriptor says and check nothing; a zero fill that completes the sticks of a nest
is part of that nest's row. Plans are immutable and may be run by several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spyre.dtypes import Rounding, find_format, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.kernels import transfer_table as tt
from spyre.hw.nest import Int64Array
from spyre.hw.numerics import Numerics
from spyre.layout import DataConversionInfo, SpyreTensorLayout, conversion_info

_TILE = 16
"""Most runs that are neighbours on the device before the next ones on the host."""
_UNIT_RUNS = 2048
"""Most runs of a unit, so that threads find several."""
_FARTHEST = 1 << 56


@dataclass(frozen=True, slots=True, eq=False)
class TransferPlan:
    """A copy ready to run: its descriptor, relative to the first element of the host tensor.

    ``address``: of ``table``, in host memory. ``lowest``/``highest``: host elements it touches;
    both 0 in a copy of nothing. ``size_bytes``: of the device tensor.
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
    """A row to be: what happens at one step of its loops, and the loops, innermost first."""

    count: int
    fill: int
    lane_stride: int
    host_offset: int
    device_offset: int
    loops: tuple[_Loop, ...]


@dataclass(frozen=True, slots=True)
class _Loop:
    """Steps, host elements per step, device elements per step."""

    extent: int
    host_step: int
    device_step: int


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
    """Plan of a copy; errors as in `conversion_info`, and UnsupportedError SPY528, SPY529.

    ``sizes``/``layout_strides``: host extents the layout was made for; ``strides``: those of the
    host storage. Elements all. Kept for the copies to come.
    """
    info = conversion_info(layout, sizes, layout_strides, dtype, to_device, strides)
    if not info.nests and not info.zero_fill:
        return TransferPlan(info, np.zeros(1, np.int64), 0, 0, 0, 0, layout.device_bytes)
    table = _table(info, _runs(info), dtype, numerics)
    lowest, highest = info.host_range or (0, 0)
    if max(-lowest, highest) > _FARTHEST:
        raise LaunchError(
            "SPY322",
            "the layout's strides lead out of any host memory",
            expected=f"host elements up to {_FARTHEST}",
            found=str(layout),
        )
    units = int(table[len(table) - tt.ROW_WORDS + tt.END_UNIT])
    address = table.ctypes.data
    return TransferPlan(info, table, address, units, lowest, highest, layout.device_bytes)


def _runs(info: DataConversionInfo) -> list[_Run]:
    """One run per nest, with the zero fill that completes its sticks, and one per other fill."""
    lanes = (info.output_shape if info.to_device else info.input_shape)[0]
    fills = {(f.device_offset, f.sizes[1:], f.device_strides): f.sizes[0] for f in info.zero_fill}
    runs = []
    for nest in info.nests:
        count = nest.sizes[0]
        after = (nest.device_offset + count, nest.sizes[1:], nest.device_strides)
        fill = fills.pop(after) if count + fills.get(after, lanes) <= lanes else 0
        loops = _loops(info, nest.sizes, nest.host_strides, nest.device_strides)
        places = (nest.host_offset, nest.device_offset)
        runs.append(_Run(count, fill, nest.host_strides[0], *places, loops))
    for (offset, outer, strides), count in fills.items():
        loops = _loops(info, (count, *outer), (0,) * len(strides), strides)
        runs.append(_Run(0, count, 0, 0, offset, loops))
    return runs


def _loops(
    info: DataConversionInfo,
    sizes: Sequence[int],
    host_strides: Sequence[int],
    device_strides: Sequence[int],
) -> tuple[_Loop, ...]:
    rows = list(zip(sizes, host_strides, device_strides, strict=True))[1:]
    loops = tuple(_Loop(*row) for row in rows if row[0] > 1)
    if len(loops) > tt.MAX_LOOPS:
        raise UnsupportedError(
            "SPY529",
            "a layout of this many device dims cannot be copied",
            expected=f"at most {tt.MAX_LOOPS} device dims larger than 1 above the stick",
            found=str(info).splitlines()[1].strip(),
        )
    return loops


def _table(
    info: DataConversionInfo, runs: Sequence[_Run], dtype: str, numerics: Numerics
) -> Int64Array:
    table = np.zeros(tt.HEAD_WORDS + len(runs) * tt.ROW_WORDS, np.int64)
    table[tt.ROWS] = len(runs)
    table[tt.TO_DEVICE] = info.to_device
    _write_formats(table, info.device_format, dtype, numerics)
    element_bytes = find_format(info.device_format).bits // 8
    unit = 0
    for k, run in enumerate(runs):
        row = table[tt.HEAD_WORDS + k * tt.ROW_WORDS :][: tt.ROW_WORDS]
        _write_row(row, run, element_bytes)
        row[tt.FIRST_UNIT] = unit
        unit += int(np.prod(row[tt.EXTENT : tt.EXTENT + tt.AXES - 2]))
        row[tt.END_UNIT] = unit
    return table


def _write_row(row: Int64Array, run: _Run, element_bytes: int) -> None:
    axes = _tiled_axes(run.loops)
    first = tt.AXES - len(axes)
    row[tt.COUNT], row[tt.FILL], row[tt.LANE_STRIDE] = run.count, run.fill, run.lane_stride
    row[tt.HOST_OFFSET] = run.host_offset
    row[tt.DEVICE_OFFSET] = run.device_offset * element_bytes
    row[tt.FIRST_AXIS] = first
    row[tt.EXTENT : tt.EXTENT + tt.AXES] = 1
    for place, axis in enumerate(axes, first):
        row[tt.EXTENT + place] = axis.extent
        row[tt.HOST_STEP + place] = axis.host_step
        row[tt.DEVICE_STEP + place] = axis.device_step * element_bytes


def _tiled_axes(loops: Sequence[_Loop]) -> list[_Loop]:
    """Axes by falling host step, the last two of them a tile: see `tt.AXES`.

    Innermost is a part of the loop nearest on the device, before it one nearest on the host.
    """
    if not loops:
        return []
    near = min(loops, key=lambda loop: loop.device_step)
    others = [loop for loop in loops if loop is not near]
    others.sort(key=lambda loop: -abs(loop.host_step))
    rest_of_near, inner = _split(near, _TILE)
    if not others:
        return [rest_of_near, _Loop(1, 0, 0), inner]
    rest_of_last, last = _split(others[-1], _UNIT_RUNS // inner.extent)
    return [*others[:-1], rest_of_near, rest_of_last, last, inner]


def _split(loop: _Loop, most: int) -> tuple[_Loop, _Loop]:
    """Outer and inner loop; the inner one has the most steps up to ``most`` that divide it."""
    steps = max(n for n in range(1, most + 1) if loop.extent % n == 0)
    outer = _Loop(loop.extent // steps, loop.host_step * steps, loop.device_step * steps)
    return outer, _Loop(steps, loop.host_step, loop.device_step)


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
    """The two integers of a rule, see :mod:`spyre.hw.kernels.rounding`."""
    half = 1 << (dropped_bits - 1)
    return {"away": (half, 0), "trunc": (0, 0), "even": (half - 1, 1)}[rounding]
