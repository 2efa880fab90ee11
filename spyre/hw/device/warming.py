"""Compiles what runs programs before the first one needs it; all kernels in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceTensor
from spyre.hw.table import KERNEL_NAMES
from spyre.layout import SpyreTensorLayout

_COLUMNS = 1024
_ROWS = (1, 512)
"""Tensors that one thread copies, and that the threads share."""


def warm_transfers(device: Device) -> None:
    """Compile or load the copies between host and ``device``, and its thread pool."""
    from spyre.hw.kernels.parallel_compile import TRANSFER, entry_of

    _ = entry_of(TRANSFER).address  # what is loaded is what copies
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
    """Compile or load what runs and moves programs, whatever their kernels."""
    from spyre.hw.kernels.parallel_compile import compile_driver

    device.pool.prepare()
    compile_driver()


def warm_program(
    device: Device, link: Callable[[], LinkedProgram], is_interpreted: bool = True
) -> None:
    """Compile at once what copies a program's tensors, its kernels and what runs them.

    Where the copies are ready, nothing is linked: kernels that are missing are compiled when the
    program is. ``link`` may raise SpyreErrors, which are for who links it to run it.
    ``is_interpreted``: or begin to, in the background, if ``device`` can run it meanwhile.
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
    """Compile or load every kernel; names each when it is begun.

    Where compiled kernels can be kept, a process for each CPU compiles some; this one loads them
    afterwards, and compiles what another could not.
    """
    from spyre.hw.kernels.parallel_compile import JOBS, compile_job, compiled_elsewhere, processes

    is_alone = processes() == 1
    if not is_alone:
        yield from compiled_elsewhere(JOBS)
    for name in JOBS:
        if is_alone:
            yield name
        compile_job(name)
