"""A bundle or a case placed on a device, ready to be launched as a whole or step by step.

`spyre-run` launches through :mod:`.session` and :mod:`.case_run`; what needs two devices side by
side, such as a comparison of number modes, takes a `Subject` per device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy.typing as npt

from spyre.dtypes import FORMATS, find_host_dtype
from spyre.errors import Finding
from spyre.hw.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceTensor
from spyre.runtime.arguments import HostTensor, Inputs, prepare_inputs
from spyre.runtime.cases import Case, CaseOutput
from spyre.runtime.compare import OutputLocation, Tolerance, WriterLookup
from spyre.runtime.kernel import Kernel, Launch
from spyre.runtime.program import load_source
from spyre.runtime.run import (
    BundleLike,
    RunOptions,
    bind_launch,
    compare_with_case,
    output_place,
    place_buffers,
    placed,
    read_output as read_case_output,
    session_of,
)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LoadedOutput:
    """An output: ``read`` gives its numbers as they are on the device, floats as float32.

    ``agrees``: whether such numbers are within the tolerance of what is expected, if known.
    """

    name: str
    data_format: str
    read: Callable[[], HostTensor]
    place: OutputLocation
    agrees: Callable[[Array], bool] | None = None


@dataclass(frozen=True)
class LoadedProgram:
    """Kernels to launch in order on one device, whose inputs are in place, and their outputs."""

    device: Device
    launches: tuple[tuple[Kernel, Launch], ...]
    outputs: tuple[LoadedOutput, ...]
    findings: tuple[Finding, ...] = ()

    def launch(self) -> None:
        """Launch every kernel."""
        for kernel, launch in self.launches:
            kernel.launch(launch)

    def read_outputs(self) -> tuple[Array, ...]:
        """What the outputs hold now."""
        return tuple(output.read().to_values() for output in self.outputs)


@contextmanager
def load_bundle_program(
    device: Device,
    bundle: BundleLike,
    inputs: Inputs,
    options: RunOptions,
    agrees: Sequence[Callable[[Array], bool]] = (),
) -> Iterator[LoadedProgram]:
    """A bundle with its inputs transferred; memory is freed at the end. Errors as of `run`.

    ``agrees``: per output, or none.
    """
    session = session_of(device)
    prepared = session.prepare(bundle)
    findings = prepared.check() if options.check else ()
    arguments = prepared.arguments(options)
    tensors = prepare_inputs(arguments.inputs, inputs, options.seed)
    with placed(device, arguments, prepared.bundle.program) as placement:
        session.copy_inputs(arguments, tensors, placement)
        kernel, launch = prepared.kernel.kernel, prepared.launch_of(placement, options)
        lookup = WriterLookup(kernel.link(launch))
        outputs = []
        for k, spec in enumerate(arguments.outputs):
            tensor_on_device = placement.tensors[spec.arg_index]
            base = tensor_on_device.address_bytes
            writer = partial(lookup.writer_of_stick, spec.layout, base)
            place = OutputLocation(spec.layout, spec.shape, spec.strides, base, writer)
            read = partial(session.stream.to_host, _wide(tensor_on_device))
            judge = agrees[k] if agrees else None
            outputs.append(LoadedOutput(spec.name, spec.layout.device_dtype, read, place, judge))
        found = (*arguments.findings, *findings)
        yield LoadedProgram(device, ((kernel, launch),), tuple(outputs), found)


def _wide(tensor: DeviceTensor) -> DeviceTensor:
    """The tensor as one of float32, which holds every float of the device exactly."""
    floats = FORMATS[tensor.layout.device_dtype].computed
    if floats and find_host_dtype(tensor.dtype).name != "bool":
        return replace(tensor, dtype="float32")
    return tensor


def load_case_program(
    device: Device, case: Case, tolerance: Tolerance | None = None
) -> LoadedProgram:
    """A case with its buffers in place on ``device``, which is reset first.

    ``tolerance`` replaces that of the case.
    """
    device.reset()
    buffers = place_buffers(case, device)
    kernels: list[tuple[Kernel, Launch]] = []
    programs: list[tuple[LinkedProgram, int]] = []
    findings: list[Finding] = []
    first = 0
    for spec in case.spec.launches:
        bundle = load_source(case.directory / spec.bundle)
        findings += bundle.check(raise_on_error=True)
        kernel, launch = Kernel(bundle, device), bind_launch(spec, buffers)
        linked = kernel.link(launch)
        kernels.append((kernel, launch))
        programs.append((linked, first))
        first += len(linked.view.statements)
    outputs = tuple(
        LoadedOutput(
            output.buffer,
            _device_format(buffers[output.buffer].tensor),
            partial(read_case_output, case, output, device, buffers),
            output_place(case, output, buffers, programs),
            partial(_agrees_with_case, case, output, tolerance),
        )
        for output in case.spec.outputs
    )
    return LoadedProgram(device, tuple(kernels), outputs, tuple(dict.fromkeys(findings)))


def _agrees_with_case(
    case: Case, output: CaseOutput, tolerance: Tolerance | None, values: Array
) -> bool:
    return compare_with_case(case, output, values, tolerance).ok


def _device_format(tensor: DeviceTensor | None) -> str:
    assert tensor is not None
    return tensor.layout.device_dtype


def first_executes(subject: LoadedProgram) -> Sequence[int]:
    """Number of each kernel's first execute statement among those of all kernels."""
    firsts = [0]
    for kernel, _ in subject.launches:
        firsts.append(firsts[-1] + len(kernel.bundle.program.executes))
    return firsts[:-1]
