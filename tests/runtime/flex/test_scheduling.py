"""The scheduler's rules, without threads and in virtual time."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spyre.runtime.flex.scheduler import VirtualTime
from spyre.runtime.flex.scheduling import (
    Engine,
    EventRecord,
    Policy,
    Scheduling,
    Stage,
    Stages,
    State,
    StreamQueue,
    Work,
)
from tests.examples import examples

TIMES = {Engine.HOST: 2, Engine.DMA: 3, Engine.COMPUTE: 10}


class Log:
    """Makes jobs that record the units that ran."""

    def __init__(self):
        self.ran = []

    def job(self, name, iterations=1, corrected=True, fails_at=None, large=True):
        def stage(engine):
            def run(work, first, last):
                for k in range(first, last):
                    if fails_at == (engine, k):
                        raise ValueError(f"{name} {engine.name} {k}")
                    self.ran.append((name, engine, k))

            return run

        compute = Stage(Engine.COMPUTE, stage(Engine.COMPUTE))
        prep = [Stage(e, stage(e), True) for e in (Engine.HOST, Engine.DMA)]
        stages = Stages((*(prep if corrected else ()), compute))
        return Work(stages, iterations, name, is_large=large)

    def of(self, engine):
        return [(name, k) for name, e, k in self.ran if e is engine]


def drain(state):
    """Run everything in one thread."""
    while (unit := state.next_unit()) is not None:
        try:
            unit.run()
        except ValueError as error:
            state.complete(unit, error)
        else:
            state.complete(unit)


def timeline(state):
    def complete(unit, error, begin, end):
        state.complete(unit, error)

    time = VirtualTime(state.next_unit, complete, lambda u: TIMES[u.work.stages.engines[u.stage]])
    state.one_by_one, state.clock = True, lambda: time.now
    time.run()
    return str(time)


def test_tiled_job_alternates_and_prepares_ahead():
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    state.submit(stream, log.job("a", 3))
    assert timeline(state) == (
        "   0 - 2    host    stream 0  host 0\n"
        "   2 - 4    host    stream 0  host 1\n"
        "   2 - 5    dma     stream 0  cb 0\n"
        "   4 - 6    host    stream 0  host 2\n"
        "   5 - 8    dma     stream 0  cb 2\n"
        "   5 - 15   compute stream 0  cb 1\n"
        "   8 - 11   dma     stream 0  cb 4\n"
        "  15 - 25   compute stream 0  cb 3\n"
        "  25 - 35   compute stream 0  cb 5\n"
    )


def two_streams(policy):
    state, log = Scheduling(policy), Log()
    first, second = StreamQueue(1), StreamQueue(2)
    state.submit(first, log.job("a", 2))
    state.submit(second, log.job("b", 2))
    return timeline(state)


def test_serialised_policy_finishes_a_job_first():
    computes = [line for line in two_streams(Policy.SERIALISED).splitlines() if "compute" in line]
    assert [line.split()[4:6] for line in computes] == [["stream", "1"]] * 2 + [["stream", "2"]] * 2


def test_only_preparation_overlaps_the_cores_of_another_job():
    """The second job's host operations and copies run while the first computes."""
    text = two_streams(Policy.SERIALISED)
    assert "   4 - 6    host    stream 2  host 2\n" in text
    assert "   8 - 11   dma     stream 2  cb 4\n" in text


def test_concurrent_policy_interleaves_streams():
    state, log = Scheduling(Policy.CONCURRENT), Log()
    for number in (1, 2):
        state.submit(StreamQueue(number), log.job(str(number), 2, corrected=number == 1))
    assert timeline(state) == (
        "   0 - 2    host    stream 1  host 0\n"
        "   0 - 10   compute stream 2  cb 4\n"
        "   2 - 4    host    stream 1  host 1\n"
        "   2 - 5    dma     stream 1  cb 0\n"
        "   5 - 8    dma     stream 1  cb 2\n"
        "  10 - 20   compute stream 1  cb 1\n"
        "  20 - 30   compute stream 2  cb 5\n"
        "  30 - 40   compute stream 1  cb 3\n"
    )


def test_high_priority_goes_first_and_age_decides_otherwise():
    state, log = Scheduling(), Log()
    low, high, other = StreamQueue(1, 1), StreamQueue(33, 0), StreamQueue(2, 1)
    for stream, name in ((low, "low"), (other, "other"), (high, "high")):
        state.submit(stream, log.job(name, corrected=False))
    drain(state)
    assert [name for name, _ in log.of(Engine.COMPUTE)] == ["high", "low", "other"]


