"""Replaying a case: place and transfer its buffers, launch its kernels in order, read back and
compare.

LX and pool keep their contents between the launches of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import FORMATS, find_host_dtype
from spyre.errors import Finding, LaunchError
from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device, Progress
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceTensor
from spyre.hw.sanitizer import ExpectedOutput
from spyre.layout import transfer_geometry, viewed_sticks
from spyre.runtime.arguments import ArgumentSpec, HostTensor
from spyre.runtime.cases import Case, CaseBuffer, CaseFile, CaseLaunch, CaseOutput, CaseTolerance
from spyre.runtime.compare import (
    EXACT,
    Comparison,
    Index,
    OutputLocation,
    StickWriter,
    Tolerance,
    WriterLookup,
    compare,
)
from spyre.runtime.flex import BlockingStream, LoadedKernel, flex_device_of
from spyre.runtime.kernel import ExecutedLaunch, Kernel, Launch, PoolBuffer, Runner
from spyre.runtime.program import LayoutSpec, Role, load_source
from spyre.runtime.run.result import (
    PlacedArgument,
    RunResult,
    next_record,
    observed,
    take_findings,
    whole_output,
)
from spyre.runtime.run.session import RunOptions, launch_runner

if TYPE_CHECKING:
    from spyre.hw.sanitizer import ExpectedOutput


Programs = Sequence[tuple[LinkedProgram, int]]
"""What a case launches, in order: each with the number of its first execute among those of all."""


@dataclass(frozen=True)
class PlacedBuffer:
    """Where a buffer of the case lies on the device: a tensor, or raw pool memory."""

    tensor: DeviceTensor | None
    pool: PoolBuffer | None


def place_buffers(case: Case, device: Device) -> dict[str, PlacedBuffer]:
    """Allocate every buffer of a case and transfer what it starts with."""
    buffers = case.spec.buffers
    placed = {n: _place_buffer(device, n, b) for n, b in buffers.items() if b.alias_of is None}
    for name, buffer in buffers.items():
        if buffer.alias_of is not None:
            placed[name] = _place_alias(name, buffer, placed[buffer.alias_of])
    stream = flex_device_of(device).blocking
    for name, buffer in buffers.items():
        _fill_buffer(case, stream, buffer, placed[name].tensor)
    return placed


def _place_buffer(device: Device, name: str, buffer: CaseBuffer) -> PlacedBuffer:
    if buffer.layout is None:
        address = device.allocate(buffer.nbytes, buffer.region)
        return PlacedBuffer(None, PoolBuffer(address, buffer.nbytes))
    address = device.allocate(buffer.layout.to_layout().device_bytes, buffer.region)
    return PlacedBuffer(_device_tensor(name, buffer, buffer.layout, address), None)


def _place_alias(name: str, buffer: CaseBuffer, target: PlacedBuffer) -> PlacedBuffer:
    assert buffer.layout is not None
    assert target.tensor is not None
    return PlacedBuffer(
        _device_tensor(name, buffer, buffer.layout, target.tensor.address_bytes), None
    )


def _device_tensor(name: str, buffer: CaseBuffer, layout: LayoutSpec, address: int) -> DeviceTensor:
    extents = (buffer.dma_sizes, buffer.dma_strides)
    return DeviceTensor(name, address, layout.to_layout(), buffer.dtype, *extents)


def _fill_buffer(
    case: Case, stream: BlockingStream, buffer: CaseBuffer, tensor: DeviceTensor | None
) -> None:
    if tensor is None:
        return
    if buffer.device_image is not None:
        image = case.image(buffer.device_image).view(np.uint8).ravel()
        stream.write_bytes(tensor.address_bytes, image, tensor.name)
    if buffer.value is not None:
        storage = _host_storage(buffer, case.value(buffer.value))
        dtype = buffer.host.dtype or buffer.dtype
        extents = (tuple(buffer.dma_sizes), tuple(buffer.dma_strides))
        stream.to_device(HostTensor(tensor.name, dtype, *extents, 0, storage), tensor)


def _host_storage(buffer: CaseBuffer, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1-D host storage in which element (i0, …) sits at Σ i·dma_stride."""
    storage = _zeros(buffer, array.dtype)
    shape = buffer.shape if buffer.host.shape is None else buffer.host.shape
    stride = buffer.stride if buffer.host.stride is None else buffer.host.stride
    view = _strided_view(storage, shape, stride, buffer.host.storage_offset)
    view[...] = array.reshape(shape)
    return storage


