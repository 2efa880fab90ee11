"""Replaying a case: transfer its buffers, launch its kernels in order, read back and compare.

LX and pool keep their contents between the launches of a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy.typing as npt

from spyre.errors import Finding
from spyre.hw.counters import Counters
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.executor import Progress
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.sanitizer.cover import Expected
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.case_file import (
    Case,
    CaseFile,
    CaseLaunch,
    CaseOutput,
    CaseTolerance,
)
from spyre.runtime.case_place import PlacedBuffer, bind_launch, place_buffers, read_output
from spyre.runtime.core_lookup import CoreLookup
from spyre.runtime.flex.blocking_stream import blocking_stream_of
from spyre.runtime.flex.flex_device import flex_device_of
from spyre.runtime.flex.job import JobPlan
from spyre.runtime.flex.source_loading import load_source_on
from spyre.runtime.flex.timed_launch import TimedLaunch
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import Kernel
from spyre.runtime.launch_spec import Role
from spyre.runtime.run_result import (
    ExecuteReport,
    PlacedArgument,
    RanLaunch,
    RunResult,
    report_executes,
)
from spyre.runtime.runners import runner_of
from spyre.runtime.sanitized import (
    label_launch,
    next_record,
    observed,
    take_findings,
    viewed_output,
)
from spyre.runtime.spyrecode.plan_cache import load_source
from spyre.runtime.twin_check import TwinCheck
from spyre.runtime.verification import Verification
from spyre.runtime.verify import (
    EXACT,
    Comparison,
    CorePlace,
    Index,
    OutputPlace,
    Tolerance,
    compare,
)

_EXACT_DTYPES = ("bool", "int64", "int32")
_ROLES = {"input": Role.INPUT, "output": Role.OUTPUT}


@dataclass(frozen=True)
class CaseRun:
    """What a case computed, and how each of its outputs compares with what it expects."""

    result: RunResult
    comparisons: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """True if every output is right."""
        return all(comparison.ok for comparison in self.comparisons)


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel that ran. ``first_execute``: its first execute's number among those of the case."""

    lookup: CoreLookup
    reports: tuple[ExecuteReport, ...]
    findings: tuple[Finding, ...]
    first_execute: int
    verification: Verification | None = None
    launch: RanLaunch | None = None


@dataclass(frozen=True)
class _Mode:
    """How kernels are launched: in one go, timed, or beside the reference implementation."""

    timed: bool
    progress: Progress | None
    check: TwinCheck | None


def run_case(
    case: Case,
    device: Device,
    *,
    timed: bool = False,
    progress: Progress | None = None,
    verify_points: int | None = None,
) -> CaseRun:
    """Run ``case`` on ``device``, which is reset first.

    ``verify_points``: verify every execute of at most so many points. Raises the SpyreErrors of
    reading, checking, binding and running the kernels, MismatchError SPY620 of verifying; wrong
    outputs are no error but a comparison that is not ok.
    """
    device.reset()
    kernels = _load_kernels(case, device)
    placed = place_buffers(case, device)
    first_record = next_record(device)
    check = None if verify_points is None else TwinCheck(device, verify_points, progress)
    mode = _Mode(timed and check is None, progress, check)
    launched: list[LaunchedKernel] = []
    for spec in case.spec.launches:
        first = sum(len(done.reports) for done in launched)
        with observed(device):
            launched.append(_launch(kernels[spec.bundle], spec, first, placed, mode))
    places = tuple(output_place(case, output, placed, launched) for output in case.spec.outputs)
    found = tuple(read_output(case, output, device, placed) for output in case.spec.outputs)
    comparisons = tuple(
        compare_with_case(case, output, values.to_values())
        for output, values in zip(case.spec.outputs, found, strict=True)
        if output.value is not None
    )
    result = _result(case, device, placed, launched, found, places)
    sanitizer = take_findings(device, _expected_outputs(case, placed), first_record)
    return CaseRun(result.with_sanitizer(sanitizer), comparisons)


def _expected_outputs(case: Case, placed: Mapping[str, PlacedBuffer]) -> Iterator[Expected]:
    """The outputs that start with undefined contents."""
    for output in case.spec.outputs:
        tensor = placed[output.buffer].tensor
        if tensor is not None and case.spec.buffers[output.buffer].kind == "output":
            yield viewed_output(tensor, output)


@dataclass(frozen=True)
class _CheckedKernel:
    kernel: Kernel
    plan: JobPlan
    findings: tuple[Finding, ...]


def _load_kernels(case: Case, device: Device) -> dict[str, _CheckedKernel]:
    """Every bundle of the case once, checked, its scratch memory reserved."""
    stream = blocking_stream_of(flex_device_of(device))
    kernels: dict[str, _CheckedKernel] = {}
    for name in dict.fromkeys(launch.bundle for launch in case.spec.launches):
        bundle = load_source(case.directory / name)
        findings = bundle.check(raise_on_error=True)
        kernel = Kernel(bundle, device)
        kernels[name] = _CheckedKernel(kernel, load_source_on(stream, kernel), findings)
        kernel.reserve_scratch()
    return kernels


