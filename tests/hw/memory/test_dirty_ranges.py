"""Free memory that was not cleared, against a set of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import KEEP_BYTES, DirtyRanges
from spyre.runtime.memory.allocator import FlexAllocator

LARGE = 4 * KEEP_BYTES
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 12)), max_size=30)


@given(steps=STEPS, limit=st.integers(0, 40))
def test_against_a_set(steps, limit):
    leftovers, model = DirtyRanges(limit), set()
    for adds, start, size in steps:
        place = set(range(start, start + size))
        if adds and not place & model:
            dropped = leftovers.add(start, size)
            model |= place
            for first, count in dropped:
                gone = set(range(first, first + count))
                assert gone <= model
                model -= gone
        else:
            found = {b for f, n in leftovers.take(start, size) for b in range(f, f + n)}
            assert found == place & model
            model -= place
        assert leftovers.size_bytes == len(model) <= limit
        assert bool(leftovers) == bool(model)
    assert {b for f, n in leftovers.take_all() for b in range(f, f + n)} == model
    assert leftovers.size_bytes == 0


def test_the_oldest_are_dropped():
    leftovers = DirtyRanges(10)
    assert leftovers.add(0, 4) == []
    assert leftovers.add(20, 4) == []
    assert leftovers.add(40, 6) == [(0, 4)]


class Card:
    """A device and its allocator, with everything allocated filled with ones."""

    def __init__(self, **options):
        self.device = Device(**options)
        self.allocator = FlexAllocator(self.device)

    def allocate(self, size_bytes, **options):
        index = self.allocator.allocate(size_bytes, **options)
        address = self.allocator.device_address(index)
        return index, self.device.memory.view(address, size_bytes)

    def dirty(self, size_bytes=LARGE):
        """Give memory back that holds ones; it was not to be cleared."""
        index, content = self.allocate(size_bytes, uncleared=True)
        content[:] = 1
        self.allocator.deallocate(index)


def test_memory_is_handed_on_as_it_is():
    card = Card()
    card.dirty()
    assert (card.allocate(LARGE, uncleared=True)[1] == 1).all()


def test_whoever_asks_for_zeros_gets_zeros():
    card = Card()
    card.dirty()
    assert not card.allocate(LARGE // 2)[1].any()
    assert not card.allocate(LARGE)[1].any()
    address = card.device.allocate(LARGE, region=0)
    assert not card.device.memory.view(address, LARGE).any()


def test_small_memory_is_clear():
    card = Card()
    card.dirty()
    index, content = card.allocate(KEEP_BYTES, uncleared=True)
    assert not content.any()
    card.allocator.deallocate(index)
    assert not card.allocate(KEEP_BYTES)[1].any()


def test_memory_nobody_looked_at_stays_a_leftover():
    card = Card()
    card.dirty()
    card.allocator.deallocate(card.allocator.allocate(LARGE, uncleared=True))
    assert not card.allocate(LARGE)[1].any()


def test_a_reset_clears():
    card = Card()
    card.dirty()
    card.device.reset()
    assert not card.device.leftovers
    assert not card.allocate(LARGE, uncleared=True)[1].any()


def test_leftovers_go_to_the_host_when_asked():
    card = Card()
    card.dirty()
    assert card.device.leftovers.size_bytes == LARGE
    card.device.clear_leftovers()
    assert card.device.leftovers.size_bytes == 0
    assert not card.allocate(LARGE, uncleared=True)[1].any()


def test_poison_and_sanitizer_see_fresh_memory():
    for options, content in (({"poison": True}, 0xAA), ({"sanitize": True}, 0)):
        card = Card(**options)
        card.dirty()
        assert not card.device.leftovers
        assert np.all(card.allocate(LARGE, uncleared=True)[1] == content)