def _zeros(buffer: CaseBuffer, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Host storage that the buffer's transfers reach. LaunchError SPY382 without memory for it."""
    sizes, strides = buffer.dma_sizes, buffer.dma_strides
    elements = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    try:
        return np.zeros(max(elements, 0), dtype)
    except MemoryError as error:
        raise LaunchError(
            "SPY382", "no memory for a buffer of the case", found=f"{elements} elements"
        ) from error


def _strided_view(
    storage: npt.NDArray[Any], shape: Index, stride: Index, offset: int
) -> npt.NDArray[Any]:
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
    return Launch(tensors, pool, spec.values)


def read_output(
    case: Case, output: CaseOutput, device: Device, placed: dict[str, PlacedBuffer]
) -> HostTensor:
    """The output as the case wants it read, by default floats as float32, integers as they are."""
    buffer, tensor = case.spec.buffers[output.buffer], placed[output.buffer].tensor
    assert tensor is not None
    kind = find_host_dtype(output.dtype)
    is_float = FORMATS[kind.device_format].computed and kind.name != "bool"
    through = output.read_as or ("float32" if is_float else kind.name)
    dtype = np.dtype(find_host_dtype(through).storage_dtype)
    storage = _zeros(buffer, dtype)
    extents = (tuple(buffer.dma_sizes), tuple(buffer.dma_strides))
    stream = flex_device_of(device).blocking
    stream.to_host(tensor, HostTensor(tensor.name, through, *extents, 0, storage))
    values = _strided_view(storage, output.shape, output.stride, output.storage_offset)
    return HostTensor.from_array(output.buffer, values.copy(), through)


_EXACT_DTYPES = ("bool", "int64", "int32")
_ROLES = {"input": Role.INPUT, "output": Role.OUTPUT}


@dataclass(frozen=True)
class CaseRun:
    """What a case computed, and how each of its outputs compares with what it expects."""

    result: RunResult
    comparisons: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        return all(comparison.ok for comparison in self.comparisons)


def run_case(
    case: Case,
    device: Device,
    *,
    timed: bool = False,
    progress: Progress | None = None,
    verify_points: int | None = None,
    runner: Callable[[ExecuteLabels], Runner] | None = None,
) -> CaseRun:
    """Run ``case`` on ``device``, which is reset first.

    ``verify_points``: verify every execute of at most so many points. ``runner``: makes what runs
    each launch, in place of these. Raises the SpyreErrors of
    reading, checking, binding and running the kernels, MismatchError SPY620 of verifying; wrong
    outputs are no error but a comparison that is not ok.
    """
    device.reset()
    kernels, findings = _load_kernels(case, device)
    placed = place_buffers(case, device)
    first_record = next_record(device)
    options = RunOptions(
        timed=timed, progress=progress, verify=verify_points is not None, runner=runner
    )
    if verify_points is not None:
        options = replace(options, verify_points=verify_points)
    launched: list[ExecutedLaunch] = []
    first = 0
    for spec in case.spec.launches:
        label = ExecuteLabels(first, spec.bundle)
        with observed(device):
            launched.append(_launch_kernel(kernels[spec.bundle], spec, label, placed, options))
        first += len(launched[-1].linked.view.statements)
    programs = [(done.linked, done.label.first_execute) for done in launched]
    places = tuple(output_place(case, output, placed, programs) for output in case.spec.outputs)
    outputs = tuple(read_output(case, output, device, placed) for output in case.spec.outputs)
    comparisons = tuple(
        compare_with_case(case, output, values.to_values())
        for output, values in zip(case.spec.outputs, outputs, strict=True)
        if output.value is not None
    )
    result = _case_result(case, device, placed, launched, outputs, places, findings)
    sanitizer = take_findings(device, _expected_outputs(case, placed), first_record)
    return CaseRun(result.with_sanitizer(sanitizer), comparisons)


def _expected_outputs(case: Case, placed: Mapping[str, PlacedBuffer]) -> Iterator[ExpectedOutput]:
    """The outputs that start with undefined contents."""
    for output in case.spec.outputs:
        tensor = placed[output.buffer].tensor
        if tensor is not None and case.spec.buffers[output.buffer].kind == "output":
            yield viewed_output(tensor, output)


def _load_kernels(
    case: Case, device: Device
) -> tuple[dict[str, LoadedKernel], tuple[Finding, ...]]:
    """Every bundle of the case once, its scratch memory reserved, and findings on all of them."""
    stream = flex_device_of(device).blocking
    kernels: dict[str, LoadedKernel] = {}
    findings: list[Finding] = []
    for name in dict.fromkeys(launch.bundle for launch in case.spec.launches):
        bundle = load_source(case.directory / name)
        findings += bundle.check(raise_on_error=True)
        kernel = Kernel(bundle, device)
        kernels[name] = stream.load(kernel)
        kernel.reserve_scratch()
    return kernels, tuple(findings)


def _launch_kernel(
    loaded: LoadedKernel,
    spec: CaseLaunch,
    label: ExecuteLabels,
    placed: dict[str, PlacedBuffer],
    options: RunOptions,
) -> ExecutedLaunch:
    device = loaded.kernel.device
    if device.sanitizer is not None:
        device.sanitizer.label = label
    runner = launch_runner(device, options, label)
    launch = bind_launch(spec, placed)
    executed = flex_device_of(device).blocking.launch(loaded, launch, runner)
    return replace(executed, label=label)


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
    programs: Programs,
) -> OutputLocation:
    """Where an output lies, and which of ``programs`` wrote it."""
    tensor = placed[output.buffer].tensor
    assert tensor is not None

    def writer(stick: Index) -> StickWriter | None:
        return _last_writer(tensor, stick, programs)

    return OutputLocation(
        tensor.layout,
        tensor.sizes,
        tensor.strides,
        tensor.address_bytes,
        writer,
        output.stride,
        output.storage_offset,
    )


