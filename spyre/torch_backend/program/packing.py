"""The memory packer: offsets for buffers whose lifetimes are known before a program runs.

It places buffers in each core's scratchpad, in the pool of a compiled kernel and in the scratch
memory of an eager program. Buffers are placed in the order of their first operation, each at the
lowest offset that is free; none is moved afterwards (hardware reference §4.3, greedy).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spyre.dtypes import STICK_BYTES

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LiveBuffer(Generic[Name]):
    """A buffer to place, alive from operation ``start`` up to, and without, ``end``.

    ``in_place_of``: a buffer of the same size whose last operation is ``start``, and whose memory
    this one may take over.
    """

    name: Name
    size_bytes: int
    start: int
    end: int
    in_place_of: Name | None = None


def pack(
    buffers: Sequence[LiveBuffer[Name]], capacity_bytes: int | None = None
) -> dict[Name, int | None]:
    """Return the offset of every buffer in bytes, a multiple of a stick, or None if it does not
    fit into ``capacity_bytes`` (None: unlimited). Buffers alive at one operation do not overlap,
    unless one is in place of the other.
    """
    offsets: dict[Name, int | None] = {}
    live: dict[Name | None, tuple[int, LiveBuffer[Name]]] = {}
    for buffer in sorted(buffers, key=lambda b: b.start):
        live = {name: entry for name, entry in live.items() if entry[1].end > buffer.start}
        replaced = live.pop(buffer.in_place_of, None)
        if replaced is not None:
            offset: int | None = replaced[0]
        else:
            taken = ((begin, begin + other.size_bytes) for begin, other in live.values())
            offset = _lowest_free(taken, buffer.size_bytes, capacity_bytes)
        offsets[buffer.name] = offset
        if offset is not None:
            live[buffer.name] = (offset, buffer)
    return {buffer.name: offsets[buffer.name] for buffer in buffers}


def _lowest_free(
    taken: Iterable[tuple[int, int]], size_bytes: int, capacity_bytes: int | None
) -> int | None:
    offset = 0
    for begin, end in sorted(taken):
        if begin - offset >= size_bytes:
            return offset
        offset = max(offset, aligned(end))
    fits = capacity_bytes is None or offset + size_bytes <= capacity_bytes
    return offset if fits else None


def aligned(offset_bytes: int) -> int:
    """Round up to a multiple of a stick."""
    return -(-offset_bytes // STICK_BYTES) * STICK_BYTES
