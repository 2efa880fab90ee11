"""Observing all cards: ``torch.spyre.trace`` and ``.counting``; ``.profile`` is another observer.

One of them at a time in a process; the block may use the cards from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, reduce
from operator import add
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from spyre.errors import LaunchError
from spyre.hw.counters import Counters, LaunchCounts
from spyre.runtime.flex import CommandStream, FlexDevice, devices
from spyre.runtime.trace import TimeAxis, check_trace_file
from spyre.torch_backend.compat import TRACE_BASE_STEP_S
from spyre.torch_backend.device import card_at, made_cards
from spyre.torch_backend.distributed import observing
from spyre.torch_backend.observe.ranks import write_trace_of_ranks
from spyre.torch_backend.program import CompiledProgram, launches_reported_to

if TYPE_CHECKING:
    from spyre.hw.linking import LinkedProgram
    from spyre.hw.sanitizer import SanitizerFinding
    from spyre.runtime.comms import CollectiveRecord
    from spyre.runtime.kernel import Runner
    from spyre.runtime.profile import LinkCounts

T = TypeVar("T")
_observed = threading.Lock()


class CardObserver(Generic[T]):
    """What ``enter`` gives for all cards that are used in a ``with`` block, by index, in order of
    the cards when the block has been left: ``observations``.

    What was submitted before the block runs first; what was submitted in it, on any thread and
    stream, has ended when the block is left. LaunchError SPY950 within another one of the process.
    """

    def __init__(self, enter: Callable[[FlexDevice], AbstractContextManager[T]]) -> None:
        self.observations: dict[int, T] = {}
        self._enter = enter
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not _observed.acquire(blocking=False):
            raise _nested()
        try:
            self.observations.clear()
            card_at(-1)
            devices().watch(self._observe)
        except BaseException:
            self._end(None, None, None)
            raise
        return self

    def _observe(self, card: FlexDevice) -> None:
        self.observations[card.index] = self._stack.enter_context(self._enter(card))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(kind, error, traceback)

    def _end(self, *error: Any) -> None:
        try:
            devices().watch(None)
            self._stack.__exit__(*error)
        finally:
            self.observations = dict(sorted(self.observations.items()))
            _observed.release()


@contextmanager
def recorded(runner: Runner | None, card: FlexDevice) -> Iterator[CommandStream]:
    """The command stream of a card; ``runner``: how launches run meanwhile, if not plainly."""
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


class trace(CardObserver[CommandStream]):
    """``with torch.spyre.trace("out.json"):`` writes what all cards do in the block, for Perfetto.

    A process per card with tracks for streams and engines; times and process numbers are such that
    the file can be shown with, or its ``traceEvents`` appended to, those of
    ``torch.profiler``'s ``export_chrome_trace``. What was submitted before the block runs first,
    what was submitted in it has ended when the block is left. The file is written whole or not at
    all, also when the block raises. ``group``: all its ranks enter the block, and the first one
    writes one file for all, see `write_trace_of_ranks`. LaunchError SPY886 for a file that cannot
    be written, SPY950 within another trace, profile or counting of the process.
    """

    def __init__(self, path: Path | str, group: Any = None) -> None:
        super().__init__(partial(recorded, None))
        self._path = check_trace_file(path)
        self._group = group

    def __exit__(self, *error: Any) -> None:
        has_failed = error[0] is not None
        try:
            super().__exit__(*error)
        except BaseException:
            has_failed = True
            raise
        finally:
            write_trace_of_ranks(
                self._path, self.observations, time_axis(), (), self._group, has_failed
            )


def sanitizer_findings() -> tuple[SanitizerFinding, ...]:
    """What the sanitizer has found on all cards since the last call, errors first.

    Waits for everything submitted. LaunchError SPY995 unless SPYRE_SANITIZE was set when the cards
    were made.
    """
    sanitizers = []
    for card in made_cards():
        card.synchronize()
        if card.device.sanitizer is None:
            raise LaunchError(
                "SPY995",
                "the cards have no sanitizer",
                expected="SPYRE_SANITIZE=1 in the environment, before the first tensor",
                found=f"spyre:{card.index} was made without",
            )
        sanitizers.append(card.device.sanitizer)
    return tuple(finding for sanitizer in sanitizers for finding in sanitizer.take())


class counting(CardObserver[LaunchCounts]):
    """``with torch.spyre.counting() as c:`` then ``c.counters``, ``c.launches``.

    Counts what all cards run in the block, on any thread and stream, as `CardObserver` says.
    Launches run as without it. ``cards``: by index. LaunchError SPY950 within a trace or profile of
    the process.
    """

    def __init__(self) -> None:
        super().__init__(FlexDevice.counting)
        self._records: dict[tuple[str, int], list[CollectiveRecord]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._records.clear()
        self._stack.enter_context(observing(self._note))
        return self

    def _note(self, group: str, record: CollectiveRecord) -> None:
        self._records.setdefault((group, record.rank), []).append(record)

    @property
    def links(self) -> dict[tuple[str, int], LinkCounts]:
        """Collectives that ended in the block, and bytes by link, by (name of the group, rank in
        it) of the ranks of this process.
        """
        from spyre.runtime.profile import link_counts

        return {key: link_counts(records) for key, records in self._records.items()}

    @property
    def cards(self) -> dict[int, LaunchCounts]:
        """What each card ran."""
        return self.observations

    @property
    def launches(self) -> int:
        """Programs that ran to their end, on all cards."""
        return sum(each.launches for each in self.cards.values())

    @property
    def counters(self) -> Counters:
        """Their work, computed when it is asked for."""
        return reduce(add, (each.counters for each in self.cards.values()), Counters())


# --- programs that a thread launches ----------------------------------------------------------


class Launches:
    """Programs launched, in order, with the addresses of their arguments."""

    def __init__(self) -> None:
        self.programs: list[tuple[CompiledProgram, tuple[int, ...]]] = []

    @property
    def linked(self) -> tuple[LinkedProgram, ...]:
        """What the driver ran for each, linked again where it is no longer known."""
        return tuple(program.linked_at(addresses) for program, addresses in self.programs)


@contextmanager
def launches_noted() -> Iterator[Launches]:
    """Programs that this thread launches in the block; copies are none."""
    launches = Launches()
    with launches_reported_to(
        lambda program, addresses: launches.programs.append((program, addresses))
    ):
        yield launches
