"""The command line of ``python -m spyre.sweep``; docs/sweep.md describes it.

Only argparse is imported here, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DESCRIPTION = "Weigh bundles and functions over machines, core counts, LX sizes, planners, tiles."
EPILOG = """\
lists are separated by blanks; every combination is a point. Options replace what FILE says.
examples:
  python -m spyre.sweep examples/sweep/sweep.toml --out sweep.csv --plot sweep.png
  python -m spyre.sweep --bundle examples/softmax --set hardware.hbm_peak_gbps 100 204.8 --model ideal
  python -m spyre.sweep --function "m.py:softmax rows=4096x4096" --cores 8 16 32 --tiles none rows=8
exit codes: 0 done; 1 some points have errors (column error); 2 it could not run.
"""  # noqa: E501


def make_parser() -> argparse.ArgumentParser:
    """The argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m spyre.sweep",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="TOML file with the sweep")
    _add_definition(parser.add_argument_group("what is run"))
    _add_functions(parser.add_argument_group("how functions are compiled"))
    _add_running(parser.add_argument_group("where, and what comes out"))
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
    group.add_argument("--planner", metavar="NAME", nargs="+", help="june, august")
    group.add_argument(
        "--solver", metavar="NAME", nargs="+", help="greedy, first_fit, best_fit, optimal"
    )
    group.add_argument(
        "--tiles", metavar="TILES", nargs="+", help="none, auto, or loops such as rows=8,heads=2"
    )


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", metavar="FILE", default="sweep.csv", help=".csv or .parquet")
    group.add_argument("--plot", metavar="FILE", help="write a picture (extra plot)")
    group.add_argument("--x", metavar="COLUMN", help="what the picture has along x")
    group.add_argument(
        "--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)),
        help="processes on this machine; default: usable CPUs",
    )  # fmt: skip
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on a Dask cluster instead (extra cluster)"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with the journal beside --out (the default)"
    )
    group.add_argument("--retry", action="store_true", help="run points with errors again")
    group.add_argument("--anew", action="store_true", help="throw the journal away")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. SystemExit 2 with usage when it is wrong."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    if not (given.file or given.bundle or given.function):
        parser.error("give a FILE, --bundle or --function")
    if given.jobs < 1:
        parser.error("--jobs is at least 1")
    if given.anew and (given.resume or given.retry):
        parser.error("--anew throws away what --resume and --retry need")
    if Path(given.out).suffix not in (".csv", ".parquet"):
        parser.error("--out ends in .csv or .parquet")
    for name, *values in given.set:
        if not values or not all(_is_number(value) for value in values):
            parser.error(f"--set {name} needs numbers")
    return given


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def document_of(given: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    """``base``, a sweep as TOML gives it, with what the command line says instead."""
    names = {
        "bundles": given.bundle, "functions": given.function, "model": given.model,
        "machine_file": given.machine, "host_rounds": given.host_rounds,
    }  # fmt: skip
    settings = ("cores", "lx_kept", "planner", "solver", "tiles")
    chosen = {name: getattr(given, name) for name in settings}
    constants = {name: [_number(value) for value in values] for name, *values in given.set}
    return {
        **base,
        **{name: value for name, value in names.items() if value is not None},
        "compile": {**base.get("compile", {}), **{k: v for k, v in chosen.items() if v}},
        "machine": {**base.get("machine", {}), **constants},
    }
