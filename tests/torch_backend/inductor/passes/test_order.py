"""Passes on graphs of compiled functions: dead code, layouts, copies, and how they are shown."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, lane_of
from spyre.torch_backend.inductor.hooks.pre_scheduling import LAYOUT_PASSES
from spyre.torch_backend.inductor.hooks.registration import PostGradPasses
from spyre.torch_backend.inductor.lowering.device_ir import Load
from spyre.torch_backend.inductor.passes.restickify import insert_restickify
from spyre.torch_backend.inductor.passes.runs import (
    is_computed,
    propagate_layouts,
    remove_dead_code,
    runs_of,
)
from tests.torch_backend.inductor.passes.graphs import run

A, B = torch.ones(70, 100).half(), torch.ones(100, 70).half()


def sums(a, b):
    return (a + b.t()).sum(1) * 2


def test_the_order():
    names = [change.__name__ for change in LAYOUT_PASSES]
    assert names == ["remove_dead_code", "propagate_layouts", "restickify"]


def copy_for_nobody(graph):
    before = graph.operations[0]
    name = next(iter(graph.graph_inputs))
    insert_restickify(graph, before, Load(name, (100, 1)), (70, 100), 0)


def test_dead_code():
    _, kept = run(sums, A, B, first=(copy_for_nobody,))
    assert len(kept.restickified) == 1
    found, removed = run(sums, A, B, first=(copy_for_nobody, remove_dead_code))
    assert removed.restickified == []
    assert torch.equal(found[0], torch.full((70,), 400.0).half())


def test_every_computed_buffer_gets_a_layout():
    lanes = []

    def look(graph):
        operations = [op for op in graph.operations if is_computed(op)]
        assert all(isinstance(op.layout, FixedTiledLayout) for op in operations)
        lanes.extend(lane_of(op.layout) for op in operations)

    run(sums, A, B, first=(propagate_layouts, look))
    assert lanes == [1, -1, 0]


def test_runs_end_at_other_operations():
    found = []
    run(
        lambda a, b: torch.bernoulli((a + b.t()) * 0.01) * 2,
        A,
        B,
        first=(lambda graph: found.extend(runs_of(graph)),),
    )
    first, second = found
    assert first.results == {first.steps[-1].name}
    assert second.results == {second.steps[-1].name}


def test_layouts_are_printed():
    _, seen = run(sums, A, B)
    layouts = [line for line in seen.text.splitlines() if "layout" in line]
    size = "size=[70, 100], stride=[100, 1], device_size=[2, 70, 64], lane=1"
    assert f"FixedTiledLayout({size})" in layouts[1]
    assert "lane=-1" in layouts[2]


def test_every_pass_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_DUMP_PASSES", str(tmp_path))
    run(sums, A, B)
    written = sorted(path.name for path in tmp_path.rglob("*.after.txt"))
    assert [name[3:] for name in written[:3]] == [
        "remove_dead_code.after.txt",
        "propagate_layouts.after.txt",
        "restickify.after.txt",
    ]
    texts = [next(tmp_path.rglob(f"{name}")).read_text() for name in written[1:3]]
    assert texts[1].count("ComputedBuffer") > texts[0].count("ComputedBuffer")


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_search_is_part_of_cache_keys(monkeypatch, value):
    monkeypatch.setenv("GLOBAL_STICK_OPTIMIZER", value)
    assert PostGradPasses().uuid().endswith(value)
