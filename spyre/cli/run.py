"""``spyre-run``: run a bundle on the simulated card, compare and report, or only diagnose it.

The entry point, and the commands of ``spyre``: those of ``spyre-run`` by name, explanations of
codes, and the cache. Commands are imported only when needed, so that ``--help`` starts at once and
a diagnosis loads no numba. Exit codes: runtime reference §5.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import asdict

from spyre.cli.entry import guarded, print_coloured, run_process
from spyre.cli.options import (
    ClearCacheOptions,
    CommandOptions,
    CommandParser,
    CompareOptions,
    DiagnoseOptions,
    EstimateOptions,
    ExecuteOptions,
    NumericsOptions,
    WarmOptions,
    parse_command,
    parse_spyre_run,
)
from spyre.errors import LaunchError

if TYPE_CHECKING:
    from spyre.codes import DiagnosticCode


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code.

    0: all right. 1: outputs differ or the device faulted. 2: it could not run. Errors this
    package raises on purpose are printed; any other exception is a bug and propagates.
    """
    return guarded("spyre-run", lambda: parse_spyre_run(arguments), carry_out)


def carry_out(options: CommandOptions) -> int:
    """Carry out a parsed command line; returns the exit code."""
    match options:
        case ClearCacheOptions():
            return clear_cache(options.quiet)
        case DiagnoseOptions():
            from spyre.cli.diagnose import diagnose_and_report

            return diagnose_and_report(options)
        case EstimateOptions():
            from spyre.cli.estimate import estimate_and_report

            return estimate_and_report(options)
        case NumericsOptions():
            from spyre.cli.compare_numerics import run_compare_numerics

            return run_compare_numerics(options)
        case CompareOptions():
            from spyre.cli.commands import run_compare_profiles

            return run_compare_profiles(options)
        case WarmOptions():
            from spyre.cli.commands import warm

            return warm(options)
        case ExecuteOptions():
            from spyre.cli.commands import run_and_report

            return run_and_report(options)
    raise TypeError(options)


def clear_cache(quiet: bool) -> int:
    """Remove the caches on disk. LaunchError SPY404 for a file that cannot be removed."""
    from spyre import cache

    try:
        directory, removed_bytes = cache.clear()
    except OSError as error:
        raise LaunchError(
            "SPY404",
            "the cache cannot be removed",
            expected="a directory that this user may write to",
            found=f"{error.filename}: {error.strerror}",
        ) from None
    if not quiet:
        print(f"{directory}: {removed_bytes / 1e6:.1f} MB removed")
    return 0


# --- commands of ``spyre`` --------------------------------------------------------------------

_WIDTH = 80


def run(arguments: Sequence[str], program: str) -> int:
    """As ``spyre-run``."""
    return guarded(program, lambda: parse_spyre_run(arguments, program), carry_out)


def command(arguments: Sequence[str], program: str) -> int:
    """The command of `COMMANDS` that ``program`` ends in, such as ``spyre check``."""
    name = program.split()[-1]
    return guarded(program, lambda: parse_command(name, arguments, program), carry_out)


def compile_bundle(arguments: Sequence[str], program: str) -> int:
    """As ``spyre-compile``, with the directory as a plain argument."""
    from spyre.cli.compile import compile_and_report, make_parser

    return guarded(program, lambda: make_parser(program).parse_args(arguments), compile_and_report)


# --- explain ----------------------------------------------------------------------------------


def explain(arguments: Sequence[str], program: str) -> int:
    """Describe a bundle, or a diagnostic code."""
    words = [word for word in arguments if not word.startswith("-")]
    is_code = bool(words) and re.fullmatch(r"(?i)spy\w+|\d{3}", words[0]) is not None
    if not is_code or Path(words[0]).exists():
        return command(arguments, program)
    return guarded(program, lambda: _parse_code(arguments, program), _explain_code)


def _parse_code(arguments: Sequence[str], program: str) -> argparse.Namespace:
    from spyre.codes import diagnostic_codes

    parser = CommandParser(prog=program, description="Explain a diagnostic code.")
    parser.add_argument("code", metavar="CODE", help="such as SPY702")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(arguments)
    code = "SPY" + parsed.code[-3:].upper().replace("O", "0")
    if code not in diagnostic_codes():
        parser.error(f"there is no code {parsed.code}")
    parsed.code = diagnostic_codes()[code]
    return parsed


def _explain_code(parsed: argparse.Namespace) -> int:
    code: DiagnosticCode = parsed.code
    if parsed.json:
        import json

        print(json.dumps(asdict(code), indent=2))
        return 0
    print(f"{code.code}: {code.title}\n")
    print(textwrap.fill(code.cause, _WIDTH))
    print("\n" + textwrap.fill(f"To do: {code.fix}", _WIDTH))
    if code.example:
        print("\nFor example:\n")
        print_coloured(code.example, sys.stdout)
    return 0


# --- cache ------------------------------------------------------------------------------------


def cache(arguments: Sequence[str], program: str) -> int:
    """Show the disk space of compiled kernels and plans, or remove them (``clear``)."""
    return guarded(program, lambda: _parse_cache(arguments, program), _cache)


def _parse_cache(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = CommandParser(prog=program, description="Show or remove the caches on disk.")
    parser.add_argument(
        "action", nargs="?", choices=("show", "path", "clear"), default="show",
        help="show: kinds and sizes (default); path: where; clear: remove all of it",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    return parser.parse_args(arguments)


def _cache(parsed: argparse.Namespace) -> int:
    from spyre.cache import directory, kept

    if parsed.action == "clear":
        return clear_cache(quiet=parsed.quiet)
    if parsed.quiet:
        return 0
    print(directory())
    if parsed.action == "show":
        for kind, entries, size_bytes in kept():
            print(f"  {kind:<34}{entries:>6}{size_bytes / 1e6:>10.1f} MB")
    return 0


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
