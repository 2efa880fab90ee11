"""Jobs of one DMA step: tensors to the card and back, raw bytes.

The pipeline RFC's `Job(JobPlan)`: pure data movement goes through streams as everything else does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.hw.device import DeviceTensor
from spyre.runtime.flex.control_block import Place
from spyre.runtime.flex.job import DMA, JobPlan, LaunchContext
from spyre.runtime.host_tensor import HostTensor

CopyFunction = Callable[[LaunchContext, int, int], None]


def host_like(tensor: DeviceTensor) -> HostTensor:
    """A host tensor for the elements of ``tensor``, with the strides its layout was made for."""
    dtype = find_host_dtype(tensor.dtype)
    pairs = zip(tensor.sizes, tensor.strides, strict=True)
    elements = 0 if 0 in tensor.sizes else 1 + sum((n - 1) * step for n, step in pairs)
    storage = np.zeros(elements, np.dtype(dtype.storage_dtype))
    return HostTensor(tensor.name, dtype.name, tensor.sizes, tensor.strides, 0, storage)


def to_device_plan(host: HostTensor, tensor: DeviceTensor) -> JobPlan:
    """Host tensor → device tensor, with conversion of format and layout.

    The host tensor must not change before the copy has run. Whoever launches it keeps the device
    memory, by giving its `SpyreTensor` to the launch.
    """

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_device(host, tensor)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=True)


def to_host_plan(tensor: DeviceTensor, host: HostTensor) -> JobPlan:
    """Device tensor → the storage of ``host``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_host(tensor, host)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=False)


def bytes_to_device(content: npt.NDArray[np.uint8], address_bytes: int, name: str) -> JobPlan:
    """Raw bytes → device memory: program binaries, device images."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.write_bytes(address_bytes, content, name)

    return _plan(copy, address_bytes, name, content.size, to_device=True)


def device_copy_plan(source: DeviceTensor, target: DeviceTensor) -> JobPlan:
    """The bytes of a device tensor → one of the same size on the same card, through the host."""
    held: list[npt.NDArray[np.uint8]] = []

    def down(context: LaunchContext, first: int, last: int) -> None:
        dma = context.device.dma
        held.append(dma.read_bytes(source.address_bytes, source.size_bytes, source.name))

    def up(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.write_bytes(target.address_bytes, held.pop(), target.name)

    steps = [
        _step(copy, tensor.address_bytes, tensor.name, source.size_bytes, to_device)
        for copy, tensor, to_device in ((down, source, False), (up, target, True))
    ]
    return JobPlan(target.name, tuple(steps))


def _plan(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> JobPlan:
    return JobPlan(name, (_step(copy, address_bytes, name, size_bytes, to_device),))


def _step(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> DMA:
    def places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        return (Place(name, context.device.allocator.virtual_address(address_bytes)),)

    return DMA(copy, places, size_bytes, to_device, False, name)
