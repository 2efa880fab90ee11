"""Rounds: the interface between collectives and the transport of a group's ranks.

In one round every rank has *outboxes*: runs of bytes that it fills piece by piece, in order, for
one or several readers. Readers get a piece once it is complete, so that copying, reducing and
sending overlap. The header of a round names the operation; ranks with different headers fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spyre.errors import SpyreError

Bytes = npt.NDArray[np.uint8]
MAX_RANKS = 64
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

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0 and return its new value."""


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


@dataclass(frozen=True, slots=True)
class Outbox:
    """Bytes of one rank for ``readers``. ``sizes``: bytes of the pieces, in order."""

    sizes: tuple[int, ...]
    readers: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(self.sizes)


class Round(Protocol):
    """One round of one rank."""

    def piece(self, box: int, index: int) -> Bytes:
        """Return the memory to fill with piece ``index`` of an own outbox."""

    def commit(self, box: int) -> None:
        """Mark the next piece of an own outbox as complete."""

    def send(self, box: int, index: int, content: Bytes) -> None:
        """Make ``content`` the next piece, ``index``, of an own outbox, if possible without a copy.

        ``content`` must not change until its readers have it. Replaces `piece` and `commit`.
        """

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        """Wait for piece ``index`` of another rank's outbox; it is valid until the next read.

        Pieces are read in order. ``sizes``: of the pieces this rank expects. CollectiveError SPY952
        if the other rank has other sizes or another header; SPY954, SPY955 or SPY957 if the piece
        does not arrive.
        """

    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """As `read`, into ``targets[index]``.

        ``targets``: one per piece; each may be overwritten once the other rank completes the piece.
        """


class Transport(Protocol):
    """The connection of one rank with the others of its group, used by one thread."""

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def piece_bytes(self) -> int:
        """The best size of a piece, in bytes."""

    @property
    def is_interruptible(self) -> bool:
        """Whether signals are handled while a thread waits in a round."""

    def round(
        self, header: str, boxes: Sequence[Outbox], deadline: Deadline
    ) -> AbstractContextManager[Round]:
        """Return the next round; at its end all ranks have entered it with the same header."""

    def fail(self, reason: str) -> None:
        """Notify the other ranks that this one has failed; they fail as soon as they notice."""

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """Release all resources.

        Waits at most ``patience`` seconds for the others to read this rank's last pieces.
        """


def disagreement(rank: int, theirs: str, own_rank: int, ours: str) -> CollectiveError:
    """Return the error for two ranks with different headers or sizes."""
    return CollectiveError(
        "SPY952",
        "the ranks of a group do not call the same collective",
        expected=f"{ours} (rank {own_rank})",
        found=f"{theirs} (rank {rank})",
        hint="every rank of a group must make the same calls, with equal sizes, in the same order",
    )


def missing(ranks: Iterable[int], header: str, deadline: Deadline) -> CollectiveError:
    """Return the error for ranks that did not send before the deadline."""
    return CollectiveError(
        "SPY955",
        f"{header}: not done within {deadline.timeout:g} s",
        expected="all ranks of the group",
        found=f"nothing from rank {', '.join(map(str, sorted(ranks)))}",
    )
