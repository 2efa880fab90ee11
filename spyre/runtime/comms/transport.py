"""Rounds: the interface between collectives and the transport of a group's ranks.

In one round every rank has *outboxes*: runs of bytes that it fills piece by piece, in order, for
one or several readers. Readers get a piece once it is complete, so that copying, reducing and
sending overlap. The header of a round names the operation, its dtype and sizes; before anything is
sent, every rank compares its header with those of all others, and ranks with different ones fail.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self
from uuid import uuid4

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


@dataclass(frozen=True, slots=True)
class Deadline:
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


@dataclass(frozen=True, slots=True)
class Outbox:
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
        self._header = ""
        self._boxes: tuple[Outbox, ...] = ()
        self._deadline = Deadline.after(0.0)

    @contextmanager
    def round(self, header: str, boxes: Sequence[Outbox], deadline: Deadline) -> Iterator[Self]:
        """Run a block in the next round, once all ranks have entered it with this header."""
        self._number += 1
        self._header, self._boxes, self._deadline = header, tuple(boxes), deadline
        try:
            self._begin()
            for other in self._others:
                self._check_header(other, self._header_of(other))
            yield self
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
        """Release all resources.

        Waits at most ``patience`` seconds for the others to read this rank's last pieces.
        """

    def _check_header(self, rank: int, theirs: Bytes) -> None:
        if text_of(theirs) != text_of(padded(self._header)):
            raise self._disagreement(rank, text_of(theirs), self._header)

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
        return CollectiveError(
            "SPY955",
            f"{self._header}: not done within {self._deadline.timeout:g} s",
            expected="all ranks of the group",
            found=f"nothing from rank {rank}",
        )


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
        raise CollectiveError(
            "SPY959",
            "a group has too many ranks",
            expected=f"at most {MAX_RANKS}",
            found=str(size),
        )
