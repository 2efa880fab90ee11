"""`--trace` and `--commands`: records of runs of bundles and cases."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.runtime.cases.test_case import write_case
from tests.runtime.trace.trace_reader import Trace

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def traced(cli, tmp_path):
    """``traced(*arguments)`` runs the command line with a trace; returns the run and the trace."""

    def run(*arguments):
        file = tmp_path / "out.json"
        ran = cli(*arguments, "--trace", file)
        return ran, Trace(json.loads(file.read_text()))

    return run


class TestBundle:
    @pytest.fixture
    def softmax(self, traced, examples):
        ran, trace = traced(examples / "softmax", "-q")
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        return trace

    def test_it_is_a_trace(self, softmax):
        softmax.check()

    def test_tracks_are_in_order(self, softmax):
        cores = [f"core {k}" for k in range(8)]
        engines = ["engine host", "engine dma", "engine compute"]
        assert softmax.track_names == ["stream 0", *engines, *cores]
        assert softmax.processes == ["Spyre device 0"]

    def test_blocks_of_the_stream(self, softmax):
        spans = softmax.on("stream 0")
        labels = [span["args"]["block"] for span in spans]
        assert labels == ["cb 0", "cb 1", "host 0", "cb 2", "cb 3", "cb 4"]
        copied = spans[1]
        assert copied["name"] == "dma to device arg_0"
        assert copied["args"]["bytes"] == 128 * 256 * 2
        assert copied["args"]["addresses"] == ["arg_0 0x0:0x0"]
        assert spans[4]["args"]["after"] == ["cb 2", "cb 1"]

    def test_blocks_of_the_engines(self, softmax):
        names = [[s["args"]["block"] for s in softmax.on(f"engine {e}")] for e in ("host", "dma")]
        assert names == [["host 0"], ["cb 0", "cb 1", "cb 2", "cb 4"]]
        assert [s["name"] for s in softmax.on("engine compute")] == ["compute softmax"]

    def test_executes_of_a_core(self, softmax):
        spans = softmax.on("core 7")
        assert list(dict.fromkeys(s["name"] for s in spans)) == [
            "max", "sub", "exp", "sum", "realdiv"
        ]  # fmt: skip
        assert {s["args"]["block"] for s in spans} == {"cb 3"}
        assert {(s["args"]["execute"], s["args"]["sdsc"]) for s in spans} == {
            (k, f"sdsc_{k}.json") for k in range(5)
        }

    def test_arrows_go_to_what_waits(self, softmax):
        assert softmax.arrows == [
            ("cb 0", "cb 1"), ("host 0", "cb 2"), ("cb 2", "cb 3"), ("cb 1", "cb 3"),
            ("cb 3", "cb 4"),
        ]  # fmt: skip

    def test_instances_of_a_loop(self, traced, examples):
        ran, trace = traced(examples / "add_loop", "-q")
        assert ran.code == 0
        trace.check()
        seen = [(s["args"]["instance"], s["args"]["loop_indices"]) for s in trace.on("core 0")]
        assert list(dict(seen).items()) == [(k, [k]) for k in range(4)]

    def test_times_are_those_of_the_table(self, traced, examples):
        ran, trace = traced(examples / "softmax", "--json")
        times = [execute["host_ns"] for execute in json.loads(ran.out)["executes"]]
        for k, time in enumerate(times):
            spans = (s for s in trace.on("core 0") if s["args"]["execute"] == k)
            assert sum(round(s["dur"] * 1000) for s in spans) == time

    def test_cores_one_after_another(self, traced, examples):
        ran, trace = traced(examples / "softmax", "-q", "--core-order", "random", "--sanitize")
        assert ran.code == 0
        trace.check()


class TestCase:
    def test_launches_share_a_trace(self, traced, tmp_path):
        ran, trace = traced(write_case(tmp_path / "case"), "-q")
        assert ran.code == 0
        trace.check()
        assert [s["name"] for s in trace.on("engine compute")] == ["compute k0", "compute k1"]
        executes = {
            (s["name"], s["args"]["execute"], s["args"]["sdsc"]) for s in trace.on("core 3")
        }
        assert executes == {("neg", 0, "k0/sdsc_0.json"), ("abs", 1, "k1/sdsc_0.json")}
        assert len(trace.on("core 0")) == 2
        assert "core 4" not in trace.track_names

    def test_a_wrong_output_is_traced(self, traced, tmp_path):
        ran, trace = traced(write_case(tmp_path / "case", 1.0), "-q")
        assert ran.code == 1
        trace.check()


class TestFailing:
    def test_a_fault_ends_the_trace(self, traced, examples, tmp_path):
        shutil.copytree(examples / "add_loop", tmp_path / "b")
        module = tmp_path / "b" / "bundle.mlir"
        module.write_text(module.read_text().replace("constant 4 :", "constant 5 :"))
        ran, trace = traced(tmp_path / "b", "-q", "--commands")
        assert ran.code == 1
        trace.check()
        last = trace.on("stream 0")[-1]
        assert last["args"]["error"] == "SPY411"
        assert ran.out.splitlines()[-1].endswith("failed: SPY411")
        assert not any(name.startswith("core") for name in trace.track_names)

    def test_nothing_ran(self, cli, tmp_path):
        (tmp_path / "bundle.mlir").write_text("module {")
        assert cli(tmp_path, "--trace", tmp_path / "t.json", "--commands").out == ""
        assert not (tmp_path / "t.json").exists()

    @pytest.mark.parametrize("place", ["no/t.json", ".", "bundle.mlir/t.json", "x" * 300])
    def test_no_place_for_a_file(self, cli, examples, tmp_path, place):
        shutil.copy(examples / "softmax" / "bundle.mlir", tmp_path)
        ran = cli(examples / "softmax", "--trace", tmp_path / place)
        assert (ran.code, ran.out) == (2, "")
        assert "error[SPY886]: cannot write the trace" in ran.err
        assert [p.name for p in tmp_path.iterdir()] == ["bundle.mlir"]

    def test_what_is_no_file_stays(self, cli, examples, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for target in ("pipe", "link"):
            ran = cli(examples / "softmax", "--trace", tmp_path / target)
            assert ran.code == 2
            assert "SPY886" in ran.err
            if target == "pipe":
                (tmp_path / "link").symlink_to(tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()

    def test_links_are_followed(self, cli, examples, tmp_path):
        (tmp_path / "link.json").symlink_to(tmp_path / "file.json")
        assert cli(examples / "softmax", "-q", "--trace", tmp_path / "link.json").code == 0
        assert (tmp_path / "link.json").is_symlink()
        Trace(json.loads((tmp_path / "file.json").read_text())).check()

    def test_a_disk_that_fills_up(self, cli, examples, tmp_path, monkeypatch):
        def fail(*names):
            raise OSError(28, "No space left on device")

        file = tmp_path / "t.json"
        file.write_text("old")
        monkeypatch.setattr("spyre.files.os.replace", fail)
        ran = cli(examples / "softmax", "--trace", file)
        assert ran.code == 2
        assert "SPY886" in ran.err
        assert "No space left" in ran.err
        assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
        assert file.read_text() == "old"

    def test_the_error_of_the_run_comes_first(self, cli, examples, tmp_path, monkeypatch):
        def fail(*names):
            raise OSError(28, "No space left on device")

        given = (examples / "softmax", "--trace", tmp_path / "t.json")
        monkeypatch.setattr("spyre.files.os.replace", fail)
        ran = cli(*given, "--save-output", tmp_path / "no" / "y.npy")
        assert ran.code == 2
        assert "SPY886" in ran.err.splitlines()[0]
        assert "error[SPY370]" in ran.err


class TestCombinations:
    @pytest.mark.parametrize(
        "other", ["--check", "--explain", "--verify-simulator", "--against=ieee"]
    )
    def test_not_with_what_takes_no_times(self, cli, examples, tmp_path, other):
        ran = cli(examples / "softmax", "--trace", tmp_path / "t.json", other)
        flag = other.partition("=")[0]
        assert ran.code == 2
        assert re.search(rf"{flag} does not (take|go together with) --trace", ran.err)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("other", ["--check", "--explain", "--against=ieee"])
    def test_no_commands_without_a_run(self, cli, examples, other):
        ran = cli(examples / "softmax", "--commands", other)
        assert ran.code == 2
        assert f"{other.partition('=')[0]} does not take --commands" in ran.err

    def test_a_dump_replays_without_trace(self, cli, examples, tmp_path):
        given = ("--trace", tmp_path / "t.json", "--commands", "--dump", tmp_path / "d")
        assert cli(examples / "softmax", *given).code == 0
        assert json.loads((tmp_path / "d" / "case.json").read_text())["run"] == {"numerics": "dl16"}


class TestCommands:
    def test_every_control_block(self, cli, examples, golden):
        ran = cli(examples / "add_loop", "-q", "--commands")
        assert ran.code == 0
        golden(GOLDEN / "add_loop_commands.txt", ran.out)

    def test_of_a_case_after_the_table(self, cli, tmp_path, golden):
        ran = cli(write_case(tmp_path / "case"), "--commands", "--verify")
        assert ran.code == 0
        golden(GOLDEN / "case_commands.txt", ran.out[ran.out.index("stream 0") :])

    def test_as_json(self, cli, examples):
        plain = cli(examples / "softmax", "-q", "--commands").out.splitlines()
        assert (
            json.loads(cli(examples / "softmax", "--json", "--commands").out)["commands"] == plain
        )
        assert json.loads(cli(examples / "softmax", "--json").out)["commands"] is None
