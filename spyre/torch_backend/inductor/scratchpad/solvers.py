"""Where buffers go in LX: greedy, first fit, best fit, and the best plan there is.

Source: hardware reference §4.3. *Greedy* is the default: buffers in the order of their first use,
none moved afterwards. *Fit*: short-lived and often used buffers first, each for its whole life;
where a result cannot lie exactly in the place of its operand, the two are kept apart (the reference
does not say what it does then). *Optimal* searches: fewest bytes in HBM, then the lowest peak, for
groups of a few buffers, to know how far the other solvers are from it. Two facts keep the search
small. Buffers can be pushed down in any plan until each lies at 0 or on another one, so trying all
orders and putting each buffer on top of what it meets finds the best. And what lives at an
operation stacks up there, which bounds the peak of every plan begun from below.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from spyre.errors import UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.scratchpad.accesses import LiveBuffer


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


def solve_greedy(buffers: Sequence[LiveBuffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), None where it stays in HBM.

    At each operation, what has ended is freed, then what starts is placed, in the order given: in
    the place of its living in-place operand; at 0 where that is free; behind the highest living
    buffer; in the first gap.
    """
    places: dict[str, int | None] = {}
    live: dict[str, tuple[int, LiveBuffer]] = {}
    for buffer in sorted(buffers, key=lambda b: b.start):
        live = {n: (at, b) for n, (at, b) in live.items() if b.end > buffer.start}
        place = _greedy_place(buffer, live, capacity_bytes)
        places[buffer.name] = place
        if place is not None:
            live[buffer.name] = (place, buffer)
    return {buffer.name: places[buffer.name] for buffer in buffers}


def _greedy_place(
    buffer: LiveBuffer, live: dict[str, tuple[int, LiveBuffer]], capacity_bytes: int
) -> int | None:
    """Where ``buffer`` goes; takes its operand out of ``live`` if it goes there."""
    if buffer.in_place_of in live:
        return live.pop(buffer.in_place_of)[0]
    taken = sorted((at, at + other.size_bytes) for at, other in live.values())
    if buffer.size_bytes > capacity_bytes:
        return None
    if not taken or taken[0][0] >= buffer.size_bytes:
        return 0
    top = aligned(max(end for _, end in taken))
    if top + buffer.size_bytes <= capacity_bytes:
        return top
    free = (begin for begin, end in gaps(taken, capacity_bytes) if end - begin >= buffer.size_bytes)
    return next(free, None)


Gap = tuple[int, int]


