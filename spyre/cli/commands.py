"""What ``spyre-run`` does when it runs something: a bundle or a case, compared; or only warmed up.

Every command gathers frozen results and hands them to a report; nothing is printed here but through
:mod:`.text_report`, :mod:`.json_report` and the :mod:`.recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from spyre import config
from spyre.cli.causes import (
    address_findings,
    causes_of_difference,
    causes_of_fault,
    findings_before,
    is_bundle_run,
)
from spyre.cli.options import Options
from spyre.cli.recorder import Recorder
from spyre.cli.text_report import ProgressBar
from spyre.cli.watch import NOTHING, Watch, watch_bundle, watch_case
from spyre.errors import Finding, LaunchError, Severity, SpyreError
from spyre.hw.device import Device, warm_driver, warm_kernels, warm_transfers
from spyre.hw.numerics import parse_numerics
from spyre.runtime.arguments import (
    ArgumentSpec,
    HostTensor,
    TensorSpec,
    load_tensors,
    parse_tensor_spec,
    prepare_inputs,
    require_shape,
    save_tensors,
)
from spyre.runtime.cases import (
    CASE_FILE,
    CaseTolerance,
    case_directory,
    read_case,
    with_options,
    with_tolerances,
)
from spyre.runtime.compare import (
    DEFAULT_VERIFY_POINTS,
    EXACT,
    Comparison,
    Tolerance,
    compare,
    default_tolerance,
    require_equal_shapes,
)
from spyre.runtime.program import load_source
from spyre.runtime.run import RunOptions, RunResult, Session, placed

if TYPE_CHECKING:
    from spyre.cli.dump import Dump


@dataclass(frozen=True)
class ComparedRun:
    """A run, and how outputs compare, by their number (empty without ``-o``).

    ``causes``: what may explain that outputs differ, the likeliest first; without ``-o`` what is
    odd about the addresses. ``watch``: what watched the executes.
    """

    options: Options
    result: RunResult
    comparisons: Mapping[int, Comparison] = field(default_factory=dict)
    numerics: str = "dl16"
    causes: tuple[Finding, ...] = ()
    watch: Watch = NOTHING

    @property
    def exit_code(self) -> int:
        """1 if an output differs, or the sanitizer found an error."""
        errors = any(f.severity is Severity.ERROR for f in self.result.sanitizer)
        return 1 if self.differs or errors else 0

    @property
    def differs(self) -> bool:
        """True if an output is not as expected."""
        return not all(c.ok for c in self.comparisons.values())


def run_and_report(options: Options) -> int:
    """Run a bundle or case, write and print what was asked for; returns the exit code."""
    recorder = Recorder(options)
    try:
        compared = _run_and_dump(options, recorder)
    except SpyreError as error:
        if error.exit_code == 1:
            error.observed = causes_of_fault(options, error)
        recorder.report_after(error)
        raise
    recorder.write_trace()
    recorder.write_profile(compared.watch.first_wrong if compared.differs else None)
    _print_run(compared, recorder)
    return compared.exit_code


def _run_and_dump(options: Options, recorder: Recorder) -> ComparedRun:
    """Run; with ``--dump`` write what was run and what became of it, whatever that is."""
    if options.dump is None:
        return with_causes(run_and_compare(options, recorder))
    from spyre.cli.dump import Dump
    from spyre.cli.json_report import error_object, run_object

    dump = Dump(options.dump)
    try:
        compared = run_and_compare(options, recorder, dump)
    except SpyreError as error:
        dump.write(error_object(error))
        raise
    compared = with_causes(compared)
    dump.write(run_object(compared))
    return compared


def with_causes(compared: ComparedRun) -> ComparedRun:
    """``compared`` with what explains its differences; a run that agrees stays as it is.

    Where outputs differ, the same runs once more with a sanitizer unless it had one.
    """
    options = compared.options
    if compared.differs:
        causes = causes_of_difference(options, partial(_sanitized_findings, compared))
        return replace(compared, causes=causes)
    if compared.comparisons:
        return compared
    told = {finding.code for finding in compared.result.sanitizer}
    found = address_findings(options, load_source)
    return replace(compared, causes=tuple(f for f in found if f.code not in told))


def _sanitized_findings(compared: ComparedRun) -> tuple[Finding, ...]:
    """What a sanitizer finds in a second run of the same."""
    options = compared.options
    if options.sanitize is not None:
        return tuple(finding.to_finding() for finding in compared.result.sanitizer)
    again = replace(
        options, sanitize="", verify=False, save_output=None, trace=None, quiet=True, report=None
    )
    again = replace(again, commands=False, profile=False, roofline=None)
    again = replace(again, expect=None, break_at=None, modelled_trace=None)
    try:
        found = run_and_compare(again, Recorder(again)).result.sanitizer
    except SpyreError as error:
        return findings_before(error)
    return tuple(finding.to_finding() for finding in found)


def _print_run(compared: ComparedRun, recorder: Recorder) -> None:
    if compared.options.json:
        from spyre.cli.json_report import print_object, run_object

        print_object(run_object(compared) | recorder.json_object())
    else:
        from spyre.cli.text_report import print_run
        from spyre.cli.watch import print_watch

        print_run(compared)
        print_watch(compared.watch, compared.options, compared.differs)
        recorder.print_commands()
        recorder.print_profile()


def run_and_compare(options: Options, recorder: Recorder, dump: Dump | None = None) -> ComparedRun:
    """Run a case, or a bundle, and compare; saves the outputs if asked to. ``recorder`` watches
    the card; ``dump`` is told what runs before it does.

    A directory with a ``case.json`` is a case unless tensors are given for its one kernel.
    SpyreErrors as of `spyre.runtime.run.session.run` and of the files.
    """
    directory = case_directory(options.path)
    if directory is not None and not is_bundle_run(options):
        compared = _replay_case(directory, options, recorder, dump)
    else:
        compared = _run_bundle(options, recorder, dump)
    if options.save_output is not None:
        save_tensors(options.save_output, compared.result.output_tensors)
    return compared


def make_device(options: Options) -> Device:
    return Device(
        options.numerics,
        options.threads,
        sanitize=options.sanitize,
        poison=options.poison,
        core_order=options.core_order,
    )


def _replay_case(
    directory: Path, options: Options, recorder: Recorder, dump: Dump | None
) -> ComparedRun:
    """Launch the kernels of a case in order and compare with the outputs it expects.

    Options the case has recorded hold where the command line does not give them.
    """
    from spyre.cli.dump import replayed_options, with_recorded
    from spyre.runtime.run import run_case

    case = read_case(directory)
    options = with_recorded(options, case.spec.run, str(directory / CASE_FILE))
    recorder.require_times(options, directory / CASE_FILE)
    device = make_device(options)
    case = with_tolerances(case, partial(_override_limits, options))
    if dump is not None:
        recorded = replayed_options(replace(options, numerics=str(device.numerics)))
        dump.record(with_options(case, recorded))
    watch = watch_case(options, case)
    with recorder.watching(device), ProgressBar(enabled=not options.quiet) as bar:
        replayed = run_case(
            case,
            device,
            timed=True,
            progress=bar.update,
            verify_points=_verify_points(options) if options.verify else None,
            runner=watch.runner,
        )
    outputs = [(o.shape, o.value) for o in case.spec.outputs if o.value is not None]
    values = [case.value(f"expect_{name}").reshape(shape) for shape, name in outputs]
    watch.judge_outputs(replayed.result, dict(enumerate(values)))
    comparisons = dict(enumerate(replayed.comparisons))
    numerics = str(device.numerics)
    return ComparedRun(options, replayed.result, comparisons, numerics, watch=watch)


def _run_bundle(options: Options, recorder: Recorder, dump: Dump | None) -> ComparedRun:
    """Run a bundle on the inputs given (else random ones) and compare with what is expected."""
    session = Session(make_device(options))
    with recorder.watching(session.device), ProgressBar(enabled=not options.quiet) as bar:
        run = replace(run_options(options), progress=bar.update)
        prepared = session.prepare(options.path)
        arguments = prepared.arguments(run)
        given = load_inputs(options.inputs, arguments.inputs) if options.inputs else None
        inputs = prepare_inputs(arguments.inputs, given, options.seed)
        expected = load_expected(options.expected, arguments.outputs) if options.expected else ()
        watch = watch_bundle(options, prepared.bundle, arguments, inputs)
        run = replace(run, runner=watch.runner)
        if dump is not None:
            limits = [
                _tolerance(options, a.dtype_name, a.layout.device_dtype) for a in arguments.outputs
            ]
            numerics = str(session.device.numerics)
            dump.record_run(options, numerics, prepared.bundle, arguments, given, expected, limits)
        result = session.launch(prepared, arguments, inputs, run)
    values = dict(enumerate(tensor.to_values() for tensor in expected))
    values = values or watch.placed_outputs(result)
    comparisons = {
        k: _compare_output(options, result, k, value, is_function=not expected)
        for k, value in values.items()
    }
    watch.judge_outputs(result, values)
    numerics = str(session.device.numerics)
    return ComparedRun(options, result, comparisons, numerics, watch=watch)


def run_options(options: Options) -> RunOptions:
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


def _verify_points(options: Options) -> int:
    return DEFAULT_VERIFY_POINTS if options.verify_points is None else options.verify_points


# --- comparison with what is expected ---------------------------------------------------------


def _compare_output(
    options: Options,
    result: RunResult,
    k: int,
    expected: npt.NDArray[Any],
    is_function: bool = False,
) -> Comparison:
    """Output ``k`` against ``expected``; MismatchError SPY602 when their shapes differ.

    ``is_function``: it is what a function computes without rounding between its operations.
    """
    dtype_name, layout = result.output_tensors[k].dtype_name, result.places[k].layout
    tolerance = _tolerance(options, dtype_name, layout.device_dtype)
    if is_function and result.outputs[k].dtype.kind == "f":
        from spyre.runtime.expect import KnownValue

        tolerance = override_tolerance(options, KnownValue("", expected).tolerance)
    return compare(result.outputs[k], expected, tolerance)


def _tolerance(options: Options, dtype_name: str, device_dtype: str) -> Tolerance:
    """Tolerance of an output: that of its dtype, unless the options say otherwise."""
    numerics = parse_numerics(options.numerics or config.NUMERICS.read())
    stored = None if numerics.mode == "ieee" else device_dtype
    return override_tolerance(options, default_tolerance(dtype_name, stored))


def _override_limits(options: Options, limits: CaseTolerance) -> CaseTolerance:
    """A case's limits with what the command line says instead."""
    if options.exact:
        return CaseTolerance(0.0, 0.0)
    return CaseTolerance(
        limits.atol if options.atol is None else options.atol,
        limits.rtol if options.rtol is None else options.rtol,
        limits.merged_nan,
    )


