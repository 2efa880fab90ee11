"""`spyre-run --numerics A --against B`: text, JSON, exit codes, wrong modes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spyre
from tests.cli.conftest import Ran
from tests.cli.test_run import GOLDEN, blank_rules

Cli = Callable[..., Ran]


@pytest.fixture
def softmax(examples: Path) -> Path:
    return examples / "softmax"


def files(directory: Path) -> list[object]:
    return ["-i", directory / "input.npy", "-o", directory / "expected.npy"]


def blank_numbers(text: str) -> str:
    """Differences depend on the last bits of float32, and these on the host's vector width."""
    rows = re.sub(r"[-+]?\d+(\.\d+)?(e-?\d+)? +(?=%|ULP|/)", "N ", text)
    rows = re.sub(r"/ [-\d.e]+ at .*?(?=, core|, LX)", "/ N at PLACE", rows)
    rows = re.sub(r"(?<=PLACE, ).*?(?=;|$)", "PLACE", rows, flags=re.MULTILINE)
    return re.sub(r"(?<=%) +[\d.]+ +[\d.]+", "  N  N", rows)


def test_report(cli: Cli, softmax: Path, golden: Callable[[Path, str], None]):
    ran = cli(softmax, *files(softmax), "--against", "ieee")
    assert (ran.code, ran.err) == (0, "")
    golden(GOLDEN / "against.txt", blank_numbers(blank_rules(ran.out)))


def test_quiet_is_the_verdict(cli: Cli, softmax: Path):
    values = ("-i", softmax / "input.npy")
    ran = cli(softmax, *values, "--numerics", "dl16:alu=trunc", "--against", "dl16", "-q")
    assert (ran.code, ran.out) == (
        0,
        "verdict: quantisation: no execute differs by more than its rounding explains\n",
    )
    ran = cli(softmax, "--against", "dl16:bf16=even", "-q")
    assert ran.out == ("verdict: equal: every execute and every output is the same in both modes\n")


def test_masked_columns_leak_on_cards(cli: Cli, softmax: Path, tmp_path: Path):
    """torch-spyre's issue 4517: masked positions keep a weight, which the report names."""
    x = np.load(softmax / "input.npy")
    x[:, 100:] = -np.inf
    np.save(tmp_path / "masked.npy", x)
    ran = cli(softmax, "-i", tmp_path / "masked.npy", "--against", "card")
    assert ran.code == 1
    verdict = ran.out.splitlines()[-1]
    assert "(exp) is the first" in verdict
    assert "the card's exp-floor, torch-spyre issues 4517, 4522" in verdict
    ran = cli(softmax, "-i", tmp_path / "masked.npy", "--against", "card", "--json")
    named = [e["erratum"] for e in json.loads(ran.out)["executes"] if e["unexplained"]]
    assert named == ["exp-floor"]


@pytest.mark.parametrize(("mode", "is_uniform"), [("card", True), ("dl16", False), ("ieee", False)])
def test_a_row_that_is_masked_throughout(softmax: Path, mode: str, is_uniform: bool):
    """Softmax of -inf alone is uniform where exp has the floor of cards, and else not finite."""
    x = np.load(softmax / "input.npy")
    x[5] = -np.inf
    bundle, device = spyre.load_bundle(softmax), spyre.Device(numerics=mode)
    (y,) = spyre.run(bundle, [x], device=device).outputs
    assert np.isfinite(np.delete(y, 5, axis=0)).all()
    assert np.all(y[5] == 1 / 256) if is_uniform else not np.isfinite(y[5]).any()


def test_numbers_too_large_for_binary16(cli: Cli, examples: Path, tmp_path: Path):
    inputs = [np.full((256, 512), 60000.0, np.float16)] * 2
    np.savez(tmp_path / "in.npz", *inputs)
    ran = cli(examples / "add_loop", "-i", tmp_path / "in.npz", "--against", "ieee")
    assert ran.code == 0
    assert "range" in ran.out
    assert ran.out.splitlines()[-1] == (
        "verdict: quantisation and range: no execute differs by more than its rounding explains, "
        "but for results too large for binary16, in execute 0"
    )


