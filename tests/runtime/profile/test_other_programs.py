"""A program without a bundle is counted, timed, profiled and traced like a linked one.

It has no SDSCs, plans or tables, only the members of `ProgramView`.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from spyre.hw import check_table as ct
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.cost.timeline import TaskKind
from spyre.hw.counters.counts import CostClass, Counters, OperationCounts
from spyre.hw.counters.execute import CORE_COLUMNS
from spyre.hw.counters.program import (
    Dispatches,
    ExecuteLabels,
    Executions,
    LaunchCounts,
    LxAccesses,
    ProgramView,
    StatementView,
    lx_peak_bytes,
)
from spyre.hw.sanitizer.tables import LabelledProgram, RecordLog, describe_writer
from spyre.hw.spec import CORES
from spyre.runtime.flex.blocks import ControlBlock
from spyre.runtime.flex.command_stream import Command, CommandStream
from spyre.runtime.flex.scheduling import Engine
from spyre.runtime.kernel.kernel import ExecutedLaunch
from spyre.runtime.profile.profile import Activity, make_profile
from spyre.runtime.profile.report import report_page
from spyre.runtime.profile.trace import modelled_events
from spyre.runtime.trace import trace_events

KIB = 1024
LOADS, SCALES = 0, 1


class Instruction(msgspec.Struct, frozen=True):
    """An instruction of a made-up engine, repeated on two cores."""

    index: int
    name: str
    repeats: int
    counters: Counters
    source: str = "listing.s"
    shape: str = "lanes 64"
    location: None = None
    cores: tuple[int, ...] = (3, 4)

    @property
    def core_counts(self) -> np.ndarray:
        counts = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
        for column, name in enumerate(CORE_COLUMNS):
            counts[list(self.cores), column] = getattr(self.counters, name) // len(self.cores)
        return counts

    @property
    def operation_counts(self) -> OperationCounts:
        return OperationCounts(
            name=self.name, cost_class=CostClass.POINTWISE, cores=2, counters=self.counters
        )


class Listing:
    """Three times: load 4 KiB into the scratchpads, scale it in place."""

    statements = (
        Instruction(
            LOADS,
            "load",
            3,
            Counters(
                hbm_read_bytes=24 * KIB,
                rdmem_bytes=12 * KIB,
                lx_written_bytes=24 * KIB,
                executions=3,
            ),
        ),
        Instruction(
            SCALES,
            "scale",
            3,
            Counters(
                lx_read_bytes=24 * KIB,
                lx_written_bytes=24 * KIB,
                element_operations=6 * KIB,
                executions=3,
            ),
        ),
    )

    @property
    def executions(self) -> Executions:
        return Executions(np.tile([LOADS, SCALES], 3), np.repeat([0, 1, 2], 2))

    @property
    def dispatches(self) -> Dispatches:
        runs = self.executions
        return Dispatches(runs.statement, runs.instance, runs.statement, ((3, 4), (3, 4)))

    @property
    def lx_accesses(self) -> LxAccesses:
        """Written by each load; read and written by each scaling."""
        position = np.array([0, 1, 1, 2, 3, 3, 4, 5, 5])
        writes = np.array([1, 0, 1] * 3)
        low = np.zeros(9, np.int64)
        return LxAccesses(low, low + 4 * KIB, position, position % 2, writes)

    def loop_indices(self, statement: int, instance: int) -> tuple[int, ...]:
        return (instance,)


LABELS = ExecuteLabels(10, "made_up")


@pytest.fixture
def listing() -> ProgramView:
    found: ProgramView = Listing()
    statement: StatementView = found.statements[0]
    assert statement.name == "load"
    return found


def test_counted(listing):
    counts = LaunchCounts([listing, listing])
    counts.note(listing, 3)
    once = listing.statements[LOADS].counters + listing.statements[SCALES].counters
    assert (counts.launches, counts.counters) == (5, once.times(5))
    assert counts.executes == 30
    assert counts.hbm_bytes == 5 * 12 * KIB
    assert (lx_peak_bytes(listing), counts.lx_high_water_bytes) == (4 * KIB, 4 * KIB)
    assert kernel_ns(counts.operations, default_machine()).total_ns > 0


@pytest.fixture
def profile(listing):
    activities = [
        Activity("in", TaskKind.COPY_IN, "x", size_bytes=12 * KIB),
        *(
            Activity(f"run {k}", TaskKind.COMPUTE, "listing", 0, 0, ("in",), listing, LABELS)
            for k in range(2)
        ),
    ]
    return make_profile(activities)


def test_profiled(profile):
    (kernel,) = profile.kernels
    assert (kernel.launches, kernel.lx_peak_bytes) == (2, 4 * KIB)
    assert len({core for execute in kernel.executes for core in execute.cores}) == 2
    assert [(e.index, e.sdsc, e.op) for e in kernel.executes] == [
        (10, "made_up/listing.s", "load"),
        (11, "made_up/listing.s", "scale"),
    ]
    assert profile.counters.executions == 12
    assert profile.per_core.count("lx_read_bytes").nonzero()[0].tolist() == [3, 4]
    assert "scale" in str(profile)
    assert "listing" in report_page(profile)
    assert [row["op"] for row in profile.to_json()["executes"]] == ["load", "scale"]


def test_modelled_trace(profile):
    spans = [e for e in modelled_events(profile) if e["ph"] == "X" and "execute" in e["args"]]
    executes = [s for s in spans if s["tid"] == 20]
    assert [s["name"] for s in executes] == ["load", "scale"] * 6
    assert sum(s["args"]["rdmem_bytes"] for s in executes) == 2 * 12 * KIB


class Linked(msgspec.Struct, frozen=True):
    """Stands for a linked program; it only needs a view."""

    view: ProgramView


def test_traced(listing):
    """A timed launch in a recording: a span per dispatch and core."""
    timed = ExecutedLaunch(Linked(listing), 1000, np.full(6, 50), LABELS)
    stream = CommandStream()
    block = ControlBlock("compute", "listing")
    stream.add(Command((0, 0, 0), "cb 0", 0, Engine.COMPUTE, block, (), 0, 1000, 1400, timed))
    spans = [e for e in trace_events({0: stream}) if e.get("cat") == "execute"]
    assert [s["name"] for s in spans] == ["load", "load", "scale", "scale"] * 3
    assert {s["args"]["sdsc"] for s in spans} == {"made_up/listing.s"}
    assert spans[-1]["args"]["loop_indices"] == [2]


def test_named_by_the_sanitizer(listing):
    log = RecordLog()
    first = log.add(LabelledProgram(listing, LABELS), 6)
    writer = describe_writer(log, (first + 3) << ct.CORE_BITS | 4)
    assert writer == "execute 11 (scale), core 3, loop indices (1,)"
