"""The runner of torch-spyre's tests, on a checkout of three tests and two configurations."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qa.frontend.__main__ import Result, main
from qa.frontend.commands import commands
from qa.frontend.expectations import Expectations
from qa.frontend.plugin import spyre_forks
from qa.frontend.plugin.spyre_recording import Outcomes, append, read_outcomes
from qa.frontend.ratio import replayed
from spyre.runtime.spyrecode import compile_directory

CONFIGURATION = """
test_suite_config:
  files:
    - path: ${TORCH_DEVICE_ROOT}/tests/test_a.py
      unlisted_test_mode: %s
      tests:
        - names: [%s]
          mode: %s
"""


@pytest.fixture
def checkout(tmp_path):
    configs = tmp_path / "tests" / "configs" / "torch_spyre_tests"
    configs.mkdir(parents=True)
    (configs / "a.yaml").write_text(CONFIGURATION % ("skip", "T::test_x.*", "xfail"))
    (configs / "b.yaml").write_text(CONFIGURATION % ("skip", "T::test_.*", "mandatory_success"))
    (configs / "c.yaml").write_text(CONFIGURATION % ("skip", "T::test_y.*", "xfail"))
    (tmp_path / "tests" / "test_a.py").write_text("")
    return tmp_path


def test_modes(checkout):
    pytest.importorskip("yaml")
    expectations = Expectations(checkout)
    node = "tests/test_a.py::T::test_"
    assert expectations.mode(node + "xy[1]") == "xfail"
    assert expectations.mode(node + "y[1]") == "mandatory_success"
    assert expectations.mode("tests/test_a.py::U::z") == "skip"
    assert expectations.mode("tests/configs/distributed_tests/c.yaml::x") == "mandatory_success"
    assert expectations.mode("tests/test_b.py::U::z") == "unconfigured"
    assert expectations.test_files(checkout) == ["tests/test_a.py"]


@pytest.mark.parametrize(
    ("outcome", "expected", "verdict"),
    [
        ("passed", "mandatory_success", "passed"),
        ("failed", "mandatory_success", "unexpected failure"),
        ("failed", "xfail", "expected failure"),
        ("expected failure", "mandatory_success", "expected failure"),
        ("passed", "xfail", "passes, not demanded"),
        ("unexpected pass", "mandatory_success", "passes, not demanded"),
        ("strict pass", "mandatory_success", "unexpected pass"),
        ("passed", "xfail_strict", "unexpected pass"),
        ("failed", "xfail_strict", "expected failure"),
        ("skipped", "mandatory_success", "skipped"),
        ("failed", "unconfigured", "fails, not demanded"),
    ],
)
def test_verdicts(outcome, expected, verdict):
    assert Result("a", outcome, expected, 0, "", "").verdict == verdict


def test_causes():
    refused = Result("a", "failed", "xfail", 0, "RuntimeError: error[SPY411]: beyond", "x/y.py:3")
    assert refused.cause == "SPY411"
    wrong = Result("a", "failed", "xfail", 0, "AssertionError: 3 != 4", "x/y.py:3")
    assert wrong.cause == "AssertionError in y.py"


def test_commands_of_a_page():
    lines = commands("frontend", "/wheels").splitlines()
    assert "git clone https://github.com/torch-spyre/torch-spyre ../torch-spyre" in lines
    assert "pip install 'torch==2.13.0+cpu' --find-links /wheels" in lines
    assert lines[-1] == "python examples/torch_spyre/llama_block.py"
    install, *_, ask = commands("serving", "/wheels").splitlines()
    assert "pip install 'torch==2.13.0+cpu' --find-links /wheels && pip" in install
    assert ask == "python examples/serving/ask.py models/granite"


def test_a_run_goes_on_where_it_ended(tmp_path):
    record = tmp_path / "outcomes.jsonl"
    for line in (
        {"id": "a.py::x", "begun": True},
        {"id": "a.py::x", "outcome": "failed"},
        {"id": "a.py::x", "outcome": "passed"},
        {"file": "a.py", "complete": [0, 1, None]},
        {"id": "b.py::y", "begun": True},
    ):
        append(record, line)
    outcomes = read_outcomes(record)
    assert outcomes.rows["a.py::x"]["outcome"] == "failed"
    assert (outcomes.of("a.py").begun, outcomes.of("b.py").begun) == (None, "b.py::y")
    assert outcomes.of("a.py").complete
    append(record, {"id": "a.py::x", "again": True})
    assert read_outcomes(record).of("a.py") == Outcomes()


def test_needs_a_checkout(tmp_path, capsys):
    assert main(["--torch-spyre", str(tmp_path)]) == 2
    assert "no checkout of torch-spyre" in capsys.readouterr().err


@pytest.fixture
def package_of_torch_spyre(checkout, monkeypatch):
    (checkout / "torch_spyre").mkdir()
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


RUN_TEST = """
test "$AIU_WORLD_SIZE" = 3 || exit 9
case $1 in
*d.yaml) cp tests/test_a.py tests/test_a__oot_wrapper.py
         %s -m pytest tests/test_a__oot_wrapper.py;;
