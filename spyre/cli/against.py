"""``--against``: one program in two number modes, compared and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt

from spyre import config
from spyre.cli.against_report import print_report, report_object
from spyre.cli.json_report import print_object
from spyre.cli.options import Options
from spyre.cli.tensors import load_expected, load_inputs
from spyre.errors import Finding
from spyre.hw.device import Device
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.case_file import case_directory, read_case
from spyre.runtime.host_tensor import HostTensor, parse_tensor_spec
from spyre.runtime.mode_comparison import ModeReport, compare_modes
from spyre.runtime.session import RunOptions, session_of
from spyre.runtime.subject import Subject, bundle_subject, case_subject
from spyre.runtime.verify import EXACT, Tolerance, compare, default_tolerance

Array = npt.NDArray[Any]


def run_against(options: Options) -> int:
    """Compare ``--numerics`` with ``--against``, print the report, return the exit code."""
    first = parse_numerics(options.numerics or config.NUMERICS.read())
    second = parse_numerics(options.against or "")
    report, findings = compare_options(options, first, second)
    if options.json:
        print_object(report_object(options.path, report, findings))
    else:
        print_report(report, findings, options)
    return report.exit_code


def compare_options(
    options: Options, first: Numerics, second: Numerics
) -> tuple[ModeReport, tuple[Finding, ...]]:
    """The comparison a command line asks for, of a case or a bundle."""
    devices = [Device(numerics, options.threads) for numerics in (first, second)]
    directory = case_directory(options.path)
    if directory is not None and not (options.inputs or options.expected or options.shapes):
        case = read_case(directory)
        limits = case.spec.tolerance
        tolerance = _limits(options, Tolerance(limits.rtol, limits.atol))
        subjects = [case_subject(device, case, tolerance) for device in devices]
        return compare_modes(*subjects), subjects[0].findings
    return _compare_bundle(options, devices)


def _compare_bundle(
    options: Options, devices: Sequence[Device]
) -> tuple[ModeReport, tuple[Finding, ...]]:
    run = RunOptions(
        seed=options.seed,
        values=dict(options.values),
        shapes=tuple(parse_tensor_spec(text) for text in options.shapes),
        strides=dict(options.strides),
        aliases=dict(options.aliases),
    )
    arguments = session_of(devices[0]).arguments(options.path, run)
    inputs = load_inputs(options.inputs, arguments.inputs) if options.inputs else None
    agrees = _judges(options, arguments)

    def placed(device: Device) -> Any:
        return bundle_subject(device, options.path, inputs, run, agrees)

    with placed(devices[0]) as first, placed(devices[1]) as second:
        subject: Subject = first
        return compare_modes(subject, second), subject.findings


def _judges(options: Options, arguments: KernelArguments) -> list[Callable[[Array], bool]]:
    """Per output, whether values agree with the file given for it; none without ``-o``."""
    if not options.expected:
        return []
    expected = load_expected(options.expected, arguments.outputs)
    return [
        partial(
            _agrees,
            tensor,
            _limits(options, default_tolerance(spec.dtype_name, spec.layout.device_dtype)),
        )
        for spec, tensor in zip(arguments.outputs, expected, strict=True)
    ]


def _agrees(expected: HostTensor, tolerance: Tolerance, values: Array) -> bool:
    return compare(values, expected.to_values(), tolerance).ok


def _limits(options: Options, default: Tolerance) -> Tolerance:
    if options.exact:
        return EXACT
    return replace(
        default,
        rtol=default.rtol if options.rtol is None else options.rtol,
        atol=default.atol if options.atol is None else options.atol,
    )