def solve_first_fit(buffers: Sequence[LiveBuffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), in the lowest gap that is free for its whole life."""
    return _solve_fit(buffers, capacity_bytes, lambda fitting: next(iter(fitting), None))


def solve_best_fit(buffers: Sequence[LiveBuffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), in the tightest gap that is free for its whole life."""
    return _solve_fit(
        buffers, capacity_bytes, lambda fitting: min(fitting, key=_width, default=None)
    )


def _width(gap: Gap) -> int:
    return gap[1] - gap[0]


def _solve_fit(
    buffers: Sequence[LiveBuffer],
    capacity_bytes: int,
    choose: Callable[[Iterable[Gap]], Gap | None],
) -> dict[str, int | None]:
    places: dict[str, int | None] = {}
    placed: list[tuple[int, LiveBuffer]] = []
    for buffer in placing_order(buffers):
        place = _operand_place(buffer, placed)
        if place is None:
            taken = [(at, at + b.size_bytes) for at, b in placed if b.meets(buffer)]
            free = (g for g in gaps(taken, capacity_bytes) if _width(g) >= buffer.size_bytes)
            gap = choose(free)
            place = None if gap is None else gap[0]
        places[buffer.name] = place
        if place is not None:
            placed.append((place, buffer))
    return {buffer.name: places[buffer.name] for buffer in buffers}


def _operand_place(buffer: LiveBuffer, placed: Sequence[tuple[int, LiveBuffer]]) -> int | None:
    """The place of the in-place operand, if nobody else needs it while ``buffer`` lives."""
    at = next((at for at, b in placed if b.name == buffer.in_place_of), None)
    if at is None:
        return None
    end = at + buffer.size_bytes
    others = ((a, b) for a, b in placed if b.name != buffer.in_place_of and b.meets(buffer))
    return at if all(a >= end or a + b.size_bytes <= at for a, b in others) else None


def placing_order(buffers: Sequence[LiveBuffer]) -> list[LiveBuffer]:
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
    order: list[LiveBuffer] = []
    while ready:
        buffer = buffers[heapq.heappop(ready)[2]]
        order.append(buffer)
        for index in children.get(buffer.name, ()):
            heapq.heappush(ready, entry(index))
    return order


def _priority(buffer: LiveBuffer, parents: set[str]) -> float:
    span = buffer.end - buffer.start
    shared = 0.25 * (buffer.in_place_of is not None) + 0.25 * (buffer.name in parents)
    return (span - shared) / (len(buffer.uses) + 0.5 * buffer.first_is_write)


MAX_BUFFERS = 12
"""Larger groups are refused: the search grows with the factorial."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _InPlaceChain:
    """Buffers made in place of one another, placed as one: ``members`` are their indices."""

    members: tuple[int, ...]
    size_bytes: int
    start: int
    end: int


def solve_optimal(buffers: Sequence[LiveBuffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), None where it stays in HBM.

    Least is first the bytes (per core) of buffers in HBM, then the highest byte used.
    UnsupportedError SPY986 for more than `MAX_BUFFERS` buffers.
    """
    if len(buffers) > MAX_BUFFERS:
        raise UnsupportedError(
            "SPY986",
            "the optimal LX plan of so many buffers is not searched for",
            expected=f"at most {MAX_BUFFERS} buffers",
            found=str(len(buffers)),
            hint="use the solver greedy, first_fit or best_fit",
        )
    best: dict[str, int | None] = {}
    spilled: int | None = None
    peak = capacity_bytes
    for kept, bytes_out in _subsets(buffers, capacity_bytes):
        if spilled is not None and bytes_out > spilled:
            break
        lowest = _lowest(buffers, kept, peak)
        if lowest is not None:
            spilled, peak = bytes_out, lowest.peak_bytes - 1
            best = {b.name: lowest.places.get(k) for k, b in enumerate(buffers)}
    return best


def peak_bound(buffers: Sequence[LiveBuffer]) -> int:
    """Bytes that no plan with all ``buffers`` in LX can be below: most that live at one operation.

    A result and the operand whose place it may take count once where they meet.
    """
    return int(_loads(buffers, np.ones((1, len(buffers)), dtype=np.int64)).max(initial=0))


def _loads(buffers: Sequence[LiveBuffer], kept: Ints) -> Ints:
    """Least bytes alive at each operation, [subsets, operations]; ``kept``: [subsets, buffers]."""
    steps = max((b.end for b in buffers), default=0)
    time = np.arange(steps)
    alive = np.array([(b.start <= time) & (time < b.end) for b in buffers], dtype=np.int64)
    sizes = np.array([b.size_bytes for b in buffers], dtype=np.int64)
    loads: Ints = kept @ (alive.reshape(len(buffers), steps) * sizes[:, None])
    index = {b.name: k for k, b in enumerate(buffers)}
    for k, buffer in enumerate(buffers):
        if buffer.in_place_of in index:
            parent = index[buffer.in_place_of]
            both = (kept[:, k] & kept[:, parent])[:, None]
            loads -= both * (alive[k] * alive[parent] * sizes[k])
    return loads


def _subsets(buffers: Sequence[LiveBuffer], capacity_bytes: int) -> Iterator[tuple[list[int], int]]:
    """(indices kept in LX, bytes left in HBM), the least bytes first, where the load allows it."""
    masks = np.arange(1 << len(buffers), dtype=np.int64)
    kept = (masks[:, None] >> np.arange(len(buffers))) & 1
    sizes = np.array([b.size_bytes for b in buffers], dtype=np.int64)
    out = (1 - kept) @ sizes
    fits = np.flatnonzero(_loads(buffers, kept).max(axis=1, initial=0) <= capacity_bytes)
    for mask in fits[np.argsort(out[fits], kind="stable")]:
        yield np.flatnonzero(kept[mask]).tolist(), int(out[mask])


@dataclass(frozen=True, slots=True)
class _LowestPlan:
    places: dict[int, int]
    peak_bytes: int


def _lowest(
    buffers: Sequence[LiveBuffer], kept: Sequence[int], limit_bytes: int
) -> _LowestPlan | None:
    """Places of the buffers ``kept`` with the lowest peak, if one of ``limit_bytes`` exists."""
    chosen = [buffers[k] for k in kept]
    index = {buffers[k].name: k for k in kept}
    links = [(index[b.in_place_of], index[b.name]) for b in chosen if b.in_place_of in index]
    bound = peak_bound(chosen)
    best: _LowestPlan | None = None
    for count in range(len(links), -1, -1):
        for joined in combinations(links, count):
            search = _OrderSearch(_blocks(buffers, kept, joined), limit_bytes)
            if search.places is not None:
                best = _LowestPlan(search.by_member(), search.peak_bytes)
                limit_bytes = best.peak_bytes - 1
            if limit_bytes < bound:
                return best
    return best


def _blocks(
    buffers: Sequence[LiveBuffer], kept: Sequence[int], joined: Sequence[tuple[int, int]]
) -> list[_InPlaceChain]:
    """The buffers ``kept``, those joined (operand, result) as one block."""
    chains = {k: [k] for k in kept}
    for parent, child in joined:
        merged = chains[parent] + chains[child]
        for member in merged:
            chains[member] = merged
    unique = {tuple(sorted(chain)) for chain in chains.values()}
    return [
        _InPlaceChain(
            members,
            max(buffers[k].size_bytes for k in members),
            min(buffers[k].start for k in members),
            max(buffers[k].end for k in members),
        )
        for members in sorted(unique)
    ]


@dataclass
class _OrderSearch:
    """All orders of ``blocks``, cut where they cannot get below the best so far.

    ``heights``: top of what lies at every operation; it and the set of blocks that are left say
    all of a plan begun, so none is looked at twice.
    """

    blocks: Sequence[_InPlaceChain]
    limit_bytes: int
    places: list[int] | None = None
    peak_bytes: int = 0
    _now: dict[int, int] = field(default_factory=dict)
    _seen: set[tuple[int, bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        steps = max((b.end for b in self.blocks), default=0)
        load = np.zeros(steps, dtype=np.int64)
        for block in self.blocks:
            load[block.start : block.end] += block.size_bytes
        self._bound = int(load.max(initial=0))
        self._order = sorted(range(len(self.blocks)), key=self._rank, reverse=True)
        self._step((1 << len(self.blocks)) - 1, np.zeros(steps, dtype=np.int64), load)

    def _rank(self, index: int) -> tuple[int, int]:
        block = self.blocks[index]
        return block.end - block.start, block.size_bytes

    def by_member(self) -> dict[int, int]:
        """Places by index of buffer, after a search that found some."""
        assert self.places is not None
        pairs = zip(self.blocks, self.places, strict=True)
        return {member: place for block, place in pairs for member in block.members}

    def _step(self, left: int, heights: Ints, load: Ints) -> None:
        if (heights + load).max(initial=0) > self.limit_bytes:
            return
        if not left:
            self.peak_bytes = int(heights.max(initial=0))
            self.places = [self._now[k] for k in range(len(self.blocks))]
            self.limit_bytes = self.peak_bytes - 1
            return
        key = (left, heights.tobytes())
        if key in self._seen:
            return
        self._seen.add(key)
        for k in self._order:
            if left >> k & 1 and self.limit_bytes >= self._bound:
                self._put(k, left, heights, load)

    def _put(self, k: int, left: int, heights: Ints, load: Ints) -> None:
        block = self.blocks[k]
        life = slice(block.start, block.end)
        place = aligned(int(heights[life].max()))
        higher, lighter = heights.copy(), load.copy()
        higher[life] = place + block.size_bytes
        lighter[life] -= block.size_bytes
        self._now[k] = place
        self._step(left & ~(1 << k), higher, lighter)
