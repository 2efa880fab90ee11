"""Running queued work in virtual time: a repeatable timeline of the engines, on one thread.

The rules are those of `Scheduling`; every unit is executed at its virtual end. The timeline shows
the effect of a policy without a clock, and tests compare it as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spyre.hw.cost import VirtualClock
from spyre.runtime.flex.scheduling import Engine, WorkUnit, label_text

Take = Callable[[], WorkUnit | None]
"""Returns the next unit that may run, with its engines reserved; None if there is none."""
Complete = Callable[[WorkUnit, BaseException | None, int, int], None]
"""Called after a unit has run with its exception, virtual begin and end."""


@dataclass(frozen=True, slots=True)
class VirtualSpan:
    """One iteration of one stage: engine, begin and end (in units of the durations)."""

    label: str
    stream_id: int
    engine: Engine
    begin: int
    end: int

    def __str__(self) -> str:
        engine = self.engine.name.lower()
        return f"{self.begin:>4} - {self.end:<4} {engine:<8}stream {self.stream_id}  {self.label}"


class VirtualTime:
    """A virtual clock that runs work on the thread that calls `run`, one unit after another.

    ``duration``: returns the duration of a unit. ``now``: the time, from 0. Read it from that
    thread, or after `run`.
    """

    def __init__(self, take: Take, complete: Complete, duration: Callable[[WorkUnit], int]) -> None:
        self._take = take
        self._complete = complete
        self._duration = duration
        self._clock: VirtualClock[WorkUnit, int] = VirtualClock(0)
        self._spans: list[VirtualSpan] = []

    @property
    def now(self) -> int:
        """The virtual time."""
        return self._clock.now

    @property
    def spans(self) -> tuple[VirtualSpan, ...]:
        """The dispatched iterations, in order of begin, then engine."""
        return tuple(sorted(self._spans, key=lambda s: (s.begin, s.engine, s.label)))

    def run(self) -> None:
        """Run until no submitted work can continue. Interrupts are raised."""
        while True:
            while (unit := self._take()) is not None:
                self._begin(unit)
            if self._clock.next_end is None:
                return
            unit, begin = self._clock.end()
            error = _error_of(unit)
            self._complete(unit, error, begin, self.now)
            if error is not None and not isinstance(error, Exception):
                for unrun, begin in self._clock.drain():
                    self._complete(unrun, error, begin, self.now)
                raise error

    def _begin(self, unit: WorkUnit) -> None:
        begin, end = self.now, self._clock.begin(unit, self._duration(unit))
        self._spans.append(_span(unit, begin, end))

    def __str__(self) -> str:
        return "".join(f"{span}\n" for span in self.spans)


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
