"""The steps that prepare a kernel with symbols: the host writes its correction tensors, DMA copies
them to program memory. Every launch has tensors of its own, one per iteration.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.runtime.flex.card import Card
from spyre.runtime.flex.control_block import Place
from spyre.runtime.flex.correction import Correction
from spyre.runtime.flex.job import DMA, HostOperation, LaunchContext
from spyre.runtime.flex.kernel_state import state_of
from spyre.runtime.flex.program_memory import ProgramMemory

CORRECTION = "correction"
"""Handle of the correction tensors on the host."""
MAX_FREE = 1024
"""Correction tensors a kernel keeps for later launches."""
SLAB = 64
"""Correction tensors it allocates at a time."""


class CorrectionMemory:
    """Program memory for correction tensors of one kernel. Any thread may use it."""

    def __init__(self, correction: Correction) -> None:
        self.correction = correction
        self._free: list[ProgramMemory] = []

    def take(self, device: Card, iterations: int) -> ProgramMemory:
        """Memory for the tensors of a launch, one behind the other."""
        size_bytes = self.correction.size_bytes
        if iterations > 1:
            return device.allocate_program(size_bytes * iterations)
        try:
            return self._free.pop()
        except IndexError:
            slab = device.allocate_program(size_bytes * SLAB).split(SLAB)
            self._free += slab[1:]
            return slab[0]

    def give_back(self, memory: ProgramMemory) -> None:
        """The launch has ended: what is of the usual size serves another one."""
        if memory.size_bytes == self.correction.size_bytes and len(self._free) < MAX_FREE:
            self._free.append(memory)

    def read(self, device: Card, memory: ProgramMemory, first: int, last: int) -> Int64Array:
        """Tensors ``first`` to ``last`` as program memory has them, [tensor, word]."""
        size_bytes = self.correction.size_bytes
        at = memory.address_bytes + first * size_bytes
        found = device.device.memory.view(at, (last - first) * size_bytes)
        rows: Int64Array = found.view(np.int64).reshape(last - first, size_bytes // 8)
        return rows


def correction_steps(name: str, correction: Correction) -> tuple[HostOperation, DMA]:
    """The steps in front of the compute step of kernel ``name``."""
    size_bytes = correction.size_bytes

    def rows(context: LaunchContext, first: int, last: int) -> Int64Array:
        state = state_of(context)
        return correction.rows(state.form.shape, state.addresses(first, last))

    def places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        return correction_places(context, iteration, size_bytes)

    host = HostOperation(rows, CORRECTION, size_bytes // 8, CORRECTION)
    label = f"{CORRECTION} of {name}"
    return host, DMA(_copy, places, size_bytes, True, True, label)


def correction_places(context: LaunchContext, iteration: int, size_bytes: int) -> tuple[Place, ...]:
    """Where the correction tensor of an iteration lies."""
    memory = state_of(context).memory
    assert memory is not None
    resolve = context.device.allocator.virtual_address
    return (Place(CORRECTION, resolve(memory.address_bytes + iteration * size_bytes)),)


def _copy(context: LaunchContext, first: int, last: int) -> None:
    memory = state_of(context).memory
    assert memory is not None
    rows = context.buffers[CORRECTION][first:last]
    address = memory.address_bytes + first * rows.shape[1] * 8
    context.device.dma.write_bytes(address, rows.reshape(-1).view(np.uint8), CORRECTION)
