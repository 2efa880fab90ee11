"""A run of a bundle or case by the options of a command line, compared with what is expected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.cli.options import Options
from spyre.cli.outcomes import ComparedRun
from spyre.cli.recorder import Recorder
from spyre.runtime.case_file import (
    CASE_FILE,
    CaseTolerance,
    case_directory,
    read_case,
    with_options,
    with_tolerances,
)

if TYPE_CHECKING:
    from spyre.cli.dump import Dump
    from spyre.hw.device import Device
    from spyre.runtime.host_tensor import HostTensor
    from spyre.runtime.run_result import RunResult
    from spyre.runtime.session import RunOptions, Session
    from spyre.runtime.verify import Comparison, Tolerance


def run_and_compare(options: Options, recorder: Recorder, dump: Dump | None = None) -> ComparedRun:
    """Run a case, or a bundle, and compare; saves the outputs if asked to. ``recorder`` watches
    the card; ``dump`` is told what runs before it does.

    A directory with a ``case.json`` is a case unless tensors are given for its one kernel.
    SpyreErrors as of `spyre.runtime.session.run` and of the files.
    """
    directory = case_directory(options.path)
    if directory is not None and not (options.inputs or options.expected or options.shapes):
        compared = replay_case(directory, options, recorder, dump)
    else:
        compared = run_bundle(options, recorder, dump)
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


def replay_case(
    directory: Path, options: Options, recorder: Recorder, dump: Dump | None = None
) -> ComparedRun:
    """Launch the kernels of a case in order and compare with the outputs it expects.

    Options the case has recorded hold where the command line does not give them.
    """
    from spyre.cli.dump import replayed_options, with_recorded
    from spyre.cli.progress import ProgressBar
    from spyre.runtime.case_run import run_case

    case = read_case(directory)
    options = with_recorded(options, case.spec.run, str(directory / CASE_FILE))
    recorder.require_times(options, directory / CASE_FILE)
    device = make_device(options)
    case = with_tolerances(case, partial(_override_limits, options))
    if dump is not None:
        recorded = replayed_options(replace(options, numerics=str(device.numerics)))
        dump.record(with_options(case, recorded))
    with recorder.watching(device), ProgressBar(enabled=not options.quiet) as bar:
        done = run_case(
            case,
            device,
            timed=True,
            progress=bar.update,
            verify_points=_verify_points(options) if options.verify else None,
        )
    return ComparedRun(options, done.result, done.comparisons, str(device.numerics))


def _verify_points(options: Options) -> int:
    from spyre.runtime.verification import DEFAULT_POINTS

    return DEFAULT_POINTS if options.verify_points is None else options.verify_points


def run_bundle(options: Options, recorder: Recorder, dump: Dump | None = None) -> ComparedRun:
    """Run a bundle on the inputs given (else random ones) and compare with what is expected."""
    from spyre.runtime.session import Session

    session = Session(make_device(options))
    with recorder.watching(session.device):
        return _run_in(session, options, dump)


def _run_in(session: Session, options: Options, dump: Dump | None) -> ComparedRun:
    from spyre.cli.progress import ProgressBar
    from spyre.cli.tensors import load_expected, load_inputs

    run = run_options(options)
    arguments = session.arguments(options.path, run)
    inputs = load_inputs(options.inputs, arguments.inputs) if options.inputs else None
    expected = load_expected(options.expected, arguments.outputs) if options.expected else ()
    if dump is not None:
        tolerances = [
            tolerance_of(options, a.dtype_name, a.layout.device_dtype) for a in arguments.outputs
        ]
        dump.record_run(options, session, arguments, inputs, expected, tolerances)
    with ProgressBar(enabled=not options.quiet) as bar:
        result = session.run(options.path, inputs, replace(run, progress=bar.update))
    comparisons = tuple(
        compare_output(options, result, k, tensor) for k, tensor in enumerate(expected)
    )
    return ComparedRun(options, result, comparisons, str(session.device.numerics))


def run_options(options: Options) -> RunOptions:
    """How a command line asks to run."""
    from spyre.runtime.host_tensor import parse_tensor_spec
    from spyre.runtime.session import RunOptions

    return RunOptions(
        seed=options.seed,
        values=dict(options.values),
        timed=True,
        shapes=tuple(parse_tensor_spec(text) for text in options.shapes),
        strides=dict(options.strides),
        aliases=dict(options.aliases),
        verify=options.verify,
        verify_points=_verify_points(options),
    )


def compare_output(options: Options, result: RunResult, k: int, expected: HostTensor) -> Comparison:
    """Output ``k`` against ``expected``; MismatchError SPY602 when their shapes differ."""
    from spyre.runtime.verify import compare

    dtype_name, layout = result.output_tensors[k].dtype_name, result.places[k].layout
    tolerance = tolerance_of(options, dtype_name, layout.device_dtype)
    return compare(result.outputs[k], expected.to_values(), tolerance)


def tolerance_of(options: Options, dtype_name: str, device_dtype: str) -> Tolerance:
    """Tolerance of an output: that of its dtype, unless the options say otherwise."""
    from spyre import config
    from spyre.hw.numerics import parse_numerics
    from spyre.runtime.verify import default_tolerance

    numerics = parse_numerics(options.numerics or config.NUMERICS.read())
    stored = None if numerics.mode == "ieee" else device_dtype
    return _override(options, default_tolerance(dtype_name, stored))


def _override_limits(options: Options, limits: CaseTolerance) -> CaseTolerance:
    """A case's limits with what the command line says instead."""
    if options.exact:
        return CaseTolerance(0.0, 0.0)
    return CaseTolerance(
        limits.atol if options.atol is None else options.atol,
        limits.rtol if options.rtol is None else options.rtol,
        limits.merged_nan,
    )


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
