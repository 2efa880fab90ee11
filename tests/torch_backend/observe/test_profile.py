"""`torch.spyre.profile`: eager and compiled code, its cost when off, its trace."""

from __future__ import annotations

import json
import re

import pytest
import torch

from spyre.errors import LaunchError
from spyre.hw.cost.timeline import TaskKind
from spyre.runtime.flex.device import devices
from tests.runtime.trace.trace_reader import Trace


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16, device="spyre")


def test_eager():
    x, y = ones(64, 128), ones(64, 128)
    with torch.spyre.profile() as p:
        for _ in range(3):
            x + y
        torch.exp(x)
        x.cpu()
    found = p.of_card()
    assert [(k.name, k.launches) for k in found.kernels] == [("add", 3), ("exp", 1)]
    assert found.counters.rdmem_bytes == (3 * 2 + 1) * 64 * 128 * 2
    assert found.copied_bytes(TaskKind.COPY_OUT) == 64 * 128 * 2
    assert "add" in str(p)
    assert p.table().row_count == 3


def test_memory():
    """Tensors from before the block lie there throughout; the peak is that of the allocator."""
    x = ones(256, 128)
    size_bytes = 256 * 128 * 2
    with torch.spyre.profile() as p:
        y = torch.exp(x)
        del y
        z = torch.exp(x) + x
    held = p.of_card().hbm
    assert held is not None
    tensors = held.allocated_bytes[:, :7].sum(axis=1)
    assert tensors[-1] - tensors[0] == size_bytes
    assert tensors.max() - tensors[0] in (2 * size_bytes, 3 * size_bytes)
    assert tensors.min() >= size_bytes
    assert z.shape == x.shape


def test_compiled(tmp_path):
    def function(x, y):
        return torch.softmax(x * y, -1)

    compiled = torch.compile(function)
    x, y = ones(64, 128), ones(64, 128)
    compiled(x, y)
    with torch.spyre.profile(model="ideal", overlap="serial") as p:
        compiled(x, y)
        compiled(x, y)
    found = p.of_card()
    (kernel,) = found.kernels
    assert kernel.launches == 2
    assert {e.op for e in kernel.executes} >= {"mul", "exp", "sum"}
    assert found.lx_peak_bytes > 0
    p.report(tmp_path / "out.html", "compiled")
    assert "<title>compiled</title>" in (tmp_path / "out.html").read_text()


def test_the_trace(tmp_path):
    x = ones(64, 128)
    with torch.spyre.profile() as p:
        torch.exp(x)
    p.trace(tmp_path / "out.json")
    trace = Trace(json.loads((tmp_path / "out.json").read_text()))
    trace.check()
    modelled = trace.modelled
    assert modelled is not None
    (process,) = {e["pid"] for e in modelled.events}
    (span,) = modelled.on("executes", process)
    counted = p.of_card().counters.by_name
    assert {key: span["args"][key] for key in counted if key != "sticks"} == {
        key: value for key, value in counted.items() if key != "sticks"
    }
    begin = min(s["ts"] for s in trace.spans)
    assert min(s["ts"] for s in modelled.spans) == pytest.approx(begin)


def test_off_launches_run_plainly():
    """Behind the block the card is as before, also when the block raises."""
    x = ones(64, 128)
    p = torch.spyre.profile()

    def fail():
        with p:
            torch.exp(x)
            torch.spyre.synchronize()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert devices()[0].runner is None
    torch.exp(x)
    assert len(p.of_card().launches) == 1


def test_reading_too_early_and_nesting():
    with torch.spyre.profile() as p:
        with pytest.raises(LaunchError, match="SPY783"):
            str(p)
        with pytest.raises(LaunchError, match="SPY950"), torch.spyre.profile():
            pass
    assert p.of_card().launches == ()


def test_counting():
    """The counters of a profile, for launches that run as they do without."""
    x, y = ones(64, 128), ones(64, 128)
    with torch.spyre.counting() as c:
        with pytest.raises(LaunchError, match="SPY950"), torch.spyre.profile():
            pass
        x + y
        torch.exp(x)
    with torch.spyre.profile() as p:
        x + y
        torch.exp(x)
    assert c.launches == 2
    assert c.counters == p.of_card().counters
    assert list(c.cards) == [0]


def test_it_can_be_used_again():
    x = ones(64, 128)
    p = torch.spyre.profile()
    for count in (1, 2):
        with p:
            for _ in range(count):
                torch.exp(x)
        assert len(p.of_card().launches) == count


def test_what_ran_on_the_cpu_is_named_with_its_time(tmp_path):
    x = ones(64, 128)
    torch.lgamma(x)
    with torch.spyre.profile() as p:
        torch.exp(torch.lgamma(x))
    (operation,) = p.on_host
    assert (operation.name, operation.calls) == ("aten.lgamma", 1)
    assert 0 < operation.share <= 1
    assert "on the CPU: aten.lgamma 1 ×" in str(p)
    assert p.of_card().to_json()["on_host"][0]["seconds"] == operation.seconds
    p.report(tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert "on the CPU: aten.lgamma 1 ×" in page
    # a millisecond on the host beside microseconds on the card
    assert page.index("aten.lgamma on the host") < page.index("launching</strong>")
    shares = [int(share) for share in re.findall(r"(\d+)% of the time: ", page)]
    assert sum(shares) <= 100 + len(shares)
