"""The collectives of one group: schedules of rounds over bytes of the cards' memories.

All data are arrays of bytes [rows, columns] (a run is one row; parts of a tensor may be rows at a
distance): stick images, or codes in C order where the ranks agreed on those. A rank's own memory is
only touched by the thread that calls. Every operation is one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from spyre.errors import SpyreError
from spyre.hw.device import Combiner
from spyre.runtime.comms.algorithms import (
    block_bytes,
    blocks_of,
    chunk_bounds,
    edges_of,
    fold,
    piece_sizes,
)
from spyre.runtime.comms.errors import CollectiveError
from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    Bytes,
    Deadline,
    Outbox,
    Round,
    Transport,
)

SMALL_BYTES = 64 << 10
"""Reductions up to this size are one exchange: every rank sends all and reduces all."""


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One collective as a rank ran it, or a message of ``send`` and ``recv``.

    ``operation``: its name in the cost model. ``size_bytes``: of the rank's largest tensor, which
    an all-gather writes. ``begin_ns``/``end_ns``: host clock. ``sent_bytes``/``received_bytes``: by
    rank at the other end. ``combined_bytes``: that this rank reduced.
    """

    operation: str
    name: str
    detail: str
    sequence: int
    rank: int
    size_bytes: int
    begin_ns: int
    end_ns: int
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    combined_bytes: int

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.sent_bytes)

    def __str__(self) -> str:
        return f"{self.name} {self.detail}".rstrip()


class _Given(NamedTuple):
    """A part for ``readers``."""

    part: Bytes
    readers: tuple[int, ...]


class _Taken(NamedTuple):
    """Where a part from box ``box`` of another rank goes."""

    part: Bytes
    box: int


