"""``python -m spyre.sweep``: the command line of design-space runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.cli.entry import guarded
from spyre.sweep.options import document_of, parse_options

if TYPE_CHECKING:
    from spyre.sweep.definition import Definition
    from spyre.sweep.point import Record
    from spyre.sweep.runners import Runner


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: the process's); returns the exit code."""
    given = parse_options(sys.argv[1:] if arguments is None else arguments)
    return guarded("spyre.sweep", lambda: _sweep(given))


def _sweep(given: argparse.Namespace) -> int:
    from spyre.cli.progress import ProgressBar
    from spyre.sweep.sweep import run_sweep

    definition = _definition(given)
    out = Path(given.out)
    _check_outputs(given, definition, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = out.with_name(f"{out.name}.journal")
    with ProgressBar(enabled=not given.quiet, label="points") as bar:
        records = run_sweep(
            definition, _runner(given), journal, anew=given.anew, retry=given.retry,
            progress=bar.update,
        )  # fmt: skip
    _write(given, definition, out, records)
    failed = [record for record in records if record["error"]]
    if not given.quiet:
        print(f"{out}: {len(records)} points, {len(failed)} with errors")
        for text in dict.fromkeys(str(record["error"]) for record in failed):
            print(f"  {text}")
    return 1 if failed else 0


def _definition(given: argparse.Namespace) -> Definition:
    """The sweep. Paths in FILE are relative to it, those of options to here."""
    from spyre.sweep.definition import make_definition, read_document

    here = Path.cwd()
    if given.machine:
        given.machine = str(here / given.machine)
    file = Path(given.file) if given.file else None
    base = read_document(file) if file is not None else {}
    if file is not None:
        given.bundle = given.bundle and [str(here / path) for path in given.bundle]
        given.function = given.function and [_placed(text, here) for text in given.function]
    document = document_of(given, base)
    return make_definition(
        document, str(file or "command line"), file.parent.resolve() if file else here
    )


def _placed(function: str, here: Path) -> str:
    """A function's text, the path of its file made absolute."""
    module, _, rest = function.partition(":")
    return f"{here / module}:{rest}" if module.endswith(".py") else function


def _check_outputs(given: argparse.Namespace, definition: Definition, out: Path) -> None:
    """Refuse before hours of work what could not be written after it."""
    from spyre.errors import SweepError
    from spyre.sweep.plot import require_matplotlib
    from spyre.sweep.results import require_parquet

    if given.x is not None and given.x not in definition.columns:
        columns = ", ".join(definition.columns)
        raise SweepError("SPY740", "--x is no column", expected=columns, found=given.x)
    if given.plot:
        require_matplotlib()
    if out.suffix == ".parquet":
        require_parquet()


def _runner(given: argparse.Namespace) -> Runner:
    from spyre.sweep.runners import DaskRunner, ProcessRunner

    return DaskRunner(given.scheduler) if given.scheduler else ProcessRunner(given.jobs)


def _write(
    given: argparse.Namespace, definition: Definition, out: Path, records: list[Record]
) -> None:
    from spyre.sweep.plot import write_plot
    from spyre.sweep.results import write_results

    write_results(out, definition.columns, records)
    if given.plot:
        write_plot(Path(given.plot), definition.columns, records, given.x)


if __name__ == "__main__":
    raise SystemExit(main())
