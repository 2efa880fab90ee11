"""Collectives of a profile: calls of one kind together, their bytes over the links of the card and
their modelled time. Bytes are counted; times are modelled from constants that were not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from spyre.hw.cost import CAVEAT, CollectiveTime, MachineSpec, bus_gbps, fastest_time
from spyre.runtime.comms import CollectiveRecord
from spyre.runtime.drawing import Column
from spyre.runtime.units import format_bytes, format_ns

if TYPE_CHECKING:
    from spyre.runtime.profile.profile import Profile


def modelled_time(record: CollectiveRecord, machine: MachineSpec) -> CollectiveTime:
    """Return the modelled time of one collective between as many cards as the group has ranks."""
    return fastest_time(record.operation, record.size_bytes, record.ranks, machine)


class LinkCounts(msgspec.Struct, frozen=True):
    """Number of collectives, and bytes over the links of a card by the rank at the other end."""

    collectives: int = 0
    sent_bytes: tuple[int, ...] = ()
    received_bytes: tuple[int, ...] = ()
    combined_bytes: int = 0


def link_counts(records: Iterable[CollectiveRecord]) -> LinkCounts:
    """Return the sums over ``records``, all of one group."""
    listed = tuple(records)
    sent, received = (
        tuple(map(sum, zip(*rows, strict=True)))
        for rows in ([r.sent_bytes for r in listed], [r.received_bytes for r in listed])
    )
    return LinkCounts(len(listed), sent, received, sum(r.combined_bytes for r in listed))


class CollectiveRow(msgspec.Struct, frozen=True):
    """All collectives of one kind: operation, reduction, dtype, size and ranks.

    ``size_bytes``: of the largest tensor of one call. ``time``: modelled, of one call; ``host_ns``:
    measured on the host, of all calls, as the bytes of ``counts`` are.
    """

    name: str
    rank: int
    ranks: int
    size_bytes: int
    time: CollectiveTime
    host_ns: int
    counts: LinkCounts

    @property
    def calls(self) -> int:
        return self.counts.collectives

    @property
    def total_ns(self) -> float:
        """Modelled time of all calls."""
        return self.time.total_ns * self.calls

    @property
    def bus_gbps(self) -> float:
        """Bus bandwidth of nccl-tests, modelled."""
        return self.time.bus_gbps(self.size_bytes)

    @property
    def host_bus_gbps(self) -> float:
        """Bus bandwidth of the simulator, measured on the host."""
        return bus_gbps(self.size_bytes * self.calls, self.host_ns, self.time.bus_factor)


def collective_rows(profile: Profile) -> tuple[CollectiveRow, ...]:
    """Return a row per kind of collective, in the order of the first calls."""
    kinds: dict[tuple[str, int, int], list[CollectiveRecord]] = {}
    for record in profile.collectives:
        kinds.setdefault((str(record), record.ranks, record.size_bytes), []).append(record)
    return tuple(
        CollectiveRow(
            name,
            same[0].rank,
            ranks,
            size_bytes,
            modelled_time(same[0], profile.machine),
            sum(record.end_ns - record.begin_ns for record in same),
            link_counts(same),
        )
        for (name, ranks, size_bytes), same in kinds.items()
    )


COLLECTIVE_COLUMNS: tuple[Column[CollectiveRow], ...] = (
    Column("collective", lambda row: row.name),
    Column("ranks", lambda row: str(row.ranks), lambda row: row.ranks),
    Column("calls", lambda row: str(row.calls), lambda row: row.calls),
    Column("bytes", lambda row: format_bytes(row.size_bytes), lambda row: row.size_bytes),
    Column("steps", lambda row: str(row.time.steps), lambda row: row.time.steps),
    Column("time", lambda row: format_ns(row.total_ns), lambda row: row.total_ns),
    Column("busbw GB/s", lambda row: f"{row.bus_gbps:.3g}" if row.bus_gbps else "-",
           lambda row: row.bus_gbps),
    Column("sent", lambda row: format_bytes(sum(row.counts.sent_bytes)),
           lambda row: sum(row.counts.sent_bytes)),
    Column("received", lambda row: format_bytes(sum(row.counts.received_bytes)),
           lambda row: sum(row.counts.received_bytes)),
    Column("added",
           lambda row: format_bytes(n) if (n := row.counts.combined_bytes) else "-",
           lambda row: row.counts.combined_bytes),
)  # fmt: skip


def collective_summary(profile: Profile) -> Iterator[str]:
    """Yield the summary line of the profile if there were collectives."""
    rows = collective_rows(profile)
    if rows:
        sent, received = (
            format_bytes(sum(sum(getattr(row.counts, name)) for row in rows))
            for name in ("sent_bytes", "received_bytes")
        )
        hw = profile.machine.hardware
        yield (
            f"collectives: {sum(row.calls for row in rows)}, "
            f"{format_ns(sum(row.total_ns for row in rows))}; {sent} sent, {received} "
            f"received; {hw.card_link_gbps:g} GB/s and {hw.card_step_us:g} µs a step: {CAVEAT}"
        )


def collective_object(row: CollectiveRow) -> dict[str, object]:
    """Return a row for JSON. Bytes sent and received are listed by the rank at the other end."""
    return {
        "collective": row.name,
        "ranks": row.ranks,
        "rank": row.rank,
        "calls": row.calls,
        "size_bytes": row.size_bytes,
        "steps": row.time.steps,
        "time_ns": row.total_ns,
        "bus_gbps": row.bus_gbps,
        "host_bus_gbps": row.host_bus_gbps,
        "sent_bytes": list(row.counts.sent_bytes),
        "received_bytes": list(row.counts.received_bytes),
        "combined_bytes": row.counts.combined_bytes,
    }
