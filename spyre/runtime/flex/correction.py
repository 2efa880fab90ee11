"""What a correction tensor holds: one int64 per symbol of a kernel, in the order of its parameters.

A symbol is an address (of an argument or of the pool), a runtime size or an index. Our binaries are
bundles, so a symbol's value is all the correction there is (runtime reference §5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.hw.spec import STICK_BYTES
from spyre.mlir.loops import Parameter
from spyre.runtime.launch import POOL, argument_index
from spyre.runtime.spyrecode.symbols import POOL_NAME

if TYPE_CHECKING:
    from spyre.runtime.flex.kernel_program import BoundKernel


@dataclass(frozen=True)
class Correction:
    """The symbols of a kernel. ``indices``: argument index of each, POOL, or None for a value."""

    names: tuple[str, ...]
    indices: tuple[int | None, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of one correction tensor: whole sticks."""
        return -(-8 * len(self.names) // STICK_BYTES) * STICK_BYTES

    def row(self, bound: BoundKernel) -> npt.NDArray[np.int64]:
        """The correction tensor of a launch."""
        row = np.zeros(self.size_bytes // 8, np.int64)
        at = dict(zip(bound.shape.indices, bound.addresses, strict=True))
        for place, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            value = bound.shape.values.get(name)
            if value is None and index is not None:
                value = at.get(index)
            row[place] = 0 if value is None else value
        return row

    def addresses(self, bound: BoundKernel, values: Sequence[int]) -> tuple[int, ...]:
        """Addresses of a launch whose correction tensor holds ``values``."""
        given = {
            index: value
            for index, value in zip(self.indices, values, strict=False)
            if index is not None
        }
        known = zip(bound.shape.indices, bound.addresses, strict=True)
        return tuple([given.get(index, address) for index, address in known])


def correction_of(parameters: Sequence[Parameter]) -> Correction:
    """The correction of a program with ``parameters``."""
    names = tuple(parameter.name for parameter in parameters)
    return Correction(names, tuple(map(_index_of, names)))


def _index_of(name: str) -> int | None:
    return POOL if name == POOL_NAME else argument_index(name)