*) echo no sources; exit 1;;
esac
"""


def test_runs_configurations_by_their_own_script(checkout, package_of_torch_spyre, capsys):
    pytest.importorskip("yaml")
    folder = checkout / "tests" / "configs" / "distributed_tests"
    folder.mkdir()
    (folder / "d.yaml").touch()
    (folder / "e.yaml").touch()
    (checkout / "tests" / "run_test.sh").write_text(RUN_TEST % sys.executable)
    (checkout / "tests" / "test_a.py").write_text(
        "import pytest\n\ndef test_good(): pass\n\ndef test_bad(): assert False\n\n"
        "@pytest.mark.xfail\ndef test_marked(): assert False\n"
    )
    results = checkout / "results.json"
    arguments = ["--torch-spyre", str(checkout), "--json", str(results), "--ranks", "3"]
    assert main([*arguments, "--configs", "distributed_tests"]) == 1
    inside = "tests/configs/distributed_tests/d.yaml::test_a.py::test_"
    rows = {row["id"]: row for row in json.loads(results.read_text())}
    assert {node: row["verdict"] for node, row in rows.items()} == {
        f"{inside}good": "passed",
        f"{inside}bad": "unexpected failure",
        f"{inside}marked": "expected failure",
        "tests/configs/distributed_tests/e.yaml": "unexpected failure",
    }
    assert "no sources" in rows["tests/configs/distributed_tests/e.yaml"]["error"]
    assert "e.yaml: 1 unexpected failure" in capsys.readouterr().out


def test_runs_files_in_processes_and_survives_their_death(checkout, package_of_torch_spyre, capsys):
    pytest.importorskip("yaml")
    (checkout / "tests" / "test_a.py").write_text(
        "import os\nimport time\nimport pytest\n\nclass T:\n    __test__ = True\n"
        "    def test_good(self): pass\n"
        "    def test_bad(self): raise RuntimeError('error[SPY411]: beyond')\n"
        "    def test_dies(self): os._exit(9)\n"
        "    def test_xpected(self): assert False\n"
        "    def test_sticks(self):\n        while True:\n"
        "            try: time.sleep(99)\n            except BaseException: pass\n"
        "    @pytest.mark.xfail\n    def test_marked(self): assert False\n"
        "    @pytest.mark.xfail(strict=True)\n    def test_strict(self): pass\n"
        "    def test_skips(self): pytest.skip('no reason')\n"
    )
    (checkout / "pytest.ini").write_text("[pytest]\npython_classes = T\n")
    results, record = checkout / "results.json", checkout / "record.jsonl"
    arguments = ["--torch-spyre", str(checkout), "--json", str(results), "--resume", str(record)]
    arguments += ["--seconds", "3"]
    assert main(arguments) == 1
    assert main(arguments) == 1  # without a process
    verdicts = {row["id"].rpartition("_")[2]: row for row in json.loads(results.read_text())}
    assert {name: row["verdict"] for name, row in verdicts.items()} == {
        "good": "passed",
        "bad": "unexpected failure",
        "dies": "unexpected failure",
        "sticks": "unexpected failure",
        "xpected": "expected failure",
        "marked": "expected failure",
        "strict": "unexpected pass",
        "skips": "skipped",
    }
    assert verdicts["bad"]["cause"] == "SPY411"
    assert "ended with code 9" in verdicts["dies"]["error"]
    assert "was in one test" in verdicts["sticks"]["error"]
    printed = capsys.readouterr().out
    assert "8 tests: " in printed
    assert (
        "7 of them mandatory: 1 expected failure, 1 passed, 1 skipped, 3 unexpected failure, "
        "1 unexpected pass" in printed
    )


def test_calls_are_made_again_on_the_own_device(tmp_path):
    """Copies of a view, of a matrix and in two layouts; a kernel that is launched twice."""
    softmax = Path(__file__).parents[3] / "examples" / "softmax"
    code = compile_directory(shutil.copytree(softmax, tmp_path / "softmax")).directory
    host = {"size": [4, 64], "stride": [64, 1], "dtype": "float16", "device": "cpu", "layout": None}
    card = {**host, "device": "spyre"}
    sparse = {**card, "layout": [[64, 1, 4, 64], [1, -1, 64, -1], "SEN169_FP16", "STANDARD"]}
    wide = {**host, "size": [4, 128], "stride": [128, 1]}
    flat = {**wide, "device": "spyre", "layout": [[8, 64], [64, 1], "SEN169_FP16", "STANDARD"]}
    calls = [
        {"kind": "copy", "tensors": [host | {"size": [4, 64], "stride": [1, 4]}, card]},
        {"kind": "copy", "tensors": [card, host]},
        {"kind": "copy", "tensors": [host, sparse]},
        {"kind": "copy", "tensors": [wide, flat]},
        {"kind": "preparation", "code": str(code)},
        *[{"kind": "launch", "code": str(code), "bytes": [128 * 256 * 2] * 2}] * 2,
    ]  # fmt: skip
    again = replayed(calls)
    assert [call["kind"] for call in again] == [call["kind"] for call in calls]
    assert all(call["seconds"] > 0 for call in again)


def test_forks_may_open_cards(monkeypatch):
    """torch-spyre marks every forked process as one whose parent has opened the card."""
    torch = pytest.importorskip("torch")
    state = SimpleNamespace(_initialized=True, _in_bad_fork=True)
    monkeypatch.setattr(torch, "spyre", SimpleNamespace(_impl=state), raising=False)
    spyre_forks.open_cards_here()
    assert not state._initialized
    assert not state._in_bad_fork
