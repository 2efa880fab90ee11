"""Programs and copies run by interpreted kernels, and which are small enough for that."""

from __future__ import annotations

import numpy as np

from spyre.hw.interpreter.source import interpreted, kernels_of
from spyre.hw.table import DISPATCH_BASES, KERNELS, plan as tb
from spyre.layout import Int64Array

_ENTRIES = tuple(KERNELS.values())
_TRANSFER = "spyre.hw.kernels.transfer"


def drive(
    dispatch: Int64Array,
    tables: Int64Array,
    memory: int,
    scratch: int,
    first: int,
    last: int,
    fault: Int64Array,
) -> int:
    """As `spyre.hw.kernels.driver.drive` on one thread; chains run member by member."""
    with np.errstate(all="ignore"):
        for e in range(first, last):
            table = tables[dispatch[e, 0]]
            bases = dispatch[e, DISPATCH_BASES:]
            run = interpreted(_ENTRIES[table[tb.KIND]])
            status = run(
                table.ctypes.data, bases.ctypes.data, memory, scratch, 0, int(table[tb.UNITS])
            )
            if status != 0:
                fault[0] = status
                return e
    return -1


def transfer(table: Int64Array, host: int, device: int, units: int) -> None:
    """The copy that a transfer table describes; host addresses."""
    with np.errstate(all="ignore"):
        kernels_of(_TRANSFER)["transfer_units"](table, host, device, 0, units)
