"""The scheduler with its threads: no work is lost, no wait is endless, threads end."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time

import pytest

from spyre.errors import StreamError
from spyre.runtime.flex import scheduler as module
from spyre.runtime.flex.scheduler import Scheduler
from spyre.runtime.flex.scheduling import (
    Engine,
    EventRecord,
    Policy,
    Stage,
    Stages,
    State,
    StreamQueue,
    Work,
)
from tests.interrupts import interruptible


class ToldWork(Work):
    """Work that adds its payload to ``told`` when it ends."""

    told: list[object]

    def release(self):
        self.told.append(self.payload)
        super().release()


def job(function, *, corrected=False, large=False, iterations=1, kind=Work):
    compute = Stage(Engine.COMPUTE, function)
    prep = (Stage(Engine.HOST, _nothing, True), Stage(Engine.DMA, _nothing, True))
    return kind(Stages((*(prep if corrected else ()), compute)), iterations, None, is_large=large)


def _nothing(work, first, last):
    pass


def wait(scheduler, *queues):
    last = [queue.last for queue in queues if queue.last is not None]
    scheduler.wait_until(lambda: all(work.has_ended for work in last))


def is_done(queue):
    return queue.last is not None and queue.last.has_ended


def own_threads():
    return [t for t in threading.enumerate() if t.name == "spyre-scheduler"]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


def test_work_goes_on_without_anybody_waiting():
    scheduler, queue, ran = Scheduler(), StreamQueue(0), threading.Event()
    scheduler.submit(queue, job(lambda work, first, last: ran.set()))
    assert ran.wait(10)
    until(lambda: is_done(queue))


def test_small_work_is_left_to_a_thread_that_goes_on_submitting(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", float("inf"))
    scheduler, queue, ran = Scheduler(), StreamQueue(0), []
    for k in range(5):
        scheduler.submit(queue, job(lambda *_, k=k: ran.append((k, threading.get_ident()))))
        time.sleep(2 * module.DOZE_SECONDS)
    assert not ran
    wait(scheduler, queue)
    assert ran == [(k, threading.get_ident()) for k in range(5)]


@pytest.mark.parametrize("why", ["large work", "a backlog", "a pause"])
def test_own_threads_run_small_work_too(why, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01 if why == "a pause" else float("inf"))
    monkeypatch.setattr(module, "MAX_BACKLOG", 3 if why == "a backlog" else 100)
    scheduler, queue = Scheduler(), StreamQueue(0)
    works = [*(job(_nothing) for _ in range(3)), job(_nothing, large=why == "large work")]
    for work in works:
        scheduler.submit(queue, work)
    until(lambda: works[0].has_ended)
    if why != "a backlog":  # which three more are not
        until(lambda: works[-1].has_ended)
    wait(scheduler, queue)


def test_the_waiting_thread_helps():
    """With the scheduler's threads closed the waiting one does everything."""
    scheduler, queue, seen = Scheduler(), StreamQueue(0), []
    scheduler.close()
    for _ in range(5):
        scheduler.submit(queue, job(lambda work, first, last: seen.append(threading.get_ident())))
    wait(scheduler, queue)
    assert seen == [threading.get_ident()] * 5


def test_preparation_of_the_next_job_overlaps_a_large_one():
    scheduler, queue = Scheduler(), StreamQueue(0)
    computing, prepared = threading.Event(), threading.Event()

    def compute(work, first, last):
        computing.set()
        assert prepared.wait(10)

    second = Work(
        Stages(
            (
                Stage(Engine.HOST, lambda work, first, last: prepared.set(), True),
                Stage(Engine.COMPUTE, _nothing),
            )
        ),
        is_large=True,
    )
    scheduler.submit(queue, job(compute, large=True))
    scheduler.submit(queue, second)
    wait(scheduler, queue)
    assert queue.error is None


def test_submit_does_not_wait_for_a_running_job():
    scheduler, queue, go = Scheduler(), StreamQueue(0), threading.Event()
    scheduler.submit(queue, job(lambda work, first, last: go.wait(10)))
    for _ in range(10):
        scheduler.submit(queue, job(_nothing))
    assert not is_done(queue)
    go.set()
    wait(scheduler, queue)
    assert is_done(queue)


def test_failed_stream_takes_nothing_more():
    scheduler, queue = Scheduler(), StreamQueue(0)

    def fail(work, first, last):
        raise ValueError("broken")

    works = [job(fail), job(_nothing)]
    with scheduler.held():
        for work in works:
            scheduler.submit(queue, work)
    wait(scheduler, queue)
    assert [work.state for work in works] == [State.FAILED, State.DROPPED]
    with pytest.raises(StreamError, match="SPY870"):
        scheduler.submit(queue, job(_nothing))


def test_holds_of_several_threads_may_end_in_any_order():
    scheduler, queue = Scheduler(), StreamQueue(0)
    first, second = scheduler.held(), scheduler.held()
    first.__enter__()
    second.__enter__()
    scheduler.submit(queue, job(_nothing))
    first.__exit__(None, None, None)
    assert not scheduler.step()
    second.__exit__(None, None, None)
    wait(scheduler, queue)