def test_small_jobs_run_in_one_unit():
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    state.submit(stream, log.job("a", 3, large=False))
    unit = state.next_unit()
    assert unit is not None
    assert state.next_unit() is None
    unit.run()
    state.complete(unit)
    assert state.pending == 0
    assert len(log.ran) == 9


def queue_of_small_jobs(recovers=False, fails="", names="abcd"):
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    state.recovers = recovers
    at = {True: (Engine.COMPUTE, 0), False: None}
    jobs = [log.job(n, 1, False, at[n == fails], large=False) for n in names]
    for job in jobs:
        state.submit(stream, job)
    return state, stream, log, jobs


def test_small_jobs_behind_one_another_run_in_one_unit():
    state, stream, log, jobs = queue_of_small_jobs()
    state.submit(stream, log.job("large", corrected=False))
    unit = state.next_unit()
    assert state.next_unit() is None
    state.submit(stream, log.job("later", corrected=False, large=False))
    unit.run()
    assert [name for name, *_ in log.ran] == ["a", "b", "c", "d"]
    state.complete(unit)
    assert all(job.state is State.DONE for job in jobs)
    assert list(state.finished) == jobs
    drain(state)
    assert [name for name, *_ in log.ran] == ["a", "b", "c", "d", "large", "later"]
    assert state.pending == 0


def test_small_jobs_run_alone_while_another_stream_is_ready():
    state, stream, log, _ = queue_of_small_jobs(names="a")
    for other, name in ((StreamQueue(1), "b"), (stream, "c"), (StreamQueue(33, 0), "first")):
        state.submit(other, log.job(name, corrected=False, large=False))
    drain(state)
    assert [name for name, *_ in log.ran] == ["first", "a", "b", "c"]


@pytest.mark.parametrize("fails", ["a", "b", "d"])
@pytest.mark.parametrize("recovers", [True, False])
def test_a_failing_job_of_a_unit_ends_as_it_would_alone(fails, recovers):
    state, stream, log, jobs = queue_of_small_jobs(recovers, fails)
    drain(state)
    behind = State.DONE if recovers else State.DROPPED
    where = "abcd".index(fails)
    states = [State.DONE] * where + [State.FAILED] + [behind] * (3 - where)
    assert [job.state for job in jobs] == states
    ran = [name for name in "abcd" if name < fails or (recovers and name != fails)]
    assert [name for name, *_ in log.ran] == ran
    assert str(stream.error) == f"{fails} COMPUTE 0"
    assert (state.pending, len(state.finished)) == (0, 4)


def test_jobs_dropped_while_their_unit_runs_end_once():
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    jobs = [log.job(name, corrected=False, large=False) for name in "abcd"]

    def reset(work, first, last):
        state.drop_all([stream], ValueError("reset"))

    jobs.insert(2, Work(Stages((Stage(Engine.COMPUTE, reset),)), is_large=False))
    for job in jobs:
        state.submit(stream, job)
    unit = state.next_unit()
    unit.run()
    assert not state.finished
    state.submit(stream, log.job("new", corrected=False, large=False))
    state.complete(unit)
    assert list(state.finished) == jobs
    drain(state)
    assert [name for name, *_ in log.ran] == ["a", "b", "new"]
    assert state.pending == 0


def test_event_orders_two_streams():
    state, log, event = Scheduling(Policy.CONCURRENT), Log(), EventRecord()
    first, second = StreamQueue(1), StreamQueue(2, 0)
    state.submit(second, Work(event=event, is_wait=True))
    state.submit(second, log.job("after"))
    state.submit(first, log.job("before"))
    state.submit(first, Work(event=event))
    drain(state)
    assert event.done
    assert [name for name, _ in log.of(Engine.COMPUTE)] == ["before", "after"]


def test_failure_drops_what_is_behind_it_and_other_streams_go_on():
    state, log = Scheduling(), Log()
    bad, good = StreamQueue(1), StreamQueue(2)
    works = [log.job("a", 4, fails_at=(Engine.COMPUTE, 2)), log.job("b"), log.job("c")]
    for work in works:
        state.submit(bad, work)
    state.submit(good, log.job("d"))
    state.one_by_one = True
    drain(state)
    assert log.of(Engine.COMPUTE) == [("a", 0), ("a", 1), ("d", 0)]
    assert [work.state for work in works] == [State.FAILED, State.DROPPED, State.DROPPED]
    assert str(bad.error) == "a COMPUTE 2"
    assert good.error is None
    assert len(state.finished) == 4
    assert state.pending == 0


@pytest.mark.parametrize("engine", [Engine.HOST, Engine.DMA])
def test_failed_preparation_waits_for_its_turn(engine):
    """Jobs in front of one whose preparation failed still run."""
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    state.submit(stream, log.job("a", 2))
    state.submit(stream, log.job("b", fails_at=(engine, 0)))
    state.submit(stream, log.job("c"))
    timeline(state)
    assert log.of(Engine.COMPUTE) == [("a", 0), ("a", 1)]
    assert str(stream.error) == f"b {engine.name} 0"


