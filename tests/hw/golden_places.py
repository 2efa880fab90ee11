"""Addresses of the elements of golden vectors: a second implementation of the published rules.

Independent of `spyre`'s address rule. A tensor's sticks of 128 bytes follow each other in the order
of its dims, innermost first (SDSC reference §5.2); a packed stick holds elements of two dims in the
order of the operations reference §5.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.builder.operations import OperandSpec
from spyre.mlir.operation.operation import Component
from tests.hw.golden_formats import Array

STICK_BITS = 1024
BITS = {
    "IEEE_FP32": 32,
    "IEEE_INT32": 32,
    "SENUINT32": 32,
    "SEN169_FP16": 16,
    "SENINT8": 8,
    "SEN143_FP8": 8,
    "SENINT4": 4,
}
Coordinates = dict[str, Array]


class Rule(msgspec.Struct, frozen=True):
    """Order of a packed stick of ``along`` times ``across`` elements."""

    along: int
    across: int
    position: Callable[[Array, Array], Array]


RULES = {
    "ch": Rule(128, 1, lambda a, o: 16 * (a // 8 % 8) + 8 * (a // 64) + a % 8),
    "mb": Rule(64, 2, lambda a, o: 16 * (a // 8) + 8 * o + a % 8),
    "wt": Rule(64, 2, lambda a, o: 2 * a + o),
    "wt4": Rule(64, 4, lambda a, o: 4 * a + o),
    "int4": Rule(128, 2, lambda a, o: 32 * (a // 8 % 8) + 16 * o + 8 * (a // 64) + a % 8),
}
"""Position of element (a, o): the coordinates within the stick along and across."""


class Packed(msgspec.Struct, frozen=True):
    """A packed operand: its rule, and the dims that are ``a`` and ``o`` of it."""

    rule: str
    along: str
    across: str = ""

    @property
    def elements(self) -> dict[str, int]:
        """Elements of a stick per dim."""
        rule = RULES[self.rule]
        return {self.along: rule.along, **({self.across: rule.across} if self.across else {})}


class Placing(msgspec.Struct, frozen=True):
    """An operand in memory. ``stored``: elements per dim of the whole tensor, sticks not filled."""

    tensor: OperandSpec
    stored: dict[str, int]
    packed: Packed | None = None

    @property
    def bits(self) -> int:
        return BITS[self.tensor.data_format]

    def bit_addresses(self, at: Coordinates) -> Array:
        """Bit address of the elements at coordinates; dims the tensor lacks need none."""
        stored, core = dict(self.stored), np.zeros(1, np.int64)
        if self.tensor.component is Component.LX:
            at, stored, core = self._owned(at)
        assert isinstance(self.tensor.base, int)
        first = 8 * (self.tensor.base + self._segment + core * LX_BYTES)
        inside = self.bits * self._position(at)
        return np.asarray(first + STICK_BITS * self._stick(at, stored) + inside)

    @property
    def _segment(self) -> int:
        return LX_BASE if self.tensor.component is Component.LX else 0

    def room(self, size_bytes: int) -> tuple[int, int]:
        """(first byte, bytes) of ``size_bytes`` from the tensor's start, on every core in LX."""
        assert isinstance(self.tensor.base, int)
        others = max(0, len(self.tensor.own_core_slices) - 1) * LX_BYTES
        return self.tensor.base + self._segment, others + size_bytes

    @property
    def _elements(self) -> dict[str, int]:
        return self.packed.elements if self.packed else dict(self.tensor.stick)

    def _stick(self, at: Coordinates, stored: dict[str, int]) -> Array:
        number, pitch = np.zeros(1, np.int64), 1
        for dim in self.tensor.dims:
            unit = self._elements.get(dim, 1)
            scale = self.tensor.scale.get(dim, 1)
            if scale == 1:
                number = number + pitch * (at[dim] // unit)
                pitch *= -(-stored[dim] // unit)
        return np.asarray(number)

    def _position(self, at: Coordinates) -> Array:
        if self.packed is None:
            ((dim, size),) = self.tensor.stick
            return np.asarray(at[dim] % size if self.tensor.scale.get(dim, 1) == 1 else 0)
        rule, packed = RULES[self.packed.rule], self.packed
        other = at[packed.across] % rule.across if packed.across else np.int64(0)
        return rule.position(at[packed.along] % rule.along, np.asarray(other))

    def _owned(self, at: Coordinates) -> tuple[Coordinates, dict[str, int], Array]:
        """Coordinates within the share of the core that holds an element, and that core."""
        tensor = self.tensor
        share = {d: n // tensor.own_slices.get(d, 1) for d, n in self.stored.items()}
        core = np.full(next(iter(at.values())).shape, -1, np.int64)
        for number, row in enumerate(tensor.own_core_slices):
            holds = [at[d] // share[d] == row.get(d, 0) for d in at]
            core[np.logical_and.reduce(holds)] = number
        assert core.min() >= 0
        return {d: c % share[d] for d, c in at.items()}, share, core


# --- memory -----------------------------------------------------------------------------------


def store(memory: Array, bits: Array, codes: Array, width: int) -> None:
    """Write codes of ``width`` bits at bit addresses counted from ``memory``; low nibble first."""
    cells = np.stack([memory & 15, memory >> 4], -1).reshape(-1)
    for k in range(width // 4):
        cells[bits // 4 + k] = codes.astype(np.int64) >> 4 * k & 15
    memory[:] = cells[0::2] | cells[1::2] << 4


def fetch(memory: Array, bits: Array, width: int) -> Array:
    """Codes of ``width`` bits at bit addresses counted from ``memory``."""
    cells = np.stack([memory & 15, memory >> 4], -1).reshape(-1).astype(np.int64)
    codes = sum(cells[bits // 4 + k] << 4 * k for k in range(width // 4))
    return np.asarray(codes).astype(f"u{max(width // 8, 1)}")
