"""Rounds over messages between pairs of ranks, for ranks that share no memory.

The messages are those of `torch.distributed`'s gloo, which handles sockets, name resolution and
encryption. Messages between two ranks with one tag arrive in the order they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from spyre.runtime.comms.memory import check_size
from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    MAX_RANKS,
    Bytes,
    CollectiveError,
    Deadline,
    Outbox,
    disagreement,
    missing,
)

HEADER_BYTES = 256
HEADER_TAG = 2 * MAX_RANKS - 1
TAGS_PER_ROUND = 2 * MAX_RANKS
ROUNDS = 1 << 16
"""Tags repeat after so many rounds; messages of two such rounds are never under way together."""
AHEAD = 2
"""Number of pieces whose receive is posted before they are read."""
MESSAGE_BYTES = 2 << 20
"""Size of a piece: large compared with the cost of a message, and small enough that the next piece
arrives while one is reduced."""


class Pending(Protocol):
    """A message under way."""

    def wait(self, seconds: float) -> bool:
        """Return False if incomplete after ``seconds``. RuntimeError if the other end died."""


class Messages(Protocol):
    """Point-to-point messages of one rank."""

    def send(self, content: Bytes, rank: int, tag: int) -> Pending:
        """Send ``content``, which must not change until the message is complete."""

    def receive(self, content: Bytes, rank: int, tag: int) -> Pending:
        """Fill ``content`` with the next message of ``rank`` under ``tag``."""

    def close(self) -> None:
        """Close the connections, which the other ranks notice."""


class MessageTransport:
    """The transport of one rank over `Messages`."""

    is_interruptible = False
    piece_bytes = MESSAGE_BYTES

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        check_size(size)
        self.rank, self.size = rank, size
        self._messages = messages
        self._round = 0
        self._has_failed = False
        self._buffers = _Buffers()

    @contextmanager
    def round(
        self, header: str, boxes: Sequence[Outbox], deadline: Deadline
    ) -> Iterator[_MessageRound]:
        """See `Transport.round`."""
        first_tag = (self._round % ROUNDS) * TAGS_PER_ROUND
        self._round += 1
        current = _MessageRound(
            self._messages, self._buffers, self.rank, self.size,
            header, tuple(boxes), deadline, first_tag,
        )  # fmt: skip
        current.publish()
        yield current
        for other in current.others:
            current.meet(other)
        current.flush()

    def fail(self, reason: str) -> None:
        """See `Transport.fail`; the other ranks notice the closed connection only."""
        self._has_failed = True
        self._messages.close()

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """See `Transport.close`; closing a connection drops the messages under way."""
        if self._round and not self._has_failed:
            self._exchange_last(Deadline.after(patience))
        self._messages.close()

    def _exchange_last(self, deadline: Deadline) -> None:
        """Exchange a last message with every rank, which then has read all earlier ones."""
        tag, others = ROUNDS * TAGS_PER_ROUND, [k for k in range(self.size) if k != self.rank]
        pending = []
        # A rank that has failed or does not come reports its own error.
        for start in (self._messages.send, self._messages.receive):
            for other in others:
                with suppress(RuntimeError):
                    pending.append(start(np.zeros(1, np.uint8), other, tag))
        for message in pending:
            with suppress(RuntimeError):
                message.wait(deadline.seconds_left)


class _Buffers:
    """Send and receive buffers, reused in later rounds: new pages cost more than a copy."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], Bytes] = {}

    def of(self, use: tuple[int, ...], size_bytes: int) -> Bytes:
        """Return ``size_bytes`` bytes for a use; the memory of its last call if that is enough."""
        kept = self._kept.get(use)
        if kept is None or kept.size < size_bytes:
            kept = self._kept[use] = np.empty(size_bytes, np.uint8)
        return kept[:size_bytes]


