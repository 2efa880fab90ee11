"""Words and codes of the transfer table, shared by its planner and its kernels.

Axes are outermost first; the last two are sticks that are neighbours on the host and on the
device. Steps are host elements and device bytes. A check is a host coordinate that may run past
the host tensor's size; lanes beyond it are padding.
"""

from __future__ import annotations

AXES = 9
MAX_CHECKS = 6

UNITS = 0
LANES = 1
LANE_STRIDE = 2
HOST_FORMAT = 3
DEVICE_FORMAT = 4
INTEGERS = 5
CHECKS = 6
NINF_IS_NAN = 7
EXTENT = 8
HOST_STEP = EXTENT + AXES
DEVICE_STEP = HOST_STEP + AXES
CHECK_SIZE = DEVICE_STEP + AXES
CHECK_LANE = CHECK_SIZE + MAX_CHECKS
CHECK_STEP = CHECK_LANE + MAX_CHECKS
TO_DEVICE = CHECK_STEP + MAX_CHECKS * AXES
ROUND_ADD = TO_DEVICE + 1
ROUND_ODD = TO_DEVICE + 2
LARGEST = TO_DEVICE + 3
"""Rounding rule and largest code of DEVICE_DL16_AS; see :mod:`spyre.hw.kernels.rounding`."""
BFLOAT16_ADD = TO_DEVICE + 4
BFLOAT16_ODD = TO_DEVICE + 5
WORDS = TO_DEVICE + 6

HOST_HALF, HOST_BFLOAT16, HOST_FLOAT32, HOST_BOOL = 0, 1, 2, 3
HOST_INT64, HOST_INT32, HOST_INT16, HOST_INT8, HOST_UINT8 = 4, 5, 6, 7, 8

DEVICE_INT32, DEVICE_INT16, DEVICE_INT8 = 3, 4, 5
"""Device codes of integers; floats use the FORMAT words of :mod:`spyre.hw.table`."""
DEVICE_DL16_AS = 6
"""Device code of DL16 that is rounded or saturated by the table's rule, not ties away."""

HOST_CODES = {
    "float16": HOST_HALF,
    "bfloat16": HOST_BFLOAT16,
    "float32": HOST_FLOAT32,
    "bool": HOST_BOOL,
    "int64": HOST_INT64,
    "int32": HOST_INT32,
    "int16": HOST_INT16,
    "int8": HOST_INT8,
    "qint8": HOST_INT8,
    "uint8": HOST_UINT8,
    "quint8": HOST_UINT8,
    "float8_e4m3fn": HOST_UINT8,
    "float8_e5m2fnuz": HOST_UINT8,
}

DEVICE_INTEGER_CODES = {
    "IEEE_INT32": DEVICE_INT32,
    "SENUINT32": DEVICE_INT32,
    "SENINT16": DEVICE_INT16,
    "SENINT8": DEVICE_INT8,
    "SEN143_FP8": DEVICE_INT8,
    "SEN152_FP8": DEVICE_INT8,
}
"""Formats moved as integers; the two fp8 formats are the host's own bytes."""
COPIED_FORMATS = frozenset({"SEN143_FP8", "SEN152_FP8"})
"""Formats that are only copied, between a host dtype and the device format of that very dtype."""