def test_failure_reaches_those_who_wait_for_its_event():
    state, log, event = Scheduling(), Log(), EventRecord()
    bad, waiting = StreamQueue(1), StreamQueue(2)
    state.submit(bad, log.job("a", fails_at=(Engine.COMPUTE, 0)))
    state.submit(bad, Work(event=event))
    state.submit(waiting, Work(event=event, is_wait=True))
    state.submit(waiting, log.job("b"))
    drain(state)
    assert log.ran == [("a", Engine.HOST, 0), ("a", Engine.DMA, 0)]
    assert bad.error is event.failure.error is not None
    assert waiting.error.code == "SPY871"
    assert state.pending == 0


def test_streams_that_recover_lose_what_failed_and_nothing_else():
    state, log, event, told = Scheduling(), Log(), EventRecord(), EventRecord()
    state.recovers = True
    bad, waiting = StreamQueue(1), StreamQueue(2)
    works = [log.job("a", fails_at=(Engine.COMPUTE, 0)), log.job("b"), log.job("c")]
    state.submit(bad, works[0])
    state.submit(bad, Work(event=event))
    state.submit(bad, works[1])
    state.submit(waiting, Work(event=event, is_wait=True))
    state.submit(waiting, works[2])
    drain(state)
    assert [work.state for work in works] == [State.FAILED, State.DONE, State.DONE]
    assert log.of(Engine.COMPUTE) == [("b", 0), ("c", 0)]
    assert event.done
    assert waiting.failure is bad.failure is event.failure is works[0].failure is not None
    bad.failure.reported = True
    later = StreamQueue(3)
    state.submit(bad, Work(event=told))
    state.submit(later, Work(event=told, is_wait=True))
    state.submit(bad, log.job("d", fails_at=(Engine.HOST, 0)))
    drain(state)
    assert later.failure is None
    assert str(bad.error) == "d HOST 0"
    assert state.pending == 0


def test_held_work_does_not_run():
    state, stream, log = Scheduling(), StreamQueue(0), Log()
    state.holds = 1
    state.submit(stream, log.job("a"))
    assert state.next_unit() is None
    state.holds = 0
    assert state.next_unit() is not None


@st.composite
def programs(draw):
    """Work for some streams: ("job", iterations) | ("record", event) | ("wait", event)."""
    events = range(3)
    entry = st.one_of(
        st.tuples(st.just("job"), st.integers(1, 5)),
        st.tuples(st.just("record"), st.sampled_from(events)),
        st.tuples(st.just("wait"), st.sampled_from(events)),
    )
    return draw(st.lists(st.tuples(st.integers(0, 3), entry), max_size=30))


@examples(200)
@given(programs(), st.sampled_from(Policy), st.booleans(), st.randoms(use_true_random=False))
def test_any_interleaving_keeps_order_and_ends(program, policy, one_by_one, random):
    """Units complete in random order; streams stay FIFO, events hold, everything ends."""
    state, log = Scheduling(policy), Log()
    state.one_by_one = one_by_one
    streams = [StreamQueue(k, k % 2) for k in range(4)]
    records: dict[int, EventRecord] = {}
    order: dict[int, list[str]] = {k: [] for k in range(4)}
    before: dict[str, set[str]] = {}
    seen: dict[int, set[str]] = {k: set() for k in range(4)}
    behind: dict[EventRecord, set[str]] = {}
    for count, (k, (kind, value)) in enumerate(program):
        if kind == "job":
            name = f"j{count}"
            before[name] = set(seen[k])
            seen[k].add(name)
            order[k].append(name)
            state.submit(streams[k], log.job(name, value, large=random.random() < 0.5))
        elif kind == "record":
            records[value] = EventRecord()
            behind[records[value]] = set(seen[k])
            state.submit(streams[k], Work(event=records[value]))
        elif value in records:
            seen[k] |= behind[records[value]]
            state.submit(streams[k], Work(event=records[value], is_wait=True))
    running = []
    while True:
        while (unit := state.next_unit()) is not None:
            running.append(unit)
        if not running:
            break
        unit = running.pop(random.randrange(len(running)))
        unit.run()
        state.complete(unit)
    assert state.pending == 0
    computed = log.of(Engine.COMPUTE)
    for k, names in order.items():
        own = [name for name, _ in computed if name in names]
        assert list(dict.fromkeys(own)) == names, k
    for position, (name, _) in enumerate(computed):
        done = {other for other, _ in computed[position:]}
        assert not (before[name] & done)
