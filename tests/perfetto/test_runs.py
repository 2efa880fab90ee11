"""Traces of `spyre-run` and of streams load in Perfetto; their sums are the run's counters."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spyre.cli.run import main
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.kernel.kernel import timed_runner
from spyre.runtime.tiling.tile_plan import TilingOptions
from spyre.runtime.trace import write_trace
from tests.cli.conftest import ROOT, runner_of
from tests.perfetto.sums import assert_sums, assert_whole, sums_of, tracks_of
from tests.perfetto.trace_processor import TraceProcessor
from tests.runtime.cases.test_case import write_case
from tests.runtime.flex import kernels

ENGINES = ["engine host", "engine dma", "engine compute"]
RESOURCES = ["modelled host", "modelled dma", "modelled launch", "modelled compute"]


@pytest.fixture
def traced(capsys, tmp_path):
    """``traced(path)`` runs a bundle or case: the totals of its profile, and its trace."""

    def run(path):
        file = tmp_path / "trace.json"
        ran = runner_of(main, capsys)(path, "--json", "--profile", "--trace", file)
        assert ran.code == 0
        return json.loads(ran.out)["profile"]["totals"], file

    return run


@pytest.mark.parametrize("name", ["softmax", "add_loop", "matmul_tile"])
def test_a_bundle(traced, name):
    totals, file = traced(ROOT / "examples" / name)
    with TraceProcessor(file) as trace:
        assert_whole(trace, file)
        assert_sums(trace, totals)
        processes = trace.query("select name from process where pid > 0 order by pid")
        assert [row["name"] for row in processes] == [
            "Spyre device 0", "Spyre device 0, modelled (calibrated)"
        ]  # fmt: skip
        cores = [track for track in tracks_of(trace, 1) if track.startswith("core")]
        assert tracks_of(trace, 1) == ["stream 0", *ENGINES, *cores]
        assert tracks_of(trace, 101) == [*RESOURCES, "executes", *cores]
        assert cores


def test_a_case_with_two_kernels(traced, tmp_path):
    totals, file = traced(write_case(tmp_path / "case"))
    with TraceProcessor(file) as trace:
        assert_whole(trace, file)
        assert_sums(trace, totals)
    assert totals["launches"] > 1


def test_other_numbers_are_found(traced):
    """One more byte, or a copy that takes a nanosecond longer than its time."""
    totals, file = traced(ROOT / "examples" / "softmax")
    content = json.loads(file.read_text())
    spans = [e for e in content["traceEvents"] if e["ph"] == "X" and e["pid"] == 101]
    (copy,) = (e for e in spans if e["name"] == "copy to host arg_1")
    executes = [e for e in spans if "rdmem_bytes" in e["args"]]
    for span, key, said in (
        (copy, "time_ns", "comparison failed"),
        (copy, "bytes", "'out': 65537"),
        (executes[0], "rdmem_bytes", "rdmem_bytes"),
    ):
        span["args"][key] += 1
        file.write_text(json.dumps(content))
        with TraceProcessor(file) as trace, pytest.raises(AssertionError, match=said):
            assert_sums(trace, totals)


# --- streams ------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path):
    """Two cards: launches in tiles on two streams, and only copies on the second card."""
    cards = [FlexDevice(index=k) for k in range(2)]
    cards[0].runner = timed_runner()
    plan = kernels.load(cards[0], kernels.add(tmp_path / "k", (4, 64)))
    with cards[0].recording() as first, cards[1].recording() as second:
        for card in cards:
            a, b = (card.to_device(np.ones((12, 64), np.float16), name) for name in "ab")
            y = card.empty((12, 64), name="y")
            for stream in (card.default_stream, card.streams.take(priority=-1)):
                if card is cards[0]:
                    stream.launch(plan, [a, b, y], TilingOptions(allow_tiled_launch=True))
            card.to_host(y)
            card.synchronize()
    yield {0: first, 1: second}
    for card in cards:
        card.close()


def test_streams_of_two_cards(recorded, tmp_path):
    file = tmp_path / "trace.json"
    write_trace(file, recorded)
    with TraceProcessor(file) as trace:
        assert_whole(trace, file)
        streams = {f"stream {c.stream_id}" for c in recorded[0]}
        assert len(streams) == 2
        assert {*streams, *ENGINES, "core 0"} <= set(tracks_of(trace, 1))
        assert tracks_of(trace, 2) == ["stream 0", "engine dma"]
        for index, commands in recorded.items():
            found = trace.query(f"""
                select track, sum(dur) as time_ns, count() as spans, {sums_of(("bytes",))}
                from span where pid = {1 + index} and track like 'engine %' group by track
            """)
            assert {row.pop("track"): row for row in found} == _by_engine(commands)
        arrows = trace.query("""
            select a.pid, extract_arg(a.arg_set_id, 'args.block') as source,
                extract_arg(b.arg_set_id, 'args.block') as target
            from flow join span a on slice_out = a.id join span b on slice_in = b.id
        """)
    known = {(k, c.label) for k, commands in recorded.items() for c in commands}
    assert sorted((row["pid"] - 1, row["source"], row["target"]) for row in arrows) == sorted(
        (k, label, c.label)
        for k, commands in recorded.items()
        for c in commands
        for label in c.after
        if (k, label) in known
    )


def _by_engine(commands):
    sums = {}
    for command in commands:
        name = f"engine {command.engine.name.lower()}"
        row = sums.setdefault(name, {"time_ns": 0, "spans": 0, "bytes": 0})
        row["time_ns"] += command.end_ns - command.begin_ns
        row["spans"] += 1
        row["bytes"] += command.block.size_bytes
    return sums


# --- counters -----------------------------------------------------------------------------------


def test_memory_over_time(traced):
    """Both peaks of the profile, HBM in the host's time too; nothing is left at the end."""
    totals, file = traced(ROOT / "examples" / "softmax")
    with TraceProcessor(file) as trace:
        peaks = trace.query("""
            select pid, process_counter_track.name as name, max(value) as peak
            from counter join process_counter_track on counter.track_id = process_counter_track.id
            join process using (upid) group by 1, 2 order by 1, 2
        """)
    found = {(row["pid"], row["name"]): row["peak"] for row in peaks}
    assert found.pop((101, "LX bytes of a core live")) == totals["lx_peak_bytes"] > 0
    for process in (1, 101):
        held = {name: peak for (pid, name), peak in found.items() if pid == process}
        assert set(held) == {
            f"HBM bytes allocated {name}" for name in ("region 0", "region 1", "programs")
        }
        assert sum(held.values()) == totals["hbm_peak_bytes"] > 2 * 64 * 1024
