"""Every option of `spyre-run`, on the example bundles."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.runtime.arguments.host_tensor import random_tensor

GOLDEN = Path(__file__).parent / "golden"
TIME = re.compile(r"\s+[0-9.]+ (?:ns|µs|ms|s)$", re.MULTILINE)


def blank_times(text: str) -> str:
    return TIME.sub(" <time>", text).replace("─", "-")


def blank_rules(text: str) -> str:
    """Times change the width of their column, and so the rules; numbers may change in rounding."""
    text = re.sub(r"min .*, max .*, mean .*", "<statistics>", blank_times(text))
    return re.sub(r"-{3,}", "---", text)


@pytest.fixture
def softmax(examples):
    return examples / "softmax"


@pytest.fixture
def files(softmax):
    return ["-i", softmax / "input.npy", "-o", softmax / "expected.npy"]


class TestRunning:
    def test_random_inputs(self, cli, softmax, golden):
        ran = cli(softmax)
        assert (ran.code, ran.err) == (0, "")
        golden(GOLDEN / "softmax.txt", blank_rules(ran.out))

    def test_a_loop_is_one_row(self, cli, examples, golden):
        ran = cli(examples / "add_loop", "-v")
        assert ran.code == 0
        golden(GOLDEN / "add_loop_verbose.txt", blank_rules(ran.out))

    def test_matmul_counts_multiply_adds(self, cli, examples, golden):
        ran = cli(examples / "matmul")
        golden(GOLDEN / "matmul.txt", blank_rules(ran.out))

    def test_path_of_the_module(self, cli, softmax):
        assert cli(softmax / "bundle.mlir").code == 0

    def test_expected_values(self, cli, softmax, files):
        ran = cli(softmax, *files)
        assert ran.code == 0
        assert "arg_1: all 32768 elements agree" in ran.out

    def test_seed_changes_the_inputs(self, cli, softmax):
        first, same, other = (cli(softmax, "--seed", seed).out for seed in (1, 1, 2))
        assert first.splitlines()[-1] == same.splitlines()[-1] != other.splitlines()[-1]

    @pytest.mark.parametrize("threads", [1, 2])
    def test_threads(self, cli, softmax, files, threads):
        assert cli(softmax, *files, "--threads", threads).code == 0

    def test_ieee_numerics(self, cli, softmax, files):
        exact_half = cli(softmax, *files, "--numerics", "ieee", "--rtol", 2**-10, "--atol", 1e-5)
        assert exact_half.code == 0
        assert cli(softmax, *files, "--rtol", 2**-10, "--atol", 1e-6).code == 1

    def test_device_fault_exits_1(self, cli, examples, tmp_path):
        shutil.copytree(examples / "add_loop", tmp_path / "b")
        module = tmp_path / "b" / "bundle.mlir"
        module.write_text(module.read_text().replace("constant 4 :", "constant 5 :"))
        ran = cli(tmp_path / "b")
        assert ran.code == 1
        assert "error[SPY411]" in ran.err
        assert "loop indices (4,)" in ran.err


class TestComparison:
    @pytest.fixture
    def wrong(self, softmax, tmp_path):
        values = np.load(softmax / "expected.npy")
        values[5, 70] += 0.5
        np.save(tmp_path / "wrong.npy", values)
        return ["-i", softmax / "input.npy", "-o", tmp_path / "wrong.npy"]

    def test_mismatch_names_the_worst_element(self, cli, softmax, wrong, golden):
        ran = cli(softmax, *wrong)
        assert ran.code == 1
        report = ran.out[ran.out.index("arg_1: ") :]
        golden(GOLDEN / "mismatch.txt", report)

    def test_the_core_of_every_row(self, cli, softmax, tmp_path):
        """16 rows per core: the mismatch in row 70 is core 4's."""
        values = np.load(softmax / "expected.npy")
        values[70, 0] = 2
        np.save(tmp_path / "wrong.npy", values)
        ran = cli(softmax, "-i", softmax / "input.npy", "-o", tmp_path / "wrong.npy")
        assert "core 4, execute 4 (realdiv), stick (0, 70), lane 0" in ran.out

    def test_the_tile_of_a_loop(self, cli, examples, tmp_path):
        inputs = [np.full((256, 512), v, np.float16) for v in (1, 2)]
        expected = np.full((256, 512), 3, np.float16)
        expected[200, 100] = 4
        for name, array in zip("abc", [*inputs, expected], strict=True):
            np.save(tmp_path / f"{name}.npy", array)
        a, b, c = (tmp_path / f"{name}.npy" for name in "abc")
        ran = cli(examples / "add_loop", "-i", a, b, "-o", c)
        assert ran.code == 1
        assert "worst element (200, 100): expected 4.0, found 3.0" in ran.out
        assert "core 0, tile (3,), execute 0 (add), stick (1, 200), lane 36" in ran.out

    def test_tolerances(self, cli, softmax, files, wrong):
        assert cli(softmax, *wrong, "--atol", 0.6).code == 0
        assert cli(softmax, *wrong, "--rtol", 0.001).code == 1
        assert cli(softmax, *files, "--exact").code == 1

    def test_exact_excludes_tolerances(self, cli, softmax):
        ran = cli(softmax, "--exact", "--rtol", 1)
        assert ran.code == 2
        assert "--exact does not go together with --rtol" in ran.err

    def test_quiet_prints_only_failures(self, cli, softmax, files, wrong):
        assert cli(softmax, *files, "-q").out == ""
        assert cli(softmax, *wrong, "-q").out.startswith("arg_1: 1 of 32768 elements differ")

    def test_another_shape_is_a_wrong_file(self, cli, softmax, tmp_path):
        np.save(tmp_path / "e.npy", np.zeros((256, 128), np.float16))
        ran = cli(softmax, "-o", tmp_path / "e.npy")
        assert ran.code == 2
        assert "SPY602" in ran.err

    @pytest.mark.parametrize(
        ("option", "shapes", "code"),
        [
            ("-o", [(256, 512)], "SPY602"),
            ("-o", [(128, 256), (128, 256)], "SPY369"),
            ("-i", [(256, 512)], "SPY333"),
            ("-i", [(128, 256), (128, 256)], "SPY367"),
        ],
    )
    def test_nothing_is_unpacked_for_nothing(
        self, cli, softmax, tmp_path, monkeypatch, option, shapes, code
    ):
        arrays = {f"a{k}": np.zeros(shape, np.float16) for k, shape in enumerate(shapes)}
        np.savez_compressed(tmp_path / "x.npz", **arrays)
        monkeypatch.setattr("spyre.runtime.arguments.host_tensor._read_elements", None)
        assert code in cli(softmax, option, tmp_path / "x.npz").err


