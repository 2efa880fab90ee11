"""Outcomes are compared test by test, also if a test ends its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.neighbour.__main__ import main
from qa.neighbour.runs import (
    EXPECTED,
    Choice,
    Outcome,
    compare_file,
    differences,
    run_file,
)

FILE = """
import os
import unittest

PACKAGE = os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"

class Tests(unittest.TestCase):
    def test_same(self):
        pass

    def test_fails_in_both(self):
        self.fail("as ever")

    def test_dies_in_both(self):
        os.abort()

    def test_other(self):
        self.assertFalse(PACKAGE, "here")

    @unittest.skipIf(PACKAGE, "another device")
    def test_skipped(self):
        pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test" / "test_something.py"
    path.parent.mkdir()
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.slow
def test_what_differs_and_nothing_else_is_told(file: Path) -> None:
    without, found = compare_file(file, Choice())
    results = {name.rpartition("::")[2]: outcome.result for name, outcome in without.items()}
    assert results == {
        "test_dies_in_both": "crashed",
        "test_fails_in_both": "failed",
        "test_other": "passed",
        "test_same": "passed",
        "test_skipped": "passed",
    }
    told = {one.test.rpartition("::")[2]: one.with_package for one in found}
    assert {name: outcome.result for name, outcome in told.items()} == {
        "test_other": "failed",
        "test_skipped": "skipped",
    }
    assert "here" in told["test_other"].why


@pytest.mark.slow
def test_a_piece_of_a_file(file: Path) -> None:
    pieces = [run_file(file, Choice((piece, 2)), package=False) for piece in (1, 2)]
    assert [len(piece) for piece in pieces] == [3, 2]
    assert len(pieces[0].keys() | pieces[1].keys()) == 5


@pytest.mark.slow
def test_a_test_that_hangs_ends_its_process_only(file: Path) -> None:
    text = "import time\n" + FILE.replace("os.abort()", "time.sleep(600)")
    file.write_text(text, encoding="utf-8")
    found = run_file(file, Choice(limit=2.0), package=False)
    assert found["test_something.py::Tests::test_dies_in_both"] == Outcome("crashed")
    assert found["test_something.py::Tests::test_same"] == Outcome("passed")
    assert len(found) == 5


@pytest.mark.slow
def test_the_command_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-wheel", "--pytorch", str(file.parents[1]), file.name]
    assert main([*options, "-k", "other"]) == 1
    shown = capsys.readouterr().out
    assert "1 passed; 1 differ" in shown
    assert "with it failed" in shown


def test_without_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--no-wheel", "--pytorch", str(tmp_path)]) == 2
    assert "not there" in capsys.readouterr().err
    monkeypatch.delenv("PYTORCH_CHECKOUT", raising=False)
    assert main(["--no-wheel"]) == 2
    assert "PYTORCH_CHECKOUT" in capsys.readouterr().out


def test_a_test_of_one_run_only_differs() -> None:
    passed, failed = Outcome("passed"), Outcome("failed")
    found = [*differences({"a": passed, "b": passed}, {"a": passed, "c": passed, "d": failed})]
    assert {one.test for one in found} == {"b", "d"}  # torch generates c for the package


def test_what_must_differ_is_no_difference() -> None:
    for test, why in EXPECTED.items():
        assert why
        assert not [*differences({test: Outcome("passed")}, {test: Outcome("failed")})]
