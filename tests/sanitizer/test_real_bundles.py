"""Real programs: no error on those that are right, the known symptom on those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.conformance.cases import find_cases
from spyre.errors import Severity
from spyre.hw.device.device import Device
from spyre.runtime.cases import read_case
from spyre.runtime.run.session import run
from tests.examples import sample

SYMPTOMS = {
    "j_ct_bmm_nested_B_K": {"SPY720", "SPY702"},
    "j_ct_cols_abs_64x512": {"SPY720"},
    "j_ct_flash_attention_1x4x128x64": {"SPY710", "SPY735"},
    "j_ct_full_no_dim": {"SPY720"},
    "j_ct_mm_rows_256x128x64": {"SPY702"},
    "j_ct_nested_addmul_64x512_lx": {"SPY720", "SPY702"},
    "j_ct_red_sum_d0_tiled": {"SPY702"},
}
TILES_WITHOUT_GAP = {"j_ct_single_abs_256x128", "j_ct_single_abs_256x128_1core"}
"""Tiles that contradict the layout, right only because abs treats all elements alike."""


@pytest.mark.shared
@pytest.mark.parametrize("name", SYMPTOMS)
def test_wrong_programs(name: str, shared_dir: Path):
    done = run(read_case(shared_dir / "bundles-wrong" / name), device=Device(sanitize=True))
    assert {finding.code for finding in done.sanitizer} == SYMPTOMS[name]
    assert not done.ok


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("core_order", [None, "random:3"])
def test_right_programs(core_order: str | None, shared_dir: Path):
    """Every other program in one order of cores, the rest in the other; in the long form all in
    both.
    """
    device = Device(sanitize=True, poison=True, core_order=core_order)
    chosen = sample(find_cases(shared_dir / "bundles"), 2, core_order is None)
    seen: dict[str, set[str]] = {}
    for path in chosen:
        done = run(read_case(path), device=device)
        assert done.ok, path.name
        assert all(f.severity is Severity.WARNING for f in done.sanitizer), path.name
        if done.sanitizer:
            seen[path.name] = {f.code for f in done.sanitizer}
    names = {path.name for path in chosen}
    assert seen == {name: {"SPY702"} for name in TILES_WITHOUT_GAP & names}
