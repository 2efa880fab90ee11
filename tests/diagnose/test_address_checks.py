"""Causes that addresses show without a run: all of those of wrong programs, none in right ones."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from qa.cause_mutants.mutants import make_mutants
from qa.conformance.cases import find_cases
from spyre.diagnose import address_checks, address_findings
from spyre.errors import Finding
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import load_bundle
from spyre.runtime.cases import case_directory, read_case
from spyre.runtime.run.runs import Run, describe_run, traced_executes
from spyre.runtime.tracing import MemoryExecute, infer_nest
from tests.examples import sample
from tests.runtime.cases.test_case import write_case
from tests.sanitizer import programs

STEPS = {
    "j_ct_bmm_nested_B_K": ("SPY702", "in steps of 256 bytes, expected 512"),
    "j_ct_cols_abs_64x512": ("SPY704", "in steps of 256 bytes, expected 16,384"),
    "j_ct_flash_attention_1x4x128x64": ("SPY704", "in steps of 2 bytes, expected 16,384"),
    "j_ct_full_no_dim": ("SPY704", "in steps of 0 bytes, expected 8,192"),
    "j_ct_mm_rows_256x128x64": ("SPY702", "in steps of 8,192 bytes, expected 32,768"),
    "j_ct_nested_addmul_64x512_lx": ("SPY702", "in steps of 4,096 bytes, expected 8,192"),
    "j_ct_red_sum_d0_tiled": ("SPY702", "in steps of 8,192 bytes, expected 32,768"),
}


def findings_of(path: Path, is_wrong: bool = False) -> tuple[Finding, ...]:
    directory = case_directory(path)
    source = load_bundle(path) if directory is None else read_case(directory)
    return address_findings(describe_run(source, load_bundle), is_wrong)


@pytest.mark.shared
@pytest.mark.parametrize("name", STEPS)
def test_the_cause_comes_first(name: str, shared_dir: Path):
    first = findings_of(shared_dir / "bundles-wrong" / name)[0]
    code, words = STEPS[name]
    assert first.code == code
    assert words in first.message
    assert "bundle.mlir:" in str(first.location)


@pytest.mark.shared
@pytest.mark.slow
def test_nothing_is_found_in_right_programs(shared_dir: Path):
    """Every other one, and all in the long form."""
    for case in sample(find_cases(shared_dir / "bundles"), 2):
        assert findings_of(case) == (), case.name
        for module in case.rglob("bundle.mlir"):  # each kernel on its own, as --check sees it
            assert findings_of(module) == (), module


@pytest.mark.shared
def test_a_mismatch_is_explained_first(shared_dir: Path, capfd: pytest.CaptureFixture[str]):
    from spyre.cli.run import main

    assert main([str(shared_dir / "bundles-wrong" / "j_ct_cols_abs_64x512"), "-q"]) == 1
    printed = capfd.readouterr()
    first = printed.err.splitlines()[0]
    assert "SPY704" in first
    assert "256 bytes, expected 16,384" in first


@pytest.mark.parametrize("name", ["tiling_by_host_strides", "past_the_end", "short_loop"])
def test_programs_of_ours(name: str, tmp_path: Path):
    codes = {f.code for f in findings_of(getattr(programs, name)(tmp_path))}
    expected = {
        "tiling_by_host_strides": {"SPY704", "SPY720"},
        "past_the_end": {"SPY705"},
        "short_loop": {"SPY720"},
    }
    assert codes == expected[name]


@pytest.mark.parametrize("program", programs.RIGHT.values(), ids=programs.RIGHT)
def test_right_programs_of_ours(program, tmp_path: Path):
    assert findings_of(program(tmp_path)) == ()


def through_lx(directory: Path, *places: int) -> Path:
    """|x| into LX at every place but the last, which is read: -y."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    *written, read = map(programs.lx, places)
    for place in written:
        builder.add(pointwise("abs", programs.SHAPE, [HostOperand(x.at())], place, {"mb": 4}))
    builder.add(pointwise("neg", programs.SHAPE, [read], HostOperand(y.at()), {"mb": 4}))
    return programs.write(builder, directory, [programs.READ, programs.WRITTEN])


@pytest.mark.parametrize(
    ("places", "codes"), [((0, 0), []), ((0, 128), ["SPY707"]), ((0, 0, 0), ["SPY708"])]
)
def test_intermediates(places: tuple[int, ...], codes: list[str], tmp_path: Path):
    path = through_lx(tmp_path, *places)
    assert findings_of(path) == ()
    found = findings_of(path, is_wrong=True)
    assert [finding.code for finding in found] == codes


@pytest.mark.shared
def test_mutants_are_explained_first(shared_dir: Path, tmp_path: Path):
    rng = random.Random(1)
    mutants = list(make_mutants(shared_dir / "bundles", 8, rng, tmp_path))
    assert [str(mutant) for mutant in mutants if not mutant.is_named] == []


@pytest.mark.parametrize(
    ("starts", "nest"),
    [
        ([0], ()),
        ([0, 5, 10, 15], (4,)),
        ([0, 1, 2, 10, 11, 12], (2, 3)),
        ([0, 0, 0], (3,)),
        ([0, 1, 5, 6, 100, 101, 105, 106], (2, 2, 2)),
        ([0, 1, 7, 8, 9], (5,)),
        ([0, 1, 10, 12], (4,)),
    ],
)
def test_nests_of_unrolled_loops(starts: list[int], nest: tuple[int, ...]):
    assert infer_nest(np.array(starts, np.int64)[:, None]) == nest


def test_a_repeated_launch_is_traced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A case of a thousand launches of one kernel takes the time of one."""
    run = describe_run(read_case(write_case(tmp_path / "case")), load_bundle)
    traced: list[int] = []

    def count(run: Run) -> tuple[MemoryExecute, ...]:
        traced.append(len(run.launches))
        return traced_executes(run)

    monkeypatch.setattr(address_checks, "traced_executes", count)
    many = replace(run, launches=run.launches * 1000)
    assert address_findings(many) == address_findings(run)
    address_findings(many, is_wrong=True)
    assert traced == [2, 2, 2000]
