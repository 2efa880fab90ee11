"""The event simulation against a slow reference, and properties of every timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from spyre.hw.cost.timeline import (
    Overlap,
    Resource,
    Span,
    Task,
    TaskKind,
    ordered,
    simulate,
)
from tests.examples import examples


def critical_path_ns(tasks: Sequence[Task]) -> float:
    """The longest chain of tasks that wait for each other: no timeline is shorter."""
    ends: list[float] = []
    for task in tasks:
        ends.append(max((ends[k] for k in task.after), default=0.0) + task.duration_ns)
    return max(ends, default=0.0)


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Tasks as recordings have them: each waits for the last of its stream, and for others."""
    tasks: list[Task] = []
    last: dict[int, int] = {}
    for number in range(draw(st.integers(0, 14))):
        stream = draw(st.integers(0, 2))
        after = set(draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else [])
        after |= {last[stream]} if stream in last else set()
        duration = draw(st.sampled_from([0.0, 1.0, 2.0, 2.5, 7.0]))
        kind = draw(st.sampled_from(list(TaskKind)))
        tasks.append(Task(kind, duration, stream, tuple(sorted(after))))
        last[stream] = number
    return tasks


def spans_one_by_one(tasks: tuple[Task, ...]) -> list[Span]:
    """The reference: at every moment something ends, look at all tasks again."""
    begin: dict[int, float] = {}
    done: set[int] = set()
    now = 0.0
    while len(done) < len(tasks):
        done |= {k for k in begin if begin[k] + tasks[k].duration_ns <= now}
        busy = {tasks[k].resource for k in begin if k not in done}
        begun = False
        for k, task in enumerate(tasks):
            if k not in begin and task.resource not in busy and set(task.after) <= done:
                begin[k] = now
                busy.add(task.resource)
                begun = True
        ends = [begin[k] + tasks[k].duration_ns for k in begin if k not in done]
        if ends and (not begun or min(ends) > now):
            now = min(ends)
    return [Span(begin[k], begin[k] + task.duration_ns) for k, task in enumerate(tasks)]


@examples(150)
@given(tasks=task_lists(), overlap=st.sampled_from(list(Overlap)))
def test_against_the_reference(tasks: list[Task], overlap: Overlap):
    found = simulate(tasks, overlap)
    assert list(found.spans) == spans_one_by_one(ordered(tasks, overlap))


@examples(150)
@given(tasks=task_lists(), overlap=st.sampled_from(list(Overlap)))
def test_what_must_hold(tasks: list[Task], overlap: Overlap):
    found = simulate(tasks, overlap)
    for task, span in zip(found.tasks, found.spans, strict=True):
        assert span.end_ns - span.begin_ns == pytest.approx(task.duration_ns)
        assert all(found.spans[k].end_ns <= span.begin_ns for k in task.after)
    for resource in Resource:
        pairs = zip(found.tasks, found.spans, strict=True)
        used = sorted((s.begin_ns, s.end_ns) for t, s in pairs if t.resource is resource)
        assert all(a[1] <= b[0] for a, b in pairwise(used))
        assert found.makespan_ns >= found.busy_ns(resource) - 1e-9
    assert found.makespan_ns >= critical_path_ns(found.tasks) - 1e-9
    assert found.makespan_ns <= sum(task.duration_ns for task in tasks) + 1e-9


@examples(100)
@given(tasks=task_lists())
def test_recorded_orders_are_kept(tasks: list[Task]):
    """Under both policies that keep them, everything of a stream is in its order."""
    for overlap in (Overlap.SERIAL, Overlap.OVERLAPPED):
        spans = simulate(tasks, overlap).spans
        for stream in range(3):
            own = [s for t, s in zip(tasks, spans, strict=True) if t.stream == stream]
            assert all(a.end_ns <= b.begin_ns for a, b in pairwise(own))


@examples(100)
@given(tasks=task_lists())
@example(
    tasks=[
        Task(TaskKind.HOST, 2.0),
        Task(TaskKind.ADD, 1.0, 1, (0,)),
        Task(TaskKind.COPY_OUT, 0.0, 1, (1,)),
        Task(TaskKind.COMPUTE, 1.0, 1, (2,)),
    ]
)
def test_double_buffering_keeps_data_in_order(tasks: list[Task]):
    """A launch has its copies, waits for host operations and other streams, uses two buffers."""
    spans = simulate(tasks, Overlap.DOUBLE_BUFFERED).spans
    for k, task in enumerate(tasks):
        for j in task.after:
            if tasks[j].stream != task.stream or tasks[j].kind is TaskKind.HOST:
                assert spans[j].end_ns <= spans[k].begin_ns
        computes = [
            j
            for j in range(k)
            if tasks[j].stream == task.stream and tasks[j].kind is TaskKind.COMPUTE
        ]
        own = [j for j in range(k) if tasks[j].stream == task.stream]
        if task.kind is TaskKind.COMPUTE:
            needed = [j for j in own if tasks[j].kind is not TaskKind.COPY_OUT]
        elif task.kind is TaskKind.COPY_OUT:
            needed = computes
        elif task.kind is TaskKind.COPY_IN:
            needed = computes[:-1]
        else:
            needed = []
        assert all(spans[j].end_ns <= spans[k].begin_ns for j in needed)


def batches(count: int) -> list[Task]:
    """Launches of one stream, each with its copies."""
    tasks: list[Task] = []
    for _ in range(count):
        for kind, duration in (
            (TaskKind.COPY_IN, 4.0),
            (TaskKind.LAUNCH, 1.0),
            (TaskKind.COMPUTE, 10.0),
            (TaskKind.COPY_OUT, 3.0),
        ):
            tasks.append(Task(kind, duration, 0, (len(tasks) - 1,) if tasks else ()))
    return tasks


def test_double_buffering_hides_copies():
    tasks = batches(5)
    assert simulate(tasks, Overlap.SERIAL).makespan_ns == 5 * 18
    assert simulate(tasks, Overlap.OVERLAPPED).makespan_ns == 5 * 18
    assert simulate(tasks, Overlap.DOUBLE_BUFFERED).makespan_ns == 4 + 5 * 10 + 3


def test_streams_overlap():
    """A copy of one stream runs beside the computing of another."""
    tasks = [
        Task(TaskKind.COMPUTE, 10.0, 0),
        Task(TaskKind.COPY_IN, 6.0, 1),
        Task(TaskKind.COMPUTE, 1.0, 1, (1,)),
    ]
    assert [s.begin_ns for s in simulate(tasks).spans] == [0.0, 0.0, 10.0]
    assert simulate(tasks, Overlap.SERIAL).makespan_ns == 17


def test_a_task_cannot_wait_for_a_later_one():
    with pytest.raises(ValueError, match="task 0 waits"):
        simulate([Task(TaskKind.COMPUTE, 1.0, 0, (1,)), Task(TaskKind.COMPUTE, 1.0)])
