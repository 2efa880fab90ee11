"""Element arrangements: the order in which a converting operation leaves elements in its sticks.

An upcast from DL16 to fp32 spreads 64 columns over a pair of sticks by alternating groups of four;
a downcast interleaves them. A layout names the order, transfers undo it. Rule: operations
reference §6, from the element arrangement page of torch-spyre.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spyre.errors import UnsupportedError

COLUMNS_PER_GROUP = 64
"""Logical columns that one permutation covers: a pair of fp32 sticks, or one DL16 stick."""

_FORMAT_OF = {"DL16_TO_FP32": "IEEE_FP32", "FP32_TO_DL16": "SEN169_FP16"}


def arrangement_positions(arrangement: str) -> NDArray[np.int64]:
    """Physical position of each of 64 logical columns (int64, shape (64,)).

    DL16_TO_FP32: position 32·stick + lane within a pair of fp32 sticks, where column
    8·g + 4·s + e lies in stick s, lane 4·g + e. FP32_TO_DL16: lane within one stick, where
    column 32·h + 4·g + e lies in lane 8·g + 4·h + e. STANDARD: the identity. The two
    permutations are inverse. UnsupportedError SPY323 for EXX2, QFP8CH and QFP8WT.
    """
    column = np.arange(COLUMNS_PER_GROUP, dtype=np.int64)
    lane_in_group = column % 4
    if arrangement == "STANDARD":
        return column
    if arrangement == "DL16_TO_FP32":
        return 32 * (column // 4 % 2) + 4 * (column // 8) + lane_in_group
    if arrangement == "FP32_TO_DL16":
        return 8 * (column // 4 % 8) + 4 * (column // 32) + lane_in_group
    raise UnsupportedError(
        "SPY323", f"host transfer of a tensor with element arrangement {arrangement}"
    )


def logical_columns(arrangement: str) -> NDArray[np.int64]:
    """Logical column at each of 64 physical positions: the inverse of `arrangement_positions`."""
    return np.argsort(arrangement_positions(arrangement))


def check_arrangement(arrangement: str, device_dtype: str) -> None:
    """UnsupportedError SPY323 unless a tensor of this format can be moved in this arrangement."""
    arrangement_positions(arrangement)
    expected = _FORMAT_OF.get(arrangement, device_dtype)
    if device_dtype != expected:
        raise UnsupportedError(
            "SPY323",
            f"element arrangement {arrangement} of a {device_dtype} tensor",
            expected=expected,
            found=device_dtype,
        )
