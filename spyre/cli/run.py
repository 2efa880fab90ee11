"""``spyre-run``: run a bundle on the simulated card, compare and report, or only diagnose it.

The entry point. Commands are imported only when needed, so that ``--help`` starts at once and a
diagnosis loads no numba. Exit codes: runtime reference §5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from spyre.cli.entry import guarded, run_process
from spyre.cli.options import (
    AnyOptions,
    ClearCacheOptions,
    CompareOptions,
    DiagnoseOptions,
    ExecuteOptions,
    NumericsOptions,
    WarmOptions,
    parse_spyre_run,
)
from spyre.errors import LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code.

    0: all right. 1: outputs differ or the device faulted. 2: it could not run. Errors this
    package raises on purpose are printed; any other exception is a bug and propagates.
    """
    return guarded("spyre-run", lambda: parse_spyre_run(arguments), carry_out)


def carry_out(options: AnyOptions) -> int:
    """Carry out a parsed command line; returns the exit code."""
    match options:
        case ClearCacheOptions():
            return clear_cache(options.quiet)
        case DiagnoseOptions():
            from spyre.cli.diagnose import diagnose_and_report

            return diagnose_and_report(options)
        case NumericsOptions():
            from spyre.cli.compare_numerics import run_compare_numerics

            return run_compare_numerics(options)
        case CompareOptions():
            from spyre.cli.compare_profiles import run_compare_profiles

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


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
