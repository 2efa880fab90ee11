"""Marking the dispatches that may run strip by strip, see :mod:`spyre.hw.kernels.chaining`."""

from __future__ import annotations

import numpy as np

from spyre.hw import table as tb
from spyre.hw.kernels.opcodes import CHAIN_LENGTH, ELEMENTWISE_KIND, STRIP_STICKS
from spyre.hw.nest import Int64Array


def mark_chains(tables: Int64Array, dispatch: Int64Array) -> bool:
    """Set CHAIN_LENGTH of every dispatch, whose bases are device addresses; True if any is chained.

    ``tables``: [row, WORDS]; ``dispatch``: [dispatch, DISPATCH_WORDS].
    """
    dispatch[:, CHAIN_LENGTH] = 1
    kinds, units = tables[dispatch[:, 0]][:, (tb.KIND, tb.UNITS)].T
    long = (kinds == ELEMENTWISE_KIND) & (units * tb.BLOCK_STICKS > STRIP_STICKS)
    if not np.any(long[1:] & long[:-1]):
        return False
    from spyre.hw.kernels.chaining import find_chains

    return bool(find_chains(tables, dispatch))
