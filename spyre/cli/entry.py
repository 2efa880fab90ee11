"""What the entry points share: how a command line ends, whatever happens."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from spyre.errors import SpyreError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
COLLECT_AFTER = 100_000
"""New objects after which cycles are looked for; importing makes many that all stay."""


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run ``main`` as the whole of this process, and leave with its exit code.

    What ends normally leaves as soon as everything that was registered for the end is done and
    written: taking the interpreter and the compiler apart takes 0.15 seconds. Exceptions leave as
    always.
    """
    # Imports make some hundred thousand objects that all stay; looking at them takes time.
    gc.set_threshold(COLLECT_AFTER, 50, 50)
    code = main()
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = EXIT_BROKEN_PIPE
    os._exit(code)


def guarded(program: str, command: Callable[[], int], json: bool = False) -> int:
    """The exit code of ``command``; SpyreErrors are printed, with ``json`` as an object.

    130 when interrupted, 141 when nobody reads the output any more; any other exception is a bug
    and propagates.
    """
    from spyre.errors import SpyreError  # not at the top: ``--help`` ends before

    _accept_any_encoding()
    try:
        try:
            code = command()
        except SpyreError as error:
            _print_error(program, error, json)
            code = error.exit_code
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE


def _accept_any_encoding() -> None:
    """Where the terminal cannot show a character, print an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print_error(program: str, error: SpyreError, json: bool) -> None:
    if json:
        from spyre.cli.json_report import error_object, print_object

        print_object(error_object(error))
        return
    for finding in error.observed:
        print(finding, file=sys.stderr)
    print(f"{program}: {error}", file=sys.stderr)


def _silence_stdout() -> None:
    """Nobody reads our output any more: let the interpreter's last flush go nowhere."""
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())
