"""Arguments on the device: where they go, and their way there and back.

A baked bundle's argument gets its own segment when that is free, so that addresses equal those of
the files; otherwise any region does, since the kernel relocates. Used by :mod:`.session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from spyre.dtypes import find_host_dtype
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.transfer import HostView
from spyre.runtime.arguments import ArgumentSpec, KernelArguments
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import PoolBuffer

Allocate = Callable[[int, int], int]
"""(bytes, segment in a baked bundle) → device address."""


@dataclass(frozen=True)
class Placement:
    """Device tensors by argument index, and the pool where there is one."""

    tensors: dict[int, DeviceTensor]
    pool: PoolBuffer | None


@contextmanager
def placed(device: Device, arguments: KernelArguments, baked: bool) -> Iterator[Placement]:
    """Allocate everything, and free it again. DeviceOutOfMemory when it does not fit."""
    addresses: list[int] = []

    def allocate(size_bytes: int, segment: int) -> int:
        addresses.append(device.allocate(size_bytes, segment if baked else None))
        return addresses[-1]

    try:
        yield _place(arguments, allocate)
    finally:
        for address in addresses:
            device.free(address)


def _place(arguments: KernelArguments, allocate: Allocate) -> Placement:
    size, pool = arguments.pool_bytes, None
    if size:
        pool = PoolBuffer(allocate(size, 0), size)
    first = 0 if pool is None else 1
    tensors = {
        spec.arg_index: _device_tensor(
            spec, allocate(spec.layout.device_bytes, spec.arg_index + first)
        )
        for spec in arguments.arguments
    }
    for spec, target in arguments.aliases:
        tensors[spec.arg_index] = _device_tensor(spec, tensors[target].address_bytes)
    return Placement(tensors, pool)


def _device_tensor(spec: ArgumentSpec, address_bytes: int) -> DeviceTensor:
    return DeviceTensor(
        spec.name, address_bytes, spec.layout, spec.dtype_name, spec.shape, spec.strides
    )


def upload(device: Device, tensor: DeviceTensor, host: HostTensor) -> None:
    """Host tensor, whatever its strides, → device tensor."""
    view = HostView(
        host.storage,
        host.dtype_name,
        tensor.sizes,
        tensor.strides,
        host.strides,
        host.storage_offset,
    )
    device.upload(tensor, view)


def download(device: Device, tensor: DeviceTensor) -> HostTensor:
    """Device tensor → host tensor of the same dtype, with the strides its layout was made for."""
    dtype = find_host_dtype(tensor.dtype)
    storage = np.zeros(_storage_elements(tensor), np.dtype(dtype.storage_dtype))
    device.download(tensor, HostView.dense(storage, dtype.name, tensor.sizes, tensor.strides))
    return HostTensor(tensor.name, dtype.name, tensor.sizes, tensor.strides, 0, storage)


def _storage_elements(tensor: DeviceTensor) -> int:
    if 0 in tensor.sizes:
        return 0
    pairs = zip(tensor.sizes, tensor.strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)
