"""What a run gives back: outputs, where they lay, and a report per execute.

:mod:`.session` makes it from a linked program; ``spyre-run`` prints it. Byte counts are those of
:mod:`spyre.hw.counters.execute`: sums over cores, times the executions of the execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.errors import Finding
from spyre.hw.counters import Counters, StatementView
from spyre.hw.linking import LinkedProgram
from spyre.runtime.arguments import ArgumentSpec, HostTensor
from spyre.runtime.compare import OutputLocation, Verification
from spyre.runtime.kernel import ExecutedLaunch

if TYPE_CHECKING:
    from spyre.hw.sanitizer import SanitizerFinding


@dataclass(frozen=True, slots=True)
class ExecuteReport:
    """One execute statement over all its executions.

    ``shape``: iteration space in elements, e.g. ``mb 512, out 1024``. ``counters``: all
    ``executions`` together. ``host_ns``: time on this machine; None when it was not taken.
    """

    index: int
    sdsc: str
    op: str
    shape: str
    cores: int
    executions: int
    counters: Counters
    host_ns: int | None = None

    @property
    def hbm_read_bytes(self) -> int:
        return self.counters.hbm_read_bytes

    @property
    def hbm_written_bytes(self) -> int:
        return self.counters.hbm_written_bytes

    @property
    def lx_read_bytes(self) -> int:
        return self.counters.lx_read_bytes

    @property
    def lx_written_bytes(self) -> int:
        return self.counters.lx_written_bytes

    @property
    def multiply_adds(self) -> int:
        return self.counters.multiply_adds


@dataclass(frozen=True, slots=True)
class PlacedArgument:
    """An argument and its device address in bytes."""

    spec: ArgumentSpec
    address_bytes: int


@dataclass(frozen=True, eq=False)
class RunResult:
    """Outcome of one run.

    ``outputs``: numbers of the output arguments in launch order, in-place ones included (bfloat16
    and float8 as float32); ``output_tensors``: the same in the argument's own dtype. ``places``:
    where each output lay, and which core wrote it, for `spyre.runtime.compare.outputs`.
    ``inputs``: what
    the kernel was given. ``host_ns``: all executes together, None when the run was not timed.
    ``verification``: how many executes agreed with the reference implementation, where asked for.
    ``sanitizer``: what a device with a sanitizer found, errors first; ``findings`` includes it.
    ``launches``: what ran, for `spyre.profile`. ``hbm_bytes``: allocated in each region of device
    memory while it ran, with what else lay there; empty if nobody looked.
    """

    outputs: tuple[npt.NDArray[Any], ...]
    output_tensors: tuple[HostTensor, ...]
    inputs: tuple[HostTensor, ...]
    executes: tuple[ExecuteReport, ...]
    counters: Counters
    findings: tuple[Finding, ...]
    arguments: tuple[PlacedArgument, ...]
    places: tuple[OutputLocation, ...] = field(default=(), repr=False)
    verification: Verification | None = None
    sanitizer: tuple[SanitizerFinding, ...] = ()
    launches: tuple[ExecutedLaunch, ...] = field(default=(), repr=False)
    hbm_bytes: tuple[int, ...] = field(default=(), repr=False)

    def with_sanitizer(self, sanitizer: Sequence[SanitizerFinding]) -> RunResult:
        findings = (*self.findings, *(f.to_finding() for f in sanitizer))
        return replace(self, findings=findings, sanitizer=tuple(sanitizer))

    @property
    def host_ns(self) -> int | None:
        """Host time of all executes, if it was taken."""
        times = [report.host_ns for report in self.executes]
        return None if any(t is None for t in times) else sum(t for t in times if t is not None)


def report_executes(
    linked: LinkedProgram, elapsed_ns: npt.NDArray[np.int64] | None
) -> tuple[ExecuteReport, ...]:
    """A report per execute statement. ``elapsed_ns``: per dispatch, if it was timed."""
    program = linked.view
    times: list[int | None] = [None] * len(program.statements)
    if elapsed_ns is not None:
        sums = np.zeros(len(program.statements), np.int64)
        np.add.at(sums, program.dispatches.statement, elapsed_ns)
        times = [int(t) for t in sums]
    return tuple(map(_report, program.statements, times))


def _report(statement: StatementView, host_ns: int | None) -> ExecuteReport:
    return ExecuteReport(
        statement.index,
        statement.source,
        statement.name,
        statement.shape,
        len(statement.cores),
        statement.counters.executions,
        statement.counters,
        host_ns,
    )
