"""Progress lines on standard error while kernels are compiled, once per machine and version: this
takes seconds to a minute, in which the program would seem to hang.

Compilations that take less than a second in all are not shown, and SPYRE_PROGRESS=0 shows none.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from spyre import config

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
        self._lock = threading.Lock()
        self._reported_background = False
        self._start_again()
        os.register_at_fork(after_in_child=self._start_again)

    def _start_again(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # compilations that have begun and not ended
        self._begin = self._last = 0.0
        self._kinds = ""
        self._done, self._wanted = 0, 0
        self._is_watched = False

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
            if not self._is_watched:
                self._is_watched = True
                self._begin = time.monotonic()
                threading.Thread(target=self._watch, name="spyre-progress", daemon=True).start()

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            self._last = time.monotonic()

    def elsewhere(self, names: Iterable[str], count: int) -> Iterator[str]:
        """Yield ``names`` of the ``count`` kernels that other processes compile, as each begins."""
        with self.compiling():
            try:
                for done, name in enumerate(names):
                    self._kinds, self._done, self._wanted = f" ({name})", done, count
                    yield name
            finally:
                self._kinds, self._wanted = "", 0

    def report_background(self) -> None:
        """Write, once, that a background process compiles kernels."""
        if not self._reported_background:
            self._reported_background = True
            _write(
                "compiling kernels in the background; small programs are interpreted meanwhile "
                "(spyre warm compiles all)",
                last=True,
            )

    def numbered(self, kinds: Iterable[int]) -> Iterator[int]:
        """Yield ``kinds``; lines written meanwhile show how many of them are done."""
        wanted = list(kinds)
        try:
            for done, kind in enumerate(wanted):
                self._done, self._wanted = done, len(wanted)
                yield kind
        finally:
            self._wanted = 0

    def _watch(self) -> None:
        """Write lines until nothing has been compiled for `IDLE_SECONDS`."""
        written = 0.0
        while True:
            time.sleep(_TICK_SECONDS)
            now = time.monotonic()
            with self._lock:
                if not self._depth and now - self._last > IDLE_SECONDS:
                    self._is_watched = False
                    break
            if now - self._begin < SILENT_SECONDS:
                continue
            seconds = now - self._begin
            is_due = not written or now - written >= REPEAT_SECONDS
            written = now if is_due else written
            _write(self._text(seconds), on_file=is_due)
        if written:
            seconds = self._last - self._begin
            directory = config.cache_directory()
            is_kept = os.access(directory, os.W_OK)
            place = f"kept in {directory}" if is_kept else f"not kept: {directory} is not writable"
            _write(f"kernels compiled in {seconds:.0f} s, {place}", last=True)

    def _text(self, seconds: float) -> str:
        """How many kernels of the program are compiled, and the time they took and will take."""
        hint = "spyre warm compiles those of all programs"
        if not self._wanted:
            return f"compiling kernels: {seconds:.0f} s ({hint})"
        left = seconds / self._done * (self._wanted - self._done) if self._done else 0.0
        rest = f", about {left:.0f} s left" if left >= 1 else ""
        number = f"{self._done + 1} of {self._wanted}{self._kinds}"
        return f"compiling kernels: {number}, {seconds:.0f} s{rest} ({hint})"


def _write(text: str, on_file: bool = True, last: bool = False) -> None:
    """Write a line, to a terminal in place of the last one; to files only if ``on_file``."""
    if sys.stderr is None or not config.PROGRESS.is_on:
        return
    try:
        if sys.stderr.isatty():
            terminal = getattr(sys.stderr, "terminal", sys.stderr)  # a command escapes the rest
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
