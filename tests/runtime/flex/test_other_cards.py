"""Objects of one card given to another: SPY879, whatever number the cards have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from spyre.errors import LaunchError
from spyre.hw.device.device import Device
from spyre.runtime.flex.device import Devices, FlexDevice
from spyre.runtime.flex.prepare import launch_jobplan, prepare_kernel
from spyre.runtime.flex.steps import bytes_to_device
from spyre.runtime.flex.stream import Event
from spyre.runtime.kernel.kernel import Launch
from tests.runtime.flex import kernels

ONES = np.ones(kernels.STICK, np.float16)


@pytest.fixture
def cards() -> Iterator[tuple[FlexDevice, FlexDevice]]:
    """Two cards of number 0."""
    made = FlexDevice(Device(threads=1)), FlexDevice(Device(threads=1))
    yield made
    for card in made:
        card.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory):
    return kernels.add(tmp_path_factory.mktemp("kernels") / "add")


Use = Callable[[FlexDevice, FlexDevice, object], object]
USES: dict[str, Use] = {
    "to_host": lambda a, b, _: a.to_host(b.to_device(ONES)),
    "to_host on its stream": lambda a, b, _: a.to_host(b.to_device(ONES), b.default_stream),
    "to_host on a stream": lambda a, b, _: a.to_host(a.to_device(ONES), b.default_stream),
    "to_device": lambda a, b, _: a.to_device(ONES, stream=b.default_stream),
    "using": lambda a, b, _: a.streams.using(b.default_stream).__enter__(),
    "set_current": lambda a, b, _: a.streams.set_current(b.default_stream),
}


@pytest.mark.parametrize("name", USES)
def test_copies_and_streams(cards: tuple[FlexDevice, FlexDevice], name: str):
    with pytest.raises(LaunchError, match=r"SPY879]: .* must be on Spyre device 0"):
        USES[name](*cards, None)
    for card in cards:
        card.synchronize()
        assert (card.to_host(card.to_device(ONES)).to_values() == 1).all()


def test_launches(cards: tuple[FlexDevice, FlexDevice], bundle):
    first, second = cards
    plan = kernels.load(first, bundle)
    mine = [first.to_device(ONES) for _ in range(3)]
    theirs = [second.to_device(7 * ONES) for _ in range(3)]
    launch_jobplan(plan, mine, first.default_stream)  # from now on the launch is planned
    for tensors, stream in (
        ([mine[0], theirs[1], mine[2]], first.default_stream),
        (theirs, first.default_stream),
        (mine, second.default_stream),
        (theirs, second.default_stream),
    ):
        with pytest.raises(LaunchError, match="SPY879"):
            launch_jobplan(plan, tensors, stream)
    assert (first.to_host(mine[2]).to_values() == 2).all()
    assert (second.to_host(theirs[2]).to_values() == 7).all()


def test_loading_and_replaying(cards: tuple[FlexDevice, FlexDevice], tmp_path):
    first, second = cards
    plan = kernels.load(first, kernels.distance(tmp_path / "distance", symbolic=False))
    tensors = [first.to_device(ONES) for _ in range(3)]
    first.synchronize()
    with first.default_stream.captured() as captured:
        first.default_stream.launch(plan, tensors)
    with pytest.raises(LaunchError, match="SPY879]: captured work"):
        second.default_stream.replay(captured)
    loaded = plan.program
    assert loaded is not None
    launch = Launch({k: tensor.resolved for k, tensor in enumerate(tensors)})
    with pytest.raises(LaunchError, match="SPY879]: kernel"):
        second.blocking.launch(loaded, launch)
    first.synchronize()


def test_a_kernel_is_loaded_by_a_stream_of_its_card(cards: tuple[FlexDevice, FlexDevice], tmp_path):
    from spyre.runtime.spyrecode.compile import compile_directory

    directory = kernels.add(tmp_path / "add")
    compile_directory(directory)
    with pytest.raises(LaunchError, match="SPY879]: the stream"):
        prepare_kernel(directory, cards[0], cards[1].default_stream)
    tensors = [cards[0].to_device(ONES) for _ in range(3)]
    prepare_kernel(directory, cards[0]).bind(cards[0], tensors)


def test_the_host_waits_for_an_event_of_another_card(cards: tuple[FlexDevice, FlexDevice]):
    first, second = cards
    seen: list[str] = []
    first.default_stream.add_callback(lambda: seen.append("first"))
    event = first.default_stream.record_event(Event())
    second.default_stream.wait_event(event)
    assert seen == ["first"]
    second.default_stream.wait_stream(first.default_stream)
    second.default_stream.add_callback(lambda: seen.append("second"))
    second.synchronize()
    assert seen == ["first", "second"]


def test_cards_are_a_sequence():
    cards = Devices((0, 1))
    assert [card.index for card in cards] == [0, 1]
    assert cards[1] in cards
    with pytest.raises(LaunchError, match="SPY883"):
        cards[2]
    for card in cards:
        card.close()


def test_raw_copies_have_no_tensors(cards: tuple[FlexDevice, FlexDevice]):
    address = cards[0].empty((64,)).address_bytes
    plan = bytes_to_device(np.arange(128, dtype=np.uint8), address, "raw")
    cards[0].default_stream.launch(plan)
    cards[0].synchronize()
    assert cards[0].device.memory.read(address, 3).tolist() == [0, 1, 2]
