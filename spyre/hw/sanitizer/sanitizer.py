"""The observer a device carries: it follows memory, runs launches checked, collects findings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import LinkedProgram
from spyre.hw.sanitizer.check_plan import CheckPlan, make_check_plan, new_results
from spyre.hw.sanitizer.findings import Check, SanitizerFinding, grouped
from spyre.hw.sanitizer.run_findings import CheckedLaunch, findings_of
from spyre.hw.sanitizer.shadow import LaunchEvent, RecordLog, ShadowMemory, Upload
from spyre.hw.sanitizer.static_checks import check_program
from spyre.layout import Int64Array


class Sanitizer:
    """Checks of one device. Contents of shadow memory last as long as those of the device's.

    ``label``: how the next launches are numbered in findings.
    """

    def __init__(self, checks: frozenset[Check]) -> None:
        self.checks = checks
        self.shadow = ShadowMemory()
        self.log = RecordLog()
        self.label = ExecuteLabels()
        self._launches: list[CheckedLaunch] = []
        self._others: list[SanitizerFinding] = []
        self._current: CheckedLaunch | None = None

    # --- memory -------------------------------------------------------------------------------

    def written(self, address_bytes: int, size_bytes: int, name: str = "") -> None:
        """The host wrote a range of device memory."""
        record = self.log.add(Upload(name or f"{size_bytes} bytes at {address_bytes:#x}"))
        self.shadow.mark(address_bytes, size_bytes, record)

    def written_sticks(self, addresses_bytes: Int64Array, name: str) -> None:
        """A copy on the card wrote the sticks of HBM at ``addresses_bytes``."""
        self.shadow.mark_sticks(addresses_bytes, self.log.add(Upload(name)))

    def cleared(self, address_bytes: int, size_bytes: int) -> None:
        """A range was freed."""
        self.shadow.clear(address_bytes, size_bytes)

    def cleared_all(self) -> None:
        """The device was reset: nothing is known any more, findings included."""
        self.shadow.clear_all()
        self.log = RecordLog()
        self.label = ExecuteLabels()
        self._launches.clear()
        self._others.clear()

    # --- launches -----------------------------------------------------------------------------

    def prepare(self, linked: LinkedProgram) -> None:
        """`arguments` is to serve a call that runs nothing of ``linked``."""
        plan = check_plan_of(linked, self.checks)
        self._current = CheckedLaunch(linked.view, self.label, plan, new_results(plan), 1)

    def begin(self, linked: LinkedProgram) -> None:
        """A launch of ``linked`` follows: `arguments` serves it until the next `begin`."""
        plan = check_plan_of(linked, self.checks)
        # One record per execution, so that a shadow word names the loop iteration that wrote it.
        first = self.log.add(LaunchEvent(linked.view, self.label), plan.execution_count)
        self._current = CheckedLaunch(linked.view, self.label, plan, new_results(plan), first)
        self._launches.append(self._current)
        self._others += check_program(linked, self.label, self.checks)

    def arguments(self) -> tuple[npt.NDArray[np.generic] | int, ...]:
        """What `drive_checked` takes beyond the arguments of `drive`."""
        launch = self._current
        assert launch is not None
        plan = launch.plan
        return (
            plan.executions,
            plan.heads,
            plan.rows,
            plan.boxes,
            plan.nests,
            plan.bases,
            plan.patterns,
            plan.offsets,
            launch.results,
            self.shadow.words,
            self.shadow.ranges,
            launch.first_record,
        )

    # --- findings -----------------------------------------------------------------------------

    def add(self, findings: Iterable[SanitizerFinding]) -> None:
        """Further findings, of checks that need more than a launch."""
        self._others += findings

    def take(self) -> tuple[SanitizerFinding, ...]:
        """All findings since the last call, errors first; they are then forgotten."""
        findings = [
            f for launch in self._launches for f in findings_of(launch, self.log, self.checks)
        ]
        findings += self._others
        self._launches.clear()
        self._others = []
        ordered = sorted(grouped(findings), key=lambda f: f.severity is not Severity.ERROR)
        return tuple(ordered)


def check_plan_of(linked: LinkedProgram, checks: frozenset[Check]) -> CheckPlan:
    """The tables of ``linked``, made once: they are kept with it."""
    # in the program itself: as many as there are programs, and gone with them
    plans: dict[frozenset[Check], CheckPlan] = vars(linked).setdefault("_check_plans", {})
    if checks not in plans:
        plans[checks] = make_check_plan(linked, checks)
    return plans[checks]
