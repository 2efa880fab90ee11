"""Programs and copies run by interpreted kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.interpreter.background import background_compiler
from spyre.hw.interpreter.source import interpreted, kernels_of
from spyre.layout import Int64Array

_ENTRIES = tuple(tb.KERNELS.values())
_TRANSFER = "spyre.hw.kernels.transfer"


@contextmanager
def _interpreting() -> Iterator[None]:
    """Run without floating point warnings, as compiled kernels do, and add up the time."""
    begin = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        background_compiler.spent_seconds += time.perf_counter() - begin


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
    with _interpreting():
        for e in range(first, last):
            table = tables[dispatch[e, 0]]
            bases = dispatch[e, tb.DISPATCH_BASES :]
            run = interpreted(_ENTRIES[table[tb.KIND]])
            status = run(
                table.ctypes.data, bases.ctypes.data, memory, scratch, 0, int(table[tb.UNITS])
            )
            if status != 0:
                fault[0] = status
                return e
    return -1


def transfer(table: Int64Array, host: int, device: int, units: int) -> None:
    """Run the copy of a transfer table between host addresses."""
    with _interpreting():
        kernels_of(_TRANSFER)["transfer_units"](table, host, device, 0, units)