def _last_writer(tensor: DeviceTensor, stick: Index, programs: Programs) -> StickWriter | None:
    """Who wrote a stick last, over all launches of the case; None where that is not known."""
    for linked, first_execute in reversed(programs):
        lookup = WriterLookup(linked)
        writer = lookup.writer_of_stick(tensor.layout, tensor.address_bytes, stick)
        if writer is None:
            return None
        if writer.execute is not None:
            return replace(writer, execute=writer.execute + first_execute)
    return StickWriter(None)


def _case_result(
    case: Case,
    device: Device,
    placed: dict[str, PlacedBuffer],
    launched: Sequence[ExecutedLaunch],
    outputs: tuple[HostTensor, ...],
    places: tuple[OutputLocation, ...],
    findings: tuple[Finding, ...],
) -> RunResult:
    checks = [done.verification for done in launched if done.verification is not None]
    not_verified = (finding for check in checks for finding in check.findings)
    return RunResult(
        outputs=tuple(tensor.to_values() for tensor in outputs),
        output_tensors=outputs,
        inputs=(),
        findings=tuple(dict.fromkeys((*findings, *not_verified))),
        arguments=tuple(_arguments(case, placed)),
        places=places,
        verification=reduce(add, checks) if checks else None,
        launches=tuple(launched),
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


def viewed_output(tensor: DeviceTensor, output: CaseOutput) -> ExpectedOutput:
    """An output of a case, which may be a view of its buffer."""
    if prod(output.shape) == prod(tensor.sizes):
        return whole_output(tensor)
    geometry = transfer_geometry(tensor.layout, tensor.sizes, tensor.strides)
    from spyre.hw.sanitizer import ExpectedOutput

    sticks = viewed_sticks(geometry, output.shape, output.stride, output.storage_offset)
    return ExpectedOutput(tensor, sticks)