@dataclass(slots=True)
class _MessageRound:
    """See `Round`."""

    messages: Messages
    buffers: _Buffers
    rank: int
    size: int
    header: str
    boxes: tuple[Outbox, ...]
    deadline: Deadline
    first_tag: int
    committed: list[int] = field(default_factory=list)
    sent: list[tuple[int, Pending]] = field(default_factory=list)
    headers: dict[int, tuple[Bytes, Pending]] = field(default_factory=dict)
    sizes: dict[int, Bytes] = field(default_factory=dict)
    inbox: dict[tuple[int, int], list[tuple[Bytes, Pending]]] = field(default_factory=dict)

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [k for k in range(self.size) if k != self.rank]

    def publish(self) -> None:
        """Send the header to all ranks and start to receive theirs."""
        sizes = np.zeros(MAX_RANKS + 2, np.int64)
        sizes[: len(self.boxes)] = [box.size_bytes for box in self.boxes]
        text = self.header.encode()[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
        content = np.concatenate([np.frombuffer(text, np.uint8), sizes.view(np.uint8)])
        for other in self.others:
            answer = np.empty_like(content)
            tag = self.first_tag + HEADER_TAG
            self.headers[other] = answer, self._begin(self.messages.receive, answer, other, tag)
            self.sent.append((other, self._begin(self.messages.send, content, other, tag)))
        self.committed = [0] * len(self.boxes)

    def piece(self, box: int, index: int) -> Bytes:
        """See `Round.piece`."""
        sizes = self.boxes[box].sizes
        start = sum(sizes[:index])
        return self.buffers.of((box,), self.boxes[box].size_bytes)[start : start + sizes[index]]

    def commit(self, box: int) -> None:
        """See `Round.commit`."""
        self._post(box, self.piece(box, self.committed[box]))

    def send(self, box: int, index: int, content: Bytes) -> None:
        """See `Round.send`."""
        if content.flags.c_contiguous:
            self._post(box, content.reshape(-1))
            return
        self.piece(box, index).reshape(content.shape)[...] = content
        self.commit(box)

    def _post(self, box: int, content: Bytes) -> None:
        self.committed[box] += 1
        for reader in self.boxes[box].readers:
            tag = self.first_tag + box
            self.sent.append((reader, self._begin(self.messages.send, content, reader, tag)))

    def meet(self, rank: int) -> None:
        """Wait for the header of ``rank``. CollectiveError SPY952 if it differs."""
        if rank in self.sizes:
            return
        content, pending = self.headers[rank]
        self._finish(rank, pending)
        theirs = content[:HEADER_BYTES].tobytes().rstrip(b"\0").decode(errors="replace")
        if theirs.encode() != self.header.encode()[:HEADER_BYTES]:
            raise disagreement(rank, theirs, self.rank, self.header)
        self.sizes[rank] = content[HEADER_BYTES:].view(np.int64)

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        """See `Round.read`."""
        if (rank, box) not in self.inbox:
            self._open(rank, box, sizes)
        slot = lambda k: self._slot(rank, box, k, sizes[k])  # noqa: E731
        return self._arrived(rank, box, index, len(sizes), slot)

    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """See `Round.receive`: a contiguous target is received into directly."""
        if (rank, box) not in self.inbox:
            self._open(rank, box, [target.size for target in targets])

        def slot(k: int) -> Bytes:
            if targets[k].flags.c_contiguous:
                return targets[k].reshape(-1)
            return self._slot(rank, box, k, targets[k].size)

        content, target = self._arrived(rank, box, index, len(targets), slot), targets[index]
        if not target.flags.c_contiguous:
            target[...] = content.reshape(target.shape)

    def _slot(self, rank: int, box: int, index: int, size_bytes: int) -> Bytes:
        """Return memory for a piece, valid until the next piece of its outbox is read."""
        return self.buffers.of((rank, box, index % (AHEAD + 1)), size_bytes)

    def _arrived(
        self, rank: int, box: int, index: int, pieces: int, slot: Callable[[int], Bytes]
    ) -> Bytes:
        """Return piece ``index`` from ``slot(index)``, and start to receive the next ones."""
        posted = self.inbox[rank, box]
        for k in range(len(posted), min(index + 1 + AHEAD, pieces)):
            content, tag = slot(k), self.first_tag + box
            posted.append((content, self._begin(self.messages.receive, content, rank, tag)))
        content, pending = posted[index]
        self._finish(rank, pending)
        return content

    def _open(self, rank: int, box: int, sizes: Sequence[int]) -> None:
        self.meet(rank)
        expected, found = sum(sizes), int(self.sizes[rank][box])
        if expected != found:
            raise disagreement(
                rank,
                f"{self.header}, {found} bytes for rank {self.rank}",
                self.rank,
                f"{self.header}, {expected} bytes from rank {rank}",
            )
        self.inbox[rank, box] = []

    def flush(self) -> None:
        """Wait until all sent messages are complete."""
        for rank, pending in self.sent:
            self._finish(rank, pending)

    def _begin(
        self, start: Callable[[Bytes, int, int], Pending], content: Bytes, rank: int, tag: int
    ) -> Pending:
        """Start to send or receive. CollectiveError SPY954 if the connection has ended."""
        try:
            return start(content, rank, tag)
        except RuntimeError as error:
            raise self._broken(rank, error) from error

    def _broken(self, rank: int, error: RuntimeError) -> CollectiveError:
        return CollectiveError(
            "SPY954",
            f"{self.header}: the connection to rank {rank} has ended",
            found=str(error).splitlines()[0],
        )

    def _finish(self, rank: int, pending: Pending) -> None:
        try:
            done = pending.wait(self.deadline.seconds_left)
        except RuntimeError as error:
            if self.deadline.seconds_left == 0:
                raise missing([rank], self.header, self.deadline) from error
            raise self._broken(rank, error) from error
        if not done:
            raise missing([rank], self.header, self.deadline)
