"""Compiles what runs programs before the first one needs it; all kernels in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from spyre import config
from spyre.hw.device.device import Device
from spyre.hw.device.transfer import HostView
from spyre.hw.linking import entry_addresses
from spyre.hw.memory import DeviceTensor
from spyre.hw.spec import MAX_OPERANDS
from spyre.hw.table import DISPATCH_WORDS, KERNEL_NAMES
from spyre.layout import SpyreTensorLayout

_COLUMNS = 1024
_ROWS = (1, 512)
"""Tensors that one thread copies, and that the threads share."""


def warm_transfers(device: Device) -> None:
    """Compile or load the copies between host and ``device``, and its thread pool."""
    for rows in _ROWS:
        sizes, strides = (rows, _COLUMNS), (_COLUMNS, 1)
        layout = SpyreTensorLayout.from_host(sizes, "float16")
        host = HostView.dense(np.zeros(rows * _COLUMNS, np.float16), "float16", sizes, strides)
        address = device.allocate(layout.device_bytes)
        tensor = DeviceTensor("warm", address, layout, "float16", sizes, strides)
        device.upload(tensor, host)
        device.download(tensor, host)
        device.free(address)


def warm_driver(device: Device) -> None:
    """Compile or load what runs and moves programs, whatever their kernels."""
    from spyre.hw.kernels.driver import drive, place_dispatches

    device.pool.prepare()
    nothing = np.zeros((0, DISPATCH_WORDS), np.int64)
    anchors = np.zeros((0, MAX_OPERANDS), np.int32)
    row = np.zeros(0, np.int64)
    place_dispatches(nothing, anchors, row, row.reshape(0, 0), nothing)
    memory, pool = device.memory.pointer, device.pool.block
    drive(nothing, nothing, row, memory, pool, 0, 1, 0, 0, np.zeros(1, np.int64))


# --- all kernels ------------------------------------------------------------------------------

_TRANSFER = "transfer"
_JOBS = (_TRANSFER, *KERNEL_NAMES)
_WORKER = "from spyre.hw.device import compile_what_is_asked; compile_what_is_asked()"


def warm_kernels() -> Iterator[str]:
    """Compile or load every kernel; names each when it is begun.

    Where compiled kernels can be kept, a process for each CPU compiles some; this one loads them
    afterwards, and compiles what another could not.
    """
    from spyre.hw.kernels.jit import cache_directory

    workers = config.thread_count()
    is_alone = workers == 1 or cache_directory("spyre.hw.kernels.driver") is None
    if not is_alone:
        yield from _compiled_by(workers)
    for name in _JOBS:
        if is_alone:
            yield name
        _compile(name)


def _compiled_by(workers: int) -> Iterator[str]:
    """Names of kernels as the processes begin them. Each takes the number of the next from a pipe
    they share."""
    numbers, give = os.pipe()
    os.write(give, bytes(range(len(_JOBS))))
    os.close(give)
    begun, tell = os.pipe()
    command = [sys.executable, "-c", _WORKER]
    processes = [subprocess.Popen(command, stdin=numbers, stdout=tell) for _ in range(workers)]
    os.close(numbers)
    os.close(tell)
    with open(begun) as names:
        yield from map(str.strip, names)
    for process in processes:
        process.wait()


def compile_what_is_asked() -> None:
    """Compile kernels whose numbers come from standard input, a byte each; prints their names."""
    while number := os.read(0, 1):
        name = _JOBS[number[0]]
        # One write, which no other process of the pipe comes between.
        os.write(1, f"{name}\n".encode())
        _compile(name)


def _compile(name: str) -> None:
    if name == _TRANSFER:
        from spyre.hw.kernels.transfer import run

        assert run.address
    else:
        entry_addresses((KERNEL_NAMES.index(name),))