def test_interrupt_in_a_waiting_thread_reaches_it_and_fails_the_stream():
    scheduler, queue = Scheduler(), StreamQueue(0)
    scheduler.close()

    def interrupt(work, first, last):
        raise KeyboardInterrupt

    scheduler.submit(queue, job(interrupt))
    with pytest.raises(KeyboardInterrupt):
        wait(scheduler, queue)
    assert isinstance(queue.error, KeyboardInterrupt)


def test_ended_work_is_told_once_and_gives_up_its_payload():
    ended = []
    scheduler, queue = Scheduler(), StreamQueue(0)
    works = [job(_nothing, kind=ToldWork) for _ in range(3)]
    for k, work in enumerate(works):
        work.payload, work.told = k, ended
        scheduler.submit(queue, work)
    wait(scheduler, queue)
    until(lambda: len(ended) == 3)
    assert ended == [0, 1, 2]
    until(lambda: all(work.payload is None for work in works))


def test_threads_end_when_idle(monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    until(lambda: not own_threads())
    scheduler, queue = Scheduler(), StreamQueue(0)
    for _ in range(3):
        scheduler.submit(queue, job(_nothing))
        until(lambda: is_done(queue) and not own_threads())


def test_threads_end_with_their_scheduler(monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    scheduler, queue = Scheduler(), StreamQueue(0)
    scheduler.submit(queue, job(_nothing))
    wait(scheduler, queue)
    del scheduler
    gc.collect()
    until(lambda: not own_threads())


def test_close_ends_threads_and_may_be_repeated():
    scheduler, queue = Scheduler(), StreamQueue(0)
    scheduler.submit(queue, job(_nothing))
    wait(scheduler, queue)
    scheduler.close()
    scheduler.close()
    until(lambda: scheduler._threads == 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_starts_its_own_threads():
    scheduler, queue = Scheduler(), StreamQueue(0)
    scheduler.submit(queue, job(_nothing))
    wait(scheduler, queue)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            scheduler.submit(queue, job(_nothing))
            until(lambda: is_done(queue))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("seed", range(6))
def test_many_streams_from_many_threads_lose_nothing(policy, seed):
    """Counters per stream, chained through events: every result is that of the sequential run."""
    scheduler = Scheduler(policy)
    queues = [StreamQueue(k, k % 2) for k in range(16)]
    counters = [0] * len(queues)

    def submit(k):
        generator = random.Random(seed * 100 + k)
        for _ in range(100):

            def count(work, first, last, k=k):
                value = counters[k]
                if generator.random() < 0.01:
                    time.sleep(1e-5)
                counters[k] = value + 1

            scheduler.submit(
                queues[k], job(count, corrected=k % 3 == 0, large=generator.random() < 0.3)
            )
            if generator.random() < 0.2:
                event = EventRecord()
                scheduler.submit(queues[k], Work(event=event))
                other = queues[(k + 1) % len(queues)] if k + 1 < len(queues) else queues[k]
                scheduler.submit(other, Work(event=event, is_wait=True))

    threads = [threading.Thread(target=submit, args=(k,)) for k in range(len(queues))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(scheduler, *queues)
    assert counters == [100] * len(queues)
    until(lambda: scheduler.is_idle)


@pytest.fixture(name="interruptible")
def _interruptible():
    with interruptible():
        yield


def test_an_interrupted_wait_leaves_the_scheduler_usable(interruptible):
    """Ctrl-C while the thread sleeps: own threads go on."""
    scheduler, queue, go = Scheduler(), StreamQueue(0), threading.Event()
    scheduler.submit(queue, job(lambda work, first, last: go.wait(10), large=True))
    until(lambda: scheduler._running == 1)
    this = threading.get_ident()
    interrupt = threading.Timer(0.1, signal.pthread_kill, [this, signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        wait(scheduler, queue)
    interrupt.join()
    assert scheduler._helpers == 0
    go.set()
    scheduler.submit(queue, job(_nothing))
    until(lambda: is_done(queue))


@pytest.mark.parametrize("name", ["next_unit", "complete"])
def test_an_interrupt_amid_the_books_comes_after_them(interruptible, name):
    """Resources that were taken are released, at whichever line Ctrl-C arrives."""
    scheduler, queue = Scheduler(), StreamQueue(0)
    scheduler.close()
    original = getattr(scheduler._state, name)

    def interrupted(*arguments):
        setattr(scheduler._state, name, original)
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    setattr(scheduler._state, name, interrupted)
    scheduler.submit(queue, job(_nothing))
    with pytest.raises(KeyboardInterrupt):
        wait(scheduler, queue)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    queue.failure = None
    scheduler.submit(queue, job(_nothing))
    wait(scheduler, queue)
    assert scheduler.is_idle


def test_ends_may_be_reported_by_several_threads_at_once():
    """Threads that find the same last work: none fails, and every end is reported once."""
    told = []
    scheduler = Scheduler()
    works = [job(_nothing, kind=ToldWork) for _ in range(20000)]
    for k, work in enumerate(works):
        work.payload, work.told = k, told
        scheduler._finished.append(work)
    errors = []

    def report():
        try:
            scheduler._report_ends()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(told) == list(range(20000))
