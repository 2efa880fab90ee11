"""Ranges of torch.profiler, and torch.spyre.trace beside its export."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from spyre.errors import LaunchError
from spyre.torch_backend import compat, observe
from tests.runtime.trace.trace_reader import Trace
from tests.torch_backend.processes import run

CARD_0 = observe.FIRST_PROCESS


def on_cpu():
    return profile(activities=[ProfilerActivity.CPU])


def names(prof):
    return [event.name for event in prof.events() if event.name.startswith("spyre::")]


@pytest.fixture
def pair():
    return [torch.rand(64, 64).half().to("spyre") for _ in range(2)]


def test_launches_and_copies_are_ranges(pair):
    a, b = pair
    a @ b
    a + b  # compiled before
    with on_cpu() as prof:
        c = torch.ones(2, 3).to("spyre")
        a @ b
        a + b
        c.cpu()
        a.t().contiguous()
    found = names(prof)
    assert found[:4] == [compat.TO_CARD, "spyre::matmul", "spyre::add", compat.TO_HOST]
    assert len(found) > 4


def test_attention_is_named():
    q = torch.rand(1, 2, 64, 64).half().to("spyre")
    attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    with on_cpu() as prof:
        attention(q, q, q)
    assert "spyre::attention" in names(prof)


def test_numbers_are_copied_to_the_card(pair):
    with on_cpu() as prof:
        pair[0] * 0.123456
    assert compat.TO_CARD in names(prof)


def test_times_of_the_autograd_profiler(pair):
    """The card records no device events, so the profiler shows the CPU times of operations."""
    with torch.autograd.profiler.profile(use_device="spyre") as prof:
        pair[0] @ pair[1]
    times = {e.key: e.cpu_time_total for e in prof.key_averages()}
    assert times["spyre::matmul"] > 0
    assert all(time_us >= 0 for time_us in times.values())


def test_a_range_lies_in_the_operation_that_made_it(pair):
    with on_cpu() as prof:
        pair[0] + pair[1]
    (range_,) = [e for e in prof.events() if e.name == "spyre::add"]
    parents = []
    while range_.cpu_parent is not None:
        range_ = range_.cpu_parent
        parents.append(range_.name)
    assert "aten::add" in parents


def test_nothing_is_recorded_without_a_profiler(pair, monkeypatch):
    def refuse(name):
        raise AssertionError(f"a range {name} without a profiler")

    monkeypatch.setattr(compat, "ProfilerRange", refuse)
    (pair[0] + pair[1]).cpu()
    with on_cpu(), pytest.raises(AssertionError, match="without a profiler"):
        pair[0] + pair[1]


def test_the_base_of_times_is_kinetos(tmp_path):
    with on_cpu() as prof:
        begin = time.time_ns()
        with compat.ProfilerRange("mark"):
            time.sleep(0.002)
        end = time.time_ns()
    prof.export_chrome_trace(str(tmp_path / "host.json"))
    exported = json.loads((tmp_path / "host.json").read_text())
    assert exported["baseTimeNanoseconds"] == observe.time_axis().base_ns
    (mark,) = [e for e in exported["traceEvents"] if e["name"] == "mark"]
    shown = exported["baseTimeNanoseconds"] + mark["ts"] * 1000
    assert begin - 100_000 <= shown <= end


def test_the_device_is_aligned_with_the_profiler(pair, tmp_path):
    a, b = pair
    (a @ b + a).cpu()
    with torch.spyre.trace(tmp_path / "card.json"), on_cpu() as prof:
        for _ in range(5):
            a @ b + a
            a.cpu()
        torch.spyre.synchronize()
    prof.export_chrome_trace(str(tmp_path / "host.json"))
    host, card = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("host", "card"))
    assert host["baseTimeNanoseconds"] == card["baseTimeNanoseconds"]
    Trace(card).check()
    spans = Trace(card).on("engine compute", CARD_0)
    ranges = [e for e in host["traceEvents"] if e.get("name") in ("spyre::matmul", "spyre::add")]
    ranges.sort(key=lambda e: e["ts"])
    assert len(spans) == len(ranges) == 10
    for range_, span in zip(ranges, spans, strict=True):
        assert span["name"] == range_["name"].replace("spyre::", "compute ")
        assert span["ts"] > range_["ts"]
    (window,) = [e for e in host["traceEvents"] if e.get("name") == "PyTorch Profiler (0)"]
    first, last = window["ts"], window["ts"] + window["dur"]
    assert all(first <= s["ts"] and s["ts"] + s["dur"] <= last for s in spans)


def test_merged_traces_share_no_process(pair, tmp_path):
    with torch.spyre.trace(tmp_path / "card.json"), on_cpu() as prof:
        (pair[0] + pair[1]).cpu()
    prof.export_chrome_trace(str(tmp_path / "host.json"))
    host, card = (
        {e["pid"] for e in json.loads((tmp_path / f"{n}.json").read_text())["traceEvents"]}
        for n in ("host", "card")
    )
    assert card == {CARD_0}
    assert not host & card


def test_several_cards_in_one_trace(tmp_path):
    code = f"""
    with torch.spyre.trace({str(tmp_path / "t.json")!r}):
        x = torch.ones(4, 64, device="spyre:0") + 1
        y = torch.ones(4, 64, device="spyre:1") * 2  # made in the block
    """
    run(code, AIU_WORLD_SIZE="2")
    trace = Trace(json.loads((tmp_path / "t.json").read_text()))
    trace.check()
    assert trace.processes == ["Spyre device 0", "Spyre device 1"]
    assert "compute add" in [s["name"] for s in trace.on("engine compute", CARD_0)]
    assert "compute mul" in [s["name"] for s in trace.on("engine compute", CARD_0 + 1)]


def test_streams_have_tracks(pair, tmp_path):
    stream = torch.spyre.Stream()
    with torch.spyre.trace(tmp_path / "t.json"), torch.spyre.stream(stream):
        pair[0] + pair[1]
    trace = Trace(json.loads((tmp_path / "t.json").read_text()))
    assert f"stream {stream.stream_id}" in trace.track_names


def test_a_trace_within_a_trace(pair, tmp_path):
    with torch.spyre.trace(tmp_path / "outer.json"):
        with pytest.raises(LaunchError, match="SPY950"), torch.spyre.trace(tmp_path / "i.json"):
            pass
        pair[0] + pair[1]
    assert not (tmp_path / "i.json").exists()
    assert Trace(json.loads((tmp_path / "outer.json").read_text())).spans
    with torch.spyre.trace(tmp_path / "again.json"):
        pass


def test_a_block_that_raises_leaves_its_trace(pair, tmp_path):
    def fail():
        with torch.spyre.trace(tmp_path / "t.json"):
            (pair[0] + pair[1]).cpu()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert Trace(json.loads((tmp_path / "t.json").read_text())).spans
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(LaunchError, match="SPY886"):
        torch.spyre.trace(tmp_path / "no" / "t.json")


def changes_of_memory(prof, device):
    """(action, bytes) of every change of a device's memory, in their order."""
    timeline = prof._memory_profile().timeline
    return [(a.name, size) for _, a, (key, _), size in timeline if key.device == device]


def test_memory_of_the_card():
    before = torch.ones(1024, device="spyre")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True,
                 with_stack=True) as prof:  # fmt: skip
        del before
        made = torch.empty(100, 100, dtype=torch.float16, device="spyre")
        host = torch.empty(64)
        del made, host
        kept = torch.empty(64, device="spyre")
    assert changes_of_memory(prof, torch.device("spyre:0")) == [
        ("PREEXISTING", 4096),
        ("DESTROY", 4096),
        ("CREATE", 100 * 2 * 128),
        ("DESTROY", 100 * 2 * 128),
        ("CREATE", 256),
    ]
    assert kept.sum() is not None
    (made,) = [e for e in prof.key_averages() if e.key == "aten::empty"]
    assert made.device_memory_usage == 100 * 2 * 128 + 256


def test_memory_is_shown_only_if_asked_for():
    with on_cpu() as prof:
        torch.empty(64, device="spyre")
    (made,) = [e for e in prof.key_averages() if e.key == "aten::empty"]
    assert made.device_memory_usage == 0
