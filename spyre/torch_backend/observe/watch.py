"""Observing all cards: ``torch.spyre.trace``, and what ``.profile`` and ``.counting`` share.

One of them at a time in a process; the block may use the cards from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from spyre.errors import LaunchError
from spyre.runtime.flex.device import devices
from spyre.runtime.trace.commands import TimeAxis, check_trace_file, write_trace
from spyre.torch_backend.compat import TRACE_BASE_STEP_S
from spyre.torch_backend.device.cards import card_at

if TYPE_CHECKING:
    from spyre.runtime.flex.command_stream import CommandStream
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.kernel.launch import Runner

T = TypeVar("T")
_watched = threading.Lock()


class WatchedCards(Generic[T]):
    """What ``enter`` gives for all cards that are used until `end`, by index: ``found``.

    When it has ended, that is in order of the cards.
    """

    def __init__(self, enter: Callable[[FlexDevice], AbstractContextManager[T]]) -> None:
        self.found: dict[int, T] = {}
        self._enter = enter
        self._stack = ExitStack()

    def begin(self) -> None:
        """Watch from now on. LaunchError SPY950 where cards of the process are being watched."""
        if not _watched.acquire(blocking=False):
            raise _nested()
        try:
            self.found.clear()
            card_at(-1)
            devices().watch(self._watch)
        except BaseException:
            self.end(None, None, None)
            raise

    def _watch(self, card: FlexDevice) -> None:
        self.found[card.index] = self._stack.enter_context(self._enter(card))

    def end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what was submitted, and watch no more. The arguments are those of __exit__."""
        try:
            devices().watch(None)
            self._stack.__exit__(kind, error, traceback)
        finally:
            self.found = dict(sorted(self.found.items()))
            _watched.release()


def recordings(runner: Runner | None = None) -> WatchedCards[CommandStream]:
    """The command streams of all cards. ``runner``: how launches run meanwhile, if not plainly."""
    return WatchedCards(partial(_recorded, runner))


@contextmanager
def _recorded(runner: Runner | None, card: FlexDevice) -> Iterator[CommandStream]:
    before = card.runner
    try:
        with card.recording() as commands:
            card.runner = before if runner is None else runner
            yield commands
    finally:
        card.runner = before


def _nested() -> LaunchError:
    return LaunchError(
        "SPY950",
        "what the cards do is being recorded already",
        expected="one torch.spyre.trace, .profile or .counting at a time in a process",
        hint="leave the other block first",
    )


FIRST_PROCESS = 1 << 22
"""Process of card 0 in the trace: above all numbers Linux gives to processes."""
_SAMPLES = 16


def time_axis() -> TimeAxis:
    """The host clock where the times of ``export_chrome_trace`` begin."""
    base_ns = int(time.time()) // TRACE_BASE_STEP_S * TRACE_BASE_STEP_S * 1_000_000_000
    return TimeAxis(base_ns - _epoch_offset_ns(), base_ns, FIRST_PROCESS)


def _epoch_offset_ns() -> int:
    """Nanoseconds since 1970 at host clock 0: the tightest of some readings of both clocks."""
    readings = []
    for _ in range(_SAMPLES):
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, now - (before + after) // 2))
    return min(readings)[1]


class trace:
    """``with torch.spyre.trace("out.json"):`` writes what all cards do in the block, for Perfetto.

    A process per card with tracks for streams and engines; times and process numbers are such that
    the file can be shown with, or its ``traceEvents`` appended to, those of
    ``torch.profiler``'s ``export_chrome_trace``. What was submitted before the block runs first,
    what was submitted in it has ended when the block is left. The file is written whole or not at
    all, also when the block raises. LaunchError SPY886 for a file that cannot be written, SPY950
    within another trace, profile or counting of the process.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = check_trace_file(path)
        self._recordings = recordings()

    def __enter__(self) -> trace:
        self._recordings.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._recordings.end(kind, error, traceback)
        finally:
            write_trace(self._path, self._recordings.found, time_axis())
