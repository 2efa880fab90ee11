"""``python -m spyre.sweep``: the command line of sweeps, see docs/sweep.md.

Heavy modules are imported after the command line has been parsed, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre.cli import CommandParser, guarded, run_process

if TYPE_CHECKING:
    from spyre.sweep.definition import Definition

DESCRIPTION = "Model bundles and functions over machines, core counts, LX sizes, tiles."
EPILOG = """\
lists are separated by blanks; every combination is a point. Options replace entries of FILE.
examples:
  python -m spyre.sweep examples/sweep/sweep.toml --out sweep.csv --plot sweep.svg
  python -m spyre.sweep --bundle examples/softmax --set hardware.hbm_peak_gbps 100 204.8 --model ideal
  python -m spyre.sweep --function "m.py:softmax rows=4096x4096" --cores 8 16 32 --tiles none rows=8
exit codes: 0 done; 1 some points have errors (column error); 2 it could not run.
"""  # noqa: E501

PROGRAM = "python -m spyre.sweep"


def make_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The argument parser."""
    parser = CommandParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="TOML file with the sweep")
    _add_definition(parser.add_argument_group("targets and machines"))
    _add_functions(parser.add_argument_group("how functions are compiled"))
    _add_running(parser.add_argument_group("running and output"))
    return parser


def _add_definition(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--bundle", metavar="DIR", nargs="+", help="bundle directories")
    group.add_argument(
        "--function", metavar="TEXT", nargs="+",
        help='"MODULE:FUNCTION SIZES ...", SIZES such as rows=1024x4096 or 64x64:float32',
    )  # fmt: skip
    group.add_argument(
        "--set", metavar=("CONSTANT", "VALUE"), nargs="+", action="append", default=[],
        help="values of a machine constant, such as hardware.hbm_peak_gbps 100 204.8",
    )  # fmt: skip
    group.add_argument("--machine", metavar="FILE", help="machine file; default: the shipped one")
    group.add_argument("--model", choices=("calibrated", "ideal"), help="default: calibrated")
    group.add_argument(
        "--host-rounds", metavar="N", type=int, help="host time of N calls per point; default: 0"
    )


def _add_functions(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cores", metavar="N", nargs="+", type=int, help="cores to divide work by")
    group.add_argument(
        "--lx-kept", metavar="X", nargs="+", type=float, help="share of LX plans leave free, 0 to 1"
    )
    group.add_argument(
        "--tiles", metavar="TILES", nargs="+", help="none, auto, or loops such as rows=8,heads=2"
    )


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", metavar="FILE", default="sweep.csv", help=".csv or .parquet")
    group.add_argument("--plot", metavar="FILE", help="write a picture as .svg")
    group.add_argument("--x", metavar="COLUMN", help="column along the x axis of the picture")
    group.add_argument(
        "--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)),
        help="processes on this machine; default: usable CPUs",
    )  # fmt: skip
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on a Dask cluster instead (extra cluster)"
    )
    group.add_argument(
        "--resume", action="store_true", help="resume from the journal beside --out (the default)"
    )
    group.add_argument("--retry", action="store_true", help="run points with errors again")
    group.add_argument("--anew", action="store_true", help="erase the journal")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")


def parse_options(
    arguments: Sequence[str] | None = None, program: str = PROGRAM
) -> argparse.Namespace:
    """Parse a command line (default: the process's). SystemExit 2 with usage when it is wrong."""
    parser = make_parser(program)
    options = parser.parse_args(arguments)
    if not (options.file or options.bundle or options.function):
        parser.error("give a FILE, --bundle or --function")
    if options.jobs < 1:
        parser.error("--jobs is at least 1")
    if options.anew and (options.resume or options.retry):
        parser.error("--anew erases the journal that --resume and --retry need")
    if Path(options.out).suffix not in (".csv", ".parquet"):
        parser.error("--out ends in .csv or .parquet")
    for name, *values in options.set:
        if not values or not all(_is_number(value) for value in values):
            parser.error(f"--set {name} needs numbers")
    return options


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def document_of(options: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    """Return the TOML document ``base`` with the entries that the command line replaces."""
    names = {
        "bundles": options.bundle, "functions": options.function, "model": options.model,
        "machine_file": options.machine, "host_rounds": options.host_rounds,
    }  # fmt: skip
    settings = ("cores", "lx_kept", "tiles")
    chosen = {name: getattr(options, name) for name in settings}
    constants = {name: [_number(value) for value in values] for name, *values in options.set}
    return {
        **base,
        **{name: value for name, value in names.items() if value is not None},
        "compile": {**base.get("compile", {}), **{k: v for k, v in chosen.items() if v}},
        "machine": {**base.get("machine", {}), **constants},
    }


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Carry out a command line (default: the process's); returns the exit code."""
    name = "spyre.sweep" if program == PROGRAM else program
    return guarded(name, lambda: parse_options(arguments, program), _sweep)


def _sweep(options: argparse.Namespace) -> int:
    from spyre.cli import ProgressBar
    from spyre.sweep.results import write_plot, write_results
    from spyre.sweep.run import dask_runner, process_runner, run_sweep

    definition = _definition(options)
    out = Path(options.out)
    _check_outputs(options, definition, out)
    journal = out.with_name(f"{out.name}.journal")
    address = options.scheduler
    runner = dask_runner(address) if address else process_runner(options.jobs)
    with ProgressBar(enabled=not options.quiet, label="points") as bar:
        records = run_sweep(
            definition, runner, journal, anew=options.anew, retry=options.retry,
            progress=bar.update,
        )  # fmt: skip
    write_results(out, definition.columns, records)
    if options.plot:
        write_plot(Path(options.plot), definition.columns, records, options.x)
    failed = [record for record in records if record["error"]]
    if not options.quiet:
        print(f"{out}: {len(records)} points, {len(failed)} with errors")
        for text in dict.fromkeys(str(record["error"]) for record in failed):
            print(f"  {text}")
    return 1 if failed else 0


def _definition(options: argparse.Namespace) -> Definition:
    """Return the sweep. Paths in FILE are relative to it, paths of options to the current one."""
    from spyre.sweep.definition import make_definition, read_document

    here = Path.cwd()
    if options.machine:
        options.machine = str(here / options.machine)
    file = Path(options.file) if options.file else None
    base = read_document(file) if file is not None else {}
    if file is not None:
        options.bundle = options.bundle and [str(here / path) for path in options.bundle]
        options.function = options.function and [_absolute(text, here) for text in options.function]
    document = document_of(options, base)
    return make_definition(
        document, str(file or "command line"), file.parent.resolve() if file else here
    )


def _absolute(function: str, here: Path) -> str:
    """Return the text of a function with an absolute path."""
    module, _, name = function.partition(":")
    return f"{here / module}:{name}" if module.endswith(".py") else function


def _check_outputs(options: argparse.Namespace, definition: Definition, out: Path) -> None:
    """Refuse output files that cannot be written before the sweep runs for hours."""
    from spyre.errors import SweepError
    from spyre.sweep.results import check_plot_file, require_parquet

    if options.x is not None and options.x not in definition.columns:
        columns = ", ".join(definition.columns)
        raise SweepError("SPY740", "--x is not a column", expected=columns, found=options.x)
    if options.plot:
        check_plot_file(Path(options.plot))
    if out.suffix == ".parquet":
        require_parquet()


if __name__ == "__main__":
    run_process(main)
