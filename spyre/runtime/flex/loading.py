"""Loading kernels: their binary goes to program memory by DMA, and a job plan says how to run them.

Pipeline RFC, workflow 2: space in segment 7, one DMA, then any number of launches.
"""

from __future__ import annotations

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
    from spyre.runtime.flex.flex_stream import FlexStream


def load_kernel(
    device: FlexDevice,
    kernel: Kernel,
    arguments: KernelArguments,
    binary: bytes,
    name: str,
    stream: FlexStream | None = None,
) -> JobPlan:
    """A plan for launches of ``kernel``; the copy of ``binary`` is enqueued on ``stream``.

    ``arguments``: what it was compiled for. ``binary`` begins with a header stick that identifies
    it. Its pool, where it has one, is allocated here and kept between launches.
    """
    memory = device.allocate_program(len(binary))
    content = np.frombuffer(binary, np.uint8)
    pool = pool_memory = None
    if arguments.pool_bytes:
        pool_memory = device.allocate(arguments.pool_bytes)
        address = device.allocator.device_address(pool_memory.index)
        pool = PoolBuffer(address, arguments.pool_bytes)
    program = KernelProgram(
        name, kernel, arguments, memory, binary[:STICK_BYTES], pool, pool_memory
    )
    chosen = stream if stream is not None else device.streams.current
    chosen.launch(bytes_to_device(content, memory, f"binary of {name}"))
    return program.plan
