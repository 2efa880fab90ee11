"""`--verify` and `--dump`: a written case replays with the same findings and exit code."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from spyre.hw.reference import run_reference
from spyre.runtime.compare import executes
from tests.runtime.bundles import abs_of_sum, add_in_place, scratch
from tests.runtime.cases.test_case import write_case

TIMES = re.compile(r'"host_ns": *\d+')


def report(ran) -> dict:
    """Return the JSON report without parts that may differ: times, and the bundle's path."""
    content = json.loads(ran.out)
    content.pop("bundle", None)
    return json.loads(TIMES.sub('"host_ns":0', json.dumps(content)))


def replayed(cli, directory, *arguments):
    """Report of a run that dumps, and of its replay; paths of the two made equal."""
    dump = directory / "dump"
    first = cli(*arguments, "--json", "--dump", dump)
    again = cli(dump, "--json")
    assert first.code == again.code
    path = str(arguments[0])
    texts = [json.dumps(report(r)).replace(path, "P") for r in (first, again)]
    return texts[0], texts[1].replace(str(dump), "P"), again


class TestDump:
    def test_a_good_run(self, cli, examples, tmp_path):
        first, again, ran = replayed(cli, tmp_path, examples / "softmax", "--seed", 5)
        assert first == again
        assert ran.code == 0

    def test_a_mismatch(self, cli, examples, tmp_path):
        softmax = examples / "softmax"
        values = np.load(softmax / "expected.npy")
        values[5, 70] += 0.5
        np.save(tmp_path / "wrong.npy", values)
        given = ("-i", softmax / "input.npy", "-o", tmp_path / "wrong.npy", "--rtol", 0.01)
        first, again, ran = replayed(cli, tmp_path, softmax, *given)
        assert first == again
        assert ran.code == 1
        assert "core 0, execute 4 (realdiv)" in again
        findings = json.loads((tmp_path / "dump" / "findings.json").read_text())
        assert findings["spyre_dump"] == 1
        assert findings["comparisons"][0]["mismatched"] == 1

    def test_another_shape(self, cli, examples, tmp_path):
        """It is refused before anything runs that could be dumped."""
        np.save(tmp_path / "e.npy", np.zeros((256, 128), np.float16))
        softmax, dump = examples / "softmax", tmp_path / "dump"
        ran = cli(softmax, "-o", tmp_path / "e.npy", "--dump", dump)
        assert (ran.code, "SPY602" in ran.err) == (2, True)
        assert f"nothing to write to {dump}" in ran.err

    def test_a_fault(self, cli, examples, tmp_path):
        shutil.copytree(examples / "add_loop", tmp_path / "b")
        module = tmp_path / "b" / "bundle.mlir"
        module.write_text(module.read_text().replace("constant 4 :", "constant 5 :"))
        first, again, ran = replayed(cli, tmp_path, tmp_path / "b")
        assert first == again
        assert json.loads(ran.out)["error"]["code"] == "SPY411"
        assert ran.code == 1

    def test_a_twin_that_is_wrong(self, cli, examples, tmp_path, monkeypatch):
        def run(op, memory, starts, *rest):
            run_reference(op, memory, starts, *rest)
            memory.view(int(starts[-1, 0]), 2)[:] ^= 0x40

        monkeypatch.setattr(executes, "run_reference", run)
        first, again, ran = replayed(cli, tmp_path, examples / "add_loop", "--verify")
        assert first == again
        assert ran.code == 1
        assert json.loads(ran.out)["error"]["code"] == "SPY620"

    @pytest.mark.parametrize("make", [abs_of_sum, add_in_place, scratch])
    @pytest.mark.parametrize("words", [(), ("--numerics", "ieee"), ("--verify",)])
    def test_places_and_options(self, cli, tmp_path, make, words):
        first, again, _ = replayed(cli, tmp_path, make(tmp_path / "b"), *words)
        assert first == again

    def test_baked_addresses(self, cli, tmp_path):
        first, again, _ = replayed(cli, tmp_path, abs_of_sum(tmp_path / "b", symbolic=False))
        assert first == again

    def test_an_alias(self, cli, examples, tmp_path):
        first, again, _ = replayed(cli, tmp_path, examples / "add_loop", "--alias", "2=0")
        assert first == again

    def test_a_kernel_without_launch_spec(self, cli, tmp_path):
        """The derived shapes are in the dump, so that the warning about them is gone."""
        bundle = abs_of_sum(tmp_path / "b", spec=False)
        first, again, _ = replayed(cli, tmp_path, bundle)
        assert "SPY364" in first
        assert "SPY364" not in again
        assert cli(tmp_path / "dump", "--check").code == 0
        assert json.loads(first)["outputs"] == json.loads(again)["outputs"]

    def test_a_case_of_several_kernels(self, cli, tmp_path):
        case = write_case(tmp_path / "case", 1.0)
        first, again, ran = replayed(cli, tmp_path, case, "--atol", 0.5)
        assert first == again
        assert ran.code == 1
        assert cli(tmp_path / "dump", "--atol", 1).code == 0

    def test_a_dump_of_a_dump(self, cli, examples, tmp_path):
        cli(examples / "softmax", "--dump", tmp_path / "d", "-q")
        first, again, _ = replayed(cli, tmp_path, tmp_path / "d")
        assert first == again
        assert cli(tmp_path / "d", "--dump", tmp_path / "d", "-q").code == 0
        assert cli(tmp_path / "d", "-q").code == 0

    def test_other_directories_are_refused_before_anything_runs(self, cli, examples, tmp_path):
        ran = cli(examples / "softmax", "--dump", tmp_path, "-v")
        assert (ran.code, ran.out) == (2, "")
        assert "error[SPY380]" in ran.err
        assert list(tmp_path.iterdir()) == []

    def test_nothing_to_write(self, cli, tmp_path):
        (tmp_path / "bundle.mlir").write_text("module {")
        ran = cli(tmp_path, "--dump", tmp_path / "d")
        assert ran.code == 2
        assert "nothing to write" in ran.err
        assert not (tmp_path / "d").exists()

    def test_not_with_a_diagnosis(self, cli, examples, tmp_path):
        assert cli(examples / "softmax", "--check", "--dump", tmp_path / "d").code == 2


class TestVerify:
    def test_agreement_is_reported(self, cli, examples):
        ran = cli(examples / "softmax", "--verify")
        assert ran.code == 0
        line = "verified: 5 of 5 executes agree with the reference implementation\n"
        assert ran.out.endswith(line)
        assert cli(examples / "softmax", "--verify", "-q").out == ""
        content = json.loads(cli(examples / "softmax", "--verify", "--json").out)
        assert content["verification"] == {"verified": 5, "not_verified": 0}
        assert content["totals"]["host_ns"] is None

    def test_what_is_left_out_is_said(self, cli, examples):
        words = (examples / "softmax", "--verify", "--verify-points", 1000)
        ran = cli(*words)
        assert ran.code == 0
        assert ran.err.count("warning[SPY621]") == 5
        assert "help: --verify-points 32768 verifies it" in ran.err
        assert "5 were too large" in ran.out
        assert "5 were too large" in cli(*words, "-q").out
        assert cli(examples / "softmax", "--verify-points", 1000).code == 2

    def test_cases(self, cli, tmp_path):
        ran = cli(write_case(tmp_path), "--verify")
        assert ran.code == 0
        assert "verified: 2 of 2 executes agree" in ran.out
