"""Device memory: zero when fresh, pages given back, addresses mapped, little committed."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import Allocation, Binding
from spyre.hw.memory.device_memory import DeviceMemory, reserve
from spyre.hw.memory.regions import TENSOR_REGIONS, RegionAllocator
from spyre.hw.spec import (
    CORES,
    HBM_BYTES,
    HOST_BYTES,
    LX_BASE,
    LX_BYTES,
    REGION_BYTES,
    REGION_SKEW_BYTES,
    REGIONS,
    device_address,
    host_offset,
)
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from tests.hw.harness import link

MIB = 1 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@pytest.mark.parametrize(
    "address",
    [0, 12345, REGION_BYTES - 64, 5 * REGION_BYTES + 77, LX_BASE, LX_BASE + 31 * LX_BYTES],
)
def test_fresh_memory_reads_zero(address: int):
    assert not DeviceMemory().read(address, 64).any()


def test_writes_stay_where_they_are():
    memory = DeviceMemory()
    places = [k * REGION_BYTES for k in range(REGIONS)] + [
        LX_BASE + c * LX_BYTES for c in range(CORES)
    ]
    for k, address in enumerate(places):
        memory.write(address, np.full(64, k + 1, np.uint8))
    assert [int(memory.read(a, 64).min()) for a in places] == list(range(1, len(places) + 1))
    assert [int(memory.read(a, 64).max()) for a in places] == list(range(1, len(places) + 1))


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 70_001])
@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 20_000, 70_000])
def test_clear_zeroes_exactly_its_range(start: int, size: int):
    memory = DeviceMemory()
    base = 3 * REGION_BYTES
    memory.write(base, np.full(160_000, 0xFF, np.uint8))
    memory.clear(base + start, size)
    content = memory.read(base, 160_000)
    assert not content[start : start + size].any()
    assert (content[:start] == 0xFF).all()
    assert (content[start + size :] == 0xFF).all()


@needs_proc
@pytest.mark.parametrize("whole", [True, False])
def test_clear_gives_pages_back(whole: bool):
    memory = DeviceMemory()
    before = resident_bytes()
    memory.view(REGION_BYTES, 128 * MIB)[:] = 1
    assert resident_bytes() - before > 120 * MIB
    if whole:
        memory.clear_all()
    else:
        memory.clear(REGION_BYTES, 128 * MIB)
    assert resident_bytes() - before < 16 * MIB
    assert not memory.read(REGION_BYTES + 77 * MIB, 4096).any()


@needs_proc
def test_clear_of_untouched_memory_commits_nothing():
    """Neither do the parts of pages at the ends, which cannot be given back."""
    memory = DeviceMemory()
    memory.clear(0, 128)
    before = resident_bytes()
    for k in range(200):
        memory.clear(REGION_BYTES + k * (8 * MIB + 128), 4 * MIB)
        memory.clear(2 * REGION_BYTES + k * (8 * MIB + 128), 64 * 1024)
    assert resident_bytes() - before < 16 * MIB


@given(st.integers(0, LX_BASE + CORES * LX_BYTES - 1))
def test_host_offsets_invert(address: int):
    offset = host_offset(address)
    assert 0 <= offset < HOST_BYTES
    assert device_address(offset) == address


@pytest.mark.parametrize("region", range(REGIONS + 1))
def test_host_offsets_around_region_borders(region: int):
    border = region * REGION_BYTES
    for address in (border, border + 1):
        assert device_address(host_offset(address)) == address
        assert host_offset(address) == address + region * REGION_SKEW_BYTES
    if region:
        assert device_address(host_offset(border - 1)) == border - 1
        assert host_offset(border) - host_offset(border - 1) == 1 + REGION_SKEW_BYTES


@needs_proc
def test_a_program_over_all_regions_commits_little():
    """Every tensor region, the last one, and scratchpads: tensors + 64 MiB at most."""
    Device(threads=1).memory.read(0, 64)
    bases = [k * REGION_BYTES + k * 4096 for k in range(REGIONS)]
    operations = [
        build_operation(
            pointwise(
                "add", (256, 512), [HostOperand(a), HostOperand(b)], HostOperand(b), {"mb": 32}
            )
        )
        for a, b in zip(bases, [*bases[1:], bases[0]], strict=True)
    ]
    size = 2 * 256 * 512
    allocations = [Allocation(f"t{k}", base, size) for k, base in enumerate(bases)]
    device = Device(threads=2)
    linked = link(device, operations, allocations)
    linked.code.entries  # noqa: B018  (kernels loaded before measuring)
    device.executor.pool.prepare()
    before = resident_bytes()
    device.executor.run(linked)
    assert resident_bytes() - before < REGIONS * size + 64 * MIB


def test_views_are_writable_and_shared():
    memory = DeviceMemory()
    view = memory.view(REGION_BYTES, 128)
    view[5] = 9
    assert memory.read(REGION_BYTES + 5, 1)[0] == 9
    copy = memory.read(REGION_BYTES, 128)
    copy[:] = 1
    assert view[6] == 0


# --- allocations ------------------------------------------------------------------------------


def test_reset_forgets_tensors_and_scratchpads():
    device = Device(threads=1)
    address = device.allocate(1000)
    device.memory.write(address, np.ones(1000, np.uint8))
    device.memory.write(LX_BASE, np.ones(64, np.uint8))
    device.reset()
    assert device.allocate(1000) == address
    assert not device.memory.read(address, 1000).any()
    assert not device.memory.read(LX_BASE, 64).any()


@given(st.data())
def test_allocations_never_overlap(data: st.DataObject):
    allocator = RegionAllocator()
    live: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        if live and data.draw(st.integers(0, 2)) == 0:
            address = data.draw(st.sampled_from(sorted(live)))
            assert allocator.free(address) >= live.pop(address)
            continue
        size = data.draw(st.sampled_from([1, 127, 128, 129, 1 << 20, REGION_BYTES // 3]))
        try:
            address = allocator.allocate(size, data.draw(st.sampled_from([None, 0, 3])))
        except DeviceOutOfMemory:
            continue
        assert address % 128 == 0
        assert address // REGION_BYTES == (address + size - 1) // REGION_BYTES < TENSOR_REGIONS
        assert all(address + size <= a or a + s <= address for a, s in live.items())
        live[address] = size


def test_out_of_device_memory():
    allocator = RegionAllocator()
    for _ in range(TENSOR_REGIONS):
        allocator.allocate(REGION_BYTES)
    with pytest.raises(DeviceOutOfMemory, match="SPY401"):
        allocator.allocate(1)
    with pytest.raises(LaunchError, match="SPY360"):
        allocator.free(64)


def test_a_host_that_refuses_address_space(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **flags: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(DeviceOutOfMemory, match=r"SPY402(.|\n)*128 GiB of address space"):
        reserve(128 << 30)


@pytest.mark.parametrize(
    ("address", "size"),
    [(-128, 128), (HBM_BYTES, 1), (HBM_BYTES - 64, 128), (REGION_BYTES - 64, 128)],
)
def test_an_allocation_lies_in_one_region(address: int, size: int):
    with pytest.raises(LaunchError, match="SPY403"):
        Allocation("t", address, size)


def test_relocation_moves_each_segment_to_its_tensor():
    binding = Binding(segments={0: 5 * REGION_BYTES + 256, 2: 1024})
    addresses = np.array([0, 128, 2 * REGION_BYTES, 2 * REGION_BYTES + 640], np.int64)
    moved = binding.relocate(addresses)
    assert moved.tolist() == [5 * REGION_BYTES + 256, 5 * REGION_BYTES + 384, 1024, 1664]
