"""`spyre-run --sanitize`: exit codes, text, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spyre.cli.run import main
from tests.sanitizer import programs


def test_an_error_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = str(programs.unwritten_pool(tmp_path))
    assert main([path]) == 0
    assert main(["--sanitize", path]) == 1
    printed = capsys.readouterr()
    assert "error[SPY710]: neg reads sticks of Tensor0 that have not been written" in printed.err
    assert printed.out.endswith("sanitizer: 1 error, 0 warnings\n")


def test_quiet_still_prints_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(programs.tile_without_gap(tmp_path)), "--sanitize", "-q"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "SPY720" in printed.err
    assert "SPY702" not in printed.err


def test_a_warning_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(programs.above_boundary(tmp_path)), "--sanitize=lx,init"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("warning[SPY730]") == 2
    assert printed.out.endswith("sanitizer: 0 errors, 2 warnings\n")


def test_nothing_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--sanitize", "--poison", "--core-order", "random:4"]
    assert main([str(programs.right(tmp_path)), *options]) == 0
    assert capsys.readouterr().out.endswith("sanitizer: nothing found\n")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = programs.two_writers(tmp_path)
    assert main([str(path), "--json", "--sanitize=race"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert printed["exit_code"] == 1
    (finding,) = printed["findings"]
    assert (finding["code"], finding["severity"]) == ("SPY711", "error")
    assert finding["found"].endswith("last written by execute 0 (abs), core 1")


@pytest.mark.parametrize("options", [["--sanitize=memry"], ["--core-order", "backwards"]])
def test_unknown_choices(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(programs.right(tmp_path)), *options]) == 2
    assert "error[SPY739]" in capsys.readouterr().err
