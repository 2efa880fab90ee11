"""Replaying a case: transfer its buffers, launch its kernels in order, read back and compare.

LX and pool keep their contents between the launches of a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.errors import Finding, LaunchError
from spyre.hw.counters import Counters
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.executor import Progress
from spyre.hw.sanitizer.cover import Expected
from spyre.hw.transfer import HostView
from spyre.mlir.bundle import load_bundle
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.case_file import Case, CaseBuffer, CaseLaunch, CaseOutput
from spyre.runtime.core_lookup import CoreLookup
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.launch_spec import Role
from spyre.runtime.run_result import ExecuteReport, PlacedArgument, RunResult, report_executes
from spyre.runtime.sanitized import (
    label_launch,
    next_record,
    observed,
    take_findings,
    viewed_output,
)
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
class PlacedBuffer:
    """Where a buffer of the case lies on the device: a tensor, or raw pool memory."""

    tensor: DeviceTensor | None
    pool: PoolBuffer | None


@dataclass(frozen=True)
class _Launched:
    """A kernel that ran. ``first_execute``: its first execute's number among those of the case."""

    lookup: CoreLookup
    reports: tuple[ExecuteReport, ...]
    findings: tuple[Finding, ...]
    first_execute: int


def run_case(
    case: Case,
    device: Device,
    *,
    timed: bool = False,
    tolerance: Tolerance | None = None,
    progress: Progress | None = None,
) -> CaseRun:
    """Run ``case`` on ``device``, which is reset first.

    ``tolerance`` replaces that of the case. Raises the SpyreErrors of reading, checking, binding
    and running the kernels; wrong numbers are no error but a comparison that is not ok.
    """
    device.reset()
    placed = place_buffers(case, device)
    first_record = next_record(device)
    launched: list[_Launched] = []
    for index in range(len(case.spec.launches)):
        first = sum(len(done.reports) for done in launched)
        with observed(device):
            launched.append(_launch(case, index, first, device, placed, timed, progress))
    places = tuple(_output_place(case, output, placed, launched) for output in case.spec.outputs)
    found = tuple(_read_output(case, output, device, placed) for output in case.spec.outputs)
    comparisons = tuple(
        _compare(case, output, values, tolerance)
        for output, values in zip(case.spec.outputs, found, strict=True)
    )
    result = _result(case, placed, launched, found, places)
    sanitizer = take_findings(device, _expected_outputs(case, placed), first_record)
    return CaseRun(result.with_sanitizer(sanitizer), comparisons)


def _expected_outputs(case: Case, placed: Mapping[str, PlacedBuffer]) -> Iterator[Expected]:
    """The outputs that start with undefined contents."""
    for output in case.spec.outputs:
        tensor = placed[output.buffer].tensor
        if tensor is not None and case.spec.buffers[output.buffer].kind == "output":
            yield viewed_output(tensor, output)


def place_buffers(case: Case, device: Device) -> dict[str, PlacedBuffer]:
    """Allocate every buffer of a case and transfer what it starts with."""
    placed = {name: _place(device, name, b) for name, b in case.spec.buffers.items()}
    for name, buffer in case.spec.buffers.items():
        _fill(case, device, buffer, placed[name].tensor)
    return placed


def _place(device: Device, name: str, buffer: CaseBuffer) -> PlacedBuffer:
    if buffer.layout is None:
        return PlacedBuffer(None, PoolBuffer(device.allocate(buffer.nbytes), buffer.nbytes))
    layout = buffer.layout.to_layout()
    address = device.allocate(layout.device_bytes)
    extents = (buffer.dma_sizes, buffer.dma_strides)
    return PlacedBuffer(DeviceTensor(name, address, layout, buffer.dtype, *extents), None)


def _fill(case: Case, device: Device, buffer: CaseBuffer, tensor: DeviceTensor | None) -> None:
    if tensor is None:
        return
    if buffer.device_image is not None:
        image = case.image(buffer.device_image).view(np.uint8).ravel()
        if image.size > tensor.size_bytes:
            raise LaunchError(
                "SPY371",
                f"the device image of {tensor.name} is larger than the tensor",
                expected=f"at most {tensor.size_bytes} bytes",
                found=f"{image.size} bytes",
            )
        device.memory.write(tensor.address_bytes, image, tensor.name)
    if buffer.value is not None:
        storage = _host_storage(buffer, case.value(buffer.value))
        dtype = buffer.host.dtype or buffer.dtype
        extents = (buffer.dma_sizes, buffer.dma_strides)
        device.upload(tensor, HostView.dense(storage, dtype, *extents))