def _launch(
    checked: _CheckedKernel,
    spec: CaseLaunch,
    first_execute: int,
    placed: dict[str, PlacedBuffer],
    mode: _Mode,
) -> LaunchedKernel:
    kernel, launch = checked.kernel, bind_launch(spec, placed)
    label_launch(kernel.device, first_execute, spec.bundle)
    stream = blocking_stream_of(flex_device_of(kernel.device))
    label = LaunchLabel(first_execute, spec.bundle)
    runner = runner_of(mode.timed, mode.progress, mode.check, label)
    detail = stream.launch(checked.plan, launch, runner)
    linked = kernel.link(launch)
    verification = detail if isinstance(detail, Verification) else None
    elapsed_ns = detail.elapsed_ns if isinstance(detail, TimedLaunch) else None
    operations = [
        kernel.bundle.operations[execute.sdsc_filename] for execute in linked.program.executes
    ]
    reports = tuple(
        _renumbered(report, first_execute, spec.bundle)
        for report in report_executes(linked, operations, elapsed_ns)
    )
    lookup = CoreLookup(linked)
    ran = RanLaunch(checked.plan.name, linked, label)
    return LaunchedKernel(lookup, reports, checked.findings, first_execute, verification, ran)


def _renumbered(report: ExecuteReport, first: int, directory: str) -> ExecuteReport:
    sdsc = report.sdsc if directory in ("", ".") else f"{directory}/{report.sdsc}"
    return replace(report, index=first + report.index, sdsc=sdsc)


def compare_with_case(
    case: Case, output: CaseOutput, found: npt.NDArray[Any], tolerance: Tolerance | None = None
) -> Comparison:
    """``found`` against what the case expects of ``output``, whose ``value`` it must name.

    ``tolerance`` replaces that of the case; integers and booleans are always compared exactly.
    """
    limits = tolerance_of_output(case.spec, output)
    if output.dtype in _EXACT_DTYPES:
        tolerance = EXACT
    elif tolerance is None:
        tolerance = Tolerance(limits.rtol, limits.atol, True, limits.merged_nan)
    expected = case.value(f"expect_{output.value}")
    if not output.read_as:
        expected = expected.reshape(output.shape)
    return compare(found, expected, tolerance)


def tolerance_of_output(spec: CaseFile, output: CaseOutput) -> CaseTolerance:
    """The output's own tolerance, else the case's."""
    return output.tolerance or spec.tolerance


def output_place(
    case: Case,
    output: CaseOutput,
    placed: dict[str, PlacedBuffer],
    launched: Sequence[LaunchedKernel],
) -> OutputPlace:
    """Where an output lies, and which of the launched kernels wrote it."""
    tensor = placed[output.buffer].tensor
    assert tensor is not None

    def writer(stick: Index) -> CorePlace | None:
        return _last_writer(tensor, stick, launched)

    return OutputPlace(
        tensor.layout,
        tensor.sizes,
        tensor.strides,
        tensor.address_bytes,
        writer,
        output.stride,
        output.storage_offset,
    )


def _last_writer(
    tensor: DeviceTensor, stick: Index, launched: Sequence[LaunchedKernel]
) -> CorePlace | None:
    """Who wrote a stick last, over all kernels of the case; None where that is not known."""
    for done in reversed(launched):
        place = done.lookup.writer_of_stick(tensor.layout, tensor.address_bytes, stick)
        if place is None:
            return None
        if place.execute is not None:
            return replace(place, execute=place.execute + done.first_execute)
    return CorePlace(None)


def _result(
    case: Case,
    device: Device,
    placed: dict[str, PlacedBuffer],
    launched: Sequence[LaunchedKernel],
    outputs: tuple[HostTensor, ...],
    places: tuple[OutputPlace, ...],
) -> RunResult:
    reports = tuple(report for done in launched for report in done.reports)
    findings = [finding for done in launched for finding in done.findings]
    checks = [done.verification for done in launched if done.verification is not None]
    findings += [finding for check in checks for finding in check.findings]
    return RunResult(
        outputs=tuple(tensor.to_values() for tensor in outputs),
        output_tensors=outputs,
        inputs=(),
        executes=reports,
        counters=reduce(add, (report.counters for report in reports), Counters()),
        findings=tuple(dict.fromkeys(findings)),
        arguments=tuple(_arguments(case, placed)),
        places=places,
        verification=reduce(add, checks) if checks else None,
        launches=tuple(done.launch for done in launched if done.launch is not None),
        hbm_bytes=device.allocated_bytes,
    )


def _arguments(case: Case, placed: dict[str, PlacedBuffer]) -> list[PlacedArgument]:
    aliases = {name for name, b in case.spec.buffers.items() if b.alias_of is not None}
    tensors = [
        (name, where.tensor)
        for name, where in placed.items()
        if where.tensor is not None and name not in aliases
    ]
    return [
        PlacedArgument(
            ArgumentSpec(
                k,
                name,
                _ROLES.get(case.spec.buffers[name].kind, Role.INPUT_OUTPUT),
                tensor.sizes,
                tensor.dtype,
                tensor.layout,
                tensor.strides,
            ),
            tensor.address_bytes,
        )
        for k, (name, tensor) in enumerate(tensors)
    ]
