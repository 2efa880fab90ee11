"""Collectives of a profile: those of a card that are alike, with their modelled time and what they
moved over its links. Bytes are counted, times are modelled from constants nobody has measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from spyre.hw.cost import CAVEAT, CollectiveTime, MachineSpec, bus_gbps, fastest_time
from spyre.runtime.comms import CollectiveRecord
from spyre.runtime.flex import Command, recorded_block_of
from spyre.runtime.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.table import Table

    from spyre.runtime.profile.data import ProfileData


def record_of(command: Command) -> CollectiveRecord | None:
    """The collective a command was; None for others."""
    noted = recorded_block_of(command)
    return noted.detail if noted and isinstance(noted.detail, CollectiveRecord) else None


def modelled_time(record: CollectiveRecord, machine: MachineSpec) -> CollectiveTime:
    """The time of one collective between as many cards as the group had ranks."""
    return fastest_time(record.operation, record.size_bytes, record.ranks, machine)


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """All collectives of one kind: operation, reduction, dtype, size and ranks."""

    name: str
    records: tuple[CollectiveRecord, ...]
    time: CollectiveTime

    @property
    def calls(self) -> int:
        """How many there were."""
        return len(self.records)

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.records[0].ranks

    @property
    def size_bytes(self) -> int:
        """Of the largest tensor of one call."""
        return self.records[0].size_bytes

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
        """The same of the simulator itself, on the host."""
        spent_ns = sum(record.end_ns - record.begin_ns for record in self.records)
        return bus_gbps(self.size_bytes * self.calls, spent_ns, self.time.bus_factor)

    @property
    def sent_bytes(self) -> int:
        """Over all links of the card, in all calls."""
        return sum(sum(record.sent_bytes) for record in self.records)

    @property
    def received_bytes(self) -> int:
        """Over all links of the card, in all calls."""
        return sum(sum(record.received_bytes) for record in self.records)

    @property
    def combined_bytes(self) -> int:
        """That the card reduced, in all calls."""
        return sum(record.combined_bytes for record in self.records)


def collective_rows(profile: ProfileData) -> tuple[CollectiveRow, ...]:
    """A row per kind, in the order of their first calls."""
    kinds: dict[tuple[str, int, int], list[CollectiveRecord]] = {}
    for record in profile.collectives:
        kinds.setdefault((str(record), record.ranks, record.size_bytes), []).append(record)
    return tuple(
        CollectiveRow(name, tuple(same), modelled_time(same[0], profile.machine))
        for (name, _, _), same in kinds.items()
    )


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What went over the links of a card, by rank at the other end, and how many collectives."""

    collectives: int = 0
    sent_bytes: tuple[int, ...] = ()
    received_bytes: tuple[int, ...] = ()
    combined_bytes: int = 0


def link_counts(records: Iterable[CollectiveRecord]) -> LinkCounts:
    """Sums over records of one group."""
    return reduce(_with, records, LinkCounts())


def _with(counts: LinkCounts, record: CollectiveRecord) -> LinkCounts:
    return LinkCounts(
        counts.collectives + 1,
        _sums(counts.sent_bytes, record.sent_bytes),
        _sums(counts.received_bytes, record.received_bytes),
        counts.combined_bytes + record.combined_bytes,
    )


def _sums(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip(left, right, strict=True))) if left else tuple(right)


CELLS: Mapping[str, Callable[[CollectiveRow], str]] = {
    "collective": lambda row: row.name,
    "ranks": lambda row: str(row.ranks),
    "calls": lambda row: str(row.calls),
    "bytes": lambda row: format_bytes(row.size_bytes),
    "steps": lambda row: str(row.time.steps),
    "time": lambda row: format_ns(round(row.total_ns)),
    "busbw GB/s": lambda row: f"{row.bus_gbps:.3g}" if row.bus_gbps else "-",
    "sent": lambda row: format_bytes(row.sent_bytes),
    "received": lambda row: format_bytes(row.received_bytes),
    "added": lambda row: format_bytes(row.combined_bytes) if row.combined_bytes else "-",
}
"""The text of a row's cell, by column."""


def make_collective_table(profile: ProfileData) -> Table:
    """The rich table."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for column in CELLS:
        table.add_column(column, justify="left" if column == "collective" else "right")
    for row in collective_rows(profile):
        table.add_row(*(cell(row) for cell in CELLS.values()))
    return table


def collective_summary(profile: ProfileData) -> Iterator[str]:
    """A line under the profile, where there were collectives."""
    rows = collective_rows(profile)
    if rows:
        sent, received = (
            format_bytes(sum(getattr(row, name) for row in rows))
            for name in ("sent_bytes", "received_bytes")
        )
        hw = profile.machine.hardware
        yield (
            f"collectives: {sum(row.calls for row in rows)}, "
            f"{format_ns(round(sum(row.total_ns for row in rows)))}; {sent} sent, {received} "
            f"received; {hw.card_link_gbps:g} GB/s and {hw.card_step_us:g} µs a step: {CAVEAT}"
        )


def collective_object(row: CollectiveRow) -> dict[str, object]:
    """A row for JSON. ``links``: by rank at the other end."""
    counts = link_counts(row.records)
    return {
        "collective": row.name,
        "ranks": row.ranks,
        "rank": row.records[0].rank,
        "calls": row.calls,
        "size_bytes": row.size_bytes,
        "steps": row.time.steps,
        "time_ns": row.total_ns,
        "bus_gbps": row.bus_gbps,
        "host_bus_gbps": row.host_bus_gbps,
        "sent_bytes": list(counts.sent_bytes),
        "received_bytes": list(counts.received_bytes),
        "combined_bytes": counts.combined_bytes,
    }
