"""Shared by the entry points: error reports, exit codes, broken output streams."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import shutil
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

if TYPE_CHECKING:
    from spyre.errors import SpyreError

Parsed = TypeVar("Parsed")
EXIT_INTERRUPTED = 130
EXIT_NOT_RUN = 2
COLLECT_AFTER = 100_000
"""New objects until the next garbage collection; imports make many that all stay."""


class OutputError(Exception):
    """Standard output or standard error cannot be written.

    Not an OSError, because argparse ignores those while it prints its help.
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror)
        self.is_broken_pipe = cause.errno == errno.EPIPE


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run ``main`` in this process and end the process with its exit code.

    The process ends right after the registered exit functions, without finalising the interpreter
    and the compiler, which takes 0.15 seconds. An unexpected exception is printed with its
    traceback; the exit code is then 2, because 1 means that outputs differ.
    """
    # Imports make some hundred thousand objects that all stay; looking at them takes time.
    gc.set_threshold(COLLECT_AFTER, 50, 50)
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # no line of our source
    try:
        code = main()
    except SystemExit as left:  # of argparse
        code = left.code if isinstance(left.code, int) else 0
    except KeyboardInterrupt:  # before or after what `guarded` guards
        code = EXIT_INTERRUPTED
    except Exception:
        with suppress(OutputError), _checked_streams():
            sys.excepthook(*sys.exc_info())
        code = EXIT_NOT_RUN
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = EXIT_NOT_RUN
    os._exit(code)


def guarded(program: str, parse: Callable[[], Parsed], command: Callable[[Parsed], int]) -> int:
    """Parse the command line, carry out ``command`` and return its exit code.

    SpyreErrors are printed, as a JSON object if the parsed options have a true ``json``. 130 when
    interrupted, 2 when the output cannot be written. The SystemExit of argparse and unexpected
    exceptions propagate.
    """
    _accept_any_encoding()
    with _checked_streams():
        try:
            try:
                code = exit_code_of(program, command, parse())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            return code
        except KeyboardInterrupt:
            _say(f"{program}: interrupted")
            return EXIT_INTERRUPTED
        except OutputError as error:
            if not error.is_broken_pipe:
                _say(f"{program}: cannot write the output: {error}")
            _silence_streams()
            return EXIT_NOT_RUN


def exit_code_of(program: str, command: Callable[[Parsed], int], parsed: Parsed) -> int:
    """Carry out ``command``; print a SpyreError, and return its exit code."""
    from spyre.errors import LaunchError, SpyreError  # not at the top: ``--help`` ends before

    try:
        return command(parsed)
    except SpyreError as error:
        ours = error
    except MemoryError as error:
        ours = LaunchError("SPY382", "the host has no memory for this", found=str(error))
    _print_error(program, ours, getattr(parsed, "json", False))
    return ours.exit_code


# --- streams ----------------------------------------------------------------------------------


class _Checked:
    """A stream whose OSErrors become OutputErrors, unlike those of files.

    Control characters are written as escapes, except to ``terminal``: the stream for colours and
    for lines that replace each other, whose writers escape names themselves.
    """

    def __init__(self, stream: Any, is_terminal: bool = False) -> None:
        self._stream = stream
        self._is_terminal = is_terminal
        self.terminal = self if is_terminal else _Checked(stream, is_terminal=True)

    def write(self, text: str) -> int:
        from spyre.errors import printable  # not at the top: ``--help`` ends before

        with _as_output_error():
            self._stream.write(text if self._is_terminal else printable(text))
            return len(text)

    def flush(self) -> None:
        with _as_output_error():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Closed(io.TextIOBase):
    """In place of a stream that was closed before the process began."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


@contextmanager
def _checked_streams() -> Iterator[None]:
    streams = sys.stdout, sys.stderr
    if None in streams:
        _occupy_standard_descriptors()
    checked = [_Checked(_Closed() if stream is None else stream) for stream in streams]
    sys.stdout, sys.stderr = checked
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _occupy_standard_descriptors() -> None:
    """A file that gets the number of a closed stream would be printed into by libraries."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _say(text: str) -> None:
    with suppress(OutputError):
        print(text, file=sys.stderr)


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
        print_coloured(finding, sys.stderr)
    print_coloured(error, sys.stderr)
    print(more_text(error.code), file=sys.stderr)


def more_text(code: str) -> str:
    """The line after the last finding: how to read more about the first."""
    return f"more: spyre explain {code}"


def print_coloured(finding: object, stream: TextIO) -> None:
    """Print a finding or an error; in colours, and no wider than the terminal, where a person looks
    at one (NO_COLOR and FORCE_COLOR are heeded).
    """
    if not stream.isatty() and "FORCE_COLOR" not in os.environ:
        print(finding, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    from spyre.errors import printable

    text = Text("\n".join(_folded(printable(str(finding)), shutil.get_terminal_size().columns)))
    for style, pattern in (
        ("bold red", r"(?m)^error\[SPY\d+\]"),
        ("bold yellow", r"(?m)^warning\[SPY\d+\]"),
        ("blue", r"(?m)^ (-->|:::)|^ *\d* \|"),
        ("cyan", r"(?m)(?<=^  = )(expected|found|help)(?=:)"),
        ("bold red", r"(?m)\^+$"),
    ):
        text.highlight_regex(pattern, style)
    Console(file=terminal_of(stream), soft_wrap=True, highlight=False).print(text)


def _folded(text: str, width: int) -> Iterator[str]:
    """The lines of ``text``, excerpts of files excepted, in at most ``width`` columns."""
    for line in text.splitlines():
        if len(line) <= width or re.match(r" *\d* \|", line):
            yield line
            continue
        yield from textwrap.wrap(
            line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )


def terminal_of(stream: TextIO) -> TextIO:
    """The stream for text whose names are escaped; ``stream`` itself outside of a command."""
    terminal: TextIO = getattr(stream, "terminal", stream)
    return terminal


def _silence_streams() -> None:
    """Discard the buffered text of streams that cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OutputError:
            with suppress(OSError), open(os.devnull, "w") as devnull:  # a stream of no descriptor
                os.dup2(devnull.fileno(), stream.fileno())
