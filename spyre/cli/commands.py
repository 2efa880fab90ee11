"""What ``spyre-run`` does: diagnose, explain, or run and compare.

Every command gathers frozen results and hands them to a report; nothing is printed here but
through :mod:`.text_report` and :mod:`.json_report`. Diagnosing and explaining import no numba.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.cli.options import Options
from spyre.cli.outcomes import ComparedRun, Diagnosis
from spyre.errors import Finding, Severity, SpyreError, ValidationError
from spyre.mlir.bundle import Bundle, load_bundle
from spyre.runtime.case_file import case_directory, read_case

if TYPE_CHECKING:
    from spyre.hw.device import Device
    from spyre.runtime.host_tensor import HostTensor
    from spyre.runtime.run_result import RunResult
    from spyre.runtime.verify import Comparison, Tolerance


def execute(options: Options) -> int:
    """Carry out a command line and print its report; returns the exit code."""
    if options.check or options.explain:
        diagnosis = diagnose(options)
        _print_diagnosis(diagnosis, options)
        return diagnosis.exit_code
    compared = run_and_compare(options)
    _print_run(compared)
    return compared.exit_code


def _print_diagnosis(diagnosis: Diagnosis, options: Options) -> None:
    if options.json:
        from spyre.cli.json_report import diagnosis_object, print_object

        print_object(diagnosis_object(diagnosis))
    else:
        from spyre.cli.text_report import print_diagnosis

        print_diagnosis(diagnosis, options)


def _print_run(compared: ComparedRun) -> None:
    if compared.options.json:
        from spyre.cli.json_report import print_object, run_object

        print_object(run_object(compared))
    else:
        from spyre.cli.text_report import print_run

        print_run(compared)


# --- diagnosing -------------------------------------------------------------------------------


def diagnose(options: Options) -> Diagnosis:
    """All findings of a bundle, or of every kernel of a case."""
    directory = case_directory(options.path)
    if directory is None or (directory / "bundle.mlir").is_file():
        return diagnose_bundle(options.path, options)
    try:
        launches = read_case(directory).spec.launches
    except SpyreError as error:
        return Diagnosis(options.path, (error.finding,))
    bundles = dict.fromkeys(launch.bundle for launch in launches)
    found = [diagnose_bundle(str(directory / name), options) for name in bundles]
    explanations = tuple(
        (f"{name}/{sdsc}", text)
        for name, diagnosis in zip(bundles, found, strict=True)
        for sdsc, text in diagnosis.explanations
    )
    return Diagnosis(options.path, tuple(f for d in found for f in d.findings), explanations)


def diagnose_bundle(path: str, options: Options) -> Diagnosis:
    """All findings of a bundle, those that keep it from being read included."""
    try:
        bundle = load_bundle(path)
    except ValidationError as error:
        return Diagnosis(path, error.findings)
    except SpyreError as error:
        return Diagnosis(path, (error.finding,))
    findings = bundle.check() if options.check else ()
    if any(f.severity is Severity.ERROR for f in findings):
        return Diagnosis(path, findings)
    findings += _argument_findings(bundle, options) if options.check else ()
    return Diagnosis(path, findings, _explanations(bundle) if options.explain else ())


def _argument_findings(bundle: Bundle, options: Options) -> tuple[Finding, ...]:
    """What a run would meet before it starts: unknown operations, arguments that do not fit."""
    from spyre.hw.core_plan import require_op
    from spyre.runtime.bundle_arguments import read_arguments

    findings = []
    for name in bundle.sdscs:
        try:
            require_op(bundle.operation(name))
        except SpyreError as error:
            findings.append(replace(error.finding, severity=Severity.WARNING))
    try:
        findings += read_arguments(bundle, dict(options.values)).findings
    except SpyreError as error:
        findings.append(error.finding)
    return tuple(dict.fromkeys(findings))


def _explanations(bundle: Bundle) -> tuple[tuple[str, str], ...]:
    from spyre.mlir.explain import explain_operation

    return tuple((name, str(explain_operation(bundle.operation(name)))) for name in bundle.sdscs)


# --- running ----------------------------------------------------------------------------------


def run_and_compare(options: Options) -> ComparedRun:
    """Run a case, or a bundle, and compare; saves the outputs if asked to.

    A directory with a ``case.json`` is a case unless tensors are given for its one kernel.
    SpyreErrors as of `spyre.runtime.session.run` and of the files.
    """
    directory = case_directory(options.path)
    if directory is not None and not (options.inputs or options.expected or options.shapes):
        compared = replay_case(directory, options)
    else:
        compared = run_bundle(options)
    if options.save_output is not None:
        from spyre.cli.tensors import save_outputs

        save_outputs(options.save_output, compared.result.output_tensors)
    return compared


def make_device(options: Options) -> Device:
    """The device the options ask for."""
    from spyre.hw.device import Device

    return Device(
        options.numerics,
        options.threads,
        sanitize=options.sanitize,
        poison=options.poison,
        core_order=options.core_order,
    )


def replay_case(directory: Path, options: Options) -> ComparedRun:
    """Launch the kernels of a case in order and compare with the outputs it expects."""
    from spyre.cli.progress import ProgressBar
    from spyre.runtime.case_run import run_case
    from spyre.runtime.verify import Tolerance

    case = read_case(directory)
    device = make_device(options)
    limits = case.spec.tolerance
    with ProgressBar(enabled=not options.quiet) as bar:
        done = run_case(
            case,
            device,
            timed=True,
            tolerance=_override(options, Tolerance(limits.rtol, limits.atol)),
            progress=bar.update,
        )
    return ComparedRun(options, done.result, done.comparisons, device.numerics.mode)


def run_bundle(options: Options) -> ComparedRun:
    """Run a bundle on the inputs given (else random ones) and compare with what is expected."""
    from spyre.cli.progress import ProgressBar
    from spyre.cli.tensors import load_expected, load_inputs
    from spyre.runtime.host_tensor import parse_tensor_spec
    from spyre.runtime.session import RunOptions, Session

    shapes = tuple(parse_tensor_spec(text) for text in options.shapes)
    session = Session(make_device(options))
    run = RunOptions(
        seed=options.seed,
        values=dict(options.values),
        timed=True,
        shapes=shapes,
        strides=dict(options.strides),
        aliases=dict(options.aliases),
    )
    arguments = session.arguments(options.path, run)
    inputs = load_inputs(options.inputs, arguments.inputs) if options.inputs else None
    expected = load_expected(options.expected, arguments.outputs) if options.expected else ()
    with ProgressBar(enabled=not options.quiet) as bar:
        result = session.run(options.path, inputs, replace(run, progress=bar.update))
    comparisons = tuple(
        compare_output(options, result, k, tensor) for k, tensor in enumerate(expected)
    )
    return ComparedRun(options, result, comparisons, session.device.numerics.mode)


def compare_output(options: Options, result: RunResult, k: int, expected: HostTensor) -> Comparison:
    """Output ``k`` against ``expected``; MismatchError SPY602 when their shapes differ."""
    from spyre.runtime.verify import compare

    return compare(result.outputs[k], expected.to_values(), tolerance_of(options, result, k))


def tolerance_of(options: Options, result: RunResult, k: int) -> Tolerance:
    """Tolerance of output ``k``: that of its dtype, unless the options say otherwise."""
    from spyre.runtime.verify import default_tolerance

    tensor, layout = result.output_tensors[k], result.places[k].layout
    stored = None if options.numerics == "ieee" else layout.device_dtype
    return _override(options, default_tolerance(tensor.dtype_name, stored))


def _override(options: Options, default: Tolerance) -> Tolerance:
    """``default`` with what the command line says instead."""
    from spyre.runtime.verify import EXACT

    if options.exact:
        return EXACT
    return replace(
        default,
        rtol=default.rtol if options.rtol is None else options.rtol,
        atol=default.atol if options.atol is None else options.atol,
    )
