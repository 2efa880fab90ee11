"""Saying on standard error that kernels are being compiled: seconds to a minute, once per machine
and version, in which a user would take the program for dead.

numba tells of every function that it really compiles, not of those it loads. What takes less than a
second in all is not mentioned, and SPYRE_PROGRESS=0 keeps everything quiet.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache

import numba.core.event

from spyre import config

SILENT_SECONDS = 1.0
"""What passes unmentioned."""
REPEAT_SECONDS = 10.0
"""Between lines where standard error is no terminal; on one, the line changes in place."""
IDLE_SECONDS = 0.5
"""After which nothing more seems to be compiled."""
_TICK_SECONDS = 0.1


class CompileNotice(numba.core.event.Listener):  # type: ignore[misc]
    """Counts what is compiled, and has a thread of its own say so while it goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said_background = False
        self._start_again()
        os.register_at_fork(after_in_child=self._start_again)

    def _start_again(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # functions that are being compiled for each other
        self._begin = self._last = 0.0
        self._name = ""
        self._kinds = ""
        self._is_watched = False

    def on_start(self, event: numba.core.event.Event) -> None:
        function = event.data["dispatcher"].py_func
        if not function.__module__.startswith("spyre."):
            return
        self._enter(function.__name__)

    def _enter(self, name: str) -> None:
        with self._lock:
            self._depth += 1
            self._name = name
            if not self._is_watched:
                self._is_watched = True
                self._begin = time.monotonic()
                threading.Thread(target=self._watch, name="spyre-notice", daemon=True).start()

    def on_end(self, event: numba.core.event.Event) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith("spyre."):
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            self._last = time.monotonic()

    def elsewhere(self, names: Iterable[str], count: int) -> Iterator[str]:
        """``names`` of the ``count`` kernels that other processes compile, as each is begun."""
        self._enter(f"{count} kernels")
        try:
            for number, name in enumerate(names, 1):
                self._kinds, self._name = f"{number} of {count}, ", name
                yield name
        finally:
            self._kinds = ""
            self._leave()

    def say_background(self) -> None:
        """That kernels are compiled by a process of its own; said once."""
        if not self._said_background:
            self._said_background = True
            _say(
                "compiling kernels in the background (once); small programs are interpreted "
                "meanwhile",
                last=True,
            )

    def counted(self, kinds: Iterable[int]) -> Iterator[int]:
        """``kinds`` one after another, with their number for what is said meanwhile."""
        wanted = list(kinds)
        try:
            for done, kind in enumerate(wanted):
                self._kinds = f"{done + 1} of {len(wanted)}, "
                yield kind
        finally:
            self._kinds = ""

    def _watch(self) -> None:
        """Until nothing has been compiled for a while."""
        said = 0.0
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
            is_due = not said or now - said >= REPEAT_SECONDS
            said = now if is_due else said
            text = f"compiling kernels (once): {self._kinds}{self._name}, {seconds:.0f} s"
            _say(text, on_file=is_due)
        if said:
            seconds = self._last - self._begin
            _say(
                f"kernels compiled in {seconds:.0f} s, kept in {config.cache_directory()}",
                last=True,
            )


def _say(text: str, on_file: bool = True, last: bool = False) -> None:
    """``on_file``: also where a line cannot take the place of the one before."""
    if sys.stderr is None or not config.shows_progress():
        return
    try:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}" + "\n" * last)
        elif on_file:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except Exception:  # of whatever stands in the stream's place; a notice is worth no failure
        return


@cache
def compile_notice() -> CompileNotice:
    """The one of this process, listening from the first call on."""
    notice = CompileNotice()
    numba.core.event.register("numba:compile", notice)
    return notice
