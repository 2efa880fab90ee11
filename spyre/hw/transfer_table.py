"""Words and codes of the transfer table, shared by its planner and its kernels.

A head, then rows: a nest of the descriptor each, or two, where the second one (partial sticks)
goes on along an axis where the first one ends. Axes are outermost first; the last two are runs that
are neighbours on the host and on the device. Steps and offsets are host elements and device bytes.
A run is COUNT device neighbours, followed by FILL ones that become zero.
"""

from __future__ import annotations

from spyre.dtypes import FORMATS, HOST_DTYPES

AXES = 12
MAX_LOOPS = AXES - 2
"""Loops above the run; those nearest on the device and on the host take two axes each."""

TILE = 16
"""At most so many runs that are neighbours on the device are copied one after another."""

ROWS = 0
TO_DEVICE = 1
HOST_FORMAT = 2
DEVICE_FORMAT = 3
INTEGERS = 4
NINF_IS_NAN = 5
ROUND_ADD = 6
ROUND_ODD = 7
LARGEST = 8
"""Rounding rule and largest code of DEVICE_DL16_AS; see :mod:`spyre.hw.kernels.intrinsics`."""
BFLOAT16_ADD = 9
BFLOAT16_ODD = 10
FLOAT16_COPIES = 11
"""1 while that erratum of cards is simulated, see :data:`spyre.hw.numerics.ERRATA`."""
HEAD_WORDS = 12

FIRST_UNIT = 0
END_UNIT = 1
"""Units of the row among those of the whole copy."""
COUNT = 2
FILL = 3
LANE_STRIDE = 4
"""Host elements between neighbours of a run."""
HOST_OFFSET = 5
DEVICE_OFFSET = 6
FIRST_AXIS = 7
"""The axes before it have one step."""
TAIL_COUNT = 8
TAIL_FILL = 9
TAIL_AT = 10
"""First index of the second nest along its axis, whose TAIL_STEP is 1; -1 without one."""
EXTENT = 11
HOST_STEP = EXTENT + AXES
DEVICE_STEP = HOST_STEP + AXES
TAIL_STEP = DEVICE_STEP + AXES
ROW_WORDS = TAIL_STEP + AXES

SHORT_RUN = 8
"""Longest run that may begin inside a stick: elements that an arrangement keeps adjacent."""

HOST_HALF, HOST_BFLOAT16, HOST_FLOAT32, HOST_BOOL = (
    HOST_DTYPES[name].transfer_code for name in ("float16", "bfloat16", "float32", "bool")
)
HOST_INT64, HOST_INT32, HOST_INT16, HOST_INT8 = (
    HOST_DTYPES[name].transfer_code for name in ("int64", "int32", "int16", "int8")
)

DEVICE_INT16, DEVICE_INT8 = FORMATS["SENINT16"].transfer_code, FORMATS["SENINT8"].transfer_code
DEVICE_UINT32 = FORMATS["SENUINT32"].transfer_code
DEVICE_DL16_AS = 6
"""Device code of DL16 that is rounded or saturated by the table's rule, not ties away."""
