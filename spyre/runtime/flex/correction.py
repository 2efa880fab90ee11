"""What a correction tensor holds: one int64 per symbol of a kernel, in the order of its parameters.

A symbol is an address (of an argument or of the pool), a runtime size or an index. Our binaries are
bundles, so a symbol's value is all the correction there is (runtime reference §5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.loops import Parameter
from spyre.runtime.kernel import LaunchShape
from spyre.runtime.launch import POOL, argument_index
from spyre.runtime.spyrecode.symbols import POOL_NAME


@dataclass(frozen=True)
class _Columns:
    """For launches of one shape: which words of a correction tensor are which addresses.

    ``row``: the tensor with every address 0. ``value_words``: words of runtime sizes and indices;
    ``value_names``: what they are called.
    """

    row: Int64Array
    words: Int64Array
    addresses: Int64Array
    value_words: Int64Array
    value_names: tuple[str, ...]


@dataclass(frozen=True)
class Correction:
    """The symbols of a kernel. Immutable but for what it remembers; any thread may use it.

    ``indices``: argument index of each symbol, POOL, or None for a value.
    """

    names: tuple[str, ...]
    indices: tuple[int | None, ...]
    _columns: WeakKeyDictionary[LaunchShape, _Columns] = field(default_factory=WeakKeyDictionary)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of one correction tensor: whole sticks."""
        return -(-8 * len(self.names) // STICK_BYTES) * STICK_BYTES

    def rows(self, shape: LaunchShape, addresses: Int64Array) -> Int64Array:
        """The correction tensors of launches of ``shape`` at ``addresses`` [launch, address]."""
        columns = self._columns_of(shape)
        rows = np.empty((len(addresses), columns.row.size), np.int64)
        rows[:] = columns.row
        rows[:, columns.words] = addresses[:, columns.addresses]
        return rows

    def addresses(self, shape: LaunchShape, bound: Int64Array, rows: Int64Array) -> Int64Array:
        """Addresses [launch, address] of launches whose correction tensors hold ``rows``.

        ``bound``: as the host bound them, for arguments that no symbol stands for.
        """
        columns = self._columns_of(shape)
        found = bound.copy()
        found[:, columns.addresses] = rows[:, columns.words]
        return found

    def shape(self, bound: LaunchShape, row: Int64Array) -> LaunchShape:
        """The shape of the launch that ``row`` describes: ``bound``, unless its values differ."""
        columns = self._columns_of(bound)
        words = columns.value_words
        if not words.size or (row[words] == columns.row[words]).all():
            return bound
        found = dict(zip(columns.value_names, row[words].tolist(), strict=True))
        return replace(bound, values={**bound.values, **found})

    def _columns_of(self, shape: LaunchShape) -> _Columns:
        found = self._columns.get(shape)
        if found is None:
            found = self._columns[shape] = self._find_columns(shape)
        return found

    def _find_columns(self, shape: LaunchShape) -> _Columns:
        row = np.zeros(self.size_bytes // 8, np.int64)
        words, addresses = [], []
        values = {self.names.index(name): name for name in shape.values if name in self.names}
        for word, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            if name in shape.values:
                row[word] = shape.values[name]
            elif index is not None and index in shape.indices:
                words.append(word)
                addresses.append(shape.indices.index(index))
        return _Columns(
            row,
            np.array(words, np.int64),
            np.array(addresses, np.int64),
            np.array([*values], np.int64),
            tuple(values.values()),
        )


def correction_of(parameters: Sequence[Parameter]) -> Correction:
    """The correction of a program with ``parameters``."""
    names = tuple(parameter.name for parameter in parameters)
    return Correction(names, tuple(map(_index_of, names)))


def _index_of(name: str) -> int | None:
    return POOL if name == POOL_NAME else argument_index(name)
