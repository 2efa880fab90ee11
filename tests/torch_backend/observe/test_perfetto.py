"""Traces of torch load in Perfetto's trace processor; their sums are the profile's."""

from __future__ import annotations

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile as torch_profile

from spyre.torch_backend.observe import FIRST_PROCESS
from tests.perfetto.sums import assert_sums, assert_whole, tracks_of
from tests.perfetto.trace_processor import TraceProcessor


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(64, 128, dtype=torch.float16, device="spyre")


def softmax_of_product(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * x, -1)


def test_a_profile_of_two_streams(x, tmp_path):
    """Eager code on one, a compiled function on the other."""
    compiled, stream = torch.compile(softmax_of_product), torch.spyre.Stream()
    file = tmp_path / "trace.json"
    compiled(x)
    with torch.spyre.profile() as p:
        for _ in range(3):
            x + x
        with torch.spyre.stream(stream):
            compiled(x).cpu()
    p.trace(file)
    totals = p.of_card().to_json()["totals"]
    assert totals["launches"] > 3
    with TraceProcessor(file) as trace:
        assert_whole(trace, file)
        assert_sums(trace, totals, FIRST_PROCESS)
        assert f"stream {stream.stream_id}" in tracks_of(trace, FIRST_PROCESS)
        begins = trace.query("select min(ts) as ts from span group by pid")
    assert len(begins) == 2
    assert begins[0] == begins[1]


def test_beside_torch_profiler(x, tmp_path):
    """Merged with its export as docs/torch.md says: everything of the card is there."""
    card, host = tmp_path / "card.json", tmp_path / "host.json"
    with torch.spyre.trace(card), torch_profile(activities=[ProfilerActivity.CPU]) as prof:
        (x + x).cpu()
    prof.export_chrome_trace(str(host))
    merged, device = json.loads(host.read_text()), json.loads(card.read_text())
    merged["traceEvents"] += device["traceEvents"]
    host.write_text(json.dumps(merged))
    written = [e for e in device["traceEvents"] if e["ph"] == "X"]
    with TraceProcessor(host) as trace:
        assert tracks_of(trace, FIRST_PROCESS) == ["stream 0", "engine dma", "engine compute"]
        found = trace.query(f"""
            select track, name, ts, dur, extract_arg(arg_set_id, 'args.bytes') as bytes
            from span where pid = {FIRST_PROCESS}
        """)
        assert len(found) == len(written)
        assert sum(row["bytes"] for row in found) == sum(e["args"]["bytes"] for e in written)
        launch_ns = trace.value("select ts from slice where name = 'spyre::add'")
    (run,) = (row for row in found if row["track"] == "engine compute")
    assert run["name"] == "compute add"
    assert launch_ns < run["ts"]
