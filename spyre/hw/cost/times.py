"""What a cost model answers: nanoseconds of a kernel, by term and by operation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter


class Bound(StrEnum):
    """What an operation or a kernel waits for most."""

    MEMORY = "memory"
    PT = "pt"
    SFU = "sfu"
    LX = "lx"
    RING = "ring"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Terms:
    """Nanoseconds by term; their sum is the time.

    ``memory``: HBM traffic without the next three. ``turnaround``: changes between reading and
    writing. ``tile``: row tiles of an unfavourable height. ``spill``: accumulators of a product
    that do not stay. ``split``: what a product's division costs beyond its traffic. ``pt``,
    ``sfu``, ``lx``, ``ring``: the busiest core. ``runs``: beginning the runs of a loop.
    ``overlap``: what of the above happens at the same time, zero or negative.
    """

    memory: float = 0.0
    turnaround: float = 0.0
    tile: float = 0.0
    spill: float = 0.0
    split: float = 0.0
    pt: float = 0.0
    sfu: float = 0.0
    lx: float = 0.0
    ring: float = 0.0
    runs: float = 0.0
    overlap: float = 0.0

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(a + b for a, b in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[float, ...]:
        """All terms in field order."""
        found: tuple[float, ...] = _VALUES(self)
        return found

    @property
    def total(self) -> float:
        """The time."""
        return sum(self.values)

    @property
    def bound(self) -> Bound:
        """The largest of memory (with turnaround, tile and spill), units, ring and runs; ties: the
        first."""
        by_bound = {
            Bound.MEMORY: self.memory + self.turnaround + self.tile + self.spill,
            Bound.PT: self.pt + self.split,
            Bound.SFU: self.sfu,
            Bound.LX: self.lx,
            Bound.RING: self.ring,
            Bound.RUNS: self.runs,
        }
        return max(by_bound, key=lambda bound: by_bound[bound])


_VALUES = attrgetter(*(field.name for field in fields(Terms)))


@dataclass(frozen=True, slots=True)
class OperationTime:
    """Time of one operation, all its runs, nanoseconds."""

    name: str
    terms: Terms

    @property
    def total_ns(self) -> float:
        """All runs of one launch."""
        return self.terms.total

    @property
    def bound(self) -> Bound:
        """What it waits for most."""
        return self.terms.bound


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of a kernel: its operations one after another."""

    model: str
    operations: tuple[OperationTime, ...]

    @property
    def terms(self) -> Terms:
        """Terms of all operations together."""
        return sum((operation.terms for operation in self.operations), Terms())

    @property
    def total_ns(self) -> float:
        """One launch on the card, nanoseconds."""
        return sum(operation.total_ns for operation in self.operations)

    @property
    def bound(self) -> Bound:
        """What the kernel waits for most."""
        return self.terms.bound
