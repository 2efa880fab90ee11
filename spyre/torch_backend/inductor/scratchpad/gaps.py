"""Aligned free places between occupied ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spyre.hw.spec import STICK_BYTES


def aligned(offset_bytes: int) -> int:
    """The first stick boundary at or above ``offset_bytes``."""
    return -(-offset_bytes // STICK_BYTES) * STICK_BYTES


def gaps(taken: Iterable[tuple[int, int]], capacity_bytes: int) -> Iterator[tuple[int, int]]:
    """[begin, end) of what ``taken`` ([begin, end) ranges) leaves free, lowest first, aligned."""
    place = 0
    for begin, end in sorted(taken):
        if begin > place:
            yield place, begin
        place = max(place, aligned(end))
    if place < capacity_bytes:
        yield place, capacity_bytes