class Communicator:
    """One rank of a group. Calls come from one thread, on all ranks in the same order.

    After a failure the group is dead: every later call raises CollectiveError SPY956.
    ``observer`` is told of every operation done.
    """

    def __init__(
        self,
        transport: Transport,
        algorithm: str = "RankOrder",
        observer: Callable[[CollectiveRecord], None] | None = None,
    ) -> None:
        self.transport = transport
        self.algorithm = algorithm
        self.observer = observer
        self.failure: SpyreError | None = None
        self._sequence = 0
        self._combined_bytes = 0
        self._received_bytes = [0] * transport.size

    @property
    def rank(self) -> int:
        """This rank."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.transport.size

    def fail(self, reason: SpyreError) -> None:
        """The group is dead from now on; the other ranks notice."""
        if self.failure is None:
            self.failure = reason
            # what another rank said first is handed on: the cause, not who heard of it
            heard = reason.finding.found if reason.code == "SPY957" else ""
            self.transport.fail(heard or f"rank {self.rank}: {reason.finding.message}")

    def check(self) -> None:
        """CollectiveError SPY956 if the group has failed before."""
        if self.failure is not None:
            raise CollectiveError(
                "SPY956",
                "an operation of this group has failed, and the group with it",
                found=str(self.failure.finding.message),
                hint="destroy the process group and make a new one",
            ) from self.failure

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """Give the transport back, see `Transport.close`."""
        self.transport.close(min(patience, LINGER_SECONDS))

    # --- reductions ---------------------------------------------------------------------------

    def all_reduce(self, run: Bytes, combiner: Combiner, detail: str, deadline: Deadline) -> None:
        """Reduce equal runs of whole sticks of all ranks, in place; the same bits on all ranks."""
        if run.size * self.size <= SMALL_BYTES:
            self._all_reduce_small(run, combiner, detail, deadline)
        else:
            self._reduce_chunks("all_reduce", run, range(self.size), combiner, detail, deadline)

    def reduce(
        self, run: Bytes, root: int, combiner: Combiner, detail: str, deadline: Deadline
    ) -> None:
        """As `all_reduce`; only the root gets the result, the others keep what they have."""
        self._reduce_chunks(f"reduce to {root}", run, [root], combiner, detail, deadline)

    def _all_reduce_small(
        self, run: Bytes, combiner: Combiner, detail: str, deadline: Deadline
    ) -> None:
        boxes = [Outbox((run.size,), self._others)]
        with self._round("all_reduce", detail, boxes, run.size, deadline) as current:
            # from a copy, as the reduction goes where the run is
            current.piece(0, 0)[:] = run
            current.commit(0)
            runs = [
                self._read(current, k, 0, 0, boxes[0].sizes)
                if k != self.rank
                else current.piece(0, 0)
                for k in range(self.size)
            ]
            for owner, (start, end) in enumerate(chunk_bounds(run.size, self.size)):
                if start < end:
                    self._fold([r[start:end] for r in runs], owner, combiner, run[start:end])

    def _reduce_chunks(
        self,
        name: str,
        run: Bytes,
        receivers: Sequence[int],
        combiner: Combiner,
        detail: str,
        deadline: Deadline,
    ) -> None:
        """Every rank reduces a chunk of all runs and hands it to the receivers, piece by piece.

        Outbox c: what this rank has of chunk c; the last one: its own chunk, reduced. The steps
        follow each other piece by piece, so that the ranks work at the same time. A chunk is given
        from where its result is taken to: that is there when all have read what was given.
        """
        bounds = chunk_bounds(run.size, self.size)
        sizes = [piece_sizes(end - start, self.transport.piece_bytes) for start, end in bounds]
        others = tuple(k for k in receivers if k != self.rank)
        boxes = [Outbox(sizes[c] if c != self.rank else (), (c,)) for c in range(self.size)] + [
            Outbox(sizes[self.rank], others)
        ]
        parts = [_parts(run, start, s) for (start, _), s in zip(bounds, sizes, strict=True)]
        takes = self.rank in receivers

        def give(current: Round, index: int) -> None:
            for c in self._followers:
                if index < len(sizes[c]):
                    current.give(c, index, parts[c][index])

        def reduce_own(current: Round, index: int) -> None:
            if index >= len(sizes[self.rank]):
                return
            own = parts[self.rank][index]
            runs = [
                own
                if k == self.rank
                else self._read(current, k, self.rank, index, sizes[self.rank])
                for k in range(self.size)
            ]
            if takes:
                self._fold(runs, self.rank, combiner, own)
                current.give(self.size, index, own)
            else:
                self._fold(runs, self.rank, combiner, current.piece(self.size, index))
                current.commit(self.size)

        def take(current: Round, index: int) -> None:
            for c in self._followers:
                if takes and index < len(sizes[c]):
                    self._take(current, c, self.size, index, parts[c])

        with self._round(name, detail, boxes, run.size, deadline) as current:
            _pipeline(current, max(map(len, sizes)), (give, reduce_own, take))

    def reduce_scatter(
        self,
        out: Bytes,
        parts: Sequence[Bytes],
        combiner: Combiner,
        detail: str,
        deadline: Deadline,
    ) -> None:
        """``out`` = the reduction of every rank's ``parts[rank]``, whole sticks each."""
        own_blocks = self._blocks(out)
        sizes = block_bytes(own_blocks)
        blocks = [self._blocks(part) for part in parts]
        boxes = [
            Outbox(block_bytes(blocks[c]) if c != self.rank else (), (c,)) for c in range(self.size)
        ]

        def give(current: Round, index: int) -> None:
            for c in self._followers:
                if index < len(blocks[c]):
                    current.give(c, index, parts[c][blocks[c][index]])

        def reduce_own(current: Round, index: int) -> None:
            if index >= len(own_blocks):
                return
            own = np.ascontiguousarray(parts[self.rank][own_blocks[index]]).reshape(-1)
            runs = [
                own if k == self.rank else self._read(current, k, self.rank, index, sizes)
                for k in range(self.size)
            ]
            target = out[own_blocks[index]]
            result = target.reshape(-1)  # a copy of rows at a distance
            self._fold(runs, self.rank, combiner, result)
            if not np.may_share_memory(result, target):
                target[...] = result.reshape(target.shape)

        total = sum(part.size for part in parts)
        with self._round("reduce_scatter", detail, boxes, total, deadline) as current:
            _pipeline(current, max(map(len, blocks)), (give, reduce_own))

    # --- copies -------------------------------------------------------------------------------

    def broadcast(self, part: Bytes, root: int, detail: str, deadline: Deadline) -> None:
        """Every rank's ``part`` becomes the root's."""
        at_root = self.rank == root
        given = {0: _Given(part, self._others)} if at_root else {}
        taken = {} if at_root else {root: _Taken(part, 0)}
        self._copy(f"broadcast from {root}", part.size, given, taken, detail, deadline)

    def all_gather(
        self, outs: Sequence[Bytes], own: Bytes, detail: str, deadline: Deadline
    ) -> None:
        """``outs[k]`` = what rank k gives as ``own``."""
        given = {0: _Given(own, self._others)}
        taken = {k: _Taken(outs[k], 0) for k in self._others}
        size_bytes = sum(out.size for out in outs)
        itself = outs[self.rank], own
        self._copy("all_gather", size_bytes, given, taken, detail, deadline, itself)

    def gather(
        self, outs: Sequence[Bytes], own: Bytes, root: int, detail: str, deadline: Deadline
    ) -> None:
        """At the root ``outs[k]`` = what rank k gives as ``own``; ``outs`` is empty elsewhere."""
        name = f"gather to {root}"
        if self.rank == root:
            taken = {k: _Taken(outs[k], root) for k in self._others}
            size_bytes = sum(out.size for out in outs)
            self._copy(name, size_bytes, {}, taken, detail, deadline, (outs[root], own))
        else:
            given = {root: _Given(own, (root,))}
            self._copy(name, own.size * self.size, given, {}, detail, deadline)

    def scatter(
        self, out: Bytes, parts: Sequence[Bytes], root: int, detail: str, deadline: Deadline
    ) -> None:
        """``out`` = the root's ``parts[rank]``; ``parts`` is empty elsewhere."""
        name = f"scatter from {root}"
        if self.rank == root:
            given = {k: _Given(parts[k], (k,)) for k in self._others}
            size_bytes = sum(part.size for part in parts)
            self._copy(name, size_bytes, given, {}, detail, deadline, (out, parts[root]))
        else:
            taken = {root: _Taken(out, self.rank)}
            self._copy(name, out.size * self.size, {}, taken, detail, deadline)

    def all_to_all(
        self, outs: Sequence[Bytes], parts: Sequence[Bytes], detail: str, deadline: Deadline
    ) -> None:
        """``outs[k]`` = what rank k gives as ``parts[rank]``."""
        given = {k: _Given(parts[k], (k,)) for k in self._others}
        taken = {k: _Taken(outs[k], self.rank) for k in self._others}
        itself = outs[self.rank], parts[self.rank]
        size_bytes = sum(part.size for part in parts)
        self._copy("all_to_all", size_bytes, given, taken, detail, deadline, itself)

    def barrier(self, detail: str, deadline: Deadline) -> None:
        """Return when all ranks have come."""
        self._copy("barrier", 0, {}, {}, detail, deadline)

    def _copy(
        self,
        name: str,
        size_bytes: int,
        given: dict[int, _Given],
        taken: dict[int, _Taken],
        detail: str,
        deadline: Deadline,
        itself: tuple[Bytes, Bytes] | None = None,
    ) -> None:
        """Give parts (by box) and take parts (by rank); ``itself``: (out, part) of this rank."""
        layout = {box: self._blocks(item.part) for box, item in given.items()}
        targets = {
            k: [item.part[block] for block in self._blocks(item.part)] for k, item in taken.items()
        }
        boxes = [
            Outbox(block_bytes(layout[box]), given[box].readers) if box in given else Outbox((), ())
            for box in range(max(given, default=-1) + 1)
        ]

        def give(current: Round, index: int) -> None:
            for box, blocks in layout.items():
                if index < len(blocks):
                    current.give(box, index, given[box].part[blocks[index]])

        def take(current: Round, index: int) -> None:
            for k in self._followers:
                if k in taken and index < len(targets[k]):
                    self._take(current, k, taken[k].box, index, targets[k])

        with self._round(name, detail, boxes, size_bytes, deadline) as current:
            steps = max([0, *map(len, layout.values()), *map(len, targets.values())])
            _pipeline(current, steps, (give, take))
            if itself is not None:
                itself[0][...] = itself[1].reshape(itself[0].shape)

    # --- rounds -------------------------------------------------------------------------------

    @property
    def _followers(self) -> list[int]:
        """The other ranks, each rank beginning with the next one, so that not all ask one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(k for k in range(self.size) if k != self.rank)

    @contextmanager
    def _round(
        self, name: str, detail: str, boxes: Sequence[Outbox], size_bytes: int, deadline: Deadline
    ) -> Iterator[Round]:
        self.check()
        self._sequence += 1
        self._combined_bytes = 0
        self._received_bytes = [0] * self.size
        begin_ns = time.perf_counter_ns()
        header = f"{f'{name} {detail}'.rstrip()} (operation {self._sequence} of the group)"
        try:
            with self.transport.round(header, boxes, deadline) as current:
                yield current
        except SpyreError as error:
            self.fail(error)
            raise
        except BaseException as error:
            reason = f"{header}: {type(error).__name__}: {error}"
            self.fail(CollectiveError("SPY957", reason))
            raise
        if self.observer is not None:
            self.observer(
                CollectiveRecord(
                    name.partition(" ")[0],
                    name,
                    detail,
                    self._sequence,
                    self.rank,
                    size_bytes,
                    begin_ns,
                    time.perf_counter_ns(),
                    _sent_bytes(boxes, self.size),
                    tuple(self._received_bytes),
                    self._combined_bytes,
                )
            )

    def _read(self, current: Round, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        self._received_bytes[rank] += sizes[index]
        return current.read(rank, box, index, sizes)

    def _take(
        self, current: Round, rank: int, box: int, index: int, targets: Sequence[Bytes]
    ) -> None:
        self._received_bytes[rank] += targets[index].size
        current.take(rank, box, index, targets)

    def _blocks(self, part: Bytes) -> list[tuple[slice, slice]]:
        rows, columns = part.shape  # a run is one row
        return blocks_of((rows, columns), self.transport.piece_bytes)

    def _fold(self, runs: Sequence[Bytes], owner: int, combiner: Combiner, out: Bytes) -> None:
        self._combined_bytes += (len(runs) - 1) * out.size
        fold(runs, owner, self.algorithm, combiner, out)


def _pipeline(current: Round, pieces: int, stages: Sequence[Callable[[Round, int], None]]) -> None:
    """Stage s works on piece i - s in step i: a piece is asked for after the next one was given."""
    for step in range(pieces + len(stages) - 1):
        for lag, stage in enumerate(stages):
            if 0 <= step - lag < pieces:
                stage(current, step - lag)


def _sent_bytes(boxes: Sequence[Outbox], ranks: int) -> tuple[int, ...]:
    sent = [0] * ranks
    for box in boxes:
        for reader in box.readers:
            sent[reader] += box.size_bytes
    return tuple(sent)


def _parts(run: Bytes, start: int, sizes: Sequence[int]) -> list[Bytes]:
    """The pieces of a chunk that begins at ``start``."""
    return [run[low:high] for low, high in pairwise(edges_of(sizes, start))]
