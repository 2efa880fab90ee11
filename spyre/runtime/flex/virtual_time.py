"""Running queued work in virtual time: which engine would do what when, on one thread, repeatably.

The rules are those of `Scheduling`; every unit really runs, at its virtual end. What a policy means
can be read from the result without a clock, and tests compare it as text.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from spyre.runtime.flex.scheduling import Engine, Scheduling, WorkUnit, label_text

Take = Callable[[], WorkUnit | None]
"""The next unit that may run, with its engines taken; None if there is none."""
Complete = Callable[[WorkUnit, BaseException | None, int, int], None]
"""Told that a unit has run: what it raised, its virtual begin and end."""


@dataclass(frozen=True, slots=True)
class VirtualSpan:
    """One iteration of one stage: who did it, and from when to when (units of the durations)."""

    label: str
    stream_id: int
    engine: Engine
    begin: int
    end: int

    def __str__(self) -> str:
        engine = self.engine.name.lower()
        return f"{self.begin:>4} - {self.end:<4} {engine:<8}stream {self.stream_id}  {self.label}"


class VirtualTime:
    """A virtual clock that runs work, on the thread that calls `run`, one unit after another.

    ``duration``: how long a unit takes. ``now``: the time, 0 at first. Read it from that thread, or
    when it has run.
    """

    def __init__(self, take: Take, complete: Complete, duration: Callable[[WorkUnit], int]) -> None:
        self._take = take
        self._complete = complete
        self._duration = duration
        self._running: list[tuple[int, int, int, WorkUnit]] = []
        self._spans: list[VirtualSpan] = []
        self.now = 0

    @property
    def spans(self) -> tuple[VirtualSpan, ...]:
        """What has been dispatched, in order of begin, then engine."""
        return tuple(sorted(self._spans, key=lambda s: (s.begin, s.engine, s.label)))

    def run(self) -> None:
        """Run until nothing that was submitted can go on. An interrupt is raised."""
        while True:
            while (unit := self._take()) is not None:
                self._begin(unit)
            if not self._running:
                return
            self.now, _, begin, unit = heapq.heappop(self._running)
            error = _error_of(unit)
            self._complete(unit, error, begin, self.now)
            if error is not None and not isinstance(error, Exception):
                self._give_up(error)
                raise error

    def _begin(self, unit: WorkUnit) -> None:
        end = self.now + self._duration(unit)
        heapq.heappush(self._running, (end, len(self._spans), self.now, unit))
        self._spans.append(_span(unit, self.now, end))

    def _give_up(self, error: BaseException) -> None:
        """What has begun and will not run has failed."""
        while self._running:
            _, _, begin, unit = heapq.heappop(self._running)
            self._complete(unit, error, begin, self.now)

    def __str__(self) -> str:
        return "".join(f"{span}\n" for span in self.spans)


def run_in_virtual_time(
    state: Scheduling, duration: Callable[[WorkUnit], int]
) -> tuple[VirtualSpan, ...]:
    """Run everything submitted to ``state``; the spans in order of their begin, then engine.

    ``duration``: how long a unit takes. Nothing else may drive ``state`` meanwhile.
    """

    def complete(unit: WorkUnit, error: BaseException | None, begin: int, end: int) -> None:
        state.complete(unit, error)

    time = VirtualTime(state.next_unit, complete, duration)
    state.one_by_one, state.clock = True, lambda: time.now
    time.run()
    return time.spans


def _error_of(unit: WorkUnit) -> BaseException | None:
    try:
        unit.run()
    except BaseException as error:
        return error
    return None


def _span(unit: WorkUnit, begin: int, end: int) -> VirtualSpan:
    work = unit.work
    assert work.stream is not None
    label = label_text(work.label(unit.stage, unit.first))
    return VirtualSpan(label, work.stream.stream_id, work.stages.engines[unit.stage], begin, end)
