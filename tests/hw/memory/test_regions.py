"""Regions: which one is chosen, capacities, the program region, running out."""

from __future__ import annotations

import pytest

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.memory.regions import (
    PROGRAM_REGION,
    TENSOR_REGIONS,
    AllocationHistory,
    RegionAllocator,
)
from spyre.hw.spec import REGION_BYTES, REGIONS

KIB = 1024


def small(*capacities: int) -> RegionAllocator:
    return RegionAllocator((*capacities, *[0] * (REGIONS - len(capacities))))


def test_the_emptiest_region_is_chosen():
    allocator = RegionAllocator()
    addresses = [allocator.allocate(size) for size in [256, 128, *[512] * 5, 128, 128, 128]]
    assert [a // REGION_BYTES for a in addresses] == [0, 1, 2, 3, 4, 5, 6, 1, 0, 1]


def test_a_region_that_was_freed_is_empty_again():
    allocator = RegionAllocator()
    addresses = [allocator.allocate(256) for _ in range(TENSOR_REGIONS)]
    allocator.free(addresses[4])
    assert allocator.allocate(128) == addresses[4]
    allocator.free(addresses[2])
    assert allocator.allocate(128) == addresses[2]
    assert allocator.allocate(128) == addresses[2] + 128


def take(allocator):
    kept = allocator.take_kept(256)
    return allocator.allocate(256) if kept is None else kept


def test_steps_that_take_and_free_alike_get_the_same_addresses():
    allocator = RegionAllocator()
    steps = []
    for _ in range(3):
        taken = [take(allocator) for _ in range(4)]
        steps.append(taken)
        for place in (2, 0, 3, 1):
            allocator.free(taken[place], keep=True)
    assert steps[1] == steps[2]


def test_sizes_are_rounded_up():
    allocator = RegionAllocator()
    for size, rounded in [(0, 128), (1, 128), (128, 128), (129, 256)]:
        address = allocator.allocate(size)
        assert allocator.size_of(address) == rounded
        assert allocator.free(address) == rounded


def test_preference_then_another():
    allocator = small(KIB, 2 * KIB, KIB)
    assert allocator.allocate(KIB, 2) == 2 * REGION_BYTES
    assert allocator.allocate(128, 2) == REGION_BYTES
    assert allocator.allocate(128, 2 + TENSOR_REGIONS) == REGION_BYTES + 128


def test_the_emptiest_region_may_lack_a_block():
    """Region 0 has more free bytes, in pieces; region 1 has the block."""
    allocator = small(KIB, 256)
    pieces = [allocator.allocate_in(0, 128) for _ in range(8)]
    for piece in pieces[::2]:
        allocator.free(piece)
    assert allocator.allocate(256) == REGION_BYTES


def test_only_in_one_region():
    allocator = small(KIB, KIB)
    assert allocator.allocate_in(1, KIB) == REGION_BYTES
    with pytest.raises(DeviceOutOfMemory, match=r"brackets: 1: 0 \(0\)$"):
        allocator.allocate_in(1, 128)


def test_programs_have_their_region():
    allocator = RegionAllocator((KIB,) * REGIONS)
    assert allocator.allocate_program(100) == PROGRAM_REGION * REGION_BYTES
    assert allocator.allocate_program(100) == PROGRAM_REGION * REGION_BYTES + 128
    for _ in range(TENSOR_REGIONS):
        assert allocator.allocate(KIB) // REGION_BYTES < PROGRAM_REGION
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(1)
    assert allocator.allocate_program(768) == PROGRAM_REGION * REGION_BYTES + 256
    with pytest.raises(DeviceOutOfMemory, match=r"brackets: 7: 0 \(0\)$"):
        allocator.allocate_program(1)
    assert allocator.free(PROGRAM_REGION * REGION_BYTES) == 128


def test_the_text_of_running_out():
    allocator = small(512, 256)
    allocator.allocate_in(0, 128)
    with pytest.raises(DeviceOutOfMemory) as caught:
        allocator.allocate(500)
    assert str(caught.value) == (
        "error[SPY401]: cannot allocate 512 bytes of device memory\n"
        "  = expected: a free block of 512 bytes within one region\n"
        "  = found: 640 bytes free, largest free block 384 bytes; "
        "by region, largest block in brackets: "
        "0: 384 (384), 1: 256 (256), 2: 0 (0), 3: 0 (0), 4: 0 (0), 5: 0 (0), 6: 0 (0)"
    )


def test_a_failure_changes_nothing():
    allocator = small(512)
    before = allocator.usage()
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(513)
    assert allocator.usage() == before
    assert allocator.allocate(512) == 0


@pytest.mark.parametrize(
    "capacities", [(), (128,) * 7, (*[0] * 7, REGION_BYTES + 1), (-128, *[0] * 7)]
)
def test_wrong_capacities(capacities: tuple[int, ...]):
    with pytest.raises(LaunchError, match="SPY807"):
        RegionAllocator(capacities)


def test_resize_needs_an_empty_card():
    device = Device(threads=1)
    address = device.allocate(128)
    with pytest.raises(LaunchError, match="SPY807"):
        device.regions.resize((KIB,) * REGIONS)
    device.free(address)
    device.regions.resize((KIB + 1,) * REGIONS)
    assert {r.capacity_bytes for r in device.regions.usage()} == {KIB}
    device.reset()
    assert {r.capacity_bytes for r in device.regions.usage()} == {KIB}


def test_negative_sizes():
    allocator = RegionAllocator()
    for call in (allocator.allocate, allocator.allocate_program):
        for size in (-1, -128, -1000):
            with pytest.raises(LaunchError, match="SPY807"):
                call(size)


def test_freeing_twice():
    device = Device(threads=1)
    address = device.allocate(128)
    device.free(address)
    with pytest.raises(LaunchError, match="SPY360"):
        device.free(address)
    with pytest.raises(LaunchError, match="SPY360"):
        device.regions.free(address)


def test_kept_ranges_come_back_to_those_who_use_them():
    regions = small(1280, 1280)
    first, second = regions.allocate(256), regions.allocate(256)
    regions.free(first, keep=True)
    regions.free(second, keep=True)
    assert regions.take_kept(256) == first
    assert regions.take_kept(128) is None
    with pytest.raises(LaunchError):
        regions.free(second)


def test_kept_ranges_are_free():
    regions = small(1280)
    addresses = [regions.allocate(128) for _ in range(10)]
    for address in addresses:
        regions.free(address, keep=True)
    assert not regions.in_use
    assert regions.usage()[0].largest_free_bytes == 10 * 128
    addresses = [regions.allocate(128) for _ in range(10)]
    for address in addresses:
        regions.free(address, keep=True)
    assert regions.allocate(10 * 128) == 0  # joined when there is no other room
    regions.free(0, keep=True)
    assert regions.allocate_in(0, 9 * 128) == 0
    assert regions.allocated_bytes[0] == 9 * 128


def test_the_history_has_kept_ranges():
    regions = small(1280, 1280)
    regions.history = AllocationHistory()
    regions.free(regions.allocate(128), keep=True)
    assert regions.take_kept(128) is not None
    assert regions.history.allocated_bytes[:, 0].tolist() == [0, 128, 0, 128]
