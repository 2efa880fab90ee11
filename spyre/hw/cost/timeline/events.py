"""Begin and end of every task: an event simulation without a clock.

A task begins when everything it waits for has ended and its resource is free; of several that could
begin the one submitted first does. The same tasks always give the same times.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from spyre.hw.cost.timeline.policies import Overlap, ordered
from spyre.hw.cost.timeline.task import Resource, Span, Task, Timeline


def simulate(tasks: Sequence[Task], overlap: Overlap = Overlap.OVERLAPPED) -> Timeline:
    """When each task is done under a policy. ValueError for a task that waits for a later one."""
    chosen = ordered(tasks, overlap)
    for number, task in enumerate(chosen):
        if any(not 0 <= k < number for k in task.after):
            raise ValueError(f"task {number} waits for {task.after}")
    return Timeline(chosen, _Simulation(chosen).spans())


class _Simulation:
    """The state while it runs: who waits for whom, what is ready, what has begun."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._missing = [len(task.after) for task in tasks]
        self._waiting: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for k in task.after:
                self._waiting[k].append(number)
        self._ready: dict[Resource, list[int]] = {resource: [] for resource in Resource}
        self._free = set(Resource)
        self._running: list[tuple[float, int]] = []
        self._spans: list[Span | None] = [None] * len(tasks)

    def spans(self) -> tuple[Span, ...]:
        for number, missing in enumerate(self._missing):
            if not missing:
                self._make_ready(number)
        self._begin(0.0)
        while self._running:
            now = self._running[0][0]
            while self._running and self._running[0][0] == now:
                self._end(heapq.heappop(self._running)[1])
            self._begin(now)
        return tuple(span for span in self._spans if span is not None)

    def _make_ready(self, number: int) -> None:
        heapq.heappush(self._ready[self._tasks[number].resource], number)

    def _begin(self, now: float) -> None:
        """Every free resource takes the first of its ready tasks."""
        for resource, ready in self._ready.items():
            if resource in self._free and ready:
                number = heapq.heappop(ready)
                end = now + self._tasks[number].duration_ns
                self._spans[number] = Span(now, end)
                self._free.discard(resource)
                heapq.heappush(self._running, (end, number))

    def _end(self, number: int) -> None:
        self._free.add(self._tasks[number].resource)
        for waiting in self._waiting[number]:
            self._missing[waiting] -= 1
            if not self._missing[waiting]:
                self._make_ready(waiting)
