"""Findings of a run: result words of the compiled checks as text, and outputs that no execute of
the run wrote completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity, SourceLocation
from spyre.hw.access import core_boxes, global_coordinate
from spyre.hw.counters import ExecuteLabels, ProgramView
from spyre.hw.sanitizer.check_plan import CheckPlan, RowSource
from spyre.hw.sanitizer.findings import Check, SanitizerFinding, count_of
from spyre.hw.sanitizer.shadow import (
    LaunchEvent,
    RecordLog,
    ShadowMemory,
    UInt32Array,
    Upload,
    describe_writer,
    locate_execution,
)
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES, device_address
from spyre.hw.table import checks as ct
from spyre.layout import Int64Array, host_coordinates_of_stick, transfer_geometry

if TYPE_CHECKING:
    from spyre.hw.memory import DeviceTensor


@dataclass(frozen=True)
class CheckedLaunch:
    """A launch with its tables and what the checks wrote into ``results``."""

    program: ProgramView
    label: ExecuteLabels
    plan: CheckPlan
    results: Int64Array
    first_record: int


@dataclass(frozen=True, slots=True)
class _FindingText:
    """Text of one kind of finding; ``{op}`` and ``{tensor}`` are filled in."""

    check: Check
    code: str
    message: str
    expected: str


_FINDING_TEXTS = {
    (ct.READ, ct.MAIN): _FindingText(
        Check.INIT,
        "SPY710",
        "{op} reads {tensor} where nobody has written",
        "every stick that is read uploaded or written before",
    ),
    (ct.WRITE, ct.MAIN): _FindingText(
        Check.RACE,
        "SPY711",
        "{op}: several cores write the same sticks of {tensor}",
        "every stick written by one core",
    ),
    (ct.REREAD, ct.MAIN): _FindingText(
        Check.RACE,
        "SPY712",
        "{op}: a core reads from {tensor} what another core writes",
        "inputs apart from what other cores write in the same execute",
    ),
    (ct.READ, ct.LIVE): _FindingText(
        Check.LX,
        "SPY731",
        "{op} reads {tensor} in LX, part of which another tensor has overwritten",
        "sticks last written through a range that contains the one read, or lies in it",
    ),
}


def findings_of(
    launch: CheckedLaunch, log: RecordLog, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
    """The findings of one launch, in the order of its rows."""
    for row, source in enumerate(launch.plan.sources):
        for slot in range(ct.SLOTS):
            words = launch.results[row, slot]
            kind = _FINDING_TEXTS.get((source.role, slot))
            if kind is not None and words[ct.COUNT] and kind.check in checks:
                yield _run_finding(launch, log, source, kind, words)


def _run_finding(
    launch: CheckedLaunch, log: RecordLog, source: RowSource, kind: _FindingText, words: Int64Array
) -> SanitizerFinding:
    variant = source.variant
    op = variant.op
    tensor = op.tensors[source.operand]
    execution = int(words[ct.EXECUTION])
    statement, instance, loops = locate_execution(launch.program, execution)
    position = source.positions[int(words[ct.BOX])]
    address = device_address(int(words[ct.STICK]) * STICK_BYTES)
    member = int(np.searchsorted(variant.instances, instance))
    start = int(variant.starts[member, source.operand, position])
    box = core_boxes(op, tensor)[position]
    assert box is not None
    sticks, runs = int(words[ct.COUNT]), int(words[ct.EXECUTIONS])
    return SanitizerFinding(
        check=kind.check,
        code=kind.code,
        severity=Severity.ERROR,
        message=kind.message.format(op=op.name, tensor=tensor.name),
        sdsc=launch.label.sdsc(statement.source),
        expected=kind.expected,
        found=f"{count_of(sticks, 'stick')} in {count_of(runs, 'execution')}",
        source=statement.location,
        execute=launch.label.first_execute + statement.index,
        loop_indices=loops,
        core=op.cores[position],
        tensor=tensor.name,
        coordinate=global_coordinate(
            op, tensor, box, position, max(address - start, box.first_bytes)
        ),
        address_bytes=shown_address(address),
        sticks=sticks,
        executions=runs,
        last_writer=describe_writer(log, int(words[ct.WORD])) if words[ct.WORD] else "",
    )


def shown_address(address_bytes: int) -> int:
    """An address as files have it: LX addresses count from the start of the core's scratchpad."""
    return address_bytes if address_bytes < LX_BASE else (address_bytes - LX_BASE) % LX_BYTES


@dataclass(frozen=True)
class ExpectedOutput:
    """An output and the sticks of it that must be written (bool, ``device_size[:-1]``)."""

    tensor: DeviceTensor
    sticks: npt.NDArray[np.bool_]


def check_cover(
    expected: ExpectedOutput, shadow: ShadowMemory, log: RecordLog, first_record: int
) -> Iterator[SanitizerFinding]:
    """At most one finding. ``first_record``: the first of the run."""
    tensor = expected.tensor
    words = shadow.of_range(tensor.address_bytes, tensor.size_bytes)
    records = words >> ct.CORE_BITS
    # Records before the run's first are of uploads and earlier runs: not written by this one.
    bare = expected.sticks & (records < first_record).reshape(expected.sticks.shape)
    if not bare.any():
        return
    stick = tuple(int(i) for i in np.argwhere(bare)[0])
    position = int(np.ravel_multi_index(stick, expected.sticks.shape))
    geometry = transfer_geometry(tensor.layout, tensor.sizes, tensor.strides)
    host = host_coordinates_of_stick(geometry, stick)
    missing, total = int(bare.sum()), int(expected.sticks.sum())
    last = _last_execute(words, log, first_record)
    yield SanitizerFinding(
        check=Check.COVER,
        code="SPY720",
        severity=Severity.ERROR,
        message=f"output {tensor.name} is not written completely",
        sdsc=last.sdsc,
        execute=last.execute,
        source=last.source,
        tensor=tensor.name,
        coordinate=tuple((f"dim {k}", i) for k, i in enumerate(host)),
        address_bytes=tensor.address_bytes + position * STICK_BYTES,
        sticks=missing,
        expected=f"all {count_of(total, 'stick')} with elements written by an execute",
        found=f"{count_of(missing, 'stick')} never written{last.remark}",
        last_writer=_host_writer(log, int(words[position])),
    )


@dataclass(frozen=True, slots=True)
class _LastExecute:
    """The execute that wrote any of the tensor last, where there is one."""

    sdsc: str = "bundle.mlir"
    execute: int | None = None
    source: SourceLocation | None = None
    remark: str = ", and no execute writes any of it"


def _last_execute(words: UInt32Array, log: RecordLog, first_record: int) -> _LastExecute:
    word = int(words.max(initial=0))
    if word >> ct.CORE_BITS < first_record:
        return _LastExecute()
    event, execution = log.find(word >> ct.CORE_BITS)
    assert isinstance(event, LaunchEvent)
    statement, _, _ = locate_execution(event.program, execution)
    label = event.label
    return _LastExecute(
        label.sdsc(statement.source),
        label.first_execute + statement.index,
        statement.location,
        "",
    )


def _host_writer(log: RecordLog, word: int) -> str:
    if word == 0:
        return ""
    event, _ = log.find(word >> ct.CORE_BITS)
    return describe_writer(log, word) if isinstance(event, Upload) else "an earlier run"
