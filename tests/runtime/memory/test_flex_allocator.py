"""FlexAllocator against a model, its handles, modes, references, statistics, running out."""

from __future__ import annotations

import gc
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spyre.errors import DeviceOutOfMemory, LaunchError, UnsupportedError
from spyre.hw.device.device import Device
from spyre.hw.spec import REGION_BYTES, REGIONS
from spyre.runtime.memory.allocator import (
    NULL_INDEX,
    PROGRAM,
    AllocationDirective,
    AllocationIndex,
    AllocationPolicy,
    DeviceStorage,
    FlexAllocator,
    MemoryType,
    VirtualAddress,
)
from spyre.runtime.memory.flex_mode import FlexMode
from tests.runtime.memory import million

KIB = 1024
CAPACITIES = (4 * KIB,) * REGIONS


def interleave(*domains: int) -> AllocationDirective:
    return AllocationDirective(AllocationPolicy.INTERLEAVE, domains)


def bind(domain: int) -> AllocationDirective:
    return AllocationDirective(domains=(domain,))


DIRECTIVES = (AllocationDirective(), PROGRAM, bind(3), interleave(0, 5), interleave(6, 2, 1))


@pytest.fixture
def device() -> Device:
    return Device(threads=1)


@pytest.fixture
def flex(device: Device) -> FlexAllocator:
    return FlexAllocator(device, FlexMode.VF, CAPACITIES)


def content(flex: FlexAllocator, index: AllocationIndex) -> list[np.ndarray]:
    unit = 1 if flex.mode is FlexMode.PF else REGION_BYTES
    return [
        flex.device.memory.view(c.address.region_id * unit + c.address.offset, c.size_bytes)
        for c in flex.composite(index).chunks
    ]


