"""Compiling kernels before they are needed, into the disk cache (``spyre-run --warm``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.hw.device import Device, DeviceTensor
from spyre.hw.kernels.opcodes import DISPATCH_WORDS, KERNEL_MODULES
from spyre.hw.kernels.registry import entry_addresses
from spyre.hw.spec import MAX_OPERANDS
from spyre.hw.transfer import HostView
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
    from spyre.hw.kernels.driver import drive
    from spyre.hw.kernels.placing import place_dispatches

    device.pool.prepare()
    nothing = np.zeros((0, DISPATCH_WORDS), np.int64)
    anchors = np.zeros((0, MAX_OPERANDS), np.int32)
    row = np.zeros(0, np.int64)
    place_dispatches(nothing, anchors, row, row.reshape(0, 0), nothing)
    memory, pool = device.memory.pointer, device.pool.block
    drive(nothing, nothing, row, memory, pool, 0, 1, 0, 0, np.zeros(1, np.int64))


def warm_kernels() -> Iterator[str]:
    """Compile or load every kernel; names each before it is begun."""
    for kind, module in enumerate(KERNEL_MODULES):
        yield module
        entry_addresses((kind,))
