"""How long buffers live, and the `Buffer` that the solvers place.

Time counts operations. A buffer lives from its first use to behind its last; a loop that it enters
or leaves, or carries from one iteration to the next, is lived through as a whole.
Source: hardware reference §4.3; the rule for loops is ours (the reference unrolls them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spyre.torch_backend.inductor.scratchpad.operations import Access


@dataclass(frozen=True, slots=True)
class Buffer:
    """Something to place.

    ``size_bytes``: in the memory it is placed in (LX: of one core). ``uses``: indices of the
    operations that touch it, rising. ``held``: (start, end) where loops make it live longer than
    its uses say. ``in_place_of``: the buffer whose place it may take over: one of the same size,
    older than this one, that is used for the last time where this one begins.
    """

    name: str
    size_bytes: int
    uses: tuple[int, ...]
    first_is_write: bool = True
    in_place_of: str | None = None
    held: tuple[int, int] | None = None

    @property
    def start(self) -> int:
        """First operation at which it lives."""
        return self.uses[0] if self.held is None else self.held[0]

    @property
    def end(self) -> int:
        """One past the last operation at which it lives."""
        return self.uses[-1] + 1 if self.held is None else self.held[1]

    def meets(self, other: Buffer) -> bool:
        """True if both live at some operation."""
        return self.start < other.end and other.start < self.end


Places = Mapping[str, int | None]
"""Offset (bytes) of every buffer; None: it does not fit and stays in HBM."""


def first_is_write(accesses: Sequence[tuple[int, Access]]) -> bool:
    """True if the first operation that touches the buffer only writes it."""
    return all(access.is_write for step, access in accesses if step == accesses[0][0])


def live_range(
    accesses: Sequence[tuple[int, Access]], loops: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """(start, end) of a buffer: [first use, last use], and all of every loop it outlives.

    Accesses: (index of the operation, access); loops: [begin, end) of their operations.
    """
    start, end = accesses[0][0], accesses[-1][0] + 1
    for loop in loops:
        if outlives(accesses, loop):
            start, end = min(start, loop[0]), max(end, loop[1])
    return start, end


def outlives(accesses: Sequence[tuple[int, Access]], loop: tuple[int, int]) -> bool:
    """True if the buffer must live through all iterations of ``loop``.

    That is if it is used in it and also outside, is read in it before it is written there, or if
    the loop moves its address.
    """
    inside = [(step, access) for step, access in accesses if loop[0] <= step < loop[1]]
    return bool(inside) and (len(inside) < len(accesses) or _is_carried(inside))


def _is_carried(inside: Sequence[tuple[int, Access]]) -> bool:
    return not first_is_write(inside) or any(access.moves for _, access in inside)


def buffer_of(
    name: str,
    size_bytes: int,
    accesses: Sequence[tuple[int, Access]],
    loops: Sequence[tuple[int, int]],
    in_place_of: str | None = None,
) -> Buffer:
    """The buffer ``name`` as solvers take it; ``accesses``: (index of the operation, access)."""
    uses = tuple(sorted({step for step, _ in accesses}))
    live = live_range(accesses, loops)
    held = None if live == (uses[0], uses[-1] + 1) else live
    return Buffer(name, size_bytes, uses, first_is_write(accesses), in_place_of, held)