def override_tolerance(options: Options, default: Tolerance) -> Tolerance:
    """``default`` with what the command line says instead."""
    if options.exact:
        return EXACT
    return replace(
        default,
        rtol=default.rtol if options.rtol is None else options.rtol,
        atol=default.atol if options.atol is None else options.atol,
    )


# --- tensor files -----------------------------------------------------------------------------


def load_inputs(files: Sequence[str], arguments: Sequence[ArgumentSpec]) -> tuple[HostTensor, ...]:
    """A tensor per input argument. LaunchError SPY367 for another number of tensors, SPY333 for
    another shape; errors as of `load_tensors`.
    """

    def require(found: TensorSpec, argument: ArgumentSpec) -> None:
        require_shape(found, argument.host_spec)

    return _load(files, arguments, require, partial(_other_number, "SPY367", "input"))


def load_expected(
    files: Sequence[str], arguments: Sequence[ArgumentSpec]
) -> tuple[HostTensor, ...]:
    """A tensor per output argument. LaunchError SPY369 for another number of tensors,
    MismatchError SPY602 for another shape; errors as of `load_tensors`.
    """

    def require(found: TensorSpec, argument: ArgumentSpec) -> None:
        require_equal_shapes(argument.shape, found.shape)

    return _load(files, arguments, require, partial(_other_number, "SPY369", "output"))


