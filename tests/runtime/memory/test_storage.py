"""Owners of device memory: closed, collected, shared, used by threads, at interpreter exit."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.spec import REGIONS
from spyre.runtime.memory.allocator import DeviceStorage, FlexAllocator, MemoryStatistics
from spyre.runtime.memory.flex_mode import FlexMode

KIB = 1024


class Storages(msgspec.Struct, frozen=True):
    """Makes storages of an allocator."""

    flex: FlexAllocator

    def allocate(self, size_bytes: int) -> DeviceStorage:
        return DeviceStorage(self.flex, self.flex.allocate(size_bytes), size_bytes, 3)

    def memory_stats(self) -> MemoryStatistics:
        return self.flex.statistics()


@pytest.fixture
def allocator() -> Storages:
    flex = FlexAllocator(Device(threads=1), FlexMode.PF, (64 * KIB,) * REGIONS)
    return Storages(flex)


def live(allocator: Storages) -> int:
    return allocator.memory_stats().allocations.current


def test_an_owner_frees_once(allocator: Storages):
    storage = allocator.allocate(1000)
    assert (storage.size_bytes, storage.device_index, storage.closed) == (1000, 3, False)
    assert live(allocator) == 1
    storage.close()
    storage.close()
    assert storage.closed
    assert live(allocator) == 0
    with pytest.raises(LaunchError, match="SPY800"):
        _ = storage.index
    del storage
    assert live(allocator) == 0


def test_collected(allocator: Storages):
    storage = allocator.allocate(1000)
    del storage
    assert live(allocator) == 0
    with allocator.allocate(10):
        assert live(allocator) == 1
    assert live(allocator) == 0


def test_nothing(allocator: Storages):
    storage = allocator.allocate(0)
    storage.close()
    assert allocator.memory_stats().allocations.accumulated == 0


def test_no_address_is_shown(allocator: Storages):
    allocator.allocate(128)
    storages = [allocator.allocate(256) for _ in range(9)]
    for storage in storages:
        assert repr(storage) == str(storage) == "DeviceStorage(device=3, size_bytes=256)"
        assert not hasattr(storage, "__dict__")
        assert not hasattr(storage, "__int__")
    storages[0].close()
    assert repr(storages[0]) == "DeviceStorage(device=3, size_bytes=256, closed)"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_owner_cannot_be_copied(allocator: Storages, duplicate):
    storage = allocator.allocate(128)
    with pytest.raises(TypeError, match="owns device memory"):
        duplicate(storage)


def test_garbage_makes_room(allocator: Storages):
    """Cycles hold all memory; running out collects them."""
    gc.disable()
    try:
        for _ in range(7):
            cycle: list[object] = [allocator.allocate(64 * KIB)]
            cycle.append(cycle)
        del cycle
        assert live(allocator) == 7
        storage = allocator.allocate(64 * KIB)
        assert live(allocator) == 1
    finally:
        gc.enable()
    assert storage.size_bytes == 64 * KIB


def test_a_finalizer_does_not_wait_for_the_lock(allocator: Storages):
    """As when the collector runs inside the allocator: the thread holds the lock already."""
    storage = allocator.allocate(128)
    with allocator.flex.device.regions.lock:
        del storage
    assert live(allocator) == 0


def test_collections_inside_of_the_allocator(allocator: Storages):
    """The collector runs as often as possible, and frees owners in cycles while it does."""
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for k in range(2000):
            cycle: list[object] = [allocator.allocate(100 + k % 500)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    found = allocator.memory_stats()
    assert found.allocations.accumulated >= 2000
    assert found.allocations.current == 0
    assert {r.largest_free_bytes for r in found.regions} == {64 * KIB}


def test_a_reference_given_back_twice_is_an_error(allocator: Storages):
    storage = allocator.allocate(128)
    allocator.flex.deallocate(storage.index)
    with pytest.raises(LaunchError, match="SPY800"):
        storage.close()


def test_closing_after_a_reset(allocator: Storages):
    storage, other = allocator.allocate(128), allocator.allocate(128)
    allocator.flex.device.reset()
    storage.close()
    fresh = allocator.allocate(128)
    del other
    assert live(allocator) == 1
    fresh.close()


def test_closing_from_many_threads(allocator: Storages):
    for _ in range(50):
        storage = allocator.allocate(128)
        start = threading.Barrier(4)

        def close(storage=storage, start=start) -> None:
            start.wait()
            storage.close()

        _run([close] * 4)
        assert live(allocator) == 0


def test_threads(allocator: Storages):
    """Owners, bare handles and the device's own allocations at the same time."""
    flex, failures = allocator.flex, []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[tuple[object, int, int]] = []
        for step in range(1500):
            if mine and rng.random() < 0.5:
                _check_and_free(flex, mine.pop(rng.randrange(len(mine))), failures)
                continue
            mark = seed * 16 + step % 16 + 1
            try:
                made = _make(allocator, rng.randrange(3), rng.randrange(1, 2000))
            except DeviceOutOfMemory:
                continue
            address, size = _place(flex, made), made[1]
            memory = flex.device.memory.view(address, size)
            if memory.any():
                failures.append("not fresh")
            memory[:] = mark
            mine.append((made[0], size, mark))
        for entry in mine:
            _check_and_free(flex, entry, failures)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        _run([lambda seed=seed: work(seed) for seed in range(6)])
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    found = allocator.memory_stats()
    assert found.allocations.current == 0
    assert {r.largest_free_bytes for r in found.regions} == {64 * KIB}


class DeviceOwned:
    """An address from Device.allocate."""

    def __init__(self, device: Device, address: int) -> None:
        self.device, self.address = device, address


def _make(allocator: Storages, kind: int, size: int) -> tuple[object, int]:
    if kind == 0:
        return allocator.allocate(size), size
    if kind == 1:
        return allocator.flex.allocate(size), size
    device = allocator.flex.device
    return DeviceOwned(device, device.allocate(size)), size


def _place(flex: FlexAllocator, made: tuple[object, int]) -> int:
    owner = made[0]
    if isinstance(owner, DeviceOwned):
        return owner.address
    return flex.device_address(owner if isinstance(owner, int) else owner.index)


def _check_and_free(flex: FlexAllocator, entry: tuple[object, int, int], failures: list) -> None:
    owner, size, mark = entry
    memory = flex.device.memory.view(_place(flex, (owner, size)), size)
    if not np.all(memory == mark):
        failures.append("overwritten")
    if isinstance(owner, DeviceOwned):
        owner.device.free(owner.address)
    elif isinstance(owner, int):
        flex.deallocate(owner)


def _run(functions) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_interpreter_exit_is_silent():
    """Owners in globals, in cycles and in a thread's locals when the interpreter ends."""
    script = """
import threading, time
from spyre.hw.device.device import Device
from spyre.runtime.memory.allocator import FlexAllocator
from spyre.runtime.memory.allocator import DeviceStorage
flex = FlexAllocator(Device(threads=1))
def allocate(size_bytes):
    return DeviceStorage(flex, flex.allocate(size_bytes), size_bytes)
kept = [allocate(1 << 20) for _ in range(20)]
for s in kept:
    flex.device.memory.view(flex.device_address(s.index), 1000)[:] = 1
kept.append(kept)
def wait(s):
    time.sleep(60)
threading.Thread(target=wait, args=(allocate(5),), daemon=True).start()
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
