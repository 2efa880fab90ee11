"""No unneeded tensors, programs, threads or host memory are held."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from torch import nn

from spyre.torch_backend.device.cards import card_at
from spyre.torch_backend.eager import compile, dispatch, launch, masks
from spyre.torch_backend.tensors import allocation
from tests.torch_backend.processes import run as run_apart

STEPS = 1000 if "SPYRE_TEST_EXAMPLES" in os.environ else 250
WARM_STEPS = 120
RSS_MARGIN_BYTES = 24 << 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def step(number):
    """Operations of several kinds on tensors of changing sizes."""
    rows = 8 + 8 * (number % 5)
    x = torch.full((rows, 64), 0.5).to("spyre").requires_grad_()
    w = torch.full((64, 96), 0.25).to("spyre").requires_grad_()
    loss = (torch.softmax(x @ w, -1) * 3.0).sum()
    loss.backward()
    y = x.detach().half()
    y.add_(1.5).mul_(y)
    y[2:6].copy_(y[:4] * (number % 7))
    z = torch.cat([y, y.t().contiguous().t()], 0)[::2]
    torch.heaviside(z, z)  # on the CPU
    return float(loss.item())


def held():
    """Return the quantities that must not grow from step to step."""
    gc.collect()
    torch.spyre.synchronize()
    stats = torch.spyre.memory_stats()
    usage = card_at(0).allocator.statistics()
    return {
        "tensor bytes": stats["allocated_bytes.all.current"],
        "tensors": stats["allocation.all.current"],
        "reserved bytes": stats["reserved_bytes.all.current"],
        "allocations": usage.allocations.current,
        "free by region": [region.free_bytes for region in usage.regions],
        "buffers": sum(known() is not None for known in list(allocation._by_pointer.values())),
        "programs": len(compile._programs),
        "calls": len(launch._calls),
        "records": len(launch.launch_records),
        "layouts": len(allocation._layouts),
        "scalars": len(launch._scalars),
        "masks": len(masks._triangles),
    }


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_models_memory_goes_back_to_zero():
    printed = run_apart("""
    import gc
    from torch import nn
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 8)]
    model = nn.Sequential(*layers).half().to("spyre")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.rand(4, 64).half().to("spyre")
    model(x).sum().backward()
    optimizer.step()
    held = torch.spyre.memory_allocated()
    del layers, model, optimizer, x
    gc.collect()
    torch.spyre.synchronize()
    print(held > 0, torch.spyre.memory_allocated())
    """)
    assert printed.split() == ["True", "0"]


def test_many_steps():
    for number in range(WARM_STEPS):
        step(number)
    before, resident = held(), resident_bytes()
    threads = threading.active_count()
    for number in range(STEPS):
        step(number)
    assert held() == before
    assert threading.active_count() <= threads + 1
    assert resident_bytes() - resident < RSS_MARGIN_BYTES


def test_training_steps():
    model = Block().to("spyre")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.rand(16, 64).to("spyre")

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        train()
    before = held()
    for _ in range(20):
        train()
    after = held()
    for name in ("tensor bytes", "tensors", "buffers", "programs", "calls", "layouts"):
        assert after[name] == before[name]
    numbers = after["scalars"] - before["scalars"]  # Adam's change from step to step
    assert after["allocations"] - before["allocations"] == numbers


def test_operations_that_fail_hold_nothing():
    a, b = torch.rand(4, 64).to("spyre"), torch.rand(5, 64).to("spyre")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            a + b
    before = held()
    for _ in range(50):
        with pytest.raises(RuntimeError):
            a + b
    assert held() == before


@pytest.fixture
def few_programs(monkeypatch):
    """Caches of 8 programs, 16 calls and 4 records, empty at first."""
    monkeypatch.setattr(compile, "_programs", type(compile._programs)(8))
    monkeypatch.setattr(launch, "_calls", type(launch._calls)(16))
    monkeypatch.setattr(launch, "launch_records", type(launch.launch_records)(4))
    monkeypatch.setattr(dispatch, "launch_records", launch.launch_records)


def test_program_memory_of_dropped_programs_is_given_back(few_programs):
    def program_bytes():
        gc.collect()
        torch.spyre.synchronize()
        region = card_at(0).allocator.statistics().regions[7]
        return region.capacity_bytes - region.free_bytes

    x = torch.rand(2, 64).half().to("spyre")
    used = []
    for number in range(30):
        (torch.ones(1 + number, 64, dtype=torch.float16, device="spyre") + x[0]).cpu()
        used.append(program_bytes())
    assert len(compile._programs) <= 8
    assert len(launch._calls) <= 16
    late = used[16:]
    assert max(late) - min(late) < 4 * (used[1] - used[0])


def test_a_dropped_program_is_compiled_again(few_programs):
    x = torch.rand(4, 64).half()
    card = x.to("spyre")
    first = (card + card).cpu()
    for number in range(2, 30):
        card.unsqueeze(0).expand(number, 4, 64) * 2
    assert torch.equal((card + card).cpu(), first)


def test_numbers_are_kept_within_bounds():
    x = torch.rand(4, 64).half().to("spyre")
    for number in range(launch.MAX_SCALARS + 50):
        x * (number / 7)
    assert len(launch._scalars) <= launch.MAX_SCALARS


def test_causal_masks_are_kept_within_bounds():
    device = torch.device("spyre", 0)
    for size in range(2, masks.MAX_TRIANGLES + 10):
        masks.triangle(size, size, 0, True, device)
    assert len(masks._triangles) <= masks.MAX_TRIANGLES


def test_layouts_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(allocation, "_layouts", type(allocation._layouts)(8))
    tensors = [torch.empty(k, 3, device="spyre") for k in range(1, 50)]
    ids = [allocation.buffer_of(t).layout_id for t in tensors]
    assert len(set(ids)) == len(ids)
    assert len(allocation._layouts) <= 8
