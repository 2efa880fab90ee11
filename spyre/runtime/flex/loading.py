"""Loading kernels: their binary goes to program memory by DMA, and a job plan says how to run them.

Pipeline RFC, workflow 2: space in segment 7, one DMA, then any number of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from spyre.hw.spec import STICK_BYTES
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.flex.copies import bytes_to_device
from spyre.runtime.flex.job import JobPlan
from spyre.runtime.flex.kernel_program import KernelProgram
from spyre.runtime.kernel import Kernel, PoolBuffer

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice


ArgumentsOf = Callable[[Mapping[str, int]], KernelArguments]
"""What a kernel takes, for given values of its runtime sizes and index parameters."""


def load_kernel(
    device: FlexDevice,
    kernel: Kernel,
    arguments_of: ArgumentsOf,
    binary: bytes,
    name: str,
    pool_bytes: int = 0,
) -> tuple[JobPlan, JobPlan]:
    """The plan of ``kernel``, and the one that copies ``binary`` to program memory before.

    ``binary`` begins with a header stick that identifies it. The kernel's pool, where it has one,
    is allocated here and kept between launches.
    """
    memory = device.allocate_program(len(binary))
    pool = storage = None
    if pool_bytes:
        storage = device.allocate(pool_bytes)
        pool = PoolBuffer(device.allocator.device_address(storage.index), pool_bytes)
    header = binary[:STICK_BYTES]
    program = KernelProgram(name, kernel, arguments_of, memory, header, pool, storage)
    content = np.frombuffer(binary, np.uint8)
    return program.plan, bytes_to_device(content, memory.address_bytes, f"binary of {name}")
