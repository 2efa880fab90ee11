"""Findings of a run: the results of the compiled checks, and outputs not written completely."""

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
from spyre.hw.sanitizer.findings import (
    OVERWRITTEN_LX,
    READ_WRITE_RACE,
    SHARED_WRITE,
    UNWRITTEN_READ,
    Check,
    FindingText,
    SanitizerFinding,
    count_of,
    uncovered_output,
)
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
from spyre.layout import Int64Array, host_coordinates_of_stick

if TYPE_CHECKING:
    from spyre.hw.memory import DeviceTensor


@dataclass(frozen=True)
class CheckedLaunch:
    """A launch with its tables and the ``results`` that the checks filled in."""

    program: ProgramView
    label: ExecuteLabels
    plan: CheckPlan
    results: Int64Array
    first_record: int


_FINDING_TEXTS = {
    (ct.READ, ct.MAIN): UNWRITTEN_READ,
    (ct.WRITE, ct.MAIN): SHARED_WRITE,
    (ct.REREAD, ct.MAIN): READ_WRITE_RACE,
    (ct.READ, ct.LIVE): OVERWRITTEN_LX,
}
"""By role of the row and slot of its results."""


def findings_of(
    launch: CheckedLaunch, log: RecordLog, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
    """The findings of one launch, in the order of the plan's rows."""
    for row, source in enumerate(launch.plan.sources):
        for slot in range(ct.SLOTS):
            words = launch.results[row, slot]
            kind = _FINDING_TEXTS.get((source.role, slot))
            if kind is not None and words[ct.COUNT] and kind.check in checks:
                yield _run_finding(launch, log, source, kind, words)


def _run_finding(
    launch: CheckedLaunch, log: RecordLog, source: RowSource, kind: FindingText, words: Int64Array
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
        message=kind.of(op.name, tensor.name).message,
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
    """The address in SDSC files: in LX, from the start of the core's scratchpad."""
    return address_bytes if address_bytes < LX_BASE else (address_bytes - LX_BASE) % LX_BYTES


@dataclass(frozen=True)
class ExpectedOutput:
    """An output and the sticks of it that must be written (bool, ``device_size[:-1]``)."""

    tensor: DeviceTensor
    sticks: npt.NDArray[np.bool_]


def check_cover(
    expected: ExpectedOutput, shadow: ShadowMemory, log: RecordLog, first_record: int
) -> Iterator[SanitizerFinding]:
    """SPY720 if required sticks are not written. ``first_record``: the first of the run."""
    tensor = expected.tensor
    words = shadow.of_range(tensor.address_bytes, tensor.size_bytes)
    records = words >> ct.CORE_BITS
    # Records before the run's first are of uploads and earlier runs: not written by this one.
    bare = expected.sticks & (records < first_record).reshape(expected.sticks.shape)
    if not bare.any():
        return
    stick = tuple(int(i) for i in np.argwhere(bare)[0])
    position = int(np.ravel_multi_index(stick, expected.sticks.shape))
    host = host_coordinates_of_stick(tensor.layout, tensor.sizes, tensor.strides, stick)
    missing, total = int(bare.sum()), int(expected.sticks.sum())
    sdsc, execute, source = _last_execute(words, log, first_record)
    remark = ", and no execute writes any of it" if execute is None else ""
    text = uncovered_output(tensor.name, total)
    yield SanitizerFinding(
        check=text.check,
        code=text.code,
        severity=Severity.ERROR,
        message=text.message,
        sdsc=sdsc,
        execute=execute,
        source=source,
        tensor=tensor.name,
        coordinate=tuple((f"dim {k}", i) for k, i in enumerate(host)),
        address_bytes=tensor.address_bytes + position * STICK_BYTES,
        sticks=missing,
        expected=text.expected,
        found=f"{count_of(missing, 'stick')} never written{remark}",
        last_writer=_host_writer(log, int(words[position])),
    )


def _last_execute(
    words: UInt32Array, log: RecordLog, first_record: int
) -> tuple[str, int | None, SourceLocation | None]:
    """SDSC file, number and location of the execute that wrote any of the words last.

    bundle.mlir if no execute of the run did.
    """
    word = int(words.max(initial=0))
    if word >> ct.CORE_BITS < first_record:
        return "bundle.mlir", None, None
    event, execution = log.find(word >> ct.CORE_BITS)
    assert isinstance(event, LaunchEvent)
    statement, _, _ = locate_execution(event.program, execution)
    number = event.label.first_execute + statement.index
    return event.label.sdsc(statement.source), number, statement.location


def _host_writer(log: RecordLog, word: int) -> str:
    if word == 0:
        return ""
    event, _ = log.find(word >> ct.CORE_BITS)
    return describe_writer(log, word) if isinstance(event, Upload) else "an earlier run"
