"""Compilation of driver, copies and kernels in advance; all kernels in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceTensor
from spyre.hw.plan_table import KERNEL_NAMES
from spyre.layout import SpyreTensorLayout

_COLUMNS = 1024
_ROWS = (1, 512)
"""Rows of tensors that one thread copies, and that several threads copy."""


def warm_transfers(device: Device) -> None:
    """Compile or load the copies between host and ``device``, and its thread pool."""
    from spyre.hw.kernels.parallel_compile import TRANSFER, entry_of

    _ = entry_of(TRANSFER).address  # compiles or loads it
    for rows in _ROWS:
        sizes, strides = (rows, _COLUMNS), (_COLUMNS, 1)
        layout = SpyreTensorLayout.from_host(sizes, "float16")
        storage = np.zeros(rows * _COLUMNS, np.float16)
        address = device.allocate(layout.device_bytes)
        tensor = DeviceTensor("warm", address, layout, "float16", sizes, strides)
        device.upload(tensor, storage, "float16")
        device.download(tensor, storage, "float16")
        device.free(address)


def warm_driver(device: Device) -> None:
    """Compile or load the driver and the code that moves programs, without any kernels."""
    from spyre.hw.kernels.parallel_compile import compile_driver

    device.pool.prepare()
    compile_driver()


def warm_program(
    device: Device, link: Callable[[], LinkedProgram], is_interpreted: bool = True
) -> None:
    """Compile the copies, the driver and the kernels of a program together.

    Nothing is linked if the copies are ready: missing kernels are then compiled when the program is
    linked to run. SpyreErrors of ``link`` are ignored here and raised by that linking.
    ``is_interpreted``: compile in the background if ``device`` can interpret the program meanwhile.
    """
    from spyre.hw.kernels.parallel_compile import TRANSFER, compile_together, entry_of

    if entry_of(TRANSFER).is_ready:
        return
    with suppress(SpyreError):
        linked = link()
        rows = linked.host_dispatch
        if not (is_interpreted and device.executor.is_interpreted(linked, rows, TRANSFER)):
            compile_together([TRANSFER, *(KERNEL_NAMES[kind] for kind in linked.code.kinds)])


def warm_kernels() -> Iterator[str]:
    """Compile or load every kernel; yields the name of each when it is started.

    If compiled kernels can be cached, one process per CPU compiles some of them; this process loads
    them afterwards, and compiles those that failed.
    """
    from spyre.hw.kernels.parallel_compile import JOBS, compile_job, compiled_elsewhere, processes

    is_alone = processes() == 1
    if not is_alone:
        yield from compiled_elsewhere(JOBS)
    for name in JOBS:
        if is_alone:
            yield name
        compile_job(name)
