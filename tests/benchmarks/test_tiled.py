"""Tiled forms side by side: each is what it says, also after the others were compiled."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.tiled import CPU, Workload, _fits, _measure, softmax
from spyre.torch_backend.inductor.design_point import (
    ExampleTensor,
    compiled_with,
    counted_call,
    example_tensors,
    forget_compiled,
)


def test_forms_do_not_share_what_was_compiled():
    tensors = example_tensors([ExampleTensor((128, 128), ("rows", ""))])
    forms = {n: compiled_with(softmax, {}, {"rows": n}) for n in (1, 2, 4)}
    for _ in range(2):
        assert {n: counted_call(f, tensors).executes for n, f in forms.items()} == {
            1: 5, 2: 10, 4: 20,
        }  # fmt: skip
    fewer = counted_call(compiled_with(softmax, {"sencores": 4}, {}), tensors)
    none = counted_call(compiled_with(softmax, {"lx_planning": False}, {}), tensors)
    assert (fewer.cores, counted_call(forms[1], tensors).cores) == (4, 32)
    assert none.lx_peak_bytes == 0 < fewer.lx_peak_bytes
    assert none.hbm_bytes > fewer.hbm_bytes
    forget_compiled()


def test_a_workload_reports_every_form(monkeypatch):
    monkeypatch.setattr("benchmarks.timing.PAUSE_SECONDS", 0)
    small = Workload("softmax", softmax, ({"rows": 128, "columns": 128},), ("rows",))
    found = {row.name: row for row in _measure(small, "rows", quick=True)}
    for tiles in (1, 4):
        for kind in ("host", "modelled", "HBM", "LX peak"):
            row = found[f"softmax, rows: {tiles} tiles: {kind}"]
            assert row.median > 0
            assert row.exact == (kind != "host")
    host = [found[f"softmax, rows: {n} tiles: host"].values for n in (1, 4)]
    paired = found["softmax, rows: 4 tiles: host, against untiled"].values
    assert paired == pytest.approx([a / b for a, b in zip(*host, strict=True)])
    assert f"softmax, rows: untiled against {CPU}" in found


def test_tiles_are_whole():
    found = Workload("f", softmax, ({"rows": 96, "columns": 128},), ("rows",))
    assert [n for n in (2, 4, 8, 64) if _fits(found, "rows", n)] == [2, 4, 8]
    assert [n for n in (2, 4) if _fits(found, "columns", n)] == [2]
