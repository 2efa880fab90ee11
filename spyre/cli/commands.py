"""Commands of ``spyre-run`` that use a device: run a bundle or case and compare, or warm it up.

Every command collects frozen results and passes them to a report. Nothing is printed here except
through :mod:`.text_report`, :mod:`.json_report` and :mod:`.recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.cli.dump import Dump, with_recorded
from spyre.cli.json_report import error_object, print_object, run_object
from spyre.cli.options import (
    CompareOptions,
    ComparisonOptions,
    DeviceOptions,
    ExecuteOptions,
    Options,
    WarmOptions,
    option_names,
)
from spyre.cli.recorder import Recorder, check_machine
from spyre.cli.text_report import ProgressBar
from spyre.cli.tiles import describe_tile_run, is_tile_program
from spyre.diagnose import address_findings
from spyre.errors import Finding, LaunchError, Severity, SpyreError
from spyre.hw.device import Device, warm_driver, warm_kernels, warm_transfers
from spyre.hw.numerics import Numerics
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
from spyre.runtime.cases import CASE_FILE, case_directory, read_case, with_tolerances
from spyre.runtime.compare import (
    EXACT,
    Comparison,
    Tolerance,
    compare,
    default_tolerance,
    require_equal_shapes,
)
from spyre.runtime.run import Run, RunOptions, RunResult, Session

if TYPE_CHECKING:
    from spyre.diagnose import Breakpoint, FirstDivergence


class ComparedRun(msgspec.Struct, frozen=True):
    """A run that has ended. ``result.comparisons`` is empty without expected outputs.

    ``numerics``: number mode of the device. ``search``: for ``--expect``; ``breakpoint``: for
    ``--break``. ``causes``: findings that may explain why outputs differ, the likeliest first;
    without expected outputs, suspicious addresses.
    """

    options: ExecuteOptions
    run: Run
    result: RunResult
    numerics: str
    search: FirstDivergence | None
    breakpoint: Breakpoint | None
    causes: Sequence[Finding] = ()

    @property
    def exit_code(self) -> int:
        """1 if an output differs, or the sanitizer found an error."""
        errors = any(f.severity is Severity.ERROR for f in self.result.sanitizer)
        return 1 if self.differs or errors else 0

    @property
    def differs(self) -> bool:
        """True if an output is not as expected."""
        return not self.result.ok


def run_and_report(options: ExecuteOptions) -> int:
    """Run a bundle or case, write and print the reports; returns the exit code."""
    recorder = Recorder(options)
    compared = run_compared(options, recorder)
    recorder.write_trace()
    recorder.write_profile(compared.search if compared.differs else None)
    if compared.breakpoint is not None and compared.options.save_tensors is not None:
        _save_breakpoint(compared.breakpoint, compared.options.save_tensors)
    if compared.options.json:
        print_object(run_object(compared) | recorder.json_object())
    else:
        from spyre.cli.text_report import print_deviation, print_run, print_tensors

        print_run(compared)
        if compared.breakpoint is not None:
            print_tensors(compared.breakpoint)
        if compared.search is not None and compared.differs:
            print_deviation(compared.search)
        recorder.print_commands()
        recorder.print_profile()
    return compared.exit_code


def _save_breakpoint(point: Breakpoint, file: str) -> None:
    """Write the operands to a .npz file; LaunchError SPY381 if it cannot be written."""
    arrays = {name: tile.values for name, tile in point.tensors.items() if tile is not None}
    try:
        with open(file, "wb") as target:
            np.savez(target, **arrays)  # type: ignore[arg-type]  # names are not its parameters
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        found = getattr(error, "strerror", None) or str(error)
        raise LaunchError("SPY381", f"cannot write {file}", found=found) from error


def run_compared(options: ExecuteOptions, recorder: Recorder) -> ComparedRun:
    """Run, compare, look for causes of differences, and write the dump if asked for.

    SpyreErrors as of `spyre.run` and of the files; those of exit code 1 carry the causes.
    """
    dump, run = None if options.dump is None else Dump(options.dump), None
    try:
        options, session, run = describe(options, recorder, dump)
        run = with_tensors(options, run, session.device.numerics.mode)
        if dump is not None and not run.resets_device:
            dump.record_bundle(run, options, session.device)
        compared = _execute(options, recorder, session, run)
    except SpyreError as error:
        if dump is not None:
            dump.write(error_object(error))
        if error.exit_code == 1 and run is not None:
            error.observed = (*address_findings(run, is_wrong=True), *error.observed)
        recorder.report_after(error)
        raise
    compared = replace(compared, causes=_causes(compared))
    if dump is not None:
        dump.write(run_object(compared))
    return compared


def describe(
    options: ExecuteOptions, recorder: Recorder, dump: Dump | None
) -> tuple[ExecuteOptions, Session, Run]:
    """The run of a case or bundle, on a new device.

    Recorded options of a case apply unless the command line gives others. A directory with a
    case.json is a case unless tensors for its only kernel are given.
    """
    if is_tile_program(options.path):
        session = Session(make_device(options, options.sanitize))
        return options, session, describe_tile_run(options, session)
    if options.function is not None:
        raise LaunchError(
            "SPY340", f"{options.path} has no functions", expected="a KTIR text, a .ktir file"
        )
    directory = case_directory(options.path)
    if directory is None or is_bundle_run(options):
        session = Session(make_device(options, options.sanitize))
        return options, session, session.describe(options.path, run_options(options))
    case, file = read_case(directory), directory / CASE_FILE
    options = with_recorded(options, case.spec.run, str(file))
    recorder.require_times(options, file)
    session = Session(make_device(options, options.sanitize))
    case = with_tolerances(case, partial(override_tolerance, options))
    if dump is not None:
        dump.record_case(case, options, session.device)
    return options, session, session.describe(case)


def is_bundle_run(options: Options) -> bool:
    """True if a directory with a case.json is to be run as the bundle that it also is."""
    expected = isinstance(options, ComparisonOptions) and options.expected
    return bool(options.inputs or options.shapes or expected)


def with_tensors(options: ComparisonOptions, run: Run, mode: str) -> Run:
    """The run of a bundle with its inputs and expected outputs; that of a case has them.

    ``mode``: number mode that default tolerances are for.
    """
    if run.resets_device or is_tile_program(options.path):
        return run
    given = load_inputs(options.inputs, run.inputs) if options.inputs else None
    run = run.with_inputs(prepare_inputs(run.inputs, given, options.seed))
    if not options.expected:
        return run
    limits = [
        tolerance_of(options, a.dtype_name, a.layout.device_dtype, mode)
        for a in run.output_arguments
    ]
    return run.with_expected(load_expected(options.expected, run.output_arguments), limits)


def _execute(
    options: ExecuteOptions, recorder: Recorder, session: Session, run: Run
) -> ComparedRun:
    """Run and compare, also with the expected function; saves the outputs if asked to."""
    search, point = debug_run(options, run)
    observers = [observer for observer in (search, point) if observer is not None]
    with recorder.recording(session.device), ProgressBar(enabled=not options.quiet) as bar:
        chosen = replace(run_options(options), progress=bar.update, observers=observers)
        result = session.execute(run, chosen)
    if point is not None:
        point.require_reached()
    if search is not None:
        expected = {k: o.expected() for k, o in enumerate(run.outputs) if o.expected is not None}
        if not expected:
            from spyre.diagnose import match_outputs

            expected = match_outputs(result.outputs, search.outputs)
            result = replace(
                result,
                comparisons={
                    k: _compare_function(options, result, k, values, session.device.numerics.mode)
                    for k, values in expected.items()
                },
            )
        search.check_outputs(result.output_tensors, result.places, expected)
    if options.save_output is not None:
        save_tensors(options.save_output, result.output_tensors)
    return ComparedRun(options, run, result, str(session.device.numerics), search, point)


def debug_run(
    options: ExecuteOptions, run: Run
) -> tuple[FirstDivergence | None, Breakpoint | None]:
    """The observers that the options ask for. Errors of `load_function`, `divergence_search`."""
    search, point = None, None
    if options.break_at is not None:
        from spyre.diagnose import Breakpoint

        number, loops = options.break_at
        point = Breakpoint(number, loops, options.tensors)
    if options.expect is not None:
        from spyre.torch_backend.torch_reference import divergence_search, load_function

        search = divergence_search(load_function(options.expect), run)
    return search, point


def make_device(
    options: DeviceOptions, sanitize: str | None = None, numerics: Numerics | None = None
) -> Device:
    """A device; ``numerics``: its number mode, default that of the options."""
    return Device(
        options.numerics if numerics is None else numerics,
        options.threads,
        sanitize=sanitize,
        poison=options.poison,
        core_order=options.core_order,
    )


def run_options(options: Options) -> RunOptions:
    """The options of the command line that choose arguments or how to execute."""
    chosen = RunOptions(
        seed=options.seed,
        values=dict(options.values),
        timed=True,
        shapes=tuple(parse_tensor_spec(text) for text in options.shapes),
        strides=dict(options.strides),
        aliases=dict(options.aliases),
    )
    if not isinstance(options, ExecuteOptions):
        return chosen
    return replace(chosen, verify=options.verify, verify_points=options.verify_points)


# --- two profiles ----------------------------------------------------------------------------


def run_compare_profiles(options: CompareOptions) -> int:
    """Profile both, or read saved profiles; print the differences. Errors as of `spyre.run`."""
    from spyre.runtime.profile import compare_profiles, comparison_object, comparison_table

    check_machine(options)
    first, second = options.compare
    lines = compare_profiles(_profile_of(options, first), _profile_of(options, second))
    if options.json:
        print_object({"a": first, "b": second, "comparison": comparison_object(lines)})
    else:
        from spyre.cli.text_report import print_table

        print(f"A: {first}\nB: {second}")
        print_table(comparison_table(lines))
    return 0


def _profile_of(options: CompareOptions, path: str) -> dict[str, Any]:
    """The saved profile, or that of a run of a bundle or case."""
    if path.endswith(".json") and Path(path).name != "case.json":
        from spyre.runtime.profile import read_kept_run

        return read_kept_run(Path(path))
    names = set(option_names(CompareOptions)).intersection(option_names(ExecuteOptions))
    shared = {name: getattr(options, name) for name in names - {"path"}}
    chosen = ExecuteOptions(path=path, profile=True, **shared)
    recorder = Recorder(chosen)
    run_compared(chosen, recorder)
    return recorder.profile.to_json()


# --- causes of differences --------------------------------------------------------------------


def _causes(compared: ComparedRun) -> tuple[Finding, ...]:
    """Findings that may explain why outputs differ, the likeliest first.

    Executes that are left out and wrong tiles come first, since findings of the sanitizer, such as
    unwritten memory, follow from them. If nothing was compared: suspicious addresses. If the
    outputs agree: nothing.
    """
    if compared.result.comparisons and not compared.differs:
        return ()
    left_out = [f for f in compared.run.findings if f.code == "SPY277" and compared.differs]
    by_address = (*left_out, *address_findings(compared.run, is_wrong=compared.differs))
    if not compared.differs:
        known = {finding.code for finding in compared.result.sanitizer}
        return tuple(finding for finding in by_address if finding.code not in known)
    known = {finding.code for finding in by_address}
    others = [finding for finding in _sanitized_findings(compared) if finding.code not in known]
    others.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return (*by_address, *others)


def _sanitized_findings(compared: ComparedRun) -> tuple[Finding, ...]:
    """The sanitizer's findings, for which the run is repeated if it had no sanitizer."""
    options, result = compared.options, compared.result
    if options.sanitize is None:
        session = Session(make_device(options, sanitize=""))
        try:
            result = session.execute(compared.run, replace(run_options(options), verify=False))
        except SpyreError as error:
            return (*error.observed, error.finding)
    return tuple(finding.to_finding() for finding in result.sanitizer)


