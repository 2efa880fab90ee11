"""Rounds: what a transport between the ranks of a group offers to the schedules of collectives.

In one round every rank has *boxes*: runs of bytes, filled piece by piece in order, for one reader
or several. Readers take pieces as they become ready, so that copying, reducing and sending overlap.
Every rank says with a header what it is doing; ranks that disagree fail, all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spyre.runtime.comms.errors import CollectiveError

Bytes = npt.NDArray[np.uint8]
MAX_RANKS = 64
LINGER_SECONDS = 0.5
"""How long a rank that closes waits for others to have read what it gave them."""


class Store(Protocol):
    """A key-value store that all ranks reach, as `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """Value of a key, once it is set."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; its new value."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment (`time.monotonic`, seconds) until which an operation has to be done."""

    at: float
    timeout: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """``seconds`` from now."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def seconds_left(self) -> float:
        """Never negative."""
        return max(0.0, self.at - time.monotonic())


@dataclass(frozen=True, slots=True)
class Outbox:
    """Bytes of one rank for ``readers``: the sizes of its pieces in the order they are filled."""

    sizes: tuple[int, ...]
    readers: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """All pieces together."""
        return sum(self.sizes)


class Round(Protocol):
    """One round of one rank."""

    def piece(self, box: int, index: int) -> Bytes:
        """Where piece ``index`` of an own box is to be filled in."""

    def commit(self, box: int) -> None:
        """The next piece of an own box is complete."""

    def give(self, box: int, index: int, content: Bytes) -> None:
        """Piece ``index`` of an own box, the next one, is ``content``, which stays as it is until
        its readers have it: instead of `piece` and `commit`, without a copy where that can be.
        """

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        """Piece ``index`` of another rank's box, once it is complete; valid until the next one is
        read. Pieces are read in order.

        ``sizes``: of the pieces this rank expects. CollectiveError SPY952 when the other has
        others, or does something else; SPY954, SPY955, SPY957 when it does not come.
        """

    def take(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """As `read`, into ``targets[index]``. A target, for every piece, is free from the moment
        at which the other rank completes the piece.
        """


class Transport(Protocol):
    """What the ranks of one group exchange bytes through; used by one thread per rank."""

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def piece_bytes(self) -> int:
        """Size of the pieces that suit it."""

    @property
    def is_interruptible(self) -> bool:
        """Whether a thread that waits in a round lets Python look at signals."""

    def round(
        self, header: str, boxes: Sequence[Outbox], deadline: Deadline
    ) -> AbstractContextManager[Round]:
        """The next round; on leaving, all ranks have come to it with the same header."""

    def fail(self, reason: str) -> None:
        """Tell the others that this rank has failed: they fail as soon as they notice."""

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """Give everything back, after at most so many seconds in which others may still read what
        this rank gave in its last round.
        """


def disagreement(rank: int, theirs: str, own_rank: int, ours: str) -> CollectiveError:
    """Two ranks are not doing the same."""
    return CollectiveError(
        "SPY952",
        "the ranks of a group do not call the same collective",
        expected=f"{ours} (rank {own_rank})",
        found=f"{theirs} (rank {rank})",
        hint="every rank of a group must make the same calls, with equal sizes, in the same order",
    )


def missing(ranks: Iterable[int], header: str, deadline: Deadline) -> CollectiveError:
    """Ranks did not come in time."""
    return CollectiveError(
        "SPY955",
        f"{header}: not done within {deadline.timeout:g} s",
        expected="all ranks of the group",
        found=f"nothing from rank {', '.join(map(str, sorted(ranks)))}",
    )
