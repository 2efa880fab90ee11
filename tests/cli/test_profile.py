"""`--profile`, `--report`, `--roofline`, `--compare`, and modelled time in `--trace`."""

from __future__ import annotations

import json

import pytest

from spyre.hw.counters.counts import Counters
from tests.cli.conftest import ROOT
from tests.runtime.cases.test_case import write_case
from tests.runtime.trace.trace_reader import Trace


@pytest.fixture
def kept(cli, examples, tmp_path):
    """A kept run of softmax, and its output."""
    ran = cli(examples / "softmax", "--profile", "--json")
    file = tmp_path / "kept.json"
    file.write_text(ran.out)
    return file, json.loads(ran.out)


def test_the_table(cli, examples):
    ran = cli(examples / "softmax", "-q", "--profile")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.strip().splitlines()
    titles = (
        "# operation time share bound by shape cores runs error HBM GB/s MAC/ns LX reuse imbalance"
    )
    assert " ".join(lines[0].split()) == titles
    assert [line.split()[1] for line in lines[2:7]] == ["max", "sub", "exp", "sum", "realdiv"]
    assert "launching" in lines[7]
    assert lines[-1].startswith("machine spyre, model calibrated: HBM 204.8 GB/s")
    assert "LX: at most 10 KiB of 2 MiB per core" in lines
    shown = (ROOT / "docs" / "profiling.md").read_text()
    assert "\n".join(ran.out.splitlines()[1:]) in shown


def test_json(kept):
    _, content = kept
    profile = content["profile"]
    counted = {
        key: profile["totals"][key] for key in Counters.__struct_fields__ if key != "executions"
    }
    assert counted == {key: content["totals"][key] for key in counted}
    assert [row["op"] for row in profile["executes"]] == [e["op"] for e in content["executes"]]
    assert profile["totals"]["launches"] == 1


def test_launches_of_a_case(cli, tmp_path):
    """Kernels have different names, executes the numbers of the run's table."""
    ran = json.loads(cli(write_case(tmp_path / "case"), "--profile", "--json").out)
    rows = ran["profile"]["executes"]
    assert [(row["kernel"], row["label"], row["op"]) for row in rows] == [
        ("k0", "0", "neg"), ("k1", "1", "abs")
    ]  # fmt: skip
    verified = tmp_path / "case" / "case.json"
    content = json.loads(verified.read_text())
    verified.write_text(json.dumps({**content, "run": {"verify": True}}))
    refused = cli(tmp_path / "case", "--profile")
    assert (refused.code, "SPY887" in refused.err) == (2, True)


def test_null_where_not_asked_for(cli, examples):
    assert json.loads(cli(examples / "softmax", "--json").out)["profile"] is None


def test_model_machine_and_overlap(cli, examples, tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text(
        'name = "slow"\n[hardware.pcie_gbps]\nvalue = 1\nunit = "GB/s"\n'
        'kind = "guessed"\nsource = "a test"\n'
    )
    more = ("--profile", "--cost-model", "ideal", "--machine", file, "--overlap", "serial")
    ran = cli(examples / "softmax", "-q", *more)
    assert "machine slow, model ideal: HBM 204.8 GB/s, PCIe 1 GB/s" in ran.out
    assert "(serial; " in ran.out
    missing = cli(examples / "softmax", "--profile", "--machine", tmp_path / "none")
    assert (missing.code, missing.out) == (2, "")
    assert "SPY760" in missing.err


def test_report(cli, examples, tmp_path):
    ran = cli(examples / "softmax", "-q", "--report", tmp_path / "out.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert "<title>softmax on spyre</title>" in (tmp_path / "out.html").read_text()
    refused = cli(examples / "softmax", "--report", tmp_path / "none" / "out.html")
    assert (refused.code, refused.out) == (2, "")
    assert "SPY782" in refused.err


def test_roofline(cli, examples, tmp_path):
    ran = cli(examples / "softmax", "-q", "--roofline", tmp_path / "out.svg")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert "Roofline of softmax" in (tmp_path / "out.svg").read_text()
    refused = cli(examples / "softmax", "--roofline", tmp_path / "out.png")
    assert (refused.code, refused.out) == (2, "")
    assert "SPY782" in refused.err


def test_trace_has_both_times(cli, examples, tmp_path):
    """Two processes in one file; the modelled one's executes sum up to the run's counters."""
    file = tmp_path / "out.json"
    ran = cli(examples / "add_loop", "--json", "--trace", file)
    trace = Trace(json.loads(file.read_text()))
    trace.check()
    assert trace.processes == ["Spyre device 0"]
    assert trace.modelled is not None
    assert trace.modelled.processes == ["Spyre device 0, modelled (calibrated)"]
    totals = json.loads(ran.out)["totals"]
    spans = trace.modelled.on("executes", 101)
    assert len(spans) == 4
    for key in ("rdmem_bytes", "wrmem_bytes", "hbm_read_bytes", "element_operations"):
        assert sum(span["args"][key] for span in spans) == totals[key]


def test_a_trace_of_modelled_time_alone(cli, examples, tmp_path):
    both, modelled = tmp_path / "both.json", tmp_path / "modelled.json"
    ran = cli(examples / "softmax", "-q", "--trace", both, "--modelled-trace", modelled)
    assert (ran.code, ran.out) == (0, "")
    alone = json.loads(modelled.read_text())["traceEvents"]
    shared = json.loads(both.read_text())["traceEvents"]
    (process,) = {event["pid"] for event in alone}
    assert alone == [event for event in shared if event["pid"] == process]
    assert any(event["pid"] != process for event in shared)
    refused = cli(examples / "softmax", "--modelled-trace", tmp_path / "none" / "t.json")
    assert (refused.code, refused.out) == (2, "")
    assert "SPY886" in refused.err


def test_compare(cli, examples, kept):
    file, content = kept
    ran = cli("--compare", file, examples / "add_loop")
    assert (ran.code, ran.err) == (0, "")
    rows = {" ".join(line.split()[:2]): line.split()[2:] for line in ran.out.splitlines()}
    assert rows["HBM bytes"] == ["192", "KiB", "768", "KiB", "+576", "KiB", "4"]
    assert rows["LX peak"][-1] == "0"
    assert rows["time of"]
    compared = json.loads(cli("--compare", file, examples / "softmax", "--json").out)
    by_name = {line["name"]: line for line in compared["comparison"]}
    assert {line["ratio"] for line in by_name.values()} <= {1.0, None}
    assert by_name["executions"]["a"] == 5
    assert by_name["on the cores"]["a"] == content["profile"]["totals"]["compute_ns"]


def test_compare_with_what_is_no_kept_run(cli, examples, tmp_path):
    form = '{"profile": {"form": 2, "executes": [], "totals": %s}}'
    for content in ("no json", "[]", "[" * 100_000, '{"profile": null}', form % "{}", form % "3"):
        file = tmp_path / "other.json"
        file.write_text(content)
        ran = cli("--compare", file, examples / "softmax")
        assert (ran.code, "SPY781" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "--check", "x"), "--check does not take --profile"),
        (
            ("--report", "x.html", "--verify", "x"),
            "--verify-simulator does not go together with --report",
        ),
        (("--compare", "a", "b", "--profile"), "--compare does not take --profile"),
        (("--compare", "a", "b", "--trace", "t"), "--compare does not take --trace"),
        (("--profile",), "required: PATH"),
        (("--cost-model", "best", "x"), "invalid choice"),
    ],
)
def test_combinations_that_mean_nothing(cli, arguments, said):
    ran = cli(*arguments)
    assert ran.code == 2
    assert said in ran.err
