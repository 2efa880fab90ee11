"""Running queued work in virtual time: which engine would do what when, on one thread, repeatably.

The rules are those of `Scheduling`; every unit really runs, at its virtual end. What a policy means
can be read from the result without a clock, and tests compare it as text.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from spyre.runtime.flex.engine import Engine
from spyre.runtime.flex.scheduling import Scheduling, Unit
from spyre.runtime.flex.work import label_text


@dataclass(frozen=True, slots=True)
class Span:
    """One iteration of one stage: who did it, and from when to when (units of the durations)."""

    label: str
    stream_id: int
    engine: Engine
    begin: int
    end: int

    def __str__(self) -> str:
        engine = self.engine.name.lower()
        return f"{self.begin:>4} - {self.end:<4} {engine:<8}stream {self.stream_id}  {self.label}"


def run_in_virtual_time(state: Scheduling, duration: Callable[[Unit], int]) -> tuple[Span, ...]:
    """Run everything submitted to ``state``; the spans in order of their begin, then engine.

    ``duration``: how long a unit takes. Nothing else may drive ``state`` meanwhile.
    """
    now = [0]
    state.one_by_one, state.clock = True, lambda: now[0]
    running: list[tuple[int, int, Unit]] = []
    spans: list[Span] = []
    while True:
        while (unit := state.next_unit()) is not None:
            end = now[0] + duration(unit)
            heapq.heappush(running, (end, len(spans), unit))
            spans.append(_span(unit, now[0], end))
        if not running:
            return tuple(sorted(spans, key=lambda s: (s.begin, s.engine, s.label)))
        now[0], _, unit = heapq.heappop(running)
        state.complete(unit, _error_of(unit))


def _error_of(unit: Unit) -> BaseException | None:
    try:
        unit.run()
    except Exception as error:
        return error
    return None


def _span(unit: Unit, begin: int, end: int) -> Span:
    work = unit.work
    assert work.stream is not None
    label = label_text(work.label(unit.stage, unit.first))
    return Span(label, work.stream.stream_id, work.stages.engines[unit.stage], begin, end)