class TestFiles:
    def test_round_trip_through_every_kind(self, cli, softmax, tmp_path):
        for suffix in (".npy", ".npz", ".bin", ".pt"):
            if suffix == ".pt":
                pytest.importorskip("torch")
            saved = tmp_path / f"y{suffix}"
            given = ["-i", softmax / "input.npy"]
            assert cli(softmax, *given, "--save-output", saved, "-q").code == 0
            assert cli(softmax, *given, "-o", saved, "--exact", "-q").code == 0

    def test_several_tensors_in_one_file(self, cli, examples, tmp_path):
        a, b = (random_tensor((256, 512), "float16", seed).to_array() for seed in (0, 1))
        np.savez(tmp_path / "inputs.npz", a=a, b=b)
        np.save(tmp_path / "sum.npy", a.astype(np.float32) + b)
        for given in (["inputs.npz"], ["inputs.npz:a", "inputs.npz:b"]):
            paths = [tmp_path / name for name in given]
            assert cli(examples / "add_loop", "-i", *paths, "-o", tmp_path / "sum.npy").code == 0

    def test_wrong_number_of_files(self, cli, examples, softmax):
        ran = cli(examples / "add_loop", "-i", softmax / "input.npy")
        assert ran.code == 2
        assert "SPY367" in ran.err
        assert "arg_1 256x512@float16" in ran.err
        ran = cli(softmax, "-o", *[softmax / "expected.npy"] * 2)
        assert (ran.code, "SPY369" in ran.err) == (2, True)

    def test_wrong_shape(self, cli, softmax, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((2, 2), np.float16))
        ran = cli(softmax, "-i", tmp_path / "x.npy")
        assert (ran.code, "SPY333" in ran.err) == (2, True)

    def test_missing_files(self, cli, softmax, tmp_path):
        assert cli(softmax, "-i", tmp_path / "no.npy").code == 2
        assert cli(softmax, "--save-output", tmp_path / "no" / "y.npy").code == 2
        assert cli(tmp_path / "no").code == 2


