"""The sanitizer of a device: follows writes to its memory, checks launches, collects findings."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import LinkedProgram
from spyre.hw.sanitizer.check_plan import CheckPlan, make_check_plan
from spyre.hw.sanitizer.findings import Check, SanitizerFinding, grouped
from spyre.hw.sanitizer.run_findings import CheckedLaunch, findings_of
from spyre.hw.sanitizer.shadow import LaunchEvent, RecordLog, ShadowMemory, Upload
from spyre.hw.sanitizer.static_checks import static_findings
from spyre.hw.table import checks as ct
from spyre.layout import Int64Array


class Sanitizer:
    """The checks of one device, and a shadow of its memory.

    ``label``: numbers and names the executes of the next launches in findings.
    """

    def __init__(self, checks: frozenset[Check]) -> None:
        self.checks = checks
        self.shadow = ShadowMemory()
        self.log = RecordLog()
        self.label = ExecuteLabels()
        self._launches: list[CheckedLaunch] = []
        self._others: list[SanitizerFinding] = []
        self._current: CheckedLaunch | None = None
        self._plans: WeakKeyDictionary[LinkedProgram, CheckPlan] = WeakKeyDictionary()
        self._static: WeakKeyDictionary[
            LinkedProgram, dict[ExecuteLabels, tuple[SanitizerFinding, ...]]
        ] = WeakKeyDictionary()

    # --- memory -------------------------------------------------------------------------------

    def written(self, address_bytes: int, size_bytes: int, name: str = "") -> None:
        """Record that the host wrote a range of device memory."""
        record = self.log.add(Upload(name or f"{size_bytes} bytes at {address_bytes:#x}"))
        self.shadow.mark(address_bytes, size_bytes, record)

    def written_sticks(self, addresses_bytes: Int64Array, name: str) -> None:
        """Record that a copy on the card wrote the sticks of HBM at ``addresses_bytes``."""
        self.shadow.mark_sticks(addresses_bytes, self.log.add(Upload(name)))

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
        self._current = self._checked(linked, first_record=1)

    def begin(self, linked: LinkedProgram) -> None:
        """Start a launch of ``linked``; `driver_arguments` are its until the next one."""
        # One record per execution, so that a shadow word names the loop iteration that wrote it.
        event = LaunchEvent(linked.view, self.label)
        first = self.log.add(event, self._plan_of(linked).execution_count)
        self._current = self._checked(linked, first)
        self._launches.append(self._current)
        self._others += self._static_findings_of(linked)

    def _checked(self, linked: LinkedProgram, first_record: int) -> CheckedLaunch:
        plan = self._plan_of(linked)
        results = np.zeros((len(plan.sources), ct.SLOTS, ct.RESULT_WORDS), np.int64)
        return CheckedLaunch(linked.view, self.label, plan, results, first_record)

    def _plan_of(self, linked: LinkedProgram) -> CheckPlan:
        if linked not in self._plans:
            self._plans[linked] = make_check_plan(linked, self.checks)
        return self._plans[linked]

    def _static_findings_of(self, linked: LinkedProgram) -> tuple[SanitizerFinding, ...]:
        findings = self._static.setdefault(linked, {})
        if self.label not in findings:
            findings[self.label] = tuple(static_findings(linked, self.label, self.checks))
        return findings[self.label]

    def driver_arguments(self) -> tuple[npt.NDArray[np.generic] | int, ...]:
        """The arguments that `drive_checked` takes after those of `drive`."""
        launch = self._current
        assert launch is not None
        shadow = self.shadow
        tables = launch.plan.tables
        return (*tables, launch.results, shadow.words, shadow.ranges, launch.first_record)

    # --- findings -----------------------------------------------------------------------------

    def add(self, findings: Iterable[SanitizerFinding]) -> None:
        """Add findings of checks that cover more than one launch."""
        self._others += findings

    def take(self) -> tuple[SanitizerFinding, ...]:
        """Return all findings since the last call, errors first, and forget them."""
        findings = [
            f for launch in self._launches for f in findings_of(launch, self.log, self.checks)
        ]
        findings += self._others
        self._launches.clear()
        self._others = []
        ordered = sorted(grouped(findings), key=lambda f: f.severity is not Severity.ERROR)
        return tuple(ordered)