class AllocatorMachine(RuleBasedStateMachine):
    """Steps on a small card; the model keeps (size, byte written) per handle."""

    @initialize()
    def start(self) -> None:
        self.flex = FlexAllocator(Device(threads=1), FlexMode.PF, CAPACITIES)
        self.flex.pressure_hooks.clear()
        self.live: dict[AllocationIndex, tuple[int, int]] = {}
        self.peak_bytes = self.peak_count = self.all_bytes = self.all_count = 0
        self.handles: set[int] = set()

    def bytes_now(self) -> int:
        return sum(-(-size // 128) * 128 for size, _ in self.live.values())

    @rule(size=st.integers(1, 6000), directive=st.sampled_from(DIRECTIVES), mark=st.integers(0, 9))
    def allocate(self, size: int, directive: AllocationDirective, mark: int) -> None:
        before = self.flex.statistics()
        try:
            index = self.flex.allocate(size, directive)
        except DeviceOutOfMemory:
            assert self.flex.statistics() == before
            return
        assert index not in self.handles
        self.handles.add(index)
        if mark:
            for chunk in content(self.flex, index):
                assert not chunk.any()
                chunk[:] = mark
        self.live[index] = size, mark
        self.all_bytes += -(-size // 128) * 128
        self.all_count += 1
        self.peak_bytes = max(self.peak_bytes, self.bytes_now())
        self.peak_count = max(self.peak_count, len(self.live))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def deallocate(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.live)))
        self.flex.deallocate(index)
        del self.live[index]
        with pytest.raises(LaunchError, match="SPY800"):
            self.flex.deallocate(index)

    @rule()
    def reset_peak(self) -> None:
        self.flex.reset_peak()
        self.peak_bytes, self.peak_count = self.bytes_now(), len(self.live)

    @invariant()
    def statistics_equal_the_model(self) -> None:
        found = self.flex.statistics()
        count, size = found.allocations, found.allocated_bytes
        assert (count.current, size.current) == (len(self.live), self.bytes_now())
        assert (count.peak, size.peak) == (self.peak_count, self.peak_bytes)
        assert (count.accumulated, size.accumulated) == (self.all_count, self.all_bytes)
        used = sum(r.capacity_bytes - r.free_bytes for r in found.regions)
        assert used == self.bytes_now()

    @rule()
    def nothing_overlaps(self) -> None:
        """Every allocation holds what was written there, and lies in its region."""
        taken: list[tuple[int, int]] = []
        for index, (size, mark) in self.live.items():
            composite = self.flex.composite(index)
            assert composite.size_bytes == -(-size // 128) * 128
            for chunk, data in zip(composite.chunks, content(self.flex, index), strict=True):
                assert (data == mark).all()
                at = chunk.address.region_id + chunk.address.offset
                assert chunk.address.offset % 128 == 0
                assert chunk.address.offset + chunk.size_bytes <= CAPACITIES[0]
                assert chunk.domain_id == at // REGION_BYTES
                taken.append((at, chunk.size_bytes))
        taken.sort()
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))

    def teardown(self) -> None:
        for index in getattr(self, "live", {}):
            self.flex.deallocate(index)
        if hasattr(self, "flex"):
            found = self.flex.statistics()
            assert [r.largest_free_bytes for r in found.regions] == list(CAPACITIES)


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class TestHandles:
    def test_nothing_has_the_null_handle(self, flex: FlexAllocator):
        index = flex.allocate(0)
        assert index == NULL_INDEX
        assert flex.composite(index).chunks == ()
        flex.deallocate(index)
        flex.give_back(index)
        assert flex.statistics().allocations.accumulated == 0
        with pytest.raises(LaunchError, match="SPY801"):
            flex.resolve(index)

    def test_a_handle_is_no_address(self, flex: FlexAllocator):
        first, second = flex.allocate(128, bind(5)), flex.allocate(128, bind(5))
        assert (first, second) == (1, 2)
        flex.deallocate(second)
        assert flex.allocate(128) == 3

    @pytest.mark.parametrize("use", ["resolve", "composite", "deallocate", "give_back"])
    def test_unknown_handles(self, flex: FlexAllocator, use: str):
        index = flex.allocate(128)
        flex.deallocate(index)
        for wrong in (index, AllocationIndex(77)):
            with pytest.raises(LaunchError, match=f"(?s)SPY800.*handle {wrong}"):
                getattr(flex, use)(wrong)

    def test_negative_sizes(self, flex: FlexAllocator):
        with pytest.raises(LaunchError, match="SPY807"):
            flex.allocate(-1)
        with pytest.raises(LaunchError, match="SPY807"):
            flex.allocate(-1000, PROGRAM)


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "unit", "capacity"),
        [("VF", 1, 12 << 30), ("PF", REGION_BYTES, 16 << 30), ("MOCK", 1, 12 << 30)],
    )
    def test_region_ids(self, device: Device, monkeypatch, mode: str, unit: int, capacity: int):
        monkeypatch.setenv("FLEX_DEVICE", mode)
        flex = FlexAllocator(device)
        index = flex.allocate(128, bind(4))
        again = flex.allocate(128, bind(4))
        assert flex.resolve(index) == VirtualAddress(4 * unit, 0)
        address = flex.resolve(again)
        assert address == VirtualAddress(4 * unit, 128)
        assert flex.device_address(again) == 4 * REGION_BYTES + 128
        assert {r.capacity_bytes for r in flex.statistics().regions} == {capacity}

    def test_vf_is_the_default(self, device: Device, monkeypatch):
        monkeypatch.delenv("FLEX_DEVICE", raising=False)
        flex = FlexAllocator(device)
        assert flex.mode is FlexMode.VF
        assert flex.statistics().reserved_bytes == 7 * (12 << 30)
        flex.allocate(12 << 30)
        with pytest.raises(DeviceOutOfMemory):
            flex.allocate((12 << 30) + 1)

    def test_mock_memory_is_shared_out(self, device: Device, monkeypatch):
        monkeypatch.setenv("FLEX_DEVICE", "MOCK")
        monkeypatch.setenv("FLEX_MOCK_DEVICE_MEMORY_SIZE", str(8 * KIB + 2 * 128 + 5))
        regions = FlexAllocator(device).statistics().regions
        assert [r.capacity_bytes for r in regions] == [KIB + 128] * 2 + [KIB] * 6

    @pytest.mark.parametrize("size", ["1023", "-1", "1k", str((128 << 30) + 1), "²"])
    def test_wrong_mock_sizes(self, device: Device, monkeypatch, size: str):
        monkeypatch.setenv("FLEX_DEVICE", "MOCK")
        monkeypatch.setenv("FLEX_MOCK_DEVICE_MEMORY_SIZE", size)
        with pytest.raises(LaunchError, match="SPY804"):
            FlexAllocator(device)

    @pytest.mark.parametrize("mode", ["vf", "CPU", " PF"])
    def test_unknown_modes(self, device: Device, monkeypatch, mode: str):
        monkeypatch.setenv("FLEX_DEVICE", mode)
        with pytest.raises(LaunchError, match=r"(?s)SPY803.*PF, VF, MOCK"):
            FlexAllocator(device)

    def test_a_used_device_is_refused(self, device: Device):
        device.allocate(128)
        with pytest.raises(LaunchError, match="SPY807"):
            FlexAllocator(device)
        assert not device.regions.lock.locked()


