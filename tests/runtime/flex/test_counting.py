"""Counting launches: what ran, whatever way it ran, and nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest

from spyre.errors import DeviceFault
from spyre.hw.counters.counts import Counters
from spyre.hw.device.device import Executor
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.kernel.kernel import timed_runner
from tests.runtime.flex import kernels

ONE = Counters(256, 128, 0, 0, 0, 64, 256, 128, 0, 0, 1)
"""An add of one stick."""


@pytest.fixture
def card():
    found = FlexDevice()
    yield found
    found.close()


@pytest.fixture
def plan(card, tmp_path):
    return kernels.load(card, kernels.add(tmp_path / "add"))


def sticks(card, count=1):
    return [card.to_device(np.ones((count, 64), np.float16)) for _ in range(3)]


def test_launches_at_any_address(card, plan):
    operands = [sticks(card) for _ in range(3)]
    card.default_stream.launch(plan, operands[0])
    with card.counting() as counts:
        for tensors in operands:
            card.default_stream.launch(plan, tensors)
    card.default_stream.launch(plan, operands[0])
    card.synchronize()
    assert counts.launches == 3
    assert counts.counters == ONE.times(3)


def test_tiles_of_a_launch(card, plan):
    """A batch in the driver counts like its tiles one by one."""
    with card.counting() as counts:
        card.default_stream.launch(plan, sticks(card, 5))
    assert (counts.launches, counts.counters) == (5, ONE.times(5))


def test_launches_that_are_timed(card, plan):
    card.runner = timed_runner()
    with card.counting() as counts, card.recording():
        card.default_stream.launch(plan, sticks(card))
    assert counts.counters == ONE


def test_what_fails_does_not_count(card, plan, monkeypatch):
    def fail(*_):
        raise DeviceFault("SPY881", "broken")

    with card.counting() as counts, monkeypatch.context() as patch:
        patch.setattr(Executor, "run_part", fail)
        card.default_stream.launch(plan, sticks(card))
        with pytest.raises(DeviceFault):
            card.default_stream.synchronize()
    assert counts.launches == 0
    assert counts.counters == Counters()


def test_off_nothing_is_counted(card, plan):
    with card.counting():
        assert card.device.executor.counts is not None
    assert card.device.executor.counts is None
