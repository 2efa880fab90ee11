"""What a correction tensor holds: one int64 per symbol of a kernel, in the order of its parameters.

A symbol is an address (of an argument or of the pool), a runtime size or an index. Our binaries are
bundles, so a symbol's value is all the correction there is (runtime reference §5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.loops import Parameter
from spyre.runtime.kernel import LaunchShape
from spyre.runtime.launch import POOL, argument_index
from spyre.runtime.spyrecode.symbols import POOL_NAME


@dataclass(frozen=True)
class Correction:
    """The symbols of a kernel. ``indices``: argument index of each, POOL, or None for a value."""

    names: tuple[str, ...]
    indices: tuple[int | None, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of one correction tensor: whole sticks."""
        return -(-8 * len(self.names) // STICK_BYTES) * STICK_BYTES

    def rows(self, shape: LaunchShape, addresses: Int64Array) -> Int64Array:
        """The correction tensors of launches of ``shape`` at ``addresses`` [launch, address]."""
        rows = np.zeros((len(addresses), self.size_bytes // 8), np.int64)
        for place, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            if name in shape.values:
                rows[:, place] = shape.values[name]
            elif index is not None and index in shape.indices:
                rows[:, place] = addresses[:, shape.indices.index(index)]
        return rows

    def addresses(self, shape: LaunchShape, bound: Int64Array, rows: Int64Array) -> Int64Array:
        """Addresses [launch, address] of launches whose correction tensors hold ``rows``.

        ``bound``: as the host bound them, for arguments that no symbol stands for.
        """
        found = bound.copy()
        for place, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            if name not in shape.values and index is not None and index in shape.indices:
                found[:, shape.indices.index(index)] = rows[:, place]
        return found


def correction_of(parameters: Sequence[Parameter]) -> Correction:
    """The correction of a program with ``parameters``."""
    names = tuple(parameter.name for parameter in parameters)
    return Correction(names, tuple(map(_index_of, names)))


def _index_of(name: str) -> int | None:
    return POOL if name == POOL_NAME else argument_index(name)
