"""Events: recording, waiting, times."""

from __future__ import annotations

import threading

import pytest
import torch

from spyre.errors import LaunchError


def test_event_that_was_never_recorded_is_complete():
    event = torch.spyre.Event()
    assert event.query()
    event.synchronize()
    event.wait()


def test_generic_constructor_gives_our_events():
    for event in (
        torch.Event("spyre"),
        torch.Event(device="spyre:0", enable_timing=True),
        torch.Event(),
    ):
        assert type(event) is torch.spyre.Event
        assert isinstance(event, torch.Event)
        assert event.device == torch.device("spyre")  # no card before it is recorded


def test_record_and_query():
    s = torch.spyre.Stream()
    gate = threading.Event()
    s.flex.add_callback(gate.wait)
    event = s.record_event()
    assert not event.query()
    assert "pending" in repr(event)
    gate.set()
    event.synchronize()
    assert event.query()


def test_record_on_the_current_stream():
    s = torch.spyre.Stream()
    gate = threading.Event()
    event = torch.spyre.Event()
    with s:
        s.flex.add_callback(gate.wait)
        event.record()
    assert not event.query()
    gate.set()
    event.synchronize()


def test_wait_makes_another_stream_wait():
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    gate = threading.Event()
    first.flex.add_callback(gate.wait)
    event = first.record_event(torch.spyre.Event())
    event.wait(second)
    second.wait_event(event)
    order = []
    second.flex.add_callback(lambda: order.append("second"))
    assert not second.query()
    gate.set()
    second.synchronize()
    assert order == ["second"]


def test_last_record_counts():
    event = torch.spyre.Event()
    event.record()
    s = torch.spyre.Stream()
    gate = threading.Event()
    s.flex.add_callback(gate.wait)
    event.record(s)
    assert not event.query()
    gate.set()
    event.synchronize()


def test_elapsed_time():
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.spyre.current_stream().flex.add_callback(lambda: threading.Event().wait(0.02))
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    assert end.elapsed_time(start) == -start.elapsed_time(end)


@pytest.mark.parametrize("timing", [(False, True), (True, False)])
def test_elapsed_time_needs_timing(timing):
    start, end = (torch.spyre.Event(enable_timing=flag) for flag in timing)
    start.record()
    end.record()
    torch.spyre.synchronize()
    for kind in (LaunchError, ValueError):
        with pytest.raises(kind, match="SPY875"):
            start.elapsed_time(end)


def test_interprocess_events_are_refused():
    with pytest.raises(NotImplementedError, match="between processes"):
        torch.spyre.Event(interprocess=True)


@pytest.mark.parametrize("turn", [0, 1])
def test_failure_of_a_stream_reaches_who_waits_first(turn):
    def fail():
        raise ZeroDivisionError("in the stream")

    s, other = torch.spyre.Stream(), torch.spyre.Stream()
    s.flex.add_callback(fail)
    event = s.record_event()
    other.wait_event(event)
    waits = (event.synchronize, other.synchronize)
    with pytest.raises(ZeroDivisionError, match="in the stream"):
        waits[turn]()
    waits[1 - turn]()
    s.synchronize()
