"""Many launches of one kernel as one thing to run: dispatches of all of them, launch by launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from spyre.hw.linked_program import LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.relocation import move, place_rows

MAX_ROWS = 1 << 16
"""Dispatches that are put one behind another at a time: 6 MB."""


@dataclass(frozen=True)
class BatchGroup:
    """Launches that differ only by where allocations begin.

    ``bases``: [launch, allocation of ``linked``]; None: the one launch ``linked`` was linked for.
    ``names``: per launch those of the allocations; none: as in ``linked``.
    """

    linked: LinkedProgram
    bases: Int64Array | None = None
    names: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return 1 if self.bases is None else len(self.bases)

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` of the group as a program of its own."""
        if self.bases is None:
            return self.linked
        names = self.names[launch] if self.names else ()
        return move(self.linked, self.bases[launch].tolist(), names)

    def rows(self, first: int, last: int) -> Int64Array:
        """Dispatches of launches ``first`` to ``last`` (excluded), bases as host offsets."""
        if self.bases is None:
            return self.linked.host_dispatch
        return place_rows(self.linked.code, self.linked.places.origin, self.bases[first:last])


@dataclass(frozen=True)
class BatchPiece:
    """Launches ``first`` to ``last`` (excluded) of a batch, all of one group.

    ``offset``: number of the group's first launch in the batch.
    """

    group: BatchGroup
    offset: int
    first: int
    last: int

    @property
    def rows(self) -> Int64Array:
        """Their dispatches, bases as host offsets."""
        return self.group.rows(self.first - self.offset, self.last - self.offset)

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` of the batch."""
        return self.group.program(launch - self.offset)


class LinkedBatch:
    """Launches in the order they run. Immutable; any thread may read it."""

    def __init__(self, groups: Sequence[BatchGroup]) -> None:
        self.groups = tuple(groups)
        self._offsets = (0, *accumulate(map(len, groups)))

    def __len__(self) -> int:
        """Number of launches."""
        return self._offsets[-1]

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` as a program of its own."""
        (piece,) = self.pieces(launch, launch + 1)
        return piece.program(launch)

    def pieces(self, first: int, last: int) -> Iterator[BatchPiece]:
        """Launches ``first`` to ``last`` (excluded) in pieces of at most MAX_ROWS dispatches.

        A launch with more is a piece of its own.
        """
        for group, (begin, end) in zip(self.groups, pairwise(self._offsets), strict=True):
            step = max(MAX_ROWS // max(len(group.linked.places.origin.dispatch), 1), 1)
            low, high = max(first, begin), min(last, end)
            for at in range(low, high, step):
                yield BatchPiece(group, begin, at, min(at + step, high))
