"""Device memory: its owners, its release, and the counters."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest
import torch

from spyre.errors import DeviceOutOfMemory
from spyre.layout import SpyreTensorLayout
from spyre.runtime.flex.device import devices
from spyre.torch_backend.eager import launch
from tests.torch_backend.processes import run


@pytest.fixture(autouse=True)
def nothing_pending():
    gc.collect()
    torch.spyre.synchronize()


def allocated():
    torch.spyre.synchronize()
    return torch.spyre.memory_allocated()


def test_a_tensor_holds_its_sticks():
    before = allocated()
    x = torch.empty(3, 65, dtype=torch.float16, device="spyre")
    layout = SpyreTensorLayout.from_host((3, 65), "float16")
    assert allocated() - before == layout.device_bytes == 6 * 128
    del x
    assert allocated() == before


def test_views_keep_the_memory(host):
    before = allocated()
    x = host.to("spyre")
    held = allocated() - before
    view = x.t()[1:].detach()
    del x
    assert allocated() - before == held
    del view
    assert allocated() == before


def test_tensors_without_elements_hold_nothing():
    before = allocated()
    x = torch.empty(0, 3, device="spyre")
    assert allocated() == before
    assert x.cpu().shape == (0, 3)
    assert torch.empty(0, 3).to("spyre").sum().item() == 0


def test_stats_have_torchs_names():
    x = torch.ones(128, device="spyre")
    stats = torch.spyre.memory_stats()
    assert list(stats) == sorted(stats)
    for kind in ("allocated_bytes", "allocation", "reserved_bytes"):
        for value in ("current", "peak", "allocated", "freed"):
            assert stats[f"{kind}.all.{value}"] >= 0
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"] >= x.nbytes


def test_peak():
    torch.spyre.reset_peak_memory_stats()
    start = torch.spyre.memory_allocated()
    x = torch.empty(1000, 64, dtype=torch.float16, device="spyre")
    del x
    assert torch.spyre.max_memory_allocated() == start + 128000
    assert torch.spyre.max_memory_reserved() >= torch.spyre.memory_reserved()
    torch.spyre.reset_peak_memory_stats()
    assert torch.spyre.max_memory_allocated() == torch.spyre.memory_allocated()


def test_accumulated():
    torch.spyre.reset_accumulated_memory_stats()
    start = torch.spyre.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        torch.empty(64, dtype=torch.float16, device="spyre")
    stats = torch.spyre.memory_stats()
    assert stats["allocation.all.allocated"] == start + 3
    assert stats["allocation.all.freed"] == 3


def test_memory_info():
    free_bytes, total_bytes = torch.spyre.mem_get_info()
    assert torch.spyre.get_memory_info() == (free_bytes, total_bytes)
    x = torch.empty(1 << 20, dtype=torch.float16, device="spyre")
    assert torch.spyre.mem_get_info()[0] == free_bytes - x.nbytes
    assert f"of {total_bytes:,} bytes" in torch.spyre.memory_summary()
    assert "freed" not in torch.spyre.memory_summary(abbreviated=True)


def test_accelerator_tells_the_same():
    x = torch.ones(100, device="spyre")
    accelerator = torch.accelerator
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "memory_stats"):
        assert getattr(accelerator, name)() == getattr(torch.spyre, name)()
    assert accelerator.get_memory_info() == torch.spyre.mem_get_info()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats("spyre:0")
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    assert accelerator.max_memory_allocated() == torch.spyre.memory_allocated() >= x.nbytes


def test_empty_cache_calls_the_pressure_hooks():
    from spyre.runtime.flex.device import devices

    called = []
    hooks = devices().current.allocator.pressure_hooks
    hooks.append(lambda: called.append(1))
    try:
        torch.spyre.empty_cache()
    finally:
        hooks.pop()
    assert called == [1]


def test_out_of_memory_names_what_there_is():
    ooms = torch.spyre.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 128 GiB") as caught:
        torch.empty(1 << 36, dtype=torch.float16, device="spyre")
    assert isinstance(caught.value, DeviceOutOfMemory)
    assert isinstance(caught.value, RuntimeError)
    for part in ("at most 12 GiB", "of 84 GiB are free", "SPY401"):
        assert part in str(caught.value)
    assert torch.spyre.memory_stats()["num_ooms"] == ooms + 1
    assert torch.ones(2, device="spyre").sum().item() == 2


def test_small_cards_fill_up():
    code = """
        held = []
        try:
            while True:
                held.append(torch.empty(1 << 16, dtype=torch.float16, device="spyre"))
        except torch.OutOfMemoryError as error:
            print("held", len(held))
        held.clear()
        torch.empty(1 << 16, dtype=torch.float16, device="spyre")
    """
    printed = run(code, FLEX_DEVICE="MOCK", FLEX_MOCK_DEVICE_MEMORY_SIZE=str(8 << 20))
    assert "held 56" in printed


PLACES = {
    "program": "x.neg()",
    "number": "x.add(0.7182)",
    "scratch": "x.t().contiguous().cumsum(0)",
    "compiled program": "torch.compile(lambda t: t.neg() * t.exp())(x)",
}


@pytest.mark.parametrize("place", PLACES)
def test_no_room_for_what_an_operation_brings(monkeypatch, place):
    """Any of its allocations may be the one that fails; the same operation then works."""
    x = torch.rand(5, 70, device="spyre")
    flex = devices().current
    launch._calls.clear()
    launch.launch_records.clear()
    launch._scalars.clear()
    torch._dynamo.reset()

    def full(index, *_, **__):
        full.at -= 1
        if full.at == 0:
            raise DeviceOutOfMemory("SPY401", "full")
        return index(*_, **__)

    def attempt(allocation):
        full.at = allocation
        with monkeypatch.context() as patched:
            for name in ("allocate", "allocate_with_address", "allocate_program"):
                patched.setattr(flex, name, partial(full, getattr(flex, name)))
            return eval(PLACES[place], {"torch": torch, "x": x})

    failed = 0
    for allocation in range(1, 20):
        try:
            result = attempt(allocation)
            break
        except torch.OutOfMemoryError:
            failed += 1
    assert failed
    assert result.isfinite().all()


def test_threads_leave_nothing_behind(host):
    before = allocated()
    failures = []

    def work():
        try:
            for _ in range(50):
                assert (host.to("spyre") + 1).sum().item() == host.sum() + 24
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert allocated() == before


def test_pointers_are_unique():
    tensors = [torch.empty(3, device="spyre") for _ in range(20)]
    raw = [torch.UntypedStorage(5, device="spyre") for _ in range(20)]
    pointers = [t.data_ptr() for t in tensors] + [s.data_ptr() for s in raw]
    assert len(set(pointers)) == 40
    assert 0 not in pointers
    assert tensors[3][1:].data_ptr() == tensors[3].data_ptr() + 4
