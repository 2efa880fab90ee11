"""The sanitizer of a device: follows writes to its memory, checks launches, collects findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity, SourceLocation
from spyre.hw import check_table as ct
from spyre.hw.access import global_coordinate
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import LinkedProgram, Variant
from spyre.hw.sanitizer.findings import (
    OVERWRITTEN_LX,
    READ_WRITE_RACE,
    SHARED_WRITE,
    UNWRITTEN_READ,
    Check,
    FindingText,
    SanitizerFinding,
    count_of,
    grouped,
    shown_address,
    uncovered_output,
)
from spyre.hw.sanitizer.static_checks import static_findings
from spyre.hw.sanitizer.tables import (
    CheckTables,
    LabelledProgram,
    RecordLog,
    ShadowMemory,
    UInt32Array,
    describe_writer,
)
from spyre.hw.spec import STICK_BYTES, device_address
from spyre.layout import Int64Array, host_coordinates_of_stick

if TYPE_CHECKING:
    from spyre.hw.memory import DeviceTensor


class Sanitizer:
    """The checks of one device, and a shadow of its memory.

    ``label``: numbers and names the executes of the next launches in findings.
    ``driver_arguments``: of the current launch, which `drive_checked` takes after those of `drive`.
    """

    def __init__(self, checks: frozenset[Check]) -> None:
        self.checks = checks
        self.shadow = ShadowMemory()
        self.log = RecordLog()
        self.label = ExecuteLabels()
        self.driver_arguments: tuple[npt.NDArray[np.generic] | int, ...] = ()
        self._launches: list[tuple[LabelledProgram, CheckTables, Int64Array]] = []
        self._others: list[SanitizerFinding] = []
        self._tables: WeakKeyDictionary[LinkedProgram, CheckTables] = WeakKeyDictionary()
        self._static: WeakKeyDictionary[
            LinkedProgram, dict[ExecuteLabels, tuple[SanitizerFinding, ...]]
        ] = WeakKeyDictionary()

    # --- memory -------------------------------------------------------------------------------

    def written(self, address_bytes: int, size_bytes: int, name: str = "") -> None:
        """Record that the host wrote a range of device memory."""
        record = self.log.add(name or f"{size_bytes} bytes at {address_bytes:#x}")
        self.shadow.mark(address_bytes, size_bytes, record)

    def written_sticks(self, addresses_bytes: Int64Array, name: str) -> None:
        """Record that a copy on the card wrote the sticks of HBM at ``addresses_bytes``."""
        self.shadow.mark_sticks(addresses_bytes, self.log.add(name))

    def cleared(self, address_bytes: int, size_bytes: int) -> None:
        """Record that a range was freed."""
        self.shadow.clear(address_bytes, size_bytes)

    def cleared_all(self) -> None:
        """Forget all writes and findings, as the device was reset."""
        self.shadow.clear_all()
        self.log = RecordLog()
        self.label = ExecuteLabels()
        self._launches.clear()
        self._others.clear()

    # --- launches -----------------------------------------------------------------------------

    def prepare(self, linked: LinkedProgram) -> None:
        """Make `driver_arguments` for ``linked`` without a launch, to compile the driver."""
        self._set_arguments(self._tables_of(linked), first_record=1)

    def begin(self, linked: LinkedProgram) -> None:
        """Start a launch of ``linked``; `driver_arguments` are its until the next one."""
        tables, launched = self._tables_of(linked), LabelledProgram(linked.view, self.label)
        # One record per execution, so that a shadow word names the loop iteration that wrote it.
        first = self.log.add(launched, tables.executions)
        self._launches.append((launched, tables, self._set_arguments(tables, first)))
        findings = self._static.setdefault(linked, {})
        if self.label not in findings:
            findings[self.label] = tuple(static_findings(linked, self.label, self.checks))
        self._others += findings[self.label]

    def _tables_of(self, linked: LinkedProgram) -> CheckTables:
        if linked not in self._tables:
            self._tables[linked] = CheckTables(linked, self.checks)
        return self._tables[linked]

    def _set_arguments(self, tables: CheckTables, first_record: int) -> Int64Array:
        """Set `driver_arguments`; the results that the checks will fill in."""
        results = np.zeros((len(tables.operands), ct.SLOTS, ct.RESULT_WORDS), np.int64)
        shadow = self.shadow
        further = results, shadow.words, shadow.ranges, first_record
        self.driver_arguments = (*tables.arguments, *further)
        return results

    # --- findings -----------------------------------------------------------------------------

    def add(self, findings: Iterable[SanitizerFinding]) -> None:
        """Add findings of checks that cover more than one launch."""
        self._others += findings

    def take(self) -> tuple[SanitizerFinding, ...]:
        """Return all findings since the last call, errors first, and forget them."""
        findings = [
            f for launch in self._launches for f in findings_of(*launch, self.log, self.checks)
        ]
        findings += self._others
        self._launches.clear()
        self._others = []
        ordered = sorted(grouped(findings), key=lambda f: f.severity is not Severity.ERROR)
        return tuple(ordered)


# --- findings of runs -------------------------------------------------------------------------

_FINDING_TEXTS = {
    (ct.READ, ct.MAIN): UNWRITTEN_READ,
    (ct.WRITE, ct.MAIN): SHARED_WRITE,
    (ct.REREAD, ct.MAIN): READ_WRITE_RACE,
    (ct.READ, ct.OVERWRITTEN): OVERWRITTEN_LX,
}
"""Findings by role of the row and slot of its results."""


def findings_of(
    launched: LabelledProgram,
    tables: CheckTables,
    results: Int64Array,
    log: RecordLog,
    checks: frozenset[Check],
) -> Iterator[SanitizerFinding]:
    """The findings of one launch, in the order of the rows; ``results``: of the compiled checks."""
    for row, (variant, operand, role, positions) in enumerate(tables.operands):
        for slot in range(ct.SLOTS):
            words = results[row, slot]
            kind = _FINDING_TEXTS.get((role, slot))
            if kind is not None and words[ct.COUNT] and kind.check in checks:
                position = positions[int(words[ct.BOX])]
                yield _run_finding(launched, log, variant, operand, position, kind, words)


def _run_finding(
    launched: LabelledProgram,
    log: RecordLog,
    variant: Variant,
    operand: int,
    position: int,
    kind: FindingText,
    words: Int64Array,
) -> SanitizerFinding:
    op, tensor = variant.op, variant.op.tensors[operand]
    statement, instance, loops = launched.locate(int(words[ct.EXECUTION]))
    address = device_address(int(words[ct.STICK]) * STICK_BYTES)
    member = int(np.searchsorted(variant.instances, instance))
    start = int(variant.starts[member, operand, position])
    box = variant.boxes[operand][position]
    assert box is not None
    sticks, runs = int(words[ct.COUNT]), int(words[ct.EXECUTIONS])
    return SanitizerFinding(
        check=kind.check,
        code=kind.code,
        severity=Severity.ERROR,
        message=kind.of(op.name, tensor.name).message,
        sdsc=launched.label.sdsc(statement.source),
        expected=kind.expected,
        found=f"{count_of(sticks, 'stick')} in {count_of(runs, 'execution')}",
        source=statement.location,
        execute=launched.label.first_execute + statement.index,
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


def check_cover(
    tensor: DeviceTensor,
    required: npt.NDArray[np.bool_],
    shadow: ShadowMemory,
    log: RecordLog,
    first_record: int,
) -> Iterator[SanitizerFinding]:
    """SPY720 if sticks of an output that must be written are not.

    ``required``: these sticks, in the shape of ``device_size[:-1]``; ``first_record``: the first of
    the run.
    """
    words = shadow.of_range(tensor.address_bytes, tensor.size_bytes)
    records = words >> ct.CORE_BITS
    # Records before the run's first are of uploads and earlier runs: not written by this one.
    bare = required & (records < first_record).reshape(required.shape)
    if not bare.any():
        return
    stick = tuple(int(i) for i in np.argwhere(bare)[0])
    position = int(np.ravel_multi_index(stick, required.shape))
    host = host_coordinates_of_stick(tensor.layout, tensor.sizes, tensor.strides, stick)
    missing, total = int(bare.sum()), int(required.sum())
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
    assert isinstance(event, LabelledProgram)
    statement, _, _ = event.locate(execution)
    number = event.label.first_execute + statement.index
    return event.label.sdsc(statement.source), number, statement.location


def _host_writer(log: RecordLog, word: int) -> str:
    if word == 0:
        return ""
    event, _ = log.find(word >> ct.CORE_BITS)
    return describe_writer(log, word) if isinstance(event, str) else "an earlier run"
