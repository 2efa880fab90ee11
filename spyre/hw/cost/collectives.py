"""Modelled time of collectives between cards: the alpha-beta terms of ring schedules.

n bytes on a card, W ranks: every step costs `Hardware.card_step_us` and its bytes over
`Hardware.card_link_gbps`; reductions add bytes over `Hardware.card_add_gbps`. No bandwidth or
latency of card-to-card transfers is published: every result is modelled from unmeasured constants
(:data:`CAVEAT`).
"""

from __future__ import annotations

import msgspec

from spyre.hw.cost.machine import MachineSpec

CAVEAT = "modelled from unmeasured constants"


class CollectiveTime(msgspec.Struct, frozen=True):
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
        """Nanoseconds in which the cards' links are busy."""
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


def _schedule(name: str, ranks: int) -> tuple[int, float, float, float]:
    """Steps of a collective, and per byte of the tensor, in all steps: bytes that a rank sends and
    adds, and bytes over the bus.
    """
    others, part = ranks - 1, (ranks - 1) / ranks
    exchange = (others, part, 0.0, part)
    return {
        "all_reduce": (2 * others, 2 * part, part, 2 * part),
        # an all-reduce as one exchange of everything: IBM's choice for small tensors
        "all_gather_sum": (others, others, others, 2 * part),
        "reduce_scatter": (others, part, part, part),
        "all_gather": exchange,
        "all_to_all": exchange,
        "gather": exchange,
        "scatter": exchange,
        # all parts of the sum are sent to the root, which takes as long as an all-reduce
        "reduce": (2 * others, 2 * part, part, 1.0),
        "send": (1, 1.0, 0.0, 1.0),
        "recv": (1, 1.0, 0.0, 1.0),
        # from the root to each rank in turn
        "broadcast": (others, others, 0.0, 1.0),
        "barrier": (others, 0.0, 0.0, 0.0),
    }[name]


def collective_time(name: str, size_bytes: int, ranks: int, machine: MachineSpec) -> CollectiveTime:
    """The modelled time of a collective over a tensor of ``size_bytes``.

    ``size_bytes``: of the largest tensor of a rank: the argument of a reduction or broadcast, the
    result of an all-gather or gather. KeyError for a name that is none.
    """
    steps, sent, added, bus = _schedule(name, ranks) if ranks > 1 else (0, 0.0, 0.0, 0.0)
    hardware = machine.hardware
    return CollectiveTime(
        steps,
        ranks - 1 if added else 0,
        sent * size_bytes,
        steps * hardware.card_step_us * 1e3,
        sent * size_bytes / hardware.card_link_gbps,
        added * size_bytes / hardware.card_add_gbps,
        bus,
    )


def fastest_time(name: str, size_bytes: int, ranks: int, machine: MachineSpec) -> CollectiveTime:
    """Return `collective_time`, for an all-reduce that of the faster schedule, as IBM's estimator
    does.
    """
    names = ("all_reduce", "all_gather_sum") if name == "all_reduce" else (name,)
    times = (collective_time(each, size_bytes, ranks, machine) for each in names)
    return min(times, key=lambda time: time.total_ns)
