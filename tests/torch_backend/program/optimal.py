"""The best packing there is, found by search: the oracle that `pack` is compared with.

Fewest bytes that do not fit, then the lowest peak, of at most a dozen buffers. Two facts keep the
search small. Buffers can be pushed down in any packing until each is at 0 or on another one, so
trying all orders and putting each buffer on top of those it meets finds the best. And the buffers
alive at an operation stack up there, which bounds the peak of every packing begun from below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import STICK_BYTES
from spyre.mlir.builder import round_up
from spyre.torch_backend.program.builder import LiveBuffer

Ints = NDArray[np.int64]


class _InPlaceChain(msgspec.Struct, frozen=True):
    """Buffers made in place of one another, placed as one: ``members`` are their indices."""

    members: tuple[int, ...]
    size_bytes: int
    start: int
    end: int


def solve_optimal(buffers: Sequence[LiveBuffer[str]], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in bytes, None if it is left out."""
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


def peak_bound(buffers: Sequence[LiveBuffer[str]]) -> int:
    """Bytes that no plan with all ``buffers`` in LX can be below: most that live at one operation.

    A result and the operand whose place it may take count once where they meet.
    """
    return int(_loads(buffers, np.ones((1, len(buffers)), dtype=np.int64)).max(initial=0))


def _loads(buffers: Sequence[LiveBuffer[str]], kept: Ints) -> Ints:
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


def _subsets(
    buffers: Sequence[LiveBuffer[str]], capacity_bytes: int
) -> Iterator[tuple[list[int], int]]:
    """(indices kept in LX, bytes left in HBM), the least bytes first, where the load allows it."""
    masks = np.arange(1 << len(buffers), dtype=np.int64)
    kept = (masks[:, None] >> np.arange(len(buffers))) & 1
    sizes = np.array([b.size_bytes for b in buffers], dtype=np.int64)
    out = (1 - kept) @ sizes
    fits = np.flatnonzero(_loads(buffers, kept).max(axis=1, initial=0) <= capacity_bytes)
    for mask in fits[np.argsort(out[fits], kind="stable")]:
        yield np.flatnonzero(kept[mask]).tolist(), int(out[mask])


class _LowestPlan(msgspec.Struct, frozen=True):
    places: dict[int, int]
    peak_bytes: int


def _lowest(
    buffers: Sequence[LiveBuffer[str]], kept: Sequence[int], limit_bytes: int
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
    buffers: Sequence[LiveBuffer[str]], kept: Sequence[int], joined: Sequence[tuple[int, int]]
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


class _OrderSearch(msgspec.Struct, dict=True):
    """Search of all orders of ``blocks``, cut where they cannot get below the best so far.

    ``heights``: top of the placed blocks at every operation. Together with the set of remaining
    blocks it determines a partial plan, so none is searched twice.
    """

    blocks: Sequence[_InPlaceChain]
    limit_bytes: int
    places: list[int] | None = None
    peak_bytes: int = 0
    _now: dict[int, int] = msgspec.field(default_factory=dict)
    _seen: set[tuple[int, bytes]] = msgspec.field(default_factory=set)

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
        place = round_up(int(heights[life].max()), STICK_BYTES)
        higher, lighter = heights.copy(), load.copy()
        higher[life] = place + block.size_bytes
        lighter[life] -= block.size_bytes
        self._now[k] = place
        self._step(left & ~(1 << k), higher, lighter)
