"""Element arrangements: the order in which a converting operation leaves elements in its sticks.

An upcast from DL16 to fp32 spreads 64 columns over a pair of sticks by alternating groups of four;
a downcast interleaves them, a quantisation to fp8 interleaves two sticks by groups of eight. A
layout names the order, transfers undo it. Rule: operations reference §6, from the element
arrangement page of torch-spyre.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spyre.errors import UnsupportedError

Digit = tuple[int, int]
"""Extent, and logical columns per step."""

ARRANGEMENT_DIGITS: dict[str, tuple[Digit, ...]] = {
    "STANDARD": ((64, 1),),
    "DL16_TO_FP32": ((4, 1), (8, 8), (2, 4)),
    "FP32_TO_DL16": ((4, 1), (2, 32), (8, 4)),
    "QFP8CH": ((8, 1), (2, 64), (8, 8)),
}
"""A physical position as mixed-radix digits, innermost first.

DL16_TO_FP32: column 8·g + 4·s + e lies in lane 4·g + e of stick s of a pair. FP32_TO_DL16: column
32·h + 4·g + e lies in lane 8·g + 4·h + e. QFP8CH: column 64·h + 8·g + e, of a pair of DL16 sticks,
lies in lane 16·g + 8·h + e of one fp8 stick.
"""

_FORMAT_OF = {
    "DL16_TO_FP32": "IEEE_FP32",
    "FP32_TO_DL16": "SEN169_FP16",
    "QFP8CH": "SEN143_FP8",
}


def arrangement_digits(arrangement: str) -> tuple[Digit, ...]:
    """Row of `ARRANGEMENT_DIGITS`; UnsupportedError SPY323 for EXX2 and QFP8WT."""
    if arrangement not in ARRANGEMENT_DIGITS:
        raise UnsupportedError(
            "SPY323", f"host transfer of a tensor with element arrangement {arrangement}"
        )
    return ARRANGEMENT_DIGITS[arrangement]


def logical_columns(arrangement: str) -> NDArray[np.int64]:
    """Logical column at each physical position of one group (int64, 64 or 128 positions).

    A group is the columns that one permutation covers: a stick, or a pair of fp32 sticks.
    UnsupportedError SPY323 as in `arrangement_digits`.
    """
    columns = np.zeros(1, dtype=np.int64)
    for extent, step in arrangement_digits(arrangement):
        columns = (np.arange(extent, dtype=np.int64)[:, None] * step + columns).reshape(-1)
    return columns


def arrangement_positions(arrangement: str) -> NDArray[np.int64]:
    """Physical position of each logical column: the inverse of `logical_columns`.

    DL16_TO_FP32 counts positions through both sticks of a pair. The permutations of DL16_TO_FP32
    and FP32_TO_DL16 are inverse.
    """
    return np.argsort(logical_columns(arrangement))


def check_arrangement(arrangement: str, device_dtype: str) -> None:
    """UnsupportedError SPY323 unless a tensor of this format can be moved in this arrangement."""
    arrangement_digits(arrangement)
    expected = _FORMAT_OF.get(arrangement, device_dtype)
    if device_dtype != expected:
        raise UnsupportedError(
            "SPY323",
            f"element arrangement {arrangement} of a {device_dtype} tensor",
            expected=expected,
            found=device_dtype,
        )