class TestArguments:
    def test_shape_is_checked_against_the_launch_spec(self, cli, softmax):
        assert cli(softmax, "--shape", "128x256@fp16").code == 0
        ran = cli(softmax, "--shape", "128x255@fp16")
        assert (ran.code, "SPY365" in ran.err) == (2, True)

    def test_without_launch_spec(self, cli, softmax, files, tmp_path):
        shutil.copytree(softmax, tmp_path / "b")
        (tmp_path / "b" / "launch_spec.json").unlink()
        ran = cli(tmp_path / "b", *files)
        assert ran.code == 0
        assert "warning[SPY364]" in ran.err
        assert cli(tmp_path / "b", *files, "-q").err == ""
        assert cli(tmp_path / "b", "--shape", "128x256").code == 0
        ran = cli(tmp_path / "b", "--shape", "128x999")
        assert (ran.code, "SPY365" in ran.err) == (2, True)

    def test_strides(self, cli, softmax):
        ran = cli(softmax, "--strides", "0=1,128")
        assert (ran.code, "SPY322" in ran.err) == (2, True)
        assert cli(softmax, "--strides", "0=256,1").code == 0
        assert cli(softmax, "--strides", "zero").code == 2

    def test_alias(self, cli, examples):
        ran = cli(examples / "add_loop", "--alias", "2=0", "-v")
        assert ran.code == 0
        assert "arg_0 input_output 256x512@float16" in ran.out
        assert cli(examples / "add_loop", "--alias", "2=7").code == 2
        assert cli(examples / "add_loop", "--alias", "2").code == 2

    def test_unknown_value(self, cli, softmax):
        assert cli(softmax, "--value", "s0=64").code == 0
        assert cli(softmax, "--value", "s0").code == 2

    def test_threads_are_positive(self, cli, softmax):
        assert cli(softmax, "--threads", "0").code == 2


class TestDiagnosing:
    def test_check(self, cli, softmax):
        ran = cli(softmax, "--check")
        assert (ran.code, ran.out) == (0, f"{softmax}: nothing found\n")

    def test_check_prints_all_findings(self, cli, softmax, tmp_path):
        shutil.copytree(softmax, tmp_path / "b")
        module = tmp_path / "b" / "bundle.mlir"
        module.write_text(module.read_text().replace('"symbol_ids"=[-1, ', '"symbol_ids"=[-99, '))
        (tmp_path / "b" / "sdsc_9.json").write_text("{}")
        ran = cli(tmp_path / "b", "--check")
        assert ran.code == 2
        for code in ("error[SPY275]", "warning[SPY276]", "warning[SPY277]"):
            assert code in ran.out
        assert ran.out.endswith("errors, 2 warnings\n") or "error, 2 warnings" in ran.out
        assert cli(tmp_path / "b").code == 2

    def test_check_of_a_syntax_error(self, cli, tmp_path):
        (tmp_path / "bundle.mlir").write_text("module {")
        ran = cli(tmp_path, "--check")
        assert (ran.code, "SPY103" in ran.out) == (2, True)

    def test_what_is_wrong_is_not_explained(self, cli, examples, tmp_path):
        shutil.copytree(examples / "softmax", tmp_path / "b")
        file = tmp_path / "b" / "sdsc_0.json"
        file.write_text(file.read_text().replace('"mb": 8', '"mb": 0', 1))
        ran = cli(tmp_path / "b", "--explain")
        assert ran.code == 2
        assert "error[SPY21" in ran.out

    def test_explain(self, cli, examples):
        ran = cli(examples / "matmul", "--explain")
        assert ran.code == 0
        assert "0_batchmatmul: batchmatmul on pt" in ran.out
        assert "host time" not in ran.out

    def test_version_and_help(self, cli):
        assert cli("--version").out == f"spyre-run {spyre.__version__}\n"
        assert "exit codes" in cli("--help").out
        assert cli().code == 2


class TestJson:
    def test_a_run(self, cli, softmax, files):
        ran = cli(softmax, *files, "--json")
        content = json.loads(ran.out)
        assert ran.code == content["exit_code"] == 0
        assert content["ok"] is True
        assert [e["op"] for e in content["executes"]] == ["max", "sub", "exp", "sum", "realdiv"]
        assert content["totals"]["hbm_read_bytes"] == 2 * 128 * 256 * 2
        assert content["comparisons"][0]["mismatched"] == 0
        assert content["arguments"][1]["role"] == "output"
        assert content["outputs"][0]["mean"] == pytest.approx(1 / 256, rel=1e-3)

    def test_a_mismatch(self, cli, softmax, files):
        ran = cli(softmax, *files, "--json", "--exact")
        content = json.loads(ran.out)
        assert ran.code == content["exit_code"] == 1
        assert content["comparisons"][0]["worst_place"].startswith("core ")

    def test_an_error(self, cli, softmax, tmp_path):
        ran = cli(softmax, "--json", "-i", tmp_path / "no.npy")
        content = json.loads(ran.out)
        assert ran.code == content["exit_code"] == 2
        assert content["error"]["code"] == "SPY330"
        assert ran.err == ""

    def test_a_diagnosis(self, cli, softmax):
        content = json.loads(cli(softmax, "--json", "--check", "--explain").out)
        assert content["findings"] == []
        names = {f"sdsc_{k}.json" for k in range(5)} | {"bundle.mlir"}
        assert set(content["explanations"]) == names
        assert "modelled 2.2" in content["explanations"]["bundle.mlir"]
