"""Jobs of one DMA step: tensors to the card and back, raw bytes to program memory.

The pipeline RFC's `Job(JobPlan)`: pure data movement goes through streams as everything else does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.runtime.flex.control_block import Place
from spyre.runtime.flex.job import DMA, JobPlan, LaunchContext
from spyre.runtime.flex.program_memory import ProgramMemory
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.host_tensor import HostTensor


def tensor_to_device(host: HostTensor, tensor: SpyreTensor) -> JobPlan:
    """Host tensor → device tensor, with conversion of format and layout. Keeps both alive.

    The host tensor must not change before the copy has run.
    """

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_device(host, tensor.resolved)

    return _tensor_plan(copy, tensor, host, to_device=True)


def tensor_to_host(tensor: SpyreTensor, host: HostTensor) -> JobPlan:
    """Device tensor → the storage of ``host``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_host(tensor.resolved, host)

    return _tensor_plan(copy, tensor, host, to_device=False)


CopyFunction = Callable[[LaunchContext, int, int], None]


def host_like(tensor: SpyreTensor) -> HostTensor:
    """A host tensor for the elements of ``tensor``, with the strides its layout was made for."""
    dtype = find_host_dtype(tensor.dtype)
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    elements = 0 if 0 in tensor.shape else 1 + sum((n - 1) * step for n, step in pairs)
    storage = np.zeros(elements, np.dtype(dtype.storage_dtype))
    return HostTensor(tensor.name, dtype.name, tensor.shape, tensor.strides, 0, storage)


def bytes_to_device(content: npt.NDArray[np.uint8], memory: ProgramMemory, name: str) -> JobPlan:
    """Raw bytes → the start of an allocation: program binaries."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.write_bytes(memory.address_bytes, content, name)

    def places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        return (Place(name, memory.virtual_address),)

    return JobPlan(name, (DMA(copy, places, content.size, True, False, name),))


def _tensor_plan(
    copy: CopyFunction, tensor: SpyreTensor, host: HostTensor, to_device: bool
) -> JobPlan:
    name = f"{host.name or tensor.name}"

    def places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        return (Place(tensor.name, tensor.virtual_address),)

    step = DMA(copy, places, tensor.layout.device_bytes, to_device, False, name)
    return JobPlan(name, (step,))
