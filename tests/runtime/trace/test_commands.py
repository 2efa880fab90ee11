"""Traces of several streams and cards, from Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.runtime.flex.blocks import ControlBlock
from spyre.runtime.flex.command_stream import Command, CommandStream
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.scheduling import Engine
from spyre.runtime.kernel.kernel import timed_runner
from spyre.runtime.tiling.tile_plan import TilingOptions
from spyre.runtime.trace import Recordings, trace_events, write_trace
from tests.runtime.flex import kernels
from tests.runtime.trace.trace_reader import Trace, span_ns

ROWS = (4, 64)


def chrome_trace(recordings: Recordings) -> dict[str, object]:
    return {"displayTimeUnit": "ns", "traceEvents": list(trace_events(recordings))}


@pytest.fixture
def card():
    device = FlexDevice()
    device.runner = timed_runner()
    yield device
    device.close()


def record(card: FlexDevice, plan, launches: int = 3) -> CommandStream:
    """Launches on the default stream and on one of high priority."""
    streams = (card.default_stream, card.streams.take(priority=-1))
    a, b = (card.to_device(np.ones(kernels.STICK, np.float16), name) for name in "ab")
    outs = [card.empty(kernels.STICK, name=f"y{k}") for k in range(2)]
    card.synchronize()
    with card.recording() as commands:
        for _ in range(launches):
            for stream, y in zip(streams, outs, strict=True):
                stream.launch(plan, [a, b, y])
    return commands


def test_two_streams(card, tmp_path):
    commands = record(card, kernels.load(card, kernels.distance(tmp_path / "k")))
    trace = Trace(chrome_trace({0: commands}))
    trace.check()
    ids = sorted({c.stream_id for c in commands})
    assert len(ids) == 2
    assert [n for n in trace.track_names if n.startswith("stream") and "(" not in n] == [
        f"stream {k}" for k in ids
    ]
    streams = [s["args"]["stream"] for s in trace.on("engine compute")]
    assert sorted(streams) == sorted(ids * 3)
    assert [s["name"] for s in trace.on("core 0")].count("sub") == 6
    known = {c.label for c in commands}
    expected = {(a, c.label) for c in commands for a in c.after if a in known}
    assert set(trace.arrows) == expected


def test_two_cards_share_a_clock(card, tmp_path):
    bundle = kernels.add(tmp_path / "k")
    other = FlexDevice(index=1)
    first = record(card, kernels.load(card, bundle), 1)
    second = record(other, kernels.load(other, bundle), 1)
    other.close()
    trace = Trace(chrome_trace({0: first, 1: second}))
    trace.check()
    assert trace.processes == ["Spyre device 0", "Spyre device 1"]
    blocks = [trace.on("engine compute", process) for process in (1, 2)]
    assert span_ns(blocks[0][-1])[1] <= span_ns(blocks[1][0])[0]
    assert trace.on("core 0")
    assert trace.track_names[-1] == "engine compute"  # the second card was not timed
    arrows = [e["id"] for e in trace.events if e["ph"] == "s"]
    assert len(set(arrows)) == len(arrows)


def test_tiles_are_iterations(card, tmp_path):
    plan = kernels.load(card, kernels.add(tmp_path / "k", ROWS))
    tall = (3 * ROWS[0], ROWS[1])
    a, b = (card.to_device(np.ones(tall, np.float16), name) for name in "ab")
    y = card.empty(tall, name="y")
    with card.recording() as commands:
        card.default_stream.launch(plan, [a, b, y], TilingOptions(allow_tiled_launch=True))
    trace = Trace(chrome_trace({0: commands}))
    trace.check()
    computed = trace.on("engine compute")
    assert [s["args"]["iteration"] for s in computed] == [0, 1, 2]
    assert len({s["args"]["block"] for s in computed}) == 3
    assert len({s["args"]["addresses"][-1] for s in computed}) == 3
    assert {s["args"]["iteration"] for s in trace.on("core 0")} == {0, 1, 2}


def test_steps_that_only_copy_have_no_cores(card, tmp_path):
    """The last tile is padded: it is copied to temporaries and back."""
    plan = kernels.load(card, kernels.add(tmp_path / "k", ROWS))
    uneven = (ROWS[0] + 2, ROWS[1])
    a, b = (card.to_device(np.ones(uneven, np.float16), name) for name in "ab")
    y = card.empty(uneven, name="y")
    with card.recording() as commands:
        options = TilingOptions(allow_tiled_launch=True, remainder="pad")
        card.default_stream.launch(plan, [a, b, y], options)
    trace = Trace(chrome_trace({0: commands}))
    trace.check()
    assert (card.to_host(y).to_array() == 2).all()
    with_cores = {s["args"]["iteration"] for s in trace.on("core 0")}
    assert len(with_cores) == len(trace.on("core 0")) == 2
    assert len(trace.on("engine compute")) > 2


def test_a_failed_block_is_named(card):
    def fail():
        raise ValueError("no")

    stream = card.streams.take()
    with card.recording() as commands:
        stream.add_callback(fail)
        with pytest.raises(ValueError, match="no"):
            stream.synchronize()
    assert str(commands).strip().endswith("host callback  failed: ValueError")
    trace = Trace(chrome_trace({0: commands}))
    trace.check()
    assert trace.spans[0]["args"]["error"] == "ValueError"


def made(*spans: tuple[int, int, int]) -> CommandStream:
    """A stream of (stream, begin, end); engines in turn."""
    stream = CommandStream()
    for k, (stream_id, begin, end) in enumerate(spans):
        block = ControlBlock("host", "callback")
        stream.add(
            Command((k, 0, 0), f"host {k}", stream_id, Engine(k % 3), block, (), 0, begin, end)
        )
    return stream


def test_overlapping_spans_get_lines_of_their_own():
    trace = Trace(chrome_trace({0: made((1, 0, 100), (1, 20, 30), (1, 25, 60), (2, 100, 105))}))
    trace.check()
    assert trace.track_names[:4] == ["stream 1", "stream 1 (2)", "stream 1 (3)", "stream 2"]


def test_spans_that_touch_share_a_line():
    trace = Trace(chrome_trace({0: made((1, 50, 60), (1, 60, 60), (1, 60, 70))}))
    trace.check()
    assert trace.track_names[0:2] == ["stream 1", "engine host"]
    assert trace.on("stream 1")[0]["ts"] == 0


def test_the_file_is_the_trace(tmp_path):
    """Longer than one piece of it."""
    commands = made(*[(1, 10 * k, 10 * k + 5) for k in range(5000)])
    write_trace(tmp_path / "t.json", {0: commands})
    assert json.loads((tmp_path / "t.json").read_text()) == chrome_trace({0: commands})


def test_nothing_recorded(tmp_path):
    write_trace(tmp_path / "t.json", {})
    assert json.loads((tmp_path / "t.json").read_text()) == chrome_trace({})


def test_nothing_half_written(tmp_path):
    """An event that cannot be encoded, behind the first piece."""
    write_trace(tmp_path / "t.json", {0: made((1, 0, 1))})
    before = (tmp_path / "t.json").read_bytes()
    commands = made(*[(1, 10 * k, 10 * k + 5) for k in range(5000)])
    commands.add(replace(commands.commands[-1], order=(5000, 0, 0), error=object()))
    with pytest.raises(TypeError):
        write_trace(tmp_path / "t.json", {0: commands})
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    assert (tmp_path / "t.json").read_bytes() == before


def test_a_place_that_is_no_file(tmp_path):
    with pytest.raises(LaunchError, match="SPY886"):
        write_trace(tmp_path, {})
