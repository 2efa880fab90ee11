"""The collectives of one group, over bytes of the cards' memories. Every operation is one round.

    Communicator (one per rank)    splits tensors into pieces, reduces, observes
          │ round(header, outboxes)
    Transport (one per rank)       SharedMemory: threads, processes of a machine
                                   MessageTransport: gloo, between machines
        in a round                 send, piece + commit: fill the pieces of an own outbox
                                   read, receive: get the pieces of another rank's outbox

A round of three ranks, an all-reduce of chunks c0, c1, c2 (rank r reduces chunk r):

    rank 0          rank 1          rank 2
    outbox 1: c1 ──▶ reads box 1 ◀── outbox 1: c1      each rank sends its chunk c to rank c
                    reduces c1
    receives c1 ◀── outbox 3: c1 ──▶ receives c1       and its reduced chunk to all

Data are arrays of bytes [rows, columns]: stick images, or codes in C order if the ranks agreed on
those. A run has one row; the rows of a part of a tensor may have a larger pitch. The memory of a
rank is accessed only by the thread that calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product

import msgspec
import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import SpyreError
from spyre.hw.device import Combiner
from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    Bytes,
    CollectiveError,
    Deadline,
    Outbox,
    Transport,
    fitted,
    padded,
    text_of,
)

ALGORITHMS = ("RankOrder", "Ring", "Tree", "Float32")
"""Orders of reductions. ``RankOrder``: ((x0+x1)+x2)+…, every step rounded. ``Ring``: chunk c begins
at rank c+1, as the last rank of a ring has it. ``Tree``: pairs, then pairs of pairs. ``Float32``:
16-bit floats are added in float32 and rounded once. IBM's order is not published. RankOrder is the
default, because its result can be checked on one card.
"""

SMALL_BYTES = 64 << 10
"""Reductions up to this size are one exchange: every rank sends all and reduces all."""

DETAIL_LIMIT = 160
"""Characters of a dtype and sizes in a header, which also has the name and number of the call."""


class CollectiveRecord(msgspec.Struct, frozen=True):
    """One collective as a rank ran it, or a message of ``send`` and ``recv``.

    ``operation``: its name in the cost model. ``size_bytes``: of the rank's largest tensor, for
    an all-gather the output. ``begin_ns``/``end_ns``: host clock. ``sent_bytes`` and
    ``received_bytes``: by the rank at the other end. ``combined_bytes``: reduced by this rank.
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
        """Number of ranks in the group."""
        return len(self.sent_bytes)

    def __str__(self) -> str:
        return f"{self.name} {self.detail}".rstrip()


Stage = Callable[[int], None]
"""One step of a pipeline, for the piece of a number."""
Outgoing = Mapping[int, tuple[Bytes, tuple[int, ...]]]
"""Part of the data in each outbox, and the ranks that read it."""
Incoming = Mapping[int, tuple[Bytes, int]]
"""Destination of the part from each sending rank, and the sender's outbox that holds it."""


