"""Progress lines on standard error while kernels are compiled, once per machine and version: this
takes seconds to a minute, in which the program would seem to hang.

Compilations that take less than a second in all are not shown, and SPYRE_PROGRESS=0 shows none.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from spyre import cache as cache_on_disk, config

SILENT_SECONDS = 1.0
"""Compilation time before the first line."""
REPEAT_SECONDS = 10.0
"""Time between lines if standard error is no terminal; on a terminal one line is overwritten."""
IDLE_SECONDS = 0.5
"""Time without a compilation after which the last line is written."""
_TICK_SECONDS = 0.1


class CompileProgress:
    """Compilations of this process; a thread writes lines while they last."""

    def __init__(self) -> None:
        self.hint = "; spyre warm compiles those of all programs"  # the end of the last line
        self._lock = threading.Lock()
        self._reported_background = False
        self._start_again()
        os.register_at_fork(after_in_child=self._start_again)

    def _start_again(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # compilations that have begun and not ended
        self._begin = self._last = 0.0
        self._name, self._done = "", 0  # the kernel begun last, and how many were before
        self._since = self._begun = 0.0  # when the first and that one began
        self._begins: Sequence[float] = ()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Show that a kernel is compiled, as long as the block lasts."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._watcher is None:
                self._begin = time.monotonic()
                self._watcher = threading.Thread(
                    target=self._watch, name="spyre-progress", daemon=True
                )
                self._watcher.start()

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            self._last = time.monotonic()
            if not self._depth and self._last - self._begin >= SILENT_SECONDS:
                _write("", on_file=False)  # the program's own lines follow

    def kernels(self, names: Iterable[str], begins: Sequence[float]) -> Iterator[str]:
        """Yield ``names`` of kernels as the compilation of each begins; lines show how many have.

        ``begins``: seconds at which an idle machine begins each, and the end of the last.
        """
        with self.compiling():
            self._since, self._begins = time.monotonic(), begins
            try:
                for done, name in enumerate(names):
                    self._name, self._done, self._begun = name, done, time.monotonic()
                    yield name
            finally:
                self._name, self._begins = "", ()

    def report_background(self) -> None:
        """Write, once, that a background process compiles kernels."""
        if not self._reported_background:
            self._reported_background = True
            text = "interpreted while kernels compile in the background (spyre warm compiles all)"
            _write(text, last=True)

    def wait(self) -> None:
        """Wait until the last line is written."""
        if watcher := self._watcher:
            watcher.join()

    def _watch(self) -> None:
        """Write lines until nothing has been compiled for `IDLE_SECONDS`."""
        written = 0.0
        while True:
            time.sleep(_TICK_SECONDS)
            with self._lock:
                now = time.monotonic()
                if not self._depth and now - self._last > IDLE_SECONDS:
                    self._watcher = None
                    break
                if self._depth and now - self._begin >= SILENT_SECONDS:
                    is_due = not written or now - written >= REPEAT_SECONDS
                    written = now if is_due else written
                    _write(self._text(now), on_file=is_due)
        if written:
            seconds = self._last - self._begin
            directory, _ = cache_on_disk.find_directory()
            place = "not kept" if directory is None else f"kept in {directory}"
            _write(f"kernels compiled in {seconds:.0f} s, {place}{self.hint}", last=True)

    def _text(self, now: float) -> str:
        """Return a line: how many kernels are compiled, the time they took and will take."""
        seconds = f"{now - self._begin:.0f} s"
        if not self._name:
            return f"compiling kernels: {seconds}"
        left = self._left(now)
        rest = f", about {left:.0f} s left" if left >= 1 else ""
        number = f"{self._done + 1} of {len(self._begins) - 1}"
        name = self._name.partition(".")[0].replace("_", " ")
        return f"compiling kernels: {number} ({name}), {seconds}{rest}"

    def _left(self, now: float) -> float:
        """Return the seconds until all are compiled, if this machine stays as slow as until now."""
        this, following = self._begins[self._done : self._done + 2]
        slowness = (self._begun - self._since) / this if this else 1.0
        if following:  # it has not begun yet
            slowness = max(slowness, (now - self._since) / following)
        return slowness * self._begins[-1] - (now - self._since)


def _write(text: str, on_file: bool = True, last: bool = False) -> None:
    """Write a line, to a terminal in place of the last one; to files only if ``on_file``."""
    if sys.stderr is None or not config.PROGRESS.is_on:
        return
    try:
        if sys.stderr.isatty():
            terminal = getattr(sys.stderr, "terminal", sys.stderr)  # a command escapes the rest
            text = text if last else text[: shutil.get_terminal_size().columns - 1]
            terminal.write(f"\r\033[K{text}" + "\n" * last)
        elif on_file:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except Exception:  # of any object set as sys.stderr; a progress line must not fail the program
        return


@cache
def compile_progress() -> CompileProgress:
    """The one of this process."""
    return CompileProgress()
