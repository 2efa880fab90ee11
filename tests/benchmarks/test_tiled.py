"""Tiled forms side by side: each keeps its number of tiles after the others were compiled."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import tiled
from benchmarks.report import Kind, forms
from benchmarks.sampling import MOST_CALLS, sweeps
from benchmarks.tiled import CPU, Workload, _fits, softmax
from spyre.torch_backend.inductor.design_point import (
    ExampleTensor,
    compiled_with,
    counted_call,
    example_tensors,
    forget_compiled,
)


def test_forms_do_not_share_what_was_compiled():
    tensors = example_tensors([ExampleTensor((128, 128), ("rows", ""))])
    compiled = {n: compiled_with(softmax, {}, {"rows": n}) for n in (1, 2, 4)}
    for _ in range(2):
        assert {n: counted_call(f, tensors).executes for n, f in compiled.items()} == {
            1: 5, 2: 10, 4: 20,
        }  # fmt: skip
    fewer = counted_call(compiled_with(softmax, {"sencores": 4}, {}), tensors)
    none = counted_call(compiled_with(softmax, {"lx_planning": False}, {}), tensors)
    assert (fewer.cores, counted_call(compiled[1], tensors).cores) == (4, 32)
    assert none.lx_peak_bytes == 0 < fewer.lx_peak_bytes
    assert none.hbm_bytes > fewer.hbm_bytes
    forget_compiled()


def test_a_workload_reports_every_form(monkeypatch):
    small = Workload("softmax", softmax, ({"rows": 128, "columns": 128},), ("rows",))
    monkeypatch.setattr(tiled, "workloads", lambda quick: [small])
    monkeypatch.setattr(tiled, "QUICK_ROUNDS", 2)
    found = list(tiled.measure(quick=True))
    rows = {row.name: row for row in found}
    whole, four = forms(found)
    assert (whole.tiles, four.tiles) == (1, 4)
    for form in (whole, four):
        assert min(form.host_ms, form.simulated_us, form.hbm_bytes, form.lx_peak_bytes) > 0
    host = [rows[f"softmax, rows: {n} tiles: host"].values for n in (1, 4)]
    paired = rows["softmax, rows: 4 tiles: host, against untiled"].values
    assert paired == pytest.approx([a / b for a, b in zip(*host, strict=True)])
    assert f"softmax, rows: untiled against {CPU}" in rows
    kinds = {row.labels["kind"] for row in found if row.exact}
    assert kinds == {Kind.SIMULATED, Kind.HBM, Kind.LX}


def test_forms_prepared_before_others_of_the_same_dim_names_are_not_compiled_again():
    """Sizes of named dims differ between workloads, all of which are prepared before the rounds."""
    small, large = (
        Workload(f"softmax {n}", softmax, ({"rows": n, "columns": 128},), ("rows",))
        for n in (128, 256)
    )
    prepared = [tiled.prepare(workload, "rows", quick=True) for workload in (small, large)]
    with torch.compiler.set_stance("fail_on_recompile"):
        for found in prepared:
            assert all(form() > 0 for form in found.forms.values())
    forget_compiled()


def test_samples_of_groups_take_turns():
    made = []
    groups = {g: {s: lambda at=(g, s): made.append(at) for s in "xy"} for g in "ab"}
    found = sweeps(groups, {"a": 1, "b": 2}, 0.0, 0.0)
    assert {g: len(sides["y"]) for g, sides in found.items()} == {"a": 1, "b": 2}
    turns = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("b", "x"), ("b", "y")]
    assert made == [turn for turn in turns for _ in range(2)]  # each once untimed before
    calls = []
    sweeps({"a": {"x": lambda: calls.append(1)}}, 1, 0.0, 60.0)
    assert len(calls) == 1 + MOST_CALLS


def test_tiles_are_whole():
    found = Workload("f", softmax, ({"rows": 96, "columns": 128},), ("rows",))
    assert [n for n in (2, 4, 8, 64) if _fits(found, "rows", n)] == [2, 4, 8]
    assert [n for n in (2, 4) if _fits(found, "columns", n)] == [2]
