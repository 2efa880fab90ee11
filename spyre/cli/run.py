"""``spyre-run``: run a bundle on the simulated card, compare, report; or only diagnose it.

The entry point. Work is done by :mod:`.commands`, printing by :mod:`.reports`; both are imported
only when needed, so that ``--help`` starts at once. Exit codes: runtime reference §5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from spyre.cli.entry import guarded, run_process
from spyre.cli.options import Options, parse_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's); returns the exit code.

    0: all right. 1: outputs differ or the device faulted. 2: it could not run. Errors this
    package raises on purpose are printed; any other exception is a bug and propagates.
    """
    options = parse_options(arguments)
    return guarded("spyre-run", lambda: _run(options), options.json)


def _run(options: Options) -> int:
    from spyre.cli.commands import execute

    return execute(options)


def process() -> NoReturn:
    """The console script: `main` as a process of its own."""
    run_process(main)


if __name__ == "__main__":
    process()
