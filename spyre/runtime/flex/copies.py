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


def _plan(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> JobPlan:
    def places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        return (Place(name, context.device.allocator.virtual_address(address_bytes)),)

    return JobPlan(name, (DMA(copy, places, size_bytes, to_device, False, name),))