class TestDirectives:
    @pytest.mark.parametrize("directive", [PROGRAM, AllocationDirective(domains=(2,))])
    def test_a_bound_one_is_one_chunk(self, flex: FlexAllocator, directive: AllocationDirective):
        index = flex.allocate(300, directive)
        (chunk,) = flex.composite(index).chunks
        region = 7 if directive is PROGRAM else 2
        assert chunk.address == VirtualAddress(region, 0) == flex.resolve(index)
        assert (chunk.size_bytes, chunk.domain_id) == (384, region)

    def test_programs_fill_their_region_only(self, flex: FlexAllocator):
        flex.allocate(4 * KIB, PROGRAM)
        with pytest.raises(DeviceOutOfMemory, match=r"brackets: 7: 0 \(0\)$"):
            flex.allocate(1, PROGRAM)
        for _ in range(7):
            flex.allocate(4 * KIB)
        with pytest.raises(DeviceOutOfMemory):
            flex.allocate(1)

    def test_interleaved_sticks(self, flex: FlexAllocator):
        index = flex.allocate(5 * 128 - 7, interleave(6, 0, 3))
        chunks = flex.composite(index).chunks
        assert [(c.domain_id, c.size_bytes) for c in chunks] == [(6, 256), (0, 256), (3, 128)]
        with pytest.raises(UnsupportedError, match="SPY808]: Interleaved not supported yet"):
            flex.resolve(index)
        flex.deallocate(index)
        assert flex.statistics().allocated_bytes.current == 0

    def test_fewer_sticks_than_domains(self, flex: FlexAllocator):
        chunks = flex.composite(flex.allocate(200, interleave(4, 5, 6))).chunks
        assert [c.domain_id for c in chunks] == [4, 5]

    def test_all_chunks_or_none(self, flex: FlexAllocator):
        flex.allocate(4 * KIB, bind(1))
        before = flex.statistics()
        with pytest.raises(DeviceOutOfMemory, match=r"brackets: 1: 0 \(0\)$"):
            flex.allocate(KIB, interleave(0, 1))
        assert flex.statistics() == before

    @pytest.mark.parametrize(
        ("policy", "domains", "memory_type"),
        [
            ("Bind", (1, 2), "Tensor"),
            ("Bind", (7,), "Tensor"),
            ("Bind", (-1,), "Tensor"),
            ("Bind", (0,), "Program"),
            ("Interleave", (), "Tensor"),
            ("Interleave", (1,), "Tensor"),
            ("Interleave", (1, 1), "Tensor"),
            ("Interleave", (1, 8), "Tensor"),
            ("Interleave", (7,), "Program"),
        ],
    )
    def test_contradictions(self, policy: str, domains: tuple[int, ...], memory_type: str):
        with pytest.raises(LaunchError, match=f"(?s)SPY802.*{re.escape(str(list(domains)))}"):
            AllocationDirective(AllocationPolicy(policy), domains, MemoryType(memory_type))


class TestOutOfMemory:
    def test_the_text(self, flex: FlexAllocator):
        flex.allocate(4 * KIB - 256, bind(2))
        with pytest.raises(DeviceOutOfMemory) as caught:
            flex.allocate(300, bind(2))
        assert str(caught.value) == (
            "error[SPY401]: cannot allocate 384 bytes of device memory\n"
            "  = expected: a free block of 384 bytes within one region\n"
            "  = found: 256 bytes free, largest free block 256 bytes; "
            "by region, largest block in brackets: 2: 256 (256)"
        )

    def test_hooks_run_without_the_lock_and_once(self, flex: FlexAllocator):
        calls: list[bool] = []
        flex.pressure_hooks.append(lambda: calls.append(flex.device.regions.lock.locked()))
        with pytest.raises(DeviceOutOfMemory):
            flex.allocate(5 * KIB)
        assert calls == [False]
        flex.allocate(KIB)
        assert calls == [False]

    def test_a_hook_makes_room(self, flex: FlexAllocator):
        cached = [flex.allocate(4 * KIB) for _ in range(7)]
        flex.pressure_hooks.append(lambda: flex.deallocate(cached.pop()))
        assert flex.allocate(4 * KIB)
        assert len(cached) == 6

    def test_a_failing_hook_is_heard(self, flex: FlexAllocator):
        def fail() -> None:
            raise ZeroDivisionError

        flex.pressure_hooks.append(fail)
        with pytest.raises(ZeroDivisionError):
            flex.allocate(5 * KIB)
        assert flex.allocate(KIB)

    def test_garbage_is_collected_by_default(self, flex: FlexAllocator):
        assert flex.pressure_hooks == [gc.collect]


