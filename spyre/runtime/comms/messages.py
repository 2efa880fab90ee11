"""Rounds over messages between pairs of ranks, for ranks that share no memory.

The messages are those of `torch.distributed`'s gloo, which handles sockets, name resolution and
encryption. Messages between two ranks with one tag arrive in the order they are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from spyre.runtime.comms.transport import (
    HEADER_BYTES,
    LINGER_SECONDS,
    MAX_RANKS,
    Bytes,
    CollectiveError,
    Deadline,
    Transport,
    padded,
)

HEADER_TAG = 2 * MAX_RANKS - 1
TAGS_PER_ROUND = 2 * MAX_RANKS
ROUNDS = 1 << 16
"""Tags repeat after so many rounds; messages of two such rounds are never under way together."""
AHEAD = 2
"""Number of pieces whose receive is posted before they are read."""
MESSAGE_BYTES = 2 << 20
"""Size of a piece: large compared with the cost of a message, and small enough that the next piece
arrives while one is reduced."""


Pending = Callable[[float], bool]
"""Waits for a message at most so many seconds; False if it is incomplete then. RuntimeError if the
other end died.
"""


class Messages(Protocol):
    """Point-to-point messages of one rank."""

    def send(self, content: Bytes, rank: int, tag: int) -> Pending:
        """Send ``content``, which must not change until the message is complete."""

    def receive(self, content: Bytes, rank: int, tag: int) -> Pending:
        """Fill ``content`` with the next message of ``rank`` under ``tag``."""

    def close(self) -> None:
        """Close the connections, which the other ranks notice."""


class MessageTransport(Transport):
    """The transport of one rank over `Messages`."""

    is_interruptible = False
    piece_bytes = MESSAGE_BYTES

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._messages = messages
        self._has_failed = False
        self._buffers: dict[tuple[int, ...], Bytes] = {}
        self._release()

    def _release(self) -> None:
        self._committed: Counter[int] = Counter()
        self._sent: list[tuple[int, Pending]] = []
        self._headers: dict[int, Bytes] = {}
        self._inbox: dict[tuple[int, int], list[tuple[Bytes, Pending]]] = {}

    def _begin(self) -> None:
        """Exchange headers with all ranks. The own ones have arrived before this rank may fail."""
        sizes = np.zeros(MAX_RANKS + 2, np.int64)
        sizes[: len(self._boxes)] = [box.size_bytes for box in self._boxes]
        content = np.concatenate([padded(self._header), sizes.view(np.uint8)])
        answers = []
        for other in self._others:
            self._headers[other] = np.empty_like(content)
            answers.append(self._start_receiving(self._headers[other], other, HEADER_TAG))
            self._start_sending(content, other, HEADER_TAG)
        for other, pending in zip(self._others, answers, strict=True):
            self._finish(other, pending)
        self._end()
        self._sent.clear()

    def _end(self) -> None:
        for rank, pending in self._sent:
            self._finish(rank, pending)

    def fail(self, reason: str) -> None:
        # The other ranks notice the closed connection only.
        self._has_failed = True
        self._messages.close()

    def close(self, patience: float = LINGER_SECONDS) -> None:
        # Closing a connection drops the messages under way.
        if self._number and not self._has_failed:
            self._exchange_last(Deadline.after(patience))
        self._messages.close()

    def _exchange_last(self, deadline: Deadline) -> None:
        """Exchange a last message with every rank, which then has read all earlier ones."""
        tag, pending = ROUNDS * TAGS_PER_ROUND, []
        # A rank that has failed or does not come reports its own error.
        for start in (self._messages.send, self._messages.receive):
            for other in self._others:
                with suppress(RuntimeError):
                    pending.append(start(np.zeros(1, np.uint8), other, tag))
        for wait in pending:
            with suppress(RuntimeError):
                wait(deadline.seconds_left)

    def piece(self, box: int, index: int) -> Bytes:
        sizes = self._boxes[box].sizes
        start = sum(sizes[:index])
        return self._buffer((box,), sum(sizes))[start : start + sizes[index]]

    def commit(self, box: int) -> None:
        self._post(box, self.piece(box, self._committed[box]))

    def send(self, box: int, index: int, content: Bytes) -> None:
        if content.flags.c_contiguous:
            self._post(box, content.reshape(-1))
            return
        self.piece(box, index).reshape(content.shape)[...] = content
        self.commit(box)

    def _post(self, box: int, content: Bytes) -> None:
        self._committed[box] += 1
        for reader in self._boxes[box].readers:
            self._start_sending(content, reader, box)

    def _header_of(self, rank: int) -> Bytes:
        return self._headers[rank][:HEADER_BYTES]

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        return self._arrived(rank, box, index, sizes)

    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        content, target = self._arrived(rank, box, index, targets), targets[index]
        if not target.flags.c_contiguous:
            target[...] = content.reshape(target.shape)

    def _arrived(
        self, rank: int, box: int, index: int, pieces: Sequence[int] | Sequence[Bytes]
    ) -> Bytes:
        """Return piece ``index``, and start to receive the next ones.

        ``pieces``: size or destination of each. A contiguous destination is received into directly;
        other memory is valid until the next piece is read.
        """
        if (rank, box) not in self._inbox:
            sizes = [piece if isinstance(piece, int) else piece.size for piece in pieces]
            self._check_box(
                rank, int(self._headers[rank][HEADER_BYTES:].view(np.int64)[box]), sizes
            )
            self._inbox[rank, box] = []
        posted = self._inbox[rank, box]
        for k in range(len(posted), min(index + 1 + AHEAD, len(pieces))):
            target = self._memory_for((rank, box, k % (AHEAD + 1)), pieces[k])
            posted.append((target, self._start_receiving(target, rank, box)))
        content, pending = posted[index]
        self._finish(rank, pending)
        return content

    def _memory_for(self, use: tuple[int, ...], piece: int | Bytes) -> Bytes:
        if isinstance(piece, int):
            return self._buffer(use, piece)
        return piece.reshape(-1) if piece.flags.c_contiguous else self._buffer(use, piece.size)

    def _buffer(self, use: tuple[int, ...], size_bytes: int) -> Bytes:
        """Return ``size_bytes`` bytes for a use; the memory of its last call if that is enough."""
        # Kept for later rounds: new pages cost more than a copy.
        kept = self._buffers.get(use)
        if kept is None or kept.size < size_bytes:
            kept = self._buffers[use] = np.empty(size_bytes, np.uint8)
        return kept[:size_bytes]

    def _start_sending(self, content: Bytes, rank: int, tag: int) -> None:
        self._sent.append((rank, self._start(self._messages.send, content, rank, tag)))

    def _start_receiving(self, content: Bytes, rank: int, tag: int) -> Pending:
        return self._start(self._messages.receive, content, rank, tag)

    def _start(
        self, start: Callable[[Bytes, int, int], Pending], content: Bytes, rank: int, tag: int
    ) -> Pending:
        """Start to send or receive. CollectiveError SPY954 if the connection has ended."""
        try:
            return start(content, rank, self._number % ROUNDS * TAGS_PER_ROUND + tag)
        except RuntimeError as error:
            raise self._broken(rank, error) from error

    def _finish(self, rank: int, pending: Pending) -> None:
        try:
            done = pending(self._deadline.seconds_left)
        except RuntimeError as error:
            if self._deadline.seconds_left == 0:
                raise self._missing(rank) from error
            raise self._broken(rank, error) from error
        if not done:
            raise self._missing(rank)

    def _broken(self, rank: int, error: RuntimeError) -> CollectiveError:
        return CollectiveError(
            "SPY954",
            f"{self._header}: the connection to rank {rank} has ended",
            found=str(error).splitlines()[0],
        )
