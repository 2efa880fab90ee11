"""Public functions with arguments of wrong types and ranges: an error with a code, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.runtime.flex.device import Devices, FlexDevice
from spyre.runtime.flex.prepare import launch_jobplan, launch_kernel, prepare_kernel
from spyre.runtime.flex.stream import Event
from tests.runtime.flex import kernels

ONES = np.ones(kernels.STICK, np.float16)
NO_NUMBERS = (True, 1.5, float("nan"), "1", None, [], -1, 1 << 63, 10**5000)
NO_OBJECTS = (5, -1, 1.5, True, "x", b"", [], {}, object(), float("nan"))


@pytest.fixture(scope="module")
def card() -> Iterator[FlexDevice]:
    made = FlexDevice(Device(threads=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def plan(card: FlexDevice, tmp_path_factory: pytest.TempPathFactory):
    return kernels.load(card, kernels.add(tmp_path_factory.mktemp("kernels") / "add"))


Call = Callable[[FlexDevice, Any, Any], object]
"""Calls a function of a card, or with a plan, with one wrong argument."""
NUMBERS: dict[str, Call] = {
    "allocate": lambda card, plan, x: card.allocate(x),
    "allocate_program": lambda card, plan, x: card.allocate_program(x),
    "extent": lambda card, plan, x: card.empty((2, x)),
    "read address": lambda card, plan, x: card.device.memory.read(x, 10),
    "read size": lambda card, plan, x: card.device.memory.read(0, x),
    "write address": lambda card, plan, x: card.device.memory.write(x, np.zeros(4, np.uint8)),
    "dma read": lambda card, plan, x: card.dma.read_bytes(x, 128),
    "step": lambda card, plan, x: plan.get_step_type(x),
    "device": lambda card, plan, x: Devices((0, 1))[-2 if x == -1 else x],
    "set_current": lambda card, plan, x: Devices((0, 1)).set_current(-2 if x == -1 else x),
    "stream": lambda card, plan, x: card.streams.of_id(x),
}
SMALL = {"read size", "read address", "write address", "dma read", "step", "stream"}
"""Functions that take True as 1."""
OBJECTS: dict[str, Call] = {
    "to_host": lambda card, plan, x: card.to_host(x),
    "to_host stream": lambda card, plan, x: card.to_host(card.empty((2,)), x),
    "to_device": lambda card, plan, x: card.to_device(x),
    "to_device stream": lambda card, plan, x: card.to_device(ONES, stream=x),
    "to_device layout": lambda card, plan, x: card.to_device(ONES, layout=x or 5),
    "empty shape": lambda card, plan, x: card.empty(x if x != [] else 5),
    "empty dtype": lambda card, plan, x: card.empty((2,), x),
    "empty layout": lambda card, plan, x: card.empty((2,), layout=x),
    "record": lambda card, plan, x: Event().record(x),
    "wait": lambda card, plan, x: recorded(card).wait(x),
    "elapsed_time": lambda card, plan, x: Event(enable_timing=True).elapsed_time(x),
    "record_event": lambda card, plan, x: card.default_stream.record_event(x),
    "wait_event": lambda card, plan, x: card.default_stream.wait_event(x),
    "wait_stream": lambda card, plan, x: card.default_stream.wait_stream(x),
    "replay": lambda card, plan, x: card.default_stream.replay(x),
    "set_current": lambda card, plan, x: card.streams.set_current(x),
    "launch job": lambda card, plan, x: card.default_stream.launch(x, []),
    "launch tensors": lambda card, plan, x: card.default_stream.launch(plan, x),
    "launch_jobplan": lambda card, plan, x: launch_jobplan(plan, [x] * 3, card.default_stream),
    "launch_kernel": lambda card, plan, x: launch_kernel(plan, [x] * 3, card.default_stream),
    "launch stream": lambda card, plan, x: launch_jobplan(plan, [], x),
    "launch_kernel kernel": lambda card, plan, x: launch_kernel(x, [], card.default_stream),
    "prepare_kernel": lambda card, plan, x: prepare_kernel(x, card),
    "prepare_kernel device": lambda card, plan, x: prepare_kernel("examples/matmul", x),
    "prepare_kernel stream": lambda card, plan, x: prepare_kernel("nowhere", card, x),
    "launch values": lambda card, plan, x: launch_jobplan(
        plan, [card.empty((1, 64))] * 2, card.default_stream, values=x
    ),
    "priority": lambda card, plan, x: card.streams.take(x if not isinstance(x, int) else "x"),
    "region": lambda card, plan, x: card.allocate(128, 99 if x == 5 else x),
}


def recorded(card: FlexDevice) -> Event:
    return card.default_stream.record_event()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(card: FlexDevice, plan: Any, name: str):
    for value in NO_NUMBERS:
        if value is True and name in SMALL:
            continue
        with pytest.raises(SpyreError):
            NUMBERS[name](card, plan, value)
    card.synchronize()


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(card: FlexDevice, plan: Any, name: str):
    for value in NO_OBJECTS:
        with pytest.raises(SpyreError):
            OBJECTS[name](card, plan, value)
    card.synchronize()
    a, b, y = card.to_device(ONES), card.to_device(ONES), card.empty(kernels.STICK)
    launch_jobplan(plan, [a, b, y], card.default_stream)
    assert (card.to_host(y).to_values() == 2).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 64)])
def test_empty_tensors(card: FlexDevice, shape: tuple[int, ...]):
    assert card.to_host(card.empty(shape)).shape == shape
    array = np.zeros(shape, np.float32)
    assert card.to_host(card.to_device(array)).to_values().shape == shape


def test_numbers_of_numpy_are_numbers(card: FlexDevice):
    assert card.empty((np.int64(2), np.int32(3))).shape == (2, 3)
    assert card.allocate(np.int64(256), np.int8(3)).size_bytes == 256


def test_unknown_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_SCHEDULER", "fair")
    with pytest.raises(SpyreError, match=r"(?s)SPY739.*serialised or concurrent.*fair"):
        FlexDevice(Device(threads=1))
