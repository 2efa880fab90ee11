"""Rounds: the interface between collectives and the transport of a group's ranks.

In one round every rank has *outboxes*: runs of bytes that it fills piece by piece, in order, for
one or several readers. Readers get a piece once it is complete, so that copying, reducing and
sending overlap. The header of a round names the operation, its dtype and sizes; before anything is
sent, every rank compares its header with those of all others, and ranks with different ones fail.

Ranks that share no memory send the rounds as messages between pairs of ranks. The messages are
those of `torch.distributed`'s gloo, which handles sockets, name resolution and encryption. Messages
between two ranks with one tag arrive in the order they are sent.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, Self
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import SpyreError

Bytes = npt.NDArray[np.uint8]
MAX_RANKS = 64
HEADER_BYTES = 256
"""Bytes of a header that ranks compare."""
LINGER_SECONDS = 0.5
"""A rank that closes waits at most so long for the others to read its last pieces."""


class CollectiveError(SpyreError):
    """A collective failed, and with it its group: SPY952, SPY954 to SPY957, SPY959."""

    exit_code = 1


class Store(Protocol):
    """A key-value store that all ranks reach, as `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """Wait until a key is set and return its value."""

    def check(self, keys: list[str]) -> bool:
        """Return True if all of these keys are set."""


class Deadline(msgspec.Struct, frozen=True):
    """End of an operation's time (`time.monotonic`), which is ``timeout`` seconds."""

    at: float
    timeout: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def seconds_left(self) -> float:
        """Seconds left, 0 after the deadline."""
        return max(0.0, self.at - time.monotonic())


def agree_on_name(store: Store, rank: int, size: int, timeout: float) -> str:
    """Return a name that all ranks of this group have and no earlier group; blocks until all call.

    A restarted job finds the keys of ranks that have ended in its store, and not all of its hosts
    know that it was restarted. So rank 0 answers the latest token of each rank until the rank has
    read the answer. CollectiveError SPY955 if a rank is still absent after ``timeout`` seconds.
    """
    own, deadline = uuid4().hex, Deadline.after(timeout)
    store.set(f"token/{rank}", own)
    for other in [0] if rank else range(1, size):
        awaited, token = f"name/{own}" if rank else f"read/{own}/{other}", f"token/{other}"
        while not store.check([awaited]):
            if rank == 0 and store.check([token]):
                store.set(f"name/{store.get(token).decode()}", own)
            if deadline.seconds_left == 0:
                text = f"joining a group: no answer from rank {other} within {timeout:g} s"
                raise CollectiveError("SPY955", text)
            time.sleep(0.005)
    name = store.get(f"name/{own}").decode() if rank else own
    store.set(f"read/{name}/{rank}", "yes")
    return name


class Outbox(msgspec.Struct, frozen=True):
    """Bytes of one rank for ``readers``. ``sizes``: bytes of the pieces, in order."""

    sizes: tuple[int, ...]
    readers: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(self.sizes)


class Transport(ABC):
    """One rank's connection with the others of its group, and its current round.

    One thread uses it. ``piece_bytes``: the best size of a piece. ``is_interruptible``: signals are
    handled while a thread waits in a round.
    """

    piece_bytes: int
    is_interruptible: bool

    def __init__(self, rank: int, size: int) -> None:
        check_size(size)
        self.rank, self.size = rank, size
        self._others = tuple(k for k in range(size) if k != rank)
        self._number = 0
        self._header, self._content, self._agreed = "", padded(""), False
        self._boxes: tuple[Outbox, ...] = ()
        self._deadline = Deadline.after(0.0)

    @contextmanager
    def round(self, header: str, boxes: Sequence[Outbox], deadline: Deadline) -> Iterator[Self]:
        """Run a block in the next round, which all ranks must enter with this header."""
        self._number += 1
        self._header, self._boxes, self._deadline = header, tuple(boxes), deadline
        self._content, self._agreed = padded(header), False
        try:
            self._begin()
            yield self
            self._compare_headers()
            self._end()
        finally:
            self._release()

    @abstractmethod
    def _begin(self) -> None:
        """Show the header and the outboxes to the other ranks."""

    @abstractmethod
    def _header_of(self, rank: int) -> Bytes:
        """Wait until another rank is in this round; return its header, `padded`."""

    @abstractmethod
    def _end(self) -> None:
        """End a round that every rank has entered."""

    @abstractmethod
    def _release(self) -> None:
        """Drop references to the memory of the round."""

    @abstractmethod
    def piece(self, box: int, index: int) -> Bytes:
        """Return the memory to fill with piece ``index`` of an own outbox."""

    @abstractmethod
    def commit(self, box: int) -> None:
        """Mark the next piece of an own outbox as complete."""

    @abstractmethod
    def send(self, box: int, index: int, content: Bytes) -> None:
        """Make ``content`` the next piece, ``index``, of an own outbox, if possible without a copy.

        ``content`` must not change until its readers have it. Replaces `piece` and `commit`.
        """

    @abstractmethod
    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        """Wait for piece ``index`` of another rank's outbox; it is valid until the next read.

        Pieces are read in order. ``sizes``: of the pieces this rank expects. CollectiveError SPY952
        if the other rank has other sizes; SPY954, SPY955 or SPY957 if the piece does not arrive.
        """

    @abstractmethod
    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """As `read`, into ``targets[index]``.

        ``targets``: one per piece; each may be overwritten once the other rank completes the piece.
        """

    @abstractmethod
    def fail(self, reason: str) -> None:
        """Notify the other ranks that this one has failed; they fail as soon as they notice."""

    @abstractmethod
    def close(self, patience: float = LINGER_SECONDS) -> None:
        """Release all, waiting at most ``patience`` seconds for the readers of the last pieces."""

    def _compare_headers(self) -> None:
        """Wait until all ranks are in this round; CollectiveError SPY952 if headers differ.

        Must come before this rank sends to or reads from another one.
        """
        if self._agreed:
            return
        for other in self._others:
            theirs = self._header_of(other)
            if theirs.tobytes() != self._content.tobytes():
                raise self._disagreement(other, text_of(theirs), self._header)
        self._agreed = True

    def _check_box(self, rank: int, found: int, sizes: Sequence[int]) -> None:
        """Compare the size of another rank's outbox with the ``sizes`` that this rank expects."""
        if found != sum(sizes):
            raise self._disagreement(
                rank,
                f"{self._header}, {found} bytes for rank {self.rank}",
                f"{self._header}, {sum(sizes)} bytes from rank {rank}",
            )

    def _disagreement(self, rank: int, theirs: str, ours: str) -> CollectiveError:
        return CollectiveError(
            "SPY952",
            "the ranks of a group do not call the same collective",
            expected=f"{ours} (rank {self.rank})",
            found=f"{theirs} (rank {rank})",
            hint="every rank of a group must make the same calls, with equal sizes, in the same "
            "order",
        )

    def _missing(self, rank: int) -> CollectiveError:
        """The error for a rank that did not send before the deadline."""
        message = f"{self._header}: not done within {self._deadline.timeout:g} s"
        found = f"nothing from rank {rank}"
        return CollectiveError("SPY955", message, expected="all ranks of the group", found=found)


def fitted(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, which differ if the texts do."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 20]} ... {hashlib.sha256(text.encode()).hexdigest()[:15]}"


def padded(text: str, size_bytes: int = HEADER_BYTES) -> Bytes:
    """Return ``size_bytes`` bytes of UTF-8, filled up with zeros."""
    return np.frombuffer(text.encode()[:size_bytes].ljust(size_bytes, b"\0"), np.uint8)


def text_of(content: Bytes) -> str:
    """Return the text of `padded` bytes."""
    return content.tobytes().rstrip(b"\0").decode(errors="replace")


def check_size(size: int) -> None:
    """Raise CollectiveError SPY959 for more ranks than a page has outboxes."""
    if size > MAX_RANKS:
        message = "a group has too many ranks"
        raise CollectiveError("SPY959", message, expected=f"at most {MAX_RANKS}", found=str(size))


# --- rounds over messages between pairs of ranks, for ranks that share no memory -----------------

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
        content = np.concatenate([self._content, sizes.view(np.uint8)])
        answers = []
        for other in self._others:
            self._headers[other] = np.empty_like(content)
            answers.append(self._start_receiving(self._headers[other], other, HEADER_TAG))
            self._start_sending(content, other, HEADER_TAG)
        for other, pending in zip(self._others, answers, strict=True):
            self._finish(other, pending)
        self._end()
        self._sent.clear()
        self._compare_headers()

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
        message = f"{self._header}: the connection to rank {rank} has ended"
        return CollectiveError("SPY954", message, found=str(error).splitlines()[0])
