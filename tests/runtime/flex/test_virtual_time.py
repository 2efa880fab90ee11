"""Virtual time on a card: repeatable, complete, and without deadlocks of waiting threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from spyre.hw.device.device import Device
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.scheduling import Engine
from spyre.runtime.flex.stream import Event
from tests.runtime.flex import kernels

TIMES = {Engine.HOST: 1, Engine.DMA: 2, Engine.COMPUTE: 5}
ONES = np.ones(kernels.STICK, np.float16)
ONE_LAUNCH = (
    "   0 - 1    host    stream 0  host 0\n"
    "   1 - 3    dma     stream 0  cb {}\n"
    "   3 - 8    compute stream 0  cb {}\n"
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return kernels.add(tmp_path_factory.mktemp("kernels") / "add")


@pytest.fixture
def card():
    device = FlexDevice(Device(threads=1))
    yield device
    device.close()


@pytest.fixture
def launch(card, bundle):
    """Launches 1 + 1 on a stream; the sum's tensor."""
    plan = kernels.load(card, bundle)
    a = card.to_device(ONES)

    def enqueue(stream=None):
        y = card.empty(kernels.STICK)
        (stream or card.default_stream).launch(plan, [a, a, y])
        return y

    return enqueue


def is_two(card, tensor):
    return bool((card.to_host(tensor).to_values() == 2).all())


def test_runs_at_the_end_of_the_block(card, launch):
    with card.virtual_time(TIMES) as time:
        y = launch()
        assert time.spans == ()
        assert not card.default_stream.query()
    assert card.default_stream.query()
    assert str(time) == ONE_LAUNCH.format(2, 3)
    assert time.now == 8
    assert is_two(card, y)


def test_repeatable(card, launch):
    texts = []
    for _ in range(2):
        with card.virtual_time(TIMES) as time:
            for _ in range(5):
                launch()
        texts.append([(s.begin, s.end, s.engine) for s in time.spans])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 15


def test_waiting_in_the_block_runs_what_was_submitted(card, launch):
    with card.virtual_time(TIMES) as time:
        y = launch()
        assert is_two(card, y)
        between = time.now
        launch()
    assert between == 10
    assert time.now == 18


def test_a_card_that_blocks(bundle):
    card = FlexDevice(Device(threads=1), is_blocking=True)
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    with card.virtual_time(TIMES) as time:
        card.default_stream.launch(plan, [a, a, y])
        assert time.now == 8
    assert is_two(card, y)
    card.close()


def test_events_have_virtual_times(card, launch):
    first, second = Event(enable_timing=True), Event(enable_timing=True)
    with card.virtual_time({engine: 10**6 * n for engine, n in TIMES.items()}):
        first.record(card.default_stream)
        launch()
        second.record(card.default_stream)
    assert first.elapsed_time(second) == 8.0


def test_afterwards_the_host_clock_counts_again(card, launch):
    with card.virtual_time(TIMES):
        launch()
    event = Event(enable_timing=True)
    event.record(card.default_stream)
    with card.recording() as commands:
        y = launch()
    assert commands.commands[0].begin_ns > 10**6
    assert is_two(card, y)


def test_recording_in_and_around_the_block(card, launch):
    with card.recording() as outside, card.virtual_time(TIMES) as time:
        launch()
    assert [c.begin_ns for c in outside] == [0, 1, 3]
    with card.virtual_time(TIMES) as time:
        with card.recording() as inside:
            launch()
        launch()
    assert len(inside) == 3
    assert len(time.spans) == 6


def test_work_of_other_threads_runs_too(card, launch):
    streams = [card.streams.take() for _ in range(4)]
    submitted = threading.Barrier(5)
    results: list[bool] = []

    def work(stream):
        y = launch(stream)
        submitted.wait()
        stream.synchronize()
        results.append(is_two(card, y))

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    with card.virtual_time(TIMES) as time:
        for thread in threads:
            thread.start()
        submitted.wait()
    for thread in threads:
        thread.join(20)
    assert results == [True] * 4
    assert len(time.spans) >= 12


def test_an_error_fails_its_stream_only(card, launch):
    failing, other = card.streams.take(), card.streams.take()

    def fail():
        raise ValueError("no")

    with card.virtual_time(TIMES):
        failing.add_callback(fail)
        dropped = launch(failing)
        y = launch(other)
    with pytest.raises(ValueError, match="no"):
        failing.synchronize()
    card.synchronize()
    assert is_two(card, y)
    assert not is_two(card, dropped)


def test_an_interrupt_is_raised_and_leaves_nothing_behind(card, launch):
    def interrupt():
        raise KeyboardInterrupt

    stream, other = card.streams.take(), card.streams.take()

    def submit():
        with card.virtual_time(TIMES):
            launch(other)
            stream.add_callback(interrupt)

    with pytest.raises(KeyboardInterrupt):
        submit()
    with pytest.raises(KeyboardInterrupt):
        card.synchronize()
    assert stream.error is not None
    assert card.scheduler.is_idle
    assert is_two(card, launch())


def test_an_exception_in_the_block_lets_the_work_run_as_usual(card, launch):
    left = []

    def submit():
        with card.virtual_time(TIMES) as time:
            left.extend([launch(), time])
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        submit()
    card.synchronize()
    y, time = left
    assert time.spans == ()
    assert is_two(card, y)