class TestContents:
    @pytest.mark.parametrize("poison", [False, True])
    @pytest.mark.parametrize("size", [100, 4096, 64 * KIB, 70_000, 1 << 20])
    def test_fresh_memory(self, poison: bool, size: int):
        flex = FlexAllocator(Device(threads=1, poison=poison), FlexMode.VF)
        guards = []
        for _ in range(3):
            index = flex.allocate(size, bind(1))
            guards.append(flex.allocate(128, bind(1)))
            (memory,) = content(flex, index)
            assert (memory == (0xAA if poison else 0)).all()
            memory[:] = 1
            for guard in guards:
                content(flex, guard)[0][:] = 2
            flex.deallocate(index)
            assert all((content(flex, guard)[0] == 2).all() for guard in guards)

    def test_memory_nobody_saw_is_still_zero(self):
        flex = FlexAllocator(Device(threads=1), FlexMode.VF)
        seen, unseen = flex.allocate(256, bind(0)), flex.allocate(256, bind(0))
        flex.device.memory.view(flex.device_address(seen), 256)[:] = 3
        for index in (unseen, seen):
            flex.deallocate(index)
        (memory,) = content(flex, flex.allocate(512, bind(0)))
        assert not memory.any()

    def test_poisoned_memory_nobody_saw_is_poisoned_once(self):
        """Freed memory is zero on poisoning devices too, as `Device.free` leaves it."""
        device = Device(threads=1, poison=True)
        flex = FlexAllocator(device, FlexMode.VF)
        flex.deallocate(flex.allocate(256, bind(0)))
        assert not device.memory.read(0, 256).any()

    def test_the_sanitizer_hears_of_it(self):
        device = Device(threads=1, sanitize=True)
        flex = FlexAllocator(device, FlexMode.VF)
        index = flex.allocate(256)
        address = flex.device_address(index)
        device.memory.write(address, np.ones(256, np.uint8))
        assert device.sanitizer is not None
        assert device.sanitizer.shadow.of_range(address, 256).all()
        flex.deallocate(index)
        assert not device.sanitizer.shadow.of_range(address, 256).any()


class TestReset:
    def test_handles_are_void(self, device: Device, flex: FlexAllocator):
        old = flex.allocate(4 * KIB, bind(0))
        device.reset()
        flex.give_back(old)
        with pytest.raises(LaunchError, match="SPY800"):
            flex.resolve(old)
        new = flex.allocate(4 * KIB, bind(0))
        flex.give_back(old)
        with pytest.raises(LaunchError, match="SPY800"):
            flex.deallocate(old)
        assert flex.resolve(new) == VirtualAddress(0, 0)
        found = flex.statistics()
        assert (found.allocations.current, found.allocated_bytes.current) == (1, 4 * KIB)
        assert found.allocated_bytes.accumulated == 8 * KIB

    def test_an_owner_collected_before(self, device: Device, flex: FlexAllocator):
        """Noted while the lock is taken, settled after the reset."""
        old = DeviceStorage(flex, flex.allocate(128), 128)
        with device.regions.lock:
            del old
        device.reset()
        assert flex.statistics().allocations.current == 0
        assert flex.allocate(128) == 2


def test_fragmentation():
    flex = FlexAllocator(Device(threads=1), FlexMode.VF, (KIB, *[0] * 6, KIB))
    pieces = [flex.allocate(128) for _ in range(8)]
    for piece in pieces[::2]:
        flex.deallocate(piece)
    found = flex.statistics()
    assert (found.free_bytes, found.largest_free_bytes, found.reserved_bytes) == (512, 128, KIB)


def test_what_the_device_allocates_counts_as_used(device: Device, flex: FlexAllocator):
    address = device.allocate(KIB, 0)
    found = flex.statistics()
    assert found.allocated_bytes.current == 0
    assert found.free_bytes == 27 * KIB
    assert flex.device_address(flex.allocate(128, bind(0))) == address + KIB


@pytest.mark.parametrize("resolving", [False, True])
def test_twenty_thousand_steps(monkeypatch, resolving: bool):
    monkeypatch.setattr(million, "LIVE", 1500)
    monkeypatch.setattr(million, "BATCH", 1000)
    state = million.run(20_000, seed=3, resolving=resolving)
    assert state.done >= 20_000
    assert state.flex.statistics().allocations.peak == 1501
