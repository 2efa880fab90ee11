"""Streams: pools, the current one, order, errors."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from spyre.errors import LaunchError, StreamError
from spyre.runtime.flex.device import devices
from tests.torch_backend.processes import run


def flex_current():
    return devices().current.streams.current


def test_pools_are_handed_out_round_robin():
    low = [torch.spyre.Stream().stream_id for _ in range(33)]
    assert set(low) == set(range(1, 33))
    assert low[32] == low[0]
    high = [torch.spyre.Stream(priority=-1).stream_id for _ in range(33)]
    assert set(high) == set(range(33, 65))
    assert torch.spyre.Stream(priority=5).stream_id == high[1]


def test_priorities():
    assert torch.spyre.Stream().priority == 0
    assert torch.spyre.Stream("spyre:0", -1).priority == -1
    assert torch.spyre.default_stream().priority == 0


def test_identity():
    s = torch.spyre.Stream()
    same = torch.spyre.Stream(stream_id=s.stream_id, device_index=0)
    assert s == same
    assert hash(s) == hash(same)
    assert s != torch.spyre.default_stream()
    assert isinstance(s, torch.Stream)
    assert s.device == torch.device("spyre:0")
    assert f"id={s.stream_id}" in repr(s)
    with pytest.raises(LaunchError, match="SPY872"):
        torch.spyre.Stream(stream_id=1000)


def test_generic_constructors_give_our_streams():
    for s in (
        torch.Stream(device="spyre"),
        torch.Stream("spyre:0"),
        torch.Stream(),
        torch.Stream(0),
    ):
        assert type(s) is torch.spyre.Stream
        assert s.stream_id > 0
    copy = torch.Stream(stream_id=s.stream_id, device_index=0, device_type=s.device_type)
    assert copy == s
    plain = torch.Stream(device="cpu")
    assert plain.device.type == "cpu"
    assert isinstance(plain, torch.Stream)
    assert issubclass(torch.spyre.Stream, torch.Stream)


def test_current_stream_within_blocks():
    default = torch.spyre.current_stream()
    assert default == torch.spyre.default_stream()
    a, b = torch.spyre.Stream(), torch.spyre.Stream()
    with torch.spyre.stream(a) as entered:
        assert entered is a
        assert torch.spyre.current_stream() == a
        assert flex_current().stream_id == a.stream_id
        with b, b, torch.spyre.stream(None):
            assert torch.accelerator.current_stream() == b
        assert torch.spyre.current_stream() == a
    assert torch.spyre.current_stream() == default


def test_a_block_can_be_entered_again():
    default, a = torch.spyre.current_stream(), torch.spyre.Stream()
    block = torch.spyre.stream(a)
    for _ in range(2):
        with block, block:
            assert torch.spyre.current_stream() == a
        assert torch.spyre.current_stream() == default


def test_block_that_fails_restores_the_stream():
    s = torch.spyre.Stream()
    with pytest.raises(KeyError), s:
        raise KeyError
    assert torch.spyre.current_stream() == torch.spyre.default_stream()


def test_set_stream():
    s = torch.spyre.Stream()
    torch.spyre.set_stream(s)
    try:
        assert torch.spyre.current_stream() == s
    finally:
        torch.accelerator.set_stream(torch.spyre.default_stream())
    assert torch.spyre.current_stream() == torch.spyre.default_stream()


def test_threads_have_their_own_current_stream():
    seen = []
    with torch.spyre.Stream():
        thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.spyre.default_stream()]


def test_copies_go_to_the_current_stream(host):
    s, gate = torch.spyre.Stream(), threading.Event()
    with s:
        x, small = torch.zeros(4, 6, device="spyre"), host.clone()
        s.synchronize()
        s.flex.add_callback(gate.wait)
        x.copy_(small)
        small.zero_()  # the call has taken the elements to be copied
        assert not s.query()
        gate.set()
        assert torch.equal(x.cpu(), host)
    assert s.query()


def test_small_copies_to_an_idle_stream_need_no_job(host):
    s = torch.spyre.Stream()
    with s:
        x = torch.empty(4, 6, device="spyre")
        before = s.flex.queue.last
        x.copy_(host)
        assert s.flex.queue.last is before
        x.copy_(torch.zeros(1 << 15).expand(4, 6, 1 << 15)[:, :, 7], non_blocking=True)
        assert s.flex.queue.last is not before
        assert not x.cpu().any()


def test_wait_stream_orders_work(host):
    producer, consumer = torch.spyre.Stream(), torch.spyre.Stream()
    gate = threading.Event()
    producer.flex.add_callback(gate.wait)
    with producer:
        x = torch.empty(4, 6, device="spyre")
        x.copy_(host, non_blocking=True)
    consumer.wait_stream(producer)
    assert not producer.query()
    assert not consumer.query()
    threading.Timer(0.05, gate.set).start()
    with consumer:
        assert torch.equal(x.cpu(), host)
    assert producer.query()


def test_synchronize_waits_for_all_streams():
    s = torch.spyre.Stream()
    done = []
    gate = threading.Event()
    s.flex.add_callback(gate.wait)
    s.flex.add_callback(lambda: done.append(1))
    threading.Timer(0.05, gate.set).start()
    torch.spyre.synchronize()
    assert done == [1]


@pytest.mark.parametrize("ask", ["synchronize", "query"])
def test_errors_are_raised_once_and_the_stream_goes_on(ask):
    code = f"""
        s = torch.spyre.Stream()
        def fail():
            raise ZeroDivisionError("in the stream")
        s.flex.add_callback(fail)
        while True:
            try:
                if s.{ask}():
                    break
            except ZeroDivisionError as error:
                print("raised", error)
                break
        s.synchronize()
        with s:
            assert torch.ones(2, device="spyre").sum().item() == 2
    """
    printed = run(code)
    assert "raised in the stream" in printed


FAILING = {
    "copy to expanded": lambda x: x.new_ones(1).expand(4).copy_(torch.arange(4.0)).cpu(),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([9]).to("spyre"), x).cpu(),
    "gather": lambda x: x.gather(1, torch.full((1, 1), 999).to("spyre")).cpu(),
    "index": lambda x: x[torch.tensor([9]).to("spyre")].cpu(),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_operation_after_one_that_failed_works(card, host, name):
    with pytest.raises(RuntimeError):
        FAILING[name](card)
    assert torch.equal((card + 1).cpu(), host + 1)
    assert torch.spyre.current_stream().query()


def fail_without_text():
    raise ZeroDivisionError


def failed_stream():
    s = torch.spyre.Stream()
    s.flex.add_callback(fail_without_text)
    while not s.flex.error:
        time.sleep(0.001)
    return s


@pytest.mark.parametrize("first_use", [2.5, 7.25])
def test_an_error_is_raised_by_who_waits_and_nothing_else_is_dropped(card, host, first_use):
    """Numbers that are new to the card are copied there first, which does not wait for others."""
    rows = card[torch.tensor([99]).to("spyre")]  # fails while it runs
    plain = card + 1
    numbers = card * (first_use + len(host))
    card[1:3].t().copy_(host[:2].t())
    on_the_cpu = torch.hypot(card, card)
    with pytest.raises(RuntimeError, match="SPY412") as caught:
        plain.cpu()
    assert "enqueued earlier" in caught.value.__notes__[-1]
    assert torch.equal(plain.cpu(), host + 1)
    assert torch.equal(numbers.cpu(), host * (first_use + len(host)))
    assert torch.equal(card[1:3].cpu(), host[:2])
    assert torch.allclose(on_the_cpu[3:].cpu(), torch.hypot(host, host)[3:])
    assert rows.shape == (1, 6)


@pytest.mark.parametrize("on_the_cpu", [torch.equal, torch.linalg.cholesky])
def test_what_leaves_the_card_or_fails_by_what_it_reads_tells_of_earlier_errors(card, on_the_cpu):
    operands = [card[:, :4]] * (1 + (on_the_cpu is torch.equal))
    card.gather(0, torch.full((1, 1), 99).to("spyre"))
    with pytest.raises(RuntimeError, match="SPY412"):
        on_the_cpu(*operands)
    assert torch.spyre.current_stream().query()


def test_who_waits_for_a_stream_that_failed_is_told_once(host):
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    first.flex.add_callback(fail_without_text)
    second.wait_stream(first)
    done = first.record_event()
    with second:
        x = host.to("spyre")
        with pytest.raises(ZeroDivisionError):
            x.cpu()
        assert torch.equal(x.cpu(), host)
    first.synchronize()
    done.synchronize()
    assert done.query()
    torch.spyre.synchronize()


def test_an_event_behind_an_error_raises_it_once():
    s = torch.spyre.Stream()
    s.flex.add_callback(fail_without_text)
    event = s.record_event()
    with pytest.raises(ZeroDivisionError):
        event.synchronize()
    assert event.query()
    assert s.query()


def test_a_blocking_launch_raises_where_it_is_called():
    code = """
        x = torch.arange(24.0).view(4, 6).to("spyre")
        try:
            x[torch.tensor([9]).to("spyre")]
        except RuntimeError as error:
            print("raised", error)
        print((x + 1).sum().item())
    """
    printed = run(code, SPYRE_LAUNCH_BLOCKING="1")
    assert "raised" in printed
    assert "SPY412" in printed
    assert "300.0" in printed


def test_reset_forgets_errors_and_drops_work(host):
    s = failed_stream()
    torch.spyre.reset()
    assert s.query()
    gate, done = threading.Event(), []
    s.flex.add_callback(lambda: gate.wait(10))
    s.flex.add_callback(lambda: done.append(1))
    threading.Timer(0.05, gate.set).start()
    torch.spyre.reset("spyre:0")
    s.synchronize()
    assert not done
    with s:
        assert torch.equal(host.to("spyre").cpu(), host)


def test_an_interrupted_operation_leaves_a_usable_stream(card, host):
    def interrupt():
        raise KeyboardInterrupt

    stream = torch.spyre.current_stream()
    with stream.flex.device.scheduler.held():
        stream.flex.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):  # waits, and so runs it in this thread or hears of it
        stream.synchronize()
    assert torch.equal((card + 1).cpu(), host + 1)


def test_stream_errors_are_runtime_errors():
    assert issubclass(StreamError, RuntimeError)


def test_record_stream_does_nothing(card, host):
    card.record_stream(torch.spyre.Stream())
    assert torch.equal(card.cpu(), host)


def test_memory_is_kept_for_work_that_has_not_run(host):
    s = torch.spyre.Stream()
    gate = threading.Event()
    gc.collect()  # memory of earlier tests
    s.flex.add_callback(gate.wait)
    with s:
        x = torch.empty(4, 6, device="spyre")
        x.copy_(host, non_blocking=True)
    held = torch.spyre.memory_reserved()
    del x
    kept = torch.spyre.memory_reserved()
    gate.set()  # before anything fails: later tests use this stream
    s.synchronize()
    assert torch.spyre.memory_reserved() < kept == held


def test_backward_follows_the_streams_of_forward(host):
    s = torch.spyre.Stream()
    gate = threading.Event()
    x = torch.empty(4, 6, device="spyre", requires_grad=True)
    s.flex.add_callback(gate.wait)
    with s:
        factor = torch.empty(4, 6, device="spyre")
        factor.copy_(host, non_blocking=True)
    threading.Timer(0.05, gate.set).start()
    out = Scale.apply(x, factor)
    out.backward(torch.ones(4, 6))
    assert torch.equal(x.grad.cpu(), host)


class Scale(torch.autograd.Function):
    """Its backward reads a tensor that another stream writes."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return torch.zeros(4, 6, requires_grad=True)

    @staticmethod
    def backward(ctx, gradient):
        (factor,) = ctx.saved_tensors
        return factor.cpu().to("spyre"), None
