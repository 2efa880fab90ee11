"""Collectives in counters, profiles and traces of the cards that take part."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from spyre.hw.cost import Resource, TaskKind, collective_time, default_machine
from tests.torch_backend.distributed.ranks import run_ranks


def ones(*size, dtype=torch.float16):
    return torch.ones(size, dtype=dtype, device="spyre")


def exchange(rank):
    x = ones(64, 128)
    dist.all_reduce(x)
    outs = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(outs, x)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def test_bytes_of_every_link_are_counted():
    with torch.spyre.counting() as counted:
        run_ranks(2, exchange)
    size = 64 * 128 * 2
    (first, second) = (counted.links[key] for key in sorted(counted.links))
    # one exchange of everything, one all-gather, one message from rank 0 to rank 1
    assert first.collectives == second.collectives == 3
    assert first.sent_bytes == (0, 3 * size)
    assert first.received_bytes == (0, 2 * size)
    assert second.sent_bytes == (2 * size, 0)
    assert second.received_bytes == (3 * size, 0)
    assert first.combined_bytes == size


def test_chunks_of_large_reductions_are_counted():
    def body(rank):
        dist.all_reduce(ones(1024, 256))

    with torch.spyre.counting() as counted:
        run_ranks(4, body)
    part = 1024 * 256 * 2 // 4
    for (_, rank), counts in counted.links.items():
        # its parts of the others' chunks, and its own chunk, reduced, to all
        expected = tuple(0 if k == rank else 2 * part for k in range(4))
        assert counts.sent_bytes == counts.received_bytes == expected
        assert counts.combined_bytes == 3 * part


def tasks_of(profile, kind):
    rows = zip(profile.timeline.tasks, profile.timeline.spans, profile.owners, strict=True)
    return [(profile.activities[owner], span) for task, span, owner in rows if task.kind is kind]


def test_profiles_have_the_modelled_time_of_collectives(tmp_path):
    with torch.spyre.profile() as profiled:
        run_ranks(2, exchange)
    profile = profiled.of_card()
    machine, size = default_machine(), 64 * 128 * 2
    rows = {row["collective"]: row for row in profile.to_json()["collectives"]}
    gather = rows["all_gather float16 [64, 128]"]
    assert gather["size_bytes"] == 2 * size
    # two ranks are threads of one process and share its card
    assert gather["calls"] == 2
    modelled = collective_time("all_gather", 2 * size, 2, machine)
    assert gather["time_ns"] == pytest.approx(2 * modelled.total_ns)
    assert gather["bus_gbps"] == pytest.approx(modelled.bus_gbps(2 * size))
    exchanges = tasks_of(profile, TaskKind.EXCHANGE)
    assert len(exchanges) == len(profile.collectives) == 6
    assert len(tasks_of(profile, TaskKind.ADD)) == 2
    text = str(profile)
    assert "busbw" in text
    assert "all_reduce sum float16 [64, 128]" in text
    assert "modelled from unmeasured constants" in text
    profiled.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "collectives-table" in page
    assert "exchange between cards all_gather float16 [64, 128]" in page


def test_what_uses_a_result_waits_for_it_and_other_work_does_not():
    def body(rank):
        x, y = ones(512, 512), ones(256, 256)
        work = dist.all_reduce(x, async_op=True)
        y = y @ y
        work.wait()
        (x + 1).cpu()

    with torch.spyre.profile() as profiled:
        run_ranks(1, body)
    profile = profiled.of_card()
    (collective,) = [a for a in profile.activities if a.collective]
    users = [a.name for a in profile.activities if collective.label in a.after]
    assert users == ["add"]
    assert "collective" in str(profiled.observations[0])


def test_an_exchange_runs_beside_kernels_that_do_not_need_it():
    def body(rank):
        x, y = ones(512, 512), ones(1024, 1024)
        torch.spyre.synchronize()
        dist.barrier()
        work = dist.all_reduce(x, async_op=True)
        for _ in range(3):
            y = y @ y
        work.wait()
        return (x + 1).cpu()

    with torch.spyre.profile() as profiled:
        run_ranks(2, body)
    profile = profiled.of_card()
    busy = sum(profile.timeline.busy_ns(r) for r in (Resource.DMA, Resource.COMPUTE))
    assert profile.makespan_ns < busy
    added = [
        span for activity, span in tasks_of(profile, TaskKind.COMPUTE) if activity.name == "add"
    ]
    ends = [
        max(
            span.end_ns for a, span in tasks_of(profile, TaskKind.EXCHANGE) if a.label in user.after
        )
        for user in profile.activities
        if user.name == "add"
    ]
    assert len(added) == 2
    assert all(span.begin_ns >= end for span, end in zip(added, ends, strict=True))


def test_traces_show_collectives_on_a_track_per_rank(tmp_path):
    with torch.spyre.trace(tmp_path / "trace.json"):
        run_ranks(2, exchange)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = [e for e in events if e.get("cat") == "collective"]
    by_track = {}
    for event in shown:
        by_track.setdefault(tracks[event["tid"]], []).append(event)
    groups = [name for name in by_track if "group" in name]
    assert len(groups) == 2
    for name in groups:
        assert [e["name"].split()[1] for e in by_track[name]][:2] == ["all_reduce", "all_gather"]
        assert all(e["dur"] > 0 and e["args"]["ranks"] == 2 for e in by_track[name])
        assert by_track[name][0]["args"]["bytes"] == 64 * 128 * 2


def test_all_ranks_are_in_one_trace(tmp_path):
    """Ranks are processes with a card each."""
    code = """
import sys
import torch, torch.distributed as dist
rank, directory = int(sys.argv[1]), sys.argv[2]
store = f"file://{directory}/store"
dist.init_process_group("spyreccl", init_method=store, rank=rank, world_size=2)
x = torch.ones(64, 128, dtype=torch.float16, device="spyre")
with torch.spyre.profile() as p:
    dist.all_reduce(x + 1)
p.trace(f"{directory}/all.json", group=dist.group.WORLD)
try:
    with torch.spyre.trace(f"{directory}/failed.json", group=dist.group.WORLD):
        raise ValueError("the model has failed")
except ValueError:
    dist.destroy_process_group()
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path)],
            env={**os.environ, "SPYRECCL_TRANSPORT": "shm"},
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert sum(name.startswith("rank 0: ") for name in names) == 2
    assert sum(name.startswith("rank 1: ") for name in names) == 2
    spans = [e for e in events if e.get("cat") == "collective"]
    assert len({e["pid"] for e in spans}) == 2
    arrows = [e for e in events if e.get("cat") == "ranks"]
    assert sorted(e["ph"] for e in arrows) == ["f", "s"]
    assert {e["pid"] for e in arrows} == {e["pid"] for e in spans}
    assert sorted(path.name for path in tmp_path.glob("failed*")) == [
        "failed-rank0.json",
        "failed-rank1.json",
    ]
