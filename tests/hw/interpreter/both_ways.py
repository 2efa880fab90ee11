"""A linked program compiled and interpreted, a dispatch at a time from the same memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import numpy.typing as npt

from spyre.hw import plan_table as tb
from spyre.hw.device.device import Device
from spyre.hw.interpreter import background as interpreter
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.runtime.compare.executes import ExecuteView, execute_views

Bytes = npt.NDArray[np.uint8]
KINDS = tuple(tb.KERNELS)


Same = Callable[[Bytes, Bytes], bool]


def equal_halves(found: Bytes, expected: Bytes) -> bool:
    """Equal IEEE binary16, where one NaN is as good as another: which of several that meet goes on
    depends on the instructions that LLVM chooses.
    """
    codes = [side.view(np.uint16) for side in (found, expected)]
    is_nan = [(side & 0x7FFF) > 0x7C00 for side in codes]
    return bool(np.all((codes[0] == codes[1]) | (is_nan[0] & is_nan[1])))


def differing_kernels(
    device: Device, linked: LinkedProgram, same: Same = np.array_equal
) -> list[str]:
    """Runs ``linked`` on ``device``; the kernels that leave other bytes, or another fault."""
    views = execute_views(linked)
    found = chain.from_iterable(_differing(device, linked, view, same) for view in views)
    return list(found)


def _differing(device: Device, linked: LinkedProgram, view: ExecuteView, same: Same) -> list[str]:
    touched = [device.memory.view(w.address_bytes, w.size_bytes) for w in view.ranges]
    differing = []
    for dispatch in range(view.first, view.last):
        before = [window.copy() for window in touched]
        status = _compiled(device, linked, dispatch)
        after = [window.copy() for window in touched]
        for window, content in zip(touched, before, strict=True):
            window[:] = content
        found = _interpreted(device, linked, dispatch)
        is_same = all(same(w, a) for w, a in zip(touched, after, strict=True))
        if not is_same or found != status:
            differing.append(KINDS[linked.tables[linked.dispatch[dispatch, 0], tb.KIND]])
    return differing


def _compiled(device: Device, linked: LinkedProgram, dispatch: int) -> tuple[int, int]:
    from spyre.hw.kernels.machine_code import entry_of

    executor, fault = device.executor, np.zeros(1, np.int64)
    rows = linked.host_dispatch.copy()
    rows[:, tb.DISPATCH_BASES - 1] = 1  # no chains
    scratch, memory = executor._scratch_pointer, device.memory.pointer
    faulty = entry_of("driver.drive").function(
        rows,
        linked.tables,
        linked.code.entries,
        memory,
        0,
        scratch,
        1,
        dispatch,
        dispatch + 1,
        fault,
    )
    return int(faulty), int(fault[0])


def _interpreted(device: Device, linked: LinkedProgram, dispatch: int) -> tuple[int, int]:
    fault = np.zeros(1, np.int64)
    faulty = interpreter.drive(
        linked.host_dispatch,
        linked.tables,
        device.memory.pointer,
        device.executor._scratch_pointer,
        dispatch,
        dispatch + 1,
        fault,
    )
    return int(faulty), int(fault[0])
