"""First fit and best fit: short-lived and often used buffers first, each for its whole life.

Source: hardware reference §4.3 (first/best fit). Where a result cannot lie exactly in the place of
its operand, the two are kept apart: the reference does not say what it does then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from spyre.torch_backend.inductor.scratchpad.gaps import gaps
from spyre.torch_backend.inductor.scratchpad.liveness import Buffer

Gap = tuple[int, int]


def solve_first_fit(buffers: Sequence[Buffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), in the lowest gap that is free for its whole life."""
    return _solve(buffers, capacity_bytes, lambda fitting: next(iter(fitting), None))


def solve_best_fit(buffers: Sequence[Buffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), in the tightest gap that is free for its whole life."""
    return _solve(buffers, capacity_bytes, lambda fitting: min(fitting, key=_width, default=None))


def _width(gap: Gap) -> int:
    return gap[1] - gap[0]


def _solve(
    buffers: Sequence[Buffer],
    capacity_bytes: int,
    choose: Callable[[Iterable[Gap]], Gap | None],
) -> dict[str, int | None]:
    places: dict[str, int | None] = {}
    placed: list[tuple[int, Buffer]] = []
    for buffer in placing_order(buffers):
        place = _in_place(buffer, placed)
        if place is None:
            taken = [(at, at + b.size_bytes) for at, b in placed if b.meets(buffer)]
            free = (g for g in gaps(taken, capacity_bytes) if _width(g) >= buffer.size_bytes)
            gap = choose(free)
            place = None if gap is None else gap[0]
        places[buffer.name] = place
        if place is not None:
            placed.append((place, buffer))
    return {buffer.name: places[buffer.name] for buffer in buffers}


def _in_place(buffer: Buffer, placed: Sequence[tuple[int, Buffer]]) -> int | None:
    """The place of the in-place operand, if nobody else needs it while ``buffer`` lives."""
    at = next((at for at, b in placed if b.name == buffer.in_place_of), None)
    if at is None:
        return None
    end = at + buffer.size_bytes
    others = ((a, b) for a, b in placed if b.name != buffer.in_place_of and b.meets(buffer))
    return at if all(a >= end or a + b.size_bytes <= at for a, b in others) else None


def placing_order(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Buffers by rising priority value, then span, then as given; operands before results."""
    parents = {b.in_place_of for b in buffers if b.in_place_of is not None}
    children: dict[str, list[int]] = {}
    names = {b.name for b in buffers}
    ready: list[tuple[float, int, int]] = []

    def entry(index: int) -> tuple[float, int, int]:
        buffer = buffers[index]
        return _priority(buffer, parents), buffer.end - buffer.start, index

    for index, buffer in enumerate(buffers):
        if buffer.in_place_of in names:
            children.setdefault(str(buffer.in_place_of), []).append(index)
        else:
            ready.append(entry(index))
    heapq.heapify(ready)
    order: list[Buffer] = []
    while ready:
        buffer = buffers[heapq.heappop(ready)[2]]
        order.append(buffer)
        for index in children.get(buffer.name, ()):
            heapq.heappush(ready, entry(index))
    return order


def _priority(buffer: Buffer, parents: set[str]) -> float:
    span = buffer.end - buffer.start
    shared = 0.25 * (buffer.in_place_of is not None) + 0.25 * (buffer.name in parents)
    return (span - shared) / (len(buffer.uses) + 0.5 * buffer.first_is_write)
