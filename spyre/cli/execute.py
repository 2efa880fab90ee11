"""What ``spyre-run`` does: diagnose, explain, warm, or run and compare.

Every command gathers frozen results and hands them to a report; nothing is printed here but
through :mod:`.text_report`, :mod:`.json_report` and the :mod:`.recorder`. Diagnosing and explaining
import no numba.
"""

from __future__ import annotations

from spyre.cli.commands import run_and_compare
from spyre.cli.diagnose import diagnose
from spyre.cli.options import Options
from spyre.cli.outcomes import ComparedRun, Diagnosis
from spyre.cli.recorder import Recorder
from spyre.errors import SpyreError


def execute(options: Options) -> int:
    """Carry out a command line and print its report; returns the exit code."""
    if options.check or options.explain:
        diagnosis = diagnose(options)
        _print_diagnosis(diagnosis, options)
        return diagnosis.exit_code
    if options.warm:
        from spyre.cli.warm import warm

        return warm(options)
    if options.against is not None:
        from spyre.cli.against import run_against

        return run_against(options)
    if options.compare is not None:
        from spyre.cli.compare_runs import run_compare

        return run_compare(options)
    recorder = Recorder(options)
    try:
        compared = _run_and_dump(options, recorder)
    except SpyreError as error:
        recorder.report_after(error)
        raise
    recorder.write_trace()
    recorder.write_profile()
    _print_run(compared, recorder)
    return compared.exit_code


def _run_and_dump(options: Options, recorder: Recorder) -> ComparedRun:
    """Run; with ``--dump`` write what was run and what became of it, whatever that is."""
    if options.dump is None:
        return run_and_compare(options, recorder)
    from spyre.cli.dump import Dump
    from spyre.cli.json_report import error_object, run_object

    dump = Dump(options.dump)
    try:
        compared = run_and_compare(options, recorder, dump)
    except SpyreError as error:
        dump.write(error_object(error))
        raise
    dump.write(run_object(compared))
    return compared


def _print_diagnosis(diagnosis: Diagnosis, options: Options) -> None:
    if options.json:
        from spyre.cli.json_report import diagnosis_object, print_object

        print_object(diagnosis_object(diagnosis))
    else:
        from spyre.cli.text_report import print_diagnosis

        print_diagnosis(diagnosis, options)


def _print_run(compared: ComparedRun, recorder: Recorder) -> None:
    if compared.options.json:
        from spyre.cli.json_report import print_object, run_object

        print_object(run_object(compared) | recorder.json_object())
    else:
        from spyre.cli.text_report import print_run

        print_run(compared)
        recorder.print_commands()
        recorder.print_profile()