def _host_storage(buffer: CaseBuffer, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1-D host storage in which element (i0, …) sits at Σ i·dma_stride."""
    storage = np.zeros(_extent(buffer.dma_sizes, buffer.dma_strides), array.dtype)
    shape = buffer.shape if buffer.host.shape is None else buffer.host.shape
    stride = buffer.stride if buffer.host.stride is None else buffer.host.stride
    view = _view(storage, shape, stride, buffer.host.storage_offset)
    view[...] = array.reshape(shape)
    return storage


def _extent(sizes: Index, strides: Index) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _view(storage: npt.NDArray[Any], shape: Index, stride: Index, offset: int) -> npt.NDArray[Any]:
    """A strided view that must stay inside ``storage``."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if not 0 <= offset <= last < storage.size:
        raise LaunchError(
            "SPY371",
            "a view in the case does not lie within its buffer",
            expected=f"elements 0 to {storage.size - 1}",
            found=f"elements {offset} to {last}",
        )
    steps = tuple(s * storage.itemsize for s in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def _launch(
    case: Case,
    index: int,
    first_execute: int,
    device: Device,
    placed: dict[str, PlacedBuffer],
    timed: bool,
    progress: Progress | None,
) -> _Launched:
    spec = case.spec.launches[index]
    bundle = load_bundle(case.directory / spec.bundle)
    findings = bundle.check(raise_on_error=True)
    label_launch(device, first_execute, spec.bundle)
    kernel, launch = Kernel(bundle, device), bind_launch(spec, placed)
    linked = kernel.link(launch)
    elapsed_ns = None
    if timed:
        device.executor.warm(linked)
        elapsed_ns = kernel.launch_timed(launch, progress)
    else:
        kernel.launch(launch)
    operations = [bundle.operations[execute.sdsc_filename] for execute in linked.program.executes]
    reports = tuple(
        _renumbered(report, first_execute, spec.bundle)
        for report in report_executes(linked, operations, elapsed_ns)
    )
    return _Launched(CoreLookup(linked, kernel.bind(launch)), reports, findings, first_execute)


def _renumbered(report: ExecuteReport, first: int, directory: str) -> ExecuteReport:
    sdsc = report.sdsc if directory in ("", ".") else f"{directory}/{report.sdsc}"
    return replace(report, index=first + report.index, sdsc=sdsc)


def bind_launch(spec: CaseLaunch, placed: Mapping[str, PlacedBuffer]) -> Launch:
    """What a launch of a case is given."""
    tensors: dict[int, DeviceTensor] = {}
    pool = None
    for name, index in zip(spec.args, spec.arg_index, strict=True):
        where = placed[name]
        if where.tensor is None:
            pool = where.pool
        else:
            tensors[index] = where.tensor
    return Launch(tensors, pool)


def _read_output(
    case: Case, output: CaseOutput, device: Device, placed: dict[str, PlacedBuffer]
) -> HostTensor:
    """The output as the framework shows it: floats as float32, integers as they are."""
    buffer, tensor = case.spec.buffers[output.buffer], placed[output.buffer].tensor
    assert tensor is not None
    kind = find_host_dtype(output.dtype)
    is_float = kind.device_format in ("SEN169_FP16", "IEEE_FP32") and kind.name != "bool"
    through = "float32" if is_float else kind.name
    dtype = np.dtype(find_host_dtype(through).storage_dtype)
    storage = np.zeros(_extent(buffer.dma_sizes, buffer.dma_strides), dtype)
    device.download(tensor, HostView.dense(storage, through, buffer.dma_sizes, buffer.dma_strides))
    values = _view(storage, output.shape, output.stride, output.storage_offset)
    return HostTensor.from_array(output.buffer, values.copy(), through)


def _compare(
    case: Case, output: CaseOutput, found: HostTensor, tolerance: Tolerance | None
) -> Comparison:
    limits = case.spec.tolerance
    if output.dtype in _EXACT_DTYPES:
        tolerance = EXACT
    elif tolerance is None:
        tolerance = Tolerance(limits.rtol, limits.atol, equal_nan=True)
    expected = case.value(f"expect_{output.value}").reshape(output.shape)
    return compare(found.to_array(), expected, tolerance)


def _output_place(
    case: Case, output: CaseOutput, placed: dict[str, PlacedBuffer], launched: Sequence[_Launched]
) -> OutputPlace:
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
    tensor: DeviceTensor, stick: Index, launched: Sequence[_Launched]
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
    placed: dict[str, PlacedBuffer],
    launched: Sequence[_Launched],
    outputs: tuple[HostTensor, ...],
    places: tuple[OutputPlace, ...],
) -> RunResult:
    reports = tuple(report for done in launched for report in done.reports)
    findings = (finding for done in launched for finding in done.findings)
    return RunResult(
        outputs=tuple(tensor.to_values() for tensor in outputs),
        output_tensors=outputs,
        inputs=(),
        executes=reports,
        counters=reduce(add, (report.counters for report in reports), Counters()),
        findings=tuple(dict.fromkeys(findings)),
        arguments=tuple(_arguments(case, placed)),
        places=places,
    )


def _arguments(case: Case, placed: dict[str, PlacedBuffer]) -> list[PlacedArgument]:
    tensors = [(name, where.tensor) for name, where in placed.items() if where.tensor is not None]
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
