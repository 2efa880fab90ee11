"""``spyre-run``: run a bundle on the simulated card, compare, report; or only diagnose it.

The entry point. Commands are imported only when needed, so that ``--help`` starts at once and a
diagnosis loads no numba. Exit codes: runtime reference §5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from spyre.cli.entry import guarded, run_process
from spyre.cli.options import Options, parse_options
from spyre.errors import LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code.

    0: all right. 1: outputs differ or the device faulted. 2: it could not run. Errors this
    package raises on purpose are printed; any other exception is a bug and propagates.
    """
    return guarded("spyre-run", lambda: parse_options(arguments), carry_out)


def carry_out(options: Options) -> int:
    """What a parsed command line of ``spyre-run`` asks for; returns the exit code."""
    if options.clear_cache:
        return clear_cache(options.quiet)
    if options.check or options.explain:
        from spyre.cli.diagnose import diagnose_and_report

        return diagnose_and_report(options)
    if options.against is not None:
        from spyre.cli.compare_numerics import run_compare_numerics

        return run_compare_numerics(options)
    if options.compare is not None:
        from spyre.cli.compare_profiles import run_compare_profiles

        return run_compare_profiles(options)
    from spyre.cli.commands import run_and_report, warm

    return warm(options) if options.warm else run_and_report(options)


def clear_cache(quiet: bool) -> int:
    """Remove what is kept on disk. LaunchError SPY404 for what cannot be removed."""
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
    """The console script: `main` as a process of its own."""
    run_process(main)


if __name__ == "__main__":
    process()
