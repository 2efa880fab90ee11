"""Modelled time of collectives between cards: the alpha-beta terms of ring schedules.

n bytes on a card, W ranks: every step costs `Hardware.card_step_us` and its bytes over
`Hardware.card_link_gbps`; reductions add bytes over `Hardware.card_add_gbps`. No bandwidth or
latency of card-to-card transfers is published: every result is modelled from unmeasured constants
(:data:`CAVEAT`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from spyre.hw.cost.machine import Hardware, MachineSpec

CAVEAT = "modelled from unmeasured constants"


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Nanoseconds of one collective, by term; ``steps``: exchanges one after the other.

    ``adds``: number of exchanges after which the cards add the received data. ``sent_bytes``: by
    each rank (by the root in a broadcast). ``bus_factor``: bytes over the bus per byte of the
    tensor, as defined by nccl-tests.
    """

    steps: int
    adds: int
    sent_bytes: float
    step_ns: float
    link_ns: float
    add_ns: float
    bus_factor: float

    @property
    def total_ns(self) -> float:
        """All terms."""
        return self.exchange_ns + self.add_ns

    @property
    def exchange_ns(self) -> float:
        """What the cards' links are busy for."""
        return self.step_ns + self.link_ns

    @property
    def phases(self) -> tuple[tuple[float, float], ...]:
        """One behind the other: nanoseconds of exchanges, and of the adds behind them."""
        if not self.steps:
            return ()
        each_ns, rest = self.exchange_ns / self.steps, self.steps - self.adds
        adding = ((each_ns, self.add_ns / self.adds),) * self.adds if self.adds else ()
        return (*adding, (each_ns * rest, 0.0)) if rest else adding

    def bus_gbps(self, size_bytes: int) -> float:
        """Bus bandwidth in GB/s of a tensor of ``size_bytes``."""
        return bus_gbps(size_bytes, self.total_ns, self.bus_factor)


def bus_gbps(size_bytes: int, nanoseconds: float, factor: float) -> float:
    """Bytes over the bus per nanosecond; 0 where nothing took time."""
    return size_bytes * factor / nanoseconds if nanoseconds else 0.0


@dataclass(frozen=True, slots=True)
class _Schedule:
    """Steps, and bytes sent and added by a rank, in all steps, over ``size_bytes``."""

    steps: int
    sent: float
    added: float
    bus_factor: float


def _all_reduce(ranks: int) -> _Schedule:
    part = (ranks - 1) / ranks
    return _Schedule(2 * (ranks - 1), 2 * part, part, 2 * part)


def _all_gather_sum(ranks: int) -> _Schedule:
    """All-reduce as one exchange of everything: IBM's choice for small tensors."""
    others = ranks - 1
    return _Schedule(others, others, others, 2 * others / ranks)


def _reduce_scatter(ranks: int) -> _Schedule:
    part = (ranks - 1) / ranks
    return _Schedule(ranks - 1, part, part, part)


def _exchange(ranks: int) -> _Schedule:
    """All-gather (size: of the result) and all-to-all."""
    part = (ranks - 1) / ranks
    return _Schedule(ranks - 1, part, 0, part)


def _reduce(ranks: int) -> _Schedule:
    """The chunks that the ranks have reduced go to the root: as long as an all-reduce."""
    return replace(_all_reduce(ranks), bus_factor=1)


def _message(ranks: int) -> _Schedule:
    """From one rank to another."""
    return _Schedule(1, 1, 0, 1)


def _broadcast(ranks: int) -> _Schedule:
    """From the root to each rank in turn."""
    return _Schedule(ranks - 1, ranks - 1, 0, 1)


def _barrier(ranks: int) -> _Schedule:
    return _Schedule(ranks - 1, 0, 0, 0)


SCHEDULES: Mapping[str, Callable[[int], _Schedule]] = {
    "all_reduce": _all_reduce,
    "all_gather_sum": _all_gather_sum,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _exchange,
    "all_to_all": _exchange,
    "gather": _exchange,
    "scatter": _exchange,
    "reduce": _reduce,
    "send": _message,
    "recv": _message,
    "broadcast": _broadcast,
    "barrier": _barrier,
}
"""By collective, a function of the number of ranks."""


def collective_time(name: str, size_bytes: int, ranks: int, machine: MachineSpec) -> CollectiveTime:
    """The modelled time of a collective of :data:`SCHEDULES` over a tensor of ``size_bytes``.

    ``size_bytes``: of the largest tensor of a rank: the argument of a reduction or broadcast, the
    result of an all-gather or gather. KeyError for a name that is none.
    """
    schedule = SCHEDULES[name](ranks) if ranks > 1 else _Schedule(0, 0, 0, 0)
    hardware: Hardware = machine.hardware
    sent = schedule.sent * size_bytes
    return CollectiveTime(
        schedule.steps,
        ranks - 1 if schedule.added else 0,
        sent,
        schedule.steps * hardware.card_step_us * 1e3,
        sent / hardware.card_link_gbps,
        schedule.added * size_bytes / hardware.card_add_gbps,
        schedule.bus_factor,
    )


def fastest_time(name: str, size_bytes: int, ranks: int, machine: MachineSpec) -> CollectiveTime:
    """As `collective_time`; of an all-reduce that of the faster schedule, as IBM's estimator picks
    one.
    """
    names = ("all_reduce", "all_gather_sum") if name == "all_reduce" else (name,)
    times = (collective_time(each, size_bytes, ranks, machine) for each in names)
    return min(times, key=lambda time: time.total_ns)
