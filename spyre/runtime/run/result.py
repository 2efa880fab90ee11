"""The result of a run: outputs, their device locations, a report per execute, sanitizer findings.

``spyre-run`` prints it. Byte counts are those of :mod:`spyre.hw.counters.execute`: sums over cores,
times the executions of the execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.errors import Finding, SpyreError
from spyre.hw.counters import Counters
from spyre.hw.device import Device
from spyre.runtime.arguments import ArgumentSpec, HostTensor
from spyre.runtime.compare import Comparison, OutputLocation
from spyre.runtime.kernel import ExecutedLaunch

if TYPE_CHECKING:
    from spyre.hw.memory import DeviceTensor
    from spyre.hw.sanitizer import SanitizerFinding
    from spyre.runtime.compare import Verification


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


@dataclass(frozen=True, slots=True)
class PlacedArgument:
    """An argument and its device address in bytes."""

    spec: ArgumentSpec
    address_bytes: int


@dataclass(frozen=True, eq=False)
class RunResult:
    """Outcome of one run.

    ``outputs``: numbers of the output arguments in launch order, in-place ones included (bfloat16
    and float8 as float32); ``output_tensors``: the same in the argument's dtype. ``inputs``: host
    tensors that were transferred. ``places``: device location of each output, and which core wrote
    it, for `spyre.runtime.compare.outputs`. ``comparisons``: by number, of the outputs that had an
    expected value. ``verification``: how many executes agreed with the reference implementation,
    None without ``verify``. ``sanitizer``: findings of the device's sanitizer, errors first;
    ``findings`` includes them. ``launches``: linked programs with their times; executes are counted
    on first access to `executes`. ``hbm_bytes``: bytes allocated in each region of device memory
    during the run, by other users of the device too.
    """

    outputs: tuple[npt.NDArray[Any], ...]
    output_tensors: tuple[HostTensor, ...]
    inputs: tuple[HostTensor, ...]
    findings: tuple[Finding, ...]
    arguments: tuple[PlacedArgument, ...]
    places: tuple[OutputLocation, ...] = field(default=(), repr=False)
    comparisons: Mapping[int, Comparison] = field(default_factory=dict)
    verification: Verification | None = None
    sanitizer: tuple[SanitizerFinding, ...] = ()
    launches: tuple[ExecutedLaunch, ...] = field(default=(), repr=False)
    hbm_bytes: tuple[int, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """True unless an output differs from its expected value."""
        return all(comparison.ok for comparison in self.comparisons.values())

    @cached_property
    def executes(self) -> tuple[ExecuteReport, ...]:
        """A report per execute statement of all launches."""
        return tuple(report for launch in self.launches for report in report_executes(launch))

    @cached_property
    def counters(self) -> Counters:
        """All executes together."""
        return reduce(add, (report.counters for report in self.executes), Counters())

    @property
    def interpreted(self) -> int:
        """Dispatches that ran while their kernels were being compiled."""
        return sum(launch.interpreted for launch in self.launches)

    @property
    def host_ns(self) -> int | None:
        """Host time of all executes together, None when the run was not timed."""
        times = [report.host_ns for report in self.executes]
        return None if any(t is None for t in times) else sum(t for t in times if t is not None)


def report_executes(launch: ExecutedLaunch) -> Iterator[ExecuteReport]:
    """A report per execute statement of a launch, with host times if they were taken."""
    program, label = launch.linked.view, launch.label
    times: list[int | None] = [None] * len(program.statements)
    if launch.elapsed_ns is not None:
        sums = np.zeros(len(program.statements), np.int64)
        np.add.at(sums, program.dispatches.statement, launch.elapsed_ns)
        times = [int(t) for t in sums]
    for statement, host_ns in zip(program.statements, times, strict=True):
        yield ExecuteReport(
            label.first_execute + statement.index,
            label.sdsc(statement.source),
            statement.name,
            statement.shape,
            len(statement.cores),
            statement.counters.executions,
            statement.counters,
            host_ns,
        )


# --- sanitizer findings -----------------------------------------------------------------------


@contextmanager
def observed(device: Device) -> Iterator[None]:
    """Add the sanitizer's findings so far to a SpyreError that leaves this context."""
    try:
        yield
    except SpyreError as error:
        if device.sanitizer is not None:
            findings = (finding.to_finding() for finding in device.sanitizer.take())
            error.observed = (*error.observed, *findings)
        raise


def take_findings(
    device: Device,
    outputs: Iterable[tuple[DeviceTensor, npt.NDArray[np.bool_]]],
    first_record: int,
) -> tuple[SanitizerFinding, ...]:
    """All findings since the last call, and those on sticks of ``outputs`` that are not written.

    ``outputs``: with the sticks that must be written. ``first_record``: `next_record` before the
    first launch of the run.
    """
    sanitizer = device.sanitizer
    if sanitizer is None:
        return ()
    from spyre.hw.sanitizer import Check, check_cover

    if Check.COVER in sanitizer.checks:
        for output in outputs:
            sanitizer.add(check_cover(*output, sanitizer.shadow, sanitizer.log, first_record))
    return sanitizer.take()