def _load(
    files: Sequence[str],
    arguments: Sequence[ArgumentSpec],
    require: Callable[[TensorSpec, ArgumentSpec], None],
    refusal: Callable[[Sequence[ArgumentSpec], Sequence[TensorSpec]], LaunchError],
) -> tuple[HostTensor, ...]:
    """The tensors of all files; what does not fit the arguments is refused before it is read."""
    tensors: list[HostTensor] = []

    def check(is_last: bool, found: Sequence[TensorSpec]) -> None:
        here, specs = len(tensors), (*(t.spec for t in tensors), *found)
        if len(specs) > len(arguments) or (is_last and len(specs) < len(arguments)):
            raise refusal(arguments, specs)
        for spec, argument in zip(found, arguments[here:], strict=False):
            require(spec, argument)

    for number, file in enumerate(files, 1):
        specs = [argument.host_spec for argument in arguments[len(tensors) :]]
        tensors += load_tensors(file, specs, partial(check, number == len(files)))
    if len(tensors) != len(arguments):  # of raw files
        raise refusal(arguments, [t.spec for t in tensors])
    return tuple(tensors)


def _other_number(
    code: str, what: str, arguments: Sequence[ArgumentSpec], found: Sequence[TensorSpec]
) -> LaunchError:
    return LaunchError(
        code,
        f"the {what} files hold another number of tensors than the kernel has {what}s",
        expected=", ".join(f"{a.name} {a.host_spec}" for a in arguments) or f"no {what}s",
        found=", ".join(f"{spec.name} {spec}" for spec in found) or "no tensors",
    )


# --- warming ----------------------------------------------------------------------------------


def warm(options: Options) -> int:
    """Compile what ``options.path`` needs, or every kernel; the exit code.

    SpyreErrors as of running the bundle, as far as they show before it runs.
    """
    if not options.path:
        for name in warm_kernels():
            _say(options, f"compiling or loading {name}")
    device = make_device(options)
    warm_transfers(device)
    warm_driver(device)
    if not options.path:
        return 0
    session = Session(device)
    for path in _bundles(options.path):
        count = _warm_bundle(session, path, options)
        _say(options, f"{path}: {count} kernels are ready")
    return 0


def _bundles(path: str) -> list[str]:
    """The bundle, or all bundles of a case."""
    directory = case_directory(path)
    if directory is None:
        return [path]
    launches = read_case(directory).spec.launches
    return [str(directory / name) for name in dict.fromkeys(each.bundle for each in launches)]


def _warm_bundle(session: Session, path: str, options: Options) -> int:
    """Link the bundle for arguments that nobody fills; how many kernels it uses."""
    run = run_options(options)
    prepared = session.prepare(path)
    arguments = prepared.arguments(run)
    with placed(session.device, arguments, prepared.bundle.program) as placement:
        linked = prepared.kernel.kernel.link(prepared.launch_of(placement, run))
        session.device.executor.warm(linked)
        return int((linked.entries != 0).sum())


def _say(options: Options, text: str) -> None:
    if not options.quiet:
        print(text, flush=True)