# --- tolerances -------------------------------------------------------------------------------


def _compare_function(
    options: ExecuteOptions, result: RunResult, k: int, expected: npt.NDArray[Any], mode: str
) -> Comparison:
    """Output ``k`` against the result of a function, which is not rounded between its operations.

    MismatchError SPY602 for different shapes.
    """
    if result.outputs[k].dtype.kind == "f":
        from spyre.diagnose import ReferenceValue

        tolerance = override_tolerance(options, ReferenceValue("", expected).tolerance)
    else:
        dtype_name, layout = result.output_tensors[k].dtype_name, result.places[k].layout
        tolerance = tolerance_of(options, dtype_name, layout.device_dtype, mode)
    return compare(result.outputs[k], expected, tolerance)


def tolerance_of(
    options: ComparisonOptions, dtype_name: str, device_dtype: str, mode: str
) -> Tolerance:
    """Tolerance of an output: the default of its dtype, unless the options give another one."""
    stored = None if mode == "ieee" else device_dtype
    return override_tolerance(options, default_tolerance(dtype_name, stored))


def override_tolerance(options: ComparisonOptions, default: Tolerance) -> Tolerance:
    """``default``, replaced by the tolerances of the command line."""
    if options.exact:
        return EXACT
    return msgspec.structs.replace(
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

    return _load(files, arguments, require, "SPY367", "input")


def load_expected(
    files: Sequence[str], arguments: Sequence[ArgumentSpec]
) -> tuple[HostTensor, ...]:
    """A tensor per output argument. LaunchError SPY369 for another number of tensors, SPY602 for
    another shape; errors as of `load_tensors`.
    """

    def require(found: TensorSpec, argument: ArgumentSpec) -> None:
        require_equal_shapes(argument.shape, found.shape, LaunchError)  # a wrong file

    return _load(files, arguments, require, "SPY369", "output")


def _load(
    files: Sequence[str],
    arguments: Sequence[ArgumentSpec],
    require: Callable[[TensorSpec, ArgumentSpec], None],
    code: str,
    kind: str,
) -> tuple[HostTensor, ...]:
    """The tensors of all files. Tensors that do not fit the arguments are refused unread.

    ``code``: of the LaunchError for another number of tensors; ``kind``: "input" or "output".
    """
    tensors: list[HostTensor] = []

    def refuse(found: Sequence[TensorSpec]) -> NoReturn:
        raise LaunchError(
            code,
            f"the {kind} files hold another number of tensors than the kernel has {kind}s",
            expected=", ".join(f"{a.name} {a.host_spec}" for a in arguments) or f"no {kind}s",
            found=", ".join(f"{spec.name} {spec}" for spec in found) or "no tensors",
        )

    def check(is_last: bool, found: Sequence[TensorSpec]) -> None:
        here, specs = len(tensors), (*(t.spec for t in tensors), *found)
        if len(specs) > len(arguments) or (is_last and len(specs) < len(arguments)):
            refuse(specs)
        for spec, argument in zip(found, arguments[here:], strict=False):
            require(spec, argument)

    for number, file in enumerate(files, 1):
        specs = [argument.host_spec for argument in arguments[len(tensors) :]]
        tensors += load_tensors(file, specs, partial(check, number == len(files)))
    if len(tensors) != len(arguments):  # raw files have no header
        refuse([t.spec for t in tensors])
    return tuple(tensors)


# --- warming ----------------------------------------------------------------------------------


def warm(options: WarmOptions) -> int:
    """Compile the kernels that ``options.path`` needs, or all kernels; returns the exit code.

    SpyreErrors as of running the bundle, except those that occur only when it runs.
    """
    ready: dict[str, int] = {}
    if not options.path:
        ready = dict.fromkeys(warm_kernels(), 1)
        _print(options, f"{len(ready)} kernels are ready")
    device = make_device(options, options.sanitize)
    warm_transfers(device)
    warm_driver(device)
    session = Session(device)
    for path in _bundles(options.path) if options.path else ():
        run = session.describe(path, run_options(options))
        with session.placed(run) as placement:
            linked = placement.link(0)
            device.executor.warm(linked)
            ready[path] = int((linked.code.entries != 0).sum())
        _print(options, f"{path}: {ready[path]} kernels are ready")
    if options.json:
        print_object({"ok": True, "exit_code": 0, "kernels": ready})
    return 0


def _bundles(path: str) -> list[str]:
    """The bundle, or all bundles of a case."""
    directory = case_directory(path)
    if directory is None:
        return [path]
    launches = read_case(directory).spec.launches
    return [str(directory / name) for name in dict.fromkeys(each.bundle for each in launches)]


def _print(options: WarmOptions, text: str) -> None:
    if not (options.quiet or options.json):
        print(text, flush=True)
