"""Arguments on the device: where they go.

A baked bundle's argument gets its own segment when that is free, so that addresses equal those of
the files; otherwise any region does, since the kernel relocates. Used by :mod:`.session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spyre.hw.device import Device, DeviceTensor
from spyre.hw.spec import STICK_BYTES
from spyre.runtime.arguments import ArgumentSpec, KernelArguments
from spyre.runtime.flex.flex_device import flex_device_of
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
    flex = flex_device_of(device)
    with ExitStack() as held:

        def allocate(size_bytes: int, segment: int) -> int:
            region = segment if baked else None
            storage = held.enter_context(flex.allocate(max(size_bytes, STICK_BYTES), region))
            return flex.allocator.device_address(storage.index)

        yield _place(arguments, allocate)


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
