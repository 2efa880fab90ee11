"""Correction tensors: one int64 per symbol of a kernel, in the order of its parameters.

A symbol is an address (of an argument or of the pool), a runtime size or an index. The simulator's
binaries are bundles, so correction consists of the symbols' values (runtime reference §5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from spyre.hw.spec import STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.program import Parameter
from spyre.runtime.flex.blocks import MemoryRange
from spyre.runtime.flex.steps import DMA, Card, HostOperation, JobWork
from spyre.runtime.kernel import LaunchSignature
from spyre.runtime.memory import ProgramMemory
from spyre.runtime.program import owner_of


@dataclass(frozen=True)
class _Columns:
    """The words of a correction tensor, for launches of one signature.

    ``row``: the tensor with every address 0. ``words``: word of each address symbol;
    ``addresses``: which address of the launch it holds. ``value_words``, ``value_names``: words and
    names of runtime sizes and indices.
    """

    row: Int64Array
    words: Int64Array
    addresses: Int64Array
    value_words: Int64Array
    value_names: tuple[str, ...]


CORRECTION = "correction"
"""Handle of the correction tensors on the host."""
MAX_FREE = 1024
"""Correction tensors a kernel keeps for later launches."""
SLAB = 64
"""Correction tensors it allocates at a time."""


class Correction:
    """The symbols of a kernel with ``parameters``, and its correction tensors. For any thread.

    ``names``: of the symbols. ``indices``: argument index of each symbol, POOL, or None for a
    value.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.names = tuple(parameter.name for parameter in parameters)
        self.indices = tuple(map(owner_of, self.names))
        self._columns: WeakKeyDictionary[LaunchSignature, _Columns] = WeakKeyDictionary()
        self._free: list[ProgramMemory] = []

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of one correction tensor: whole sticks."""
        return -(-8 * len(self.names) // STICK_BYTES) * STICK_BYTES

    def rows(self, signature: LaunchSignature, addresses: Int64Array) -> Int64Array:
        """The correction tensors of launches at ``addresses`` [launch, address]."""
        columns = self._columns_of(signature)
        rows = np.empty((len(addresses), columns.row.size), np.int64)
        rows[:] = columns.row
        rows[:, columns.words] = addresses[:, columns.addresses]
        return rows

    def addresses(
        self, signature: LaunchSignature, bound: Int64Array, rows: Int64Array
    ) -> Int64Array:
        """Addresses [launch, address] of launches whose correction tensors hold ``rows``.

        ``bound``: addresses that the host bound, used for arguments without a symbol.
        """
        columns = self._columns_of(signature)
        addresses = bound.copy()
        addresses[:, columns.addresses] = rows[:, columns.words]
        return addresses

    def signature(self, bound: LaunchSignature, row: Int64Array) -> LaunchSignature:
        """The signature of the launch that ``row`` describes: ``bound``, unless values differ."""
        columns = self._columns_of(bound)
        words = columns.value_words
        if not words.size or (row[words] == columns.row[words]).all():
            return bound
        values = dict(zip(columns.value_names, row[words].tolist(), strict=True))
        return replace(bound, values={**bound.values, **values})

    def _columns_of(self, signature: LaunchSignature) -> _Columns:
        columns = self._columns.get(signature)
        if columns is None:
            columns = self._columns[signature] = self._find_columns(signature)
        return columns

    def _find_columns(self, signature: LaunchSignature) -> _Columns:
        row = np.zeros(self.size_bytes // 8, np.int64)
        words, addresses = [], []
        values = {self.names.index(name): name for name in signature.values if name in self.names}
        for word, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            if name in signature.values:
                row[word] = signature.values[name]
            elif index is not None and index in signature.indices:
                words.append(word)
                addresses.append(signature.indices.index(index))
        return _Columns(
            row,
            np.array(words, np.int64),
            np.array(addresses, np.int64),
            np.array([*values], np.int64),
            tuple(values.values()),
        )

    # --- tensors in program memory ------------------------------------------------------------

    def take(self, card: Card, iterations: int) -> ProgramMemory:
        """Memory for the tensors of a launch, one after another."""
        size_bytes = self.size_bytes
        if iterations > 1:  # rare, and long compared with an allocation
            return card.allocate_program(size_bytes * iterations)
        try:
            return self._free.pop()
        except IndexError:
            # An allocation takes longer than a launch, so a slab is split into pieces that are
            # reused. It is freed with the last of its pieces.
            slab = card.allocate_program(size_bytes * SLAB).split(SLAB)
            self._free += slab[1:]
            return slab[0]

    def give_back(self, memory: ProgramMemory) -> None:
        """Keep the memory of an ended launch for another one, if it holds a single tensor."""
        # A long queue needs many tensors at once; beyond MAX_FREE they are freed.
        if memory.size_bytes == self.size_bytes and len(self._free) < MAX_FREE:
            self._free.append(memory)

    def read(self, card: Card, memory: ProgramMemory, first: int, last: int) -> Int64Array:
        """Tensors ``first`` to ``last`` (excluded) in program memory, [tensor, word]."""
        size_bytes = self.size_bytes
        address = memory.address_bytes + first * size_bytes
        content = card.device.memory.view(address, (last - first) * size_bytes)
        rows: Int64Array = content.view(np.int64).reshape(last - first, size_bytes // 8)
        return rows

    def steps(self, name: str) -> tuple[HostOperation, DMA]:
        """The steps before the compute step of kernel ``name``."""
        host = HostOperation(self._launch_rows, CORRECTION, self.size_bytes // 8, CORRECTION)
        label = f"{CORRECTION} of {name}"
        return host, DMA(_copy, self._memory_ranges, self.size_bytes, True, True, label)

    def _launch_rows(self, work: JobWork, first: int, last: int) -> Int64Array:
        assert work.passes is not None
        return self.rows(work.passes.signature, work.addresses(first, last))

    def memory_range(self, work: JobWork, iteration: int) -> MemoryRange:
        """Device memory of the correction tensor of an iteration."""
        assert work.correction is not None
        address = work.correction.address_bytes + iteration * self.size_bytes
        return MemoryRange(CORRECTION, work.card.allocator.virtual_address(address))

    def _memory_ranges(self, work: JobWork, iteration: int) -> tuple[MemoryRange, ...]:
        return (self.memory_range(work, iteration),)


def _copy(work: JobWork, first: int, last: int) -> None:
    assert work.correction is not None
    rows = work.buffers[CORRECTION][first:last]
    address = work.correction.address_bytes + first * rows.shape[1] * 8
    work.card.dma.write_bytes(address, rows.reshape(-1).view(np.uint8), CORRECTION)
