"""Findings of the compiled checks: result words become text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spyre.errors import Severity
from spyre.hw import check_table as ct
from spyre.hw.boxes import core_boxes, global_coordinate
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.sanitizer.check_plan import CheckPlan, RowSource
from spyre.hw.sanitizer.checks import Check
from spyre.hw.sanitizer.findings import SanitizerFinding, count_of
from spyre.hw.sanitizer.shadow import RecordLog, describe_writer, locate_execution
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES, device_address


@dataclass(frozen=True)
class CheckedLaunch:
    """A launch with its tables and what the checks wrote into ``results``."""

    linked: LinkedProgram
    label: LaunchLabel
    plan: CheckPlan
    results: Int64Array
    first_record: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """Text of one kind of finding; ``{op}`` and ``{tensor}`` are filled in."""

    check: Check
    code: str
    message: str
    expected: str


_KINDS = {
    (ct.READ, ct.MAIN): _Kind(
        Check.INIT,
        "SPY710",
        "{op} reads {tensor} where nobody has written",
        "every stick that is read uploaded or written before",
    ),
    (ct.WRITE, ct.MAIN): _Kind(
        Check.RACE,
        "SPY711",
        "{op}: several cores write the same sticks of {tensor}",
        "every stick written by one core",
    ),
    (ct.REREAD, ct.MAIN): _Kind(
        Check.RACE,
        "SPY712",
        "{op}: a core reads from {tensor} what another core writes",
        "inputs apart from what other cores write in the same execute",
    ),
    (ct.READ, ct.LIVE): _Kind(
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
            kind = _KINDS.get((source.role, slot))
            if kind is not None and words[ct.COUNT] and kind.check in checks:
                yield _finding(launch, log, source, kind, words)


def _finding(
    launch: CheckedLaunch, log: RecordLog, source: RowSource, kind: _Kind, words: Int64Array
) -> SanitizerFinding:
    linked = launch.linked
    execute, variant = linked.program.executes[source.static], source.variant
    op = variant.op
    tensor = op.tensors[source.operand]
    _, loops = locate_execution(linked, int(words[ct.EXECUTION]))
    instance = int(linked.schedule.instance[int(words[ct.EXECUTION])])
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
        sdsc=launch.label.sdsc(execute.sdsc_filename),
        expected=kind.expected,
        found=f"{count_of(sticks, 'stick')} in {count_of(runs, 'execution')}",
        source=execute.location,
        execute=launch.label.first_execute + source.static,
        loop_indices=tuple(loops),
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
