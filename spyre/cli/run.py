"""``spyre-run``: run a bundle on the simulated card, compare, report; or only diagnose it.

The entry point. Work is done by :mod:`.commands`, printing by :mod:`.reports`; both are imported
only when needed, so that ``--help`` starts at once. Exit codes: runtime reference §5.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from spyre.cli.options import Options, parse_options

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's); returns the exit code.

    0: all right. 1: outputs differ or the device faulted. 2: it could not run. Errors this
    package raises on purpose are printed; any other exception is a bug and propagates.
    """
    _accept_any_encoding()
    options = parse_options(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("spyre-run: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE


def _accept_any_encoding() -> None:
    """Where the terminal cannot show a character, print an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(options: Options) -> int:
    from spyre.cli.commands import execute
    from spyre.errors import SpyreError

    try:
        return execute(options)
    except SpyreError as error:
        if options.json:
            from spyre.cli.json_report import error_object, print_object

            print_object(error_object(error))
        else:
            for finding in error.observed:
                print(finding, file=sys.stderr)
            print(f"spyre-run: {error}", file=sys.stderr)
        return error.exit_code


def _silence_stdout() -> None:
    """Nobody reads our output any more: let the interpreter's last flush go nowhere."""
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
