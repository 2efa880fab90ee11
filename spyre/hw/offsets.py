"""Where the elements of any stick lie, as one vector of bit offsets per operand and dim.

The address of an element is the operand's start plus one term per dim (SDSC reference §5.2): the
pitch of whole sticks plus the weights of the dim's digits in the stick. Packed sticks may list a
dim twice, each time with a size; interleaved ones (operations reference §5) permute the coordinate
first. Offsets count bits, since elements may have 4 of them.
"""

from __future__ import annotations

import numpy as np

from spyre.dtypes import find_stored_format
from spyre.hw.access import Access, per_core
from spyre.hw.nest import Int64Array
from spyre.hw.readings import ALTERNATE_GROUP, ALTERNATING_OPERANDS
from spyre.mlir.operation import Operation, Tensor

_HALVES = 2
_GROUPS = 8
_BLOCK = _HALVES * _GROUPS * ALTERNATE_GROUP


def element_bits(tensor: Tensor) -> int:
    """Bits of one element; raises UnsupportedError for formats without storage."""
    return find_stored_format(tensor.data_format).bits


def local_offsets(op: Operation, access: Access, dim: str) -> Int64Array:
    """Bits from a core's start to each of the elements it iterates along ``dim`` (0 where absent).

    Windowed dims of an input have no vector of their own; see :func:`coordinate_offsets`.
    """
    steps = np.arange(per_core(op, dim), dtype=np.int64)
    if not access.tensor.holds(dim):
        return np.zeros_like(steps)
    return coordinate_offsets(op, access, dim, steps)


def coordinate_offsets(
    op: Operation, access: Access, dim: str, coordinates: Int64Array
) -> Int64Array:
    """Bit offsets of stored ``coordinates`` along ``dim``, counted from a core's start.

    They continue periodically, also below zero: coordinate + elements per stick lies one pitch on.
    """
    size = access.sticks.get(dim, 1)
    sticks, within = np.divmod(coordinates, size)
    offsets = 8 * access.pitch_bytes[dim] * sticks
    if size > 1:
        if is_alternating(op, access.tensor, dim):
            within = alternate(within)
        offsets += _position(access.tensor, dim, within) * element_bits(access.tensor)
    return np.asarray(offsets, np.int64)


def is_alternating(op: Operation, tensor: Tensor, dim: str) -> bool:
    """True if ``dim`` of this operand is interleaved by groups of 8 (operations reference §5)."""
    operand = next((k for k, t in enumerate(op.tensors) if t.index == tensor.index), -1)
    if (op.name, operand) not in ALTERNATING_OPERANDS or dim != tensor.stick_dims[0]:
        return False
    sizes = [n for d, n in zip(tensor.stick_dims, tensor.stick_sizes, strict=True) if d == dim]
    return element_bits(tensor) <= 8 and int(np.prod(sizes)) == _BLOCK


def alternate(within: Int64Array) -> Int64Array:
    """64·h + 8·g + e → 16·g + 8·h + e, for coordinates 0..127 within a block."""
    group, element = np.divmod(within, ALTERNATE_GROUP)
    half, place = np.divmod(group, _GROUPS)
    return (place * _HALVES + half) * ALTERNATE_GROUP + element


def _position(tensor: Tensor, dim: str, within: Int64Array) -> Int64Array:
    """Share of ``dim`` in the element number in the stick: its digits by their weights (step 5)."""
    position = np.zeros_like(within)
    weight, rest = 1, within
    for name, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        if name == dim:
            position += weight * (rest % size)
            rest = rest // size
        weight *= size
    return position