def test_expected_values_that_both_modes_miss(cli: Cli, softmax: Path, tmp_path: Path):
    values = np.load(softmax / "expected.npy")
    values[5, 70] += 0.5
    np.save(tmp_path / "wrong.npy", values)
    arguments = ("-i", softmax / "input.npy", "-o", tmp_path / "wrong.npy", "--against", "ieee")
    ran = cli(softmax, *arguments)
    assert ran.code == 1
    assert "expected values: dl16 DIFFERS, ieee DIFFERS" in ran.out
    assert ran.out.splitlines()[-1].startswith(
        "verdict: not quantisation: both modes miss the expected values"
    )
    assert cli(softmax, *arguments, "--atol", "1").code == 0


def test_what_only_quantisation_misses_is_quantisation(cli: Cli, softmax: Path):
    """Tighter than DL16 can be: it fails alone, and against ieee it is explained."""
    tight = ("--rtol", 2**-10, "--atol", 1e-6)
    assert cli(softmax, *files(softmax), *tight).code == 1
    ran = cli(softmax, *files(softmax), "--rtol", 2**-10, "--atol", 1e-5, "--against", "ieee")
    assert ran.code == 0
    assert "expected values: dl16 DIFFERS, ieee agrees" in ran.out


def test_json(cli: Cli, examples: Path):
    ran = cli(examples / "matmul", "--numerics", "dl16-chunk", "--against", "dl16", "--json")
    report = json.loads(ran.out)
    assert (ran.code, report["ok"], report["exit_code"]) == (0, True, 0)
    assert (report["numerics"], report["against"]) == ("dl16-chunk", "dl16")
    assert report["verdict"] == "quantisation"
    (execute,) = report["executes"]
    assert execute["op"] == "batchmatmul"
    assert execute["compared"] == 128 * 192
    assert 0 < execute["differing"] <= execute["compared"]
    assert execute["mean_ulp"] < execute["max_ulp"] <= execute["worst_explained_ulp"]
    assert set(execute["worst_place"]) == {"core", "loop_indices", "coordinates", "address_bytes"}
    (output,) = report["outputs"]
    assert output["differing"] == execute["differing"]
    assert output["max_ulp"] == execute["max_ulp"]


def test_loops_name_the_tile(cli: Cli, examples: Path):
    ran = cli(examples / "add_loop", "--against", "dl16:alu=trunc", "--json")
    (execute,) = json.loads(ran.out)["executes"]
    assert execute["executions"] == 4
    assert len(execute["worst_place"]["loop_indices"]) == 1


@pytest.mark.parametrize("option", ["--numerics", "--against"])
@pytest.mark.parametrize(("text", "code"), [("dl8", "SPY530"), ("dl16:a=b", "SPY540")])
def test_wrong_modes_exit_2_and_say_what_is_allowed(
    cli: Cli, softmax: Path, option: str, text: str, code: str
):
    ran = cli(softmax, option, text)
    assert ran.code == 2
    assert f"error[{code}]" in ran.err
    assert "dma=away|trunc|even" in ran.err


def test_options_of_a_mode_reach_a_run(cli: Cli, softmax: Path):
    ran = cli(softmax, "--numerics", "dl16-chunk:alu=even", "--json")
    assert json.loads(ran.out)["numerics"] == "dl16-chunk:alu=even"


@pytest.mark.parametrize("other", ["--check", "--explain", "--save-output=x.npy"])
def test_what_does_not_go_together(cli: Cli, softmax: Path, other: str):
    ran = cli(softmax, "--against", "ieee", other)
    assert ran.code == 2
    pair = ("--against", other.partition("=")[0])
    assert any(f"{a} does not take {b}" in ran.err for a, b in (pair, pair[::-1]))
