"""Streams, events and launches on a card: order, errors, memory."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError, SpyreError, StreamError
from spyre.hw.device.device import Device
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.loaded_kernel import MAX_FREE, SLAB
from spyre.runtime.flex.prepare import Instruction, Program
from spyre.runtime.flex.scheduling import Engine
from spyre.runtime.flex.steps import Job
from spyre.runtime.flex.stream import Event
from tests.interrupts import interrupted_at, interruptible
from tests.runtime.flex import kernels
from tests.runtime.flex.faults import failing
from tests.runtime.flex.stress import check_seed

ONES = np.ones(kernels.STICK, np.float16)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def card():
    device = FlexDevice(Device(threads=1))
    yield device
    device.close()


@pytest.fixture(scope="module")
def bundle(directory):
    return kernels.add(directory / "add")


def values(card, tensor, stream=None):
    return card.to_host(tensor, stream).to_values()


def test_launch_and_read_back(card, bundle):
    plan = kernels.load(card, bundle)
    a, b, y = card.to_device(ONES, "a"), card.to_device(2 * ONES, "b"), card.empty(kernels.STICK)
    card.default_stream.launch(Job(plan), [a, b, y])
    assert (values(card, y) == 3).all()


@pytest.mark.parametrize("symbolic", [True, False])
def test_plan_has_a_correction_where_there_are_symbols(card, directory, symbolic):
    plan = kernels.load(card, kernels.distance(directory / f"s{symbolic}", symbolic=symbolic))
    expected = ["HostCompute", "H2D", "Compute"] if symbolic else ["Compute"]
    assert [plan.get_step_type(k) for k in range(plan.num_steps())] == expected
    assert plan.job_allocation_size() == 128
    assert plan.expected_input_shapes == (kernels.STICK,) * 3
    with pytest.raises(LaunchError, match="Step index out of range"):
        plan.get_step_type(3)
    a, b, y = card.to_device(ONES), card.to_device(5 * ONES), card.empty(kernels.STICK)
    card.default_stream.launch(plan, [a, b, y])
    assert (values(card, y) == 4).all()


def test_the_compute_step_reads_the_correction_from_program_memory(card, bundle):
    """The compute step uses the address that the DMA wrote: another address, another tensor."""
    plan = kernels.load(card, bundle)
    a, b, y = card.to_device(ONES), card.to_device(2 * ONES), card.empty(kernels.STICK)
    other = card.to_device(40 * ONES)
    host, copy, compute = plan.steps
    inner = copy.stage.run

    def changed(context, first, last):
        context.buffers["correction"][0, 1] = other.resolved.address_bytes
        inner(context, first, last)

    card.default_stream.launch(
        replace(plan, steps=(host, replace(copy, copy=changed), compute)), [a, b, y]
    )
    assert (values(card, y) == 41).all()


def test_damaged_program_memory_is_a_fault(card, bundle):
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]
    card.synchronize()
    card.device.memory.view(plan.program.image.address_bytes, 128)[:] = 0
    card.default_stream.launch(plan, tensors)
    with pytest.raises(DeviceFault, match=r"SPY881.*does not hold add"):
        card.synchronize()


@pytest.mark.parametrize("place", range(3))
def test_error_surfaces_once_and_the_stream_is_finished(card, bundle, place):
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]
    before = card.allocator.statistics().allocated_bytes.current
    stream, other = card.streams.take(), card.streams.take()
    other.wait_stream(card.default_stream)
    with card.scheduler.held():
        stream.launch(failing(plan, place), tensors)
        dropped = card.to_device(7 * ONES, stream=stream)
        other.launch(plan, tensors)
    with pytest.raises(RuntimeError):
        stream.synchronize()
    stream.synchronize()
    assert stream.query()
    card.synchronize()
    assert (values(card, tensors[2]) == 2).all()
    assert (values(card, dropped) == 0).all()
    with pytest.raises(StreamError, match=f"SPY870]: stream {stream.stream_id} has failed"):
        stream.launch(plan, tensors)
    del dropped
    gc.collect()
    assert card.allocator.statistics().allocated_bytes.current - before <= 64 * 128
    card.reset()
    stream.launch(plan, tensors)
    stream.synchronize()


def test_a_callback_that_fails_without_text(card):
    stream = card.streams.take()

    def fail():
        raise ZeroDivisionError

    stream.add_callback(fail)
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    with pytest.raises(StreamError, match=r"SPY870(.|\n)*ZeroDivisionError"):
        stream.record_event()


def test_streams_recover_where_the_card_says_so(card, bundle):
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    card.synchronize()
    card.scheduler.recovers = True
    stream = card.streams.take()
    stream.launch(failing(plan, 2), [a, a, y])
    with pytest.raises(RuntimeError):
        stream.synchronize()
    stream.launch(plan, [a, a, y])
    stream.synchronize()
    assert (values(card, y) == 2).all()


def test_query_reports_the_error(card, bundle):
    plan = failing(kernels.load(card, bundle), 2)
    stream = card.streams.take()
    stream.launch(plan, [card.to_device(ONES, stream=stream) for _ in range(3)])

    def poll():
        while not stream.query():
            pass

    with pytest.raises(RuntimeError):
        poll()


def test_wrong_tensors_are_refused_at_once(card, bundle):
    plan = kernels.load(card, bundle)
    a = card.to_device(ONES)
    with pytest.raises(LaunchError, match="SPY878]: add takes 3 tensors"):
        card.default_stream.launch(plan, [a, a])
    with pytest.raises(LaunchError, match="SPY853"):
        card.default_stream.launch(plan, [a, card.empty((2, 64)), a])
    elsewhere = FlexDevice(Device(threads=1), 1).empty(kernels.STICK)
    with pytest.raises(LaunchError, match="SPY879]: argument 2 must be on Spyre device 0"):
        card.default_stream.launch(plan, [a, a, elsewhere])
    card.synchronize()


def test_tensors_live_until_their_launch_has_run(card, bundle):
    plan = kernels.load(card, bundle)
    y = card.empty(kernels.STICK)
    with card.scheduler.held():
        card.default_stream.launch(plan, [card.to_device(ONES), card.to_device(ONES), y])
        gc.collect()
        card.empty(kernels.STICK)
    card.synchronize()
    assert (values(card, y) == 2).all()


def test_events_order_streams_and_tell_times(card, bundle):
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    one, other = card.streams.take(), card.streams.take(1)
    one.wait_stream(card.default_stream)
    begin, end = Event(enable_timing=True), Event(enable_timing=True)
    with card.scheduler.held():
        begin.record(one)
        one.launch(plan, [a, a, y])
        end.record(one)
        other.wait_event(end)
        other.launch(plan, [y, a, y])
        assert not end.query()
    end.synchronize()
    card.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) >= 0
    assert (values(card, y) == 3).all()
    with pytest.raises(LaunchError, match="SPY875"):
        begin.elapsed_time(Event(enable_timing=True))
    assert Event().query()
    Event().synchronize()
    Event().wait(one)


def test_failed_stream_fails_those_who_wait_for_it(card, bundle):
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]
    bad, waiting = card.streams.take(), card.streams.take()
    bad.wait_stream(card.default_stream)
    with card.scheduler.held():
        bad.launch(failing(plan, 2), tensors)
        event = bad.record_event()
        waiting.wait_event(event)
        waiting.launch(plan, tensors)
    with pytest.raises(StreamError, match=r"SPY871]: stream 2 waits .* failed"):
        waiting.synchronize()
    for look in (event.query, event.synchronize, bad.synchronize):
        with pytest.raises(RuntimeError, match="Compute 0"):
            look()


def test_callbacks_run_in_order_and_block_their_stream(card, bundle):
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    seen, stream = [], card.default_stream
    view = card.device.bytes_of(y.resolved)
    stream.launch(plan, [a, a, y])
    stream.add_callback(lambda: seen.append(view[:2].tobytes()))
    stream.launch(plan, [y, a, y])
    stream.synchronize()
    two = card.to_device(2 * ONES)
    stream.synchronize()
    assert seen == [card.device.bytes_of(two.resolved)[:2].tobytes()]
    assert (values(card, y) == 3).all()
    stream.add_callback(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()


def test_stream_pools(card):
    low = [card.streams.take().stream_id for _ in range(33)]
    high = [card.streams.take(-5).stream_id for _ in range(33)]
    assert low == [*range(1, 33), 1]
    assert high == [*range(33, 65), 33]
    assert card.streams.of_id(0) is card.default_stream
    assert (card.streams.of_id(3).priority, card.streams.of_id(40).priority) == (0, -1)
    with pytest.raises(LaunchError, match="no flex handle for stream id 65"):
        card.streams.of_id(65)


def test_an_interrupted_take_leaves_the_pool_usable(card):
    for line in range(1, 12):
        with suppress(KeyboardInterrupt), interruptible(), interrupted_at(line):
            card.streams.take()
        assert card.streams.take() in card.streams.handed_out()


def test_current_stream_is_a_matter_of_the_thread(card):
    stream, seen = card.streams.take(), []
    with card.streams.using(stream):
        thread = threading.Thread(target=lambda: seen.append(card.streams.current))
        thread.start()
        thread.join()
        assert card.streams.current is stream
        assert card.streams.set_current(card.default_stream) is stream
    assert seen == [card.default_stream]
    assert card.streams.current is card.default_stream


def test_blocking_mode_raises_at_the_launch(bundle):
    card = FlexDevice(Device(threads=1), is_blocking=True)
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]
    with pytest.raises(RuntimeError):
        card.default_stream.launch(failing(plan, 2), tensors)


def test_program_facade(card, bundle):
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    program, instruction = Program(), Instruction(plan)
    program.add_instruction(instruction)
    program.add_instruction(Instruction(plan))
    program.launch([a, a, y], card.default_stream)
    assert (values(card, y) == 2).all()
    program.remove_instruction(instruction)
    assert len(program.instructions) == 1
    with pytest.raises(LaunchError, match="SPY882"):
        program.remove_instruction(instruction)


def test_recording_shows_every_block(card, bundle):
    plan = kernels.load(card, bundle)
    a, y = card.to_device(ONES, "a"), card.empty(kernels.STICK, name="y")
    card.synchronize()
    with card.recording() as commands:
        card.default_stream.launch(plan, [a, a, y])
        card.default_stream.launch(plan, [y, a, y])
    assert [c.engine for c in commands.host_operations] == [Engine.HOST] * 2
    assert len(commands.control_blocks) == 4
    kinds = [(c.block.kind, c.iteration) for c in commands.control_blocks]
    assert kinds.count(("compute", 0)) == 2
    assert all(c.begin_ns <= c.end_ns for c in commands)
    card.default_stream.launch(plan, [a, a, y])
    card.synchronize()
    assert len(commands) == 6


def test_recording_counts_what_crosses_the_link(card):
    with card.recording() as commands:
        a = card.to_device(ONES, "a")
        card.to_host(a)
        card.to_host(a)
    assert (commands.rxpci_bytes, commands.txpci_bytes) == (ONES.nbytes, 2 * ONES.nbytes)


@pytest.mark.parametrize("seed", range(4))
def test_many_streams_equal_one(directory, seed):
    bundle = kernels.distance(directory / f"stress{seed}")
    agree, _ = check_seed(bundle, 16, 20, seed)
    assert agree


def resident_bytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def test_ten_thousand_launches_leak_nothing(card, bundle):
    """Allocator counters do not grow at all, resident memory by less than 2 MiB.

    The card's own thread ends when it has long been idle and begins again: one thread more or less.
    """
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]

    def measure(rounds):
        for _ in range(rounds):
            for _ in range(100):
                card.default_stream.launch(plan, tensors)
            card.synchronize()
        gc.collect()
        statistics = card.allocator.statistics()
        counters = statistics.allocated_bytes.current, statistics.allocations.current
        return counters, threading.active_count(), resident_bytes()

    before = measure(20)
    after = measure(100)
    assert after[0] == before[0]
    assert after[1] <= before[1] + 1
    assert after[2] <= before[2] + (2 << 20)


def test_a_long_queue_keeps_some_corrections_only(card, bundle):
    plan = kernels.load(card, bundle)
    tensors = [card.to_device(ONES) for _ in range(3)]
    card.synchronize()
    before = card.allocator.statistics().allocated_bytes.current
    with card.scheduler.held():
        for _ in range(3000):
            card.default_stream.launch(plan, tensors)
    card.synchronize()
    kept = MAX_FREE + SLAB
    assert card.allocator.statistics().allocated_bytes.current <= before + kept * 128


def test_errors_are_ours():
    assert issubclass(StreamError, SpyreError)


def _nested(card):
    other = card.streams.take()
    other.add_callback(card.default_stream.synchronize)
    other.synchronize()


WAITS = {
    "stream": lambda card: card.default_stream.synchronize(),
    "device": lambda card: card.synchronize(),
    "event": lambda card: card.default_stream.record_event().synchronize(),
    "copy": lambda card: card.to_host(card.to_device(ONES)),
    "another callback": _nested,
}


def _wait_for_all(card):
    card.default_stream.synchronize()
    card.synchronize()  # an inner callback may have got the error, which is then its stream's


@pytest.mark.parametrize("wait", WAITS)
def test_callbacks_that_wait_for_themselves(card, wait):
    card.default_stream.add_callback(lambda: WAITS[wait](card))
    with pytest.raises(LaunchError, match="SPY874]: a callback waits for work that waits for it"):
        _wait_for_all(card)


def test_callbacks_submit_work_and_wait_for_what_has_ended(card, bundle):
    plan, other = kernels.load(card, bundle), card.streams.take()
    a, y = card.to_device(ONES), card.empty(kernels.STICK)
    card.synchronize()
    seen = []

    def callback():
        other.synchronize()
        other.launch(plan, [a, a, y])
        seen.append((card.default_stream.query(), other.query()))

    card.default_stream.add_callback(callback)
    card.synchronize()
    other.synchronize()
    assert seen == [(False, False)]
    assert (values(card, y) == 2).all()