class Communicator:
    """One rank of a group. One thread calls it, and all ranks make the same calls in one order.

    After a failure every later call raises CollectiveError SPY956. ``deadline``: of the next calls,
    set before the first one. ``observer`` is called with the record of every completed operation.
    """

    deadline: Deadline

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
        self.rank, self.size = rank, size = transport.rank, transport.size
        self._others = tuple(k for k in range(size) if k != rank)
        # From the next rank on, so that the ranks do not all read the same one.
        self._followers = [(rank + step) % size for step in range(1, size)]

    def fail(self, reason: SpyreError) -> None:
        """Mark the group as failed and notify the other ranks."""
        if self.failure is None:
            self.failure = reason
            # A failure of another rank is passed on unchanged, so that all ranks name its cause.
            heard = reason.finding.found if reason.code == "SPY957" else ""
            self.transport.fail(heard or f"rank {self.rank}: {reason.finding.message}")

    def check(self) -> None:
        """Raise CollectiveError SPY956 if the group has failed before."""
        if self.failure is not None:
            message = "an earlier operation of this group has failed"
            found = str(self.failure.finding.message)
            hint = "destroy the process group and make a new one"
            raise CollectiveError("SPY956", message, found=found, hint=hint) from self.failure

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """Close the transport, see `Transport.close`."""
        self.transport.close(min(patience, LINGER_SECONDS))

    # --- reductions ---------------------------------------------------------------------------

    def all_reduce(self, run: Bytes, combiner: Combiner, detail: str) -> None:
        """Reduce equal runs of whole sticks of all ranks, in place; the same bits on all ranks."""
        if 0 < run.size * self.size <= SMALL_BYTES:
            self._all_reduce_small(run, combiner, detail)
        else:
            self._reduce_chunks("all_reduce", run, range(self.size), combiner, detail)

    def reduce(self, run: Bytes, root: int, combiner: Combiner, detail: str) -> None:
        """Like `all_reduce`, but only the run of the root changes."""
        self._reduce_chunks(f"reduce to {root}", run, [root], combiner, detail)

    def _all_reduce_small(self, run: Bytes, combiner: Combiner, detail: str) -> None:
        boxes = [Outbox((run.size,), self._others)]
        with self._round("all_reduce", detail, boxes, run.size):
            # The pieces are copies, because the reduction overwrites the run.
            self.transport.piece(0, 0)[:] = run
            self.transport.commit(0)
            runs = [
                self._read(k, 0, 0, boxes[0].sizes)
                if k != self.rank
                else self.transport.piece(0, 0)
                for k in range(self.size)
            ]
            for owner, (start, end) in enumerate(_chunk_bounds(run.size, self.size)):
                if start < end:
                    self._fold([r[start:end] for r in runs], owner, combiner, run[start:end])

    def _reduce_chunks(
        self, name: str, run: Bytes, receivers: Sequence[int], combiner: Combiner, detail: str
    ) -> None:
        """Every rank reduces one chunk of all runs and sends it to the receivers, piece by piece.

        Outbox c holds this rank's values of chunk c, the last outbox its own chunk, reduced. The
        stages are pipelined over the pieces, so that all ranks work at the same time. A chunk is
        sent from the memory that its result is received into: the result is complete only after
        the chunk has been read.
        """
        bounds = _chunk_bounds(run.size, self.size)
        chunks = [self._pieces(run[None, start:end]) for start, end in bounds]
        others = tuple(k for k in receivers if k != self.rank)
        is_receiver = self.rank in receivers

        def reduce(index: int, runs: Sequence[Bytes]) -> None:
            if is_receiver:
                self._fold(runs, self.rank, combiner, runs[self.rank])
                self.transport.send(self.size, index, runs[self.rank])
            else:
                self._fold(runs, self.rank, combiner, self.transport.piece(self.size, index))
                self.transport.commit(self.size)

        def receive(index: int) -> None:
            for c in self._followers:
                if is_receiver and index < len(chunks[c]):
                    self._receive(c, self.size, index, chunks[c])

        results = Outbox(_sizes(chunks[self.rank]), others)
        boxes, stages = self._distribution(chunks, reduce)
        with self._round(name, detail, [*boxes, results], run.size):
            _pipeline(max(map(len, chunks)), (*stages, receive))

    def reduce_scatter(
        self, out: Bytes, parts: Sequence[Bytes], combiner: Combiner, detail: str
    ) -> None:
        """Reduce ``parts[rank]`` of all ranks, whole sticks, into ``out``."""
        targets = self._pieces(out)
        pieces = [self._pieces(part) for part in parts]

        def reduce(index: int, runs: Sequence[Bytes]) -> None:
            target = targets[index]
            result = target.reshape(-1)  # a copy if the rows are not adjacent
            self._fold(runs, self.rank, combiner, result)
            if not np.may_share_memory(result, target):
                target[...] = result.reshape(target.shape)

        total = sum(part.size for part in parts)
        boxes, stages = self._distribution(pieces, reduce)
        with self._round("reduce_scatter", detail, boxes, total):
            _pipeline(max(map(len, pieces)), stages)

    def _distribution(
        self, parts: Sequence[Sequence[Bytes]], reduce: Callable[[int, Sequence[Bytes]], None]
    ) -> tuple[list[Outbox], tuple[Stage, Stage]]:
        """Outboxes and stages in which each rank gets the pieces of its part from all ranks.

        ``reduce(index, runs)`` is called with piece ``index`` of every rank, each one run.
        """
        own = parts[self.rank]
        sizes = _sizes(own)
        boxes = [Outbox(_sizes(p) if c != self.rank else (), (c,)) for c, p in enumerate(parts)]

        def send(index: int) -> None:
            for c in self._followers:
                if index < len(parts[c]):
                    self.transport.send(c, index, parts[c][index])

        def reduce_own(index: int) -> None:
            if index < len(own):
                run = np.ascontiguousarray(own[index]).reshape(-1)
                runs = [
                    run if k == self.rank else self._read(k, self.rank, index, sizes)
                    for k in range(self.size)
                ]
                reduce(index, runs)

        return boxes, (send, reduce_own)

    # --- copies -------------------------------------------------------------------------------

    def broadcast(self, part: Bytes, root: int, detail: str) -> None:
        """Copy the ``part`` of the root to all ranks."""
        at_root = self.rank == root
        outgoing = {0: (part, self._others)} if at_root else {}
        incoming = {} if at_root else {root: (part, 0)}
        self._exchange(f"broadcast from {root}", part.size, outgoing, incoming, detail)

    def all_gather(self, outs: Sequence[Bytes], own: Bytes, detail: str) -> None:
        """Copy ``own`` of each rank k to ``outs[k]`` of all ranks."""
        outgoing = {0: (own, self._others)}
        incoming = {k: (outs[k], 0) for k in self._others}
        size_bytes = sum(out.size for out in outs)
        itself = outs[self.rank], own
        self._exchange("all_gather", size_bytes, outgoing, incoming, detail, itself)

    def gather(self, outs: Sequence[Bytes], own: Bytes, root: int, detail: str) -> None:
        """Copy ``own`` of each rank k to ``outs[k]`` of the root; ``outs`` is empty elsewhere."""
        name = f"gather to {root}"
        if self.rank == root:
            incoming = {k: (outs[k], root) for k in self._others}
            size_bytes = sum(out.size for out in outs)
            self._exchange(name, size_bytes, {}, incoming, detail, (outs[root], own))
        else:
            outgoing = {root: (own, (root,))}
            self._exchange(name, own.size * self.size, outgoing, {}, detail)

    def scatter(self, out: Bytes, parts: Sequence[Bytes], root: int, detail: str) -> None:
        """Copy ``parts[k]`` of the root to ``out`` of each rank k; ``parts`` is empty elsewhere."""
        name = f"scatter from {root}"
        if self.rank == root:
            outgoing = {k: (parts[k], (k,)) for k in self._others}
            size_bytes = sum(part.size for part in parts)
            self._exchange(name, size_bytes, outgoing, {}, detail, (out, parts[root]))
        else:
            incoming = {root: (out, self.rank)}
            self._exchange(name, out.size * self.size, {}, incoming, detail)

    def all_to_all(self, outs: Sequence[Bytes], parts: Sequence[Bytes], detail: str) -> None:
        """Copy ``parts[rank]`` of each rank k to ``outs[k]``."""
        outgoing = {k: (parts[k], (k,)) for k in self._others}
        incoming = {k: (outs[k], self.rank) for k in self._others}
        itself = outs[self.rank], parts[self.rank]
        size_bytes = sum(part.size for part in parts)
        self._exchange("all_to_all", size_bytes, outgoing, incoming, detail, itself)

    def barrier(self, detail: str) -> None:
        """Return when all ranks have called it."""
        self._exchange("barrier", 0, {}, {}, detail)

    def agree(self, sent: Sequence[str], wanted: Sequence[str], detail: str) -> None:
        """Raise CollectiveError SPY952, on all ranks, unless sizes sent and received agree.

        ``sent``, ``wanted``: sizes of an all-to-all, by rank at the other end. Not observed.
        """
        text = "\n".join(fitted(size, 63) for size in (*sent, *wanted))
        own = padded(text, 2 * 64 * self.size)[None]
        rows = [own if k == self.rank else np.zeros_like(own) for k in range(self.size)]
        incoming = {k: (rows[k], 0) for k in self._others}
        name = "sizes of all_to_all"
        self._exchange(name, None, {0: (own, self._others)}, incoming, detail)
        sizes = [text_of(row).split("\n") for row in rows]
        for source, target in product(range(self.size), repeat=2):
            offered, expected = sizes[source][target], sizes[target][self.size + source]
            if offered != expected:
                raise CollectiveError(
                    "SPY952",
                    f"all_to_all {detail} (operation {self._sequence} of the group): rank {source} "
                    f"does not send what rank {target} expects",
                    expected=f"{expected} (rank {target})",
                    found=f"{offered} (rank {source})",
                )

    def _exchange(
        self,
        name: str,
        size_bytes: int | None,
        outgoing: Outgoing,
        incoming: Incoming,
        detail: str,
        itself: tuple[Bytes, Bytes] | None = None,
    ) -> None:
        """Send and receive parts. ``itself``: destination and source of a local copy."""
        sources = {box: self._pieces(part) for box, (part, _) in outgoing.items()}
        targets = {k: self._pieces(part) for k, (part, _) in incoming.items()}
        boxes = [
            Outbox(_sizes(sources[box]), outgoing[box][1]) if box in outgoing else Outbox((), ())
            for box in range(max(outgoing, default=-1) + 1)
        ]

        def send(index: int) -> None:
            for box, pieces in sources.items():
                if index < len(pieces):
                    self.transport.send(box, index, pieces[index])

        def receive(index: int) -> None:
            for k in self._followers:
                if k in incoming and index < len(targets[k]):
                    self._receive(k, incoming[k][1], index, targets[k])

        with self._round(name, detail, boxes, size_bytes):
            steps = max([0, *map(len, sources.values()), *map(len, targets.values())])
            _pipeline(steps, (send, receive))
            if itself is not None:
                itself[0][...] = itself[1].reshape(itself[0].shape)

    # --- rounds -------------------------------------------------------------------------------

    @contextmanager
    def _round(
        self, name: str, detail: str, boxes: Sequence[Outbox], size_bytes: int | None
    ) -> Iterator[None]:
        """``size_bytes``: of the record for the observer; None for no record."""
        self.check()
        self._sequence += 1
        self._combined_bytes = 0
        self._received_bytes = [0] * self.size
        begin_ns = time.perf_counter_ns()
        called = f"{name} {fitted(detail, DETAIL_LIMIT)}".rstrip()
        header = f"{called} (operation {self._sequence} of the group)"
        try:
            with self.transport.round(header, boxes, self.deadline):
                yield
        except SpyreError as error:
            self.fail(error)
            raise
        except BaseException as error:
            reason = f"{header}: {type(error).__name__}: {error}"
            self.fail(CollectiveError("SPY957", reason))
            raise
        if self.observer is not None and size_bytes is not None:
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

    def _read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        self._received_bytes[rank] += sizes[index]
        return self.transport.read(rank, box, index, sizes)

    def _receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        self._received_bytes[rank] += targets[index].size
        self.transport.receive(rank, box, index, targets)

    def _pieces(self, part: Bytes) -> list[Bytes]:
        """Divide an array of bytes [rows, columns] into groups of rows or parts of single rows."""
        (rows, columns), limit = part.shape, self.transport.piece_bytes
        if part.size == 0:
            return []
        if columns >= limit:
            starts = range(0, columns, limit)
            return [part[row : row + 1, at : at + limit] for row in range(rows) for at in starts]
        group = max(1, limit // columns)
        return [part[row : row + group] for row in range(0, rows, group)]

    def _fold(self, runs: Sequence[Bytes], owner: int, combiner: Combiner, out: Bytes) -> None:
        self._combined_bytes += (len(runs) - 1) * out.size
        _fold(runs, owner, self.algorithm, combiner, out)


def _sizes(pieces: Sequence[Bytes]) -> tuple[int, ...]:
    return tuple(piece.size for piece in pieces)


def _pipeline(pieces: int, stages: Sequence[Stage]) -> None:
    """Run the stages over all pieces: in step i, stage s works on piece i - s."""
    for step in range(pieces + len(stages) - 1):
        for lag, stage in enumerate(stages):
            if 0 <= step - lag < pieces:
                stage(step - lag)


def _sent_bytes(boxes: Sequence[Outbox], ranks: int) -> tuple[int, ...]:
    sent = [0] * ranks
    for box in boxes:
        for reader in box.readers:
            sent[reader] += box.size_bytes
    return tuple(sent)


# --- division into chunks and pieces, order of reductions ------------------------------------


def _chunk_bounds(size_bytes: int, ranks: int) -> list[tuple[int, int]]:
    """Return the range of bytes that each rank reduces: whole sticks, divided evenly."""
    sticks = -(-size_bytes // STICK_BYTES)
    share = -(-sticks // ranks)
    edges = [min(sticks, rank * share) * STICK_BYTES for rank in range(ranks + 1)]
    return list(pairwise(edges))


def _fold(
    runs: Sequence[Bytes], owner: int, algorithm: str, combiner: Combiner, out: Bytes
) -> None:
    """Reduce runs of whole sticks, one per rank, into ``out``, which may be one of them.

    ``owner``: the rank that reduces this chunk; the order of a ring depends on it.
    """
    if len(runs) == 1:
        out[:] = runs[0]
    elif algorithm == "Tree":
        _fold_pairs(list(runs), combiner, out)
    elif algorithm == "Float32" and combiner.operator == "sum" and combiner.is_float:
        combiner.add_once(runs, out)
    else:
        first = owner + 1 if algorithm == "Ring" else 0
        order = [runs[(first + step) % len(runs)] for step in range(len(runs))]
        _fold_in_order(order, combiner, out)


def _fold_in_order(order: Sequence[Bytes], combiner: Combiner, out: Bytes) -> None:
    is_read_late = any(np.may_share_memory(run, out) for run in order[2:])
    total = np.empty_like(out) if is_read_late else out
    combiner.combine(order[0], order[1], total)
    for run in order[2:-1]:
        combiner.combine(total, run, total)
    if len(order) > 2:
        combiner.combine(total, order[-1], out)


def _fold_pairs(level: list[Bytes], combiner: Combiner, out: Bytes) -> None:
    while len(level) > 2:
        joined = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            target = np.empty_like(out)
            combiner.combine(left, right, target)
            joined.append(target)
        level = joined + ([level[-1]] if len(level) % 2 else [])
    combiner.combine(level[0], level[1], out)
