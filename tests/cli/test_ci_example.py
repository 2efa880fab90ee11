"""The files of ``spyre example ci``: their commands run, on a right program and on a wrong one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import spyre

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"
NOT_HERE = ("install", "doctor")
Outcome = subprocess.CompletedProcess[str]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "add_loop", tmp_path / "programs" / "add_loop")
    (tmp_path / "tests").mkdir()
    shutil.copy(CI / "test_card.py", tmp_path / "tests")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("spyre", "-m spyre"), ("pytest", "-m pytest"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def plugin(pytestconfig: pytest.Config) -> str:
    """The option of pytest that loads the plugin where no installation does."""
    return "" if pytestconfig.pluginmanager.hasplugin("spyre") else "-p spyre.pytest_plugin"


def _commands(file: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each step or job, and its commands, without those that install."""
    content: dict[str, Any] = yaml.safe_load((CI / file).read_text())
    if "jobs" in content:
        for step in content["jobs"]["spyre"]["steps"]:
            if "run" in step and step["name"] not in NOT_HERE:
                yield step["name"], step["run"]
        return
    for name, job in content.items():
        if "script" in job:
            yield name, "\n".join(job["script"])


def _run(repository: Path, command: str, plugin: str = "") -> Outcome:
    environment = {
        **os.environ,
        "PATH": f"{repository / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(spyre.__file__).parents[1]),
        "PYTEST_ADDOPTS": plugin,
        "SPYRE_PROGRESS": "0",
    }
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _run_all(repository: Path, file: str, plugin: str = "") -> dict[str, Outcome]:
    return {name: _run(repository, command, plugin) for name, command in _commands(file)}


def _spoil(repository: Path) -> None:
    module = repository / "programs" / "add_loop" / "bundle.mlir"
    module.write_text(module.read_text().replace("8192", "4096"))
    (repository / "tests" / "test_card.py").unlink()


@pytest.mark.parametrize("file", ["github.yml", "gitlab.yml"])
def test_a_right_repository_passes(repository, plugin, file):
    outcomes = _run_all(repository, file, plugin)
    for name, outcome in outcomes.items():
        assert outcome.returncode == 0, (name, outcome.stdout, outcome.stderr)
    assert "2 passed" in outcomes["tests"].stdout
    if file == "github.yml":
        report = json.loads((repository / "findings" / "add_loop.sarif").read_text())
        assert report["runs"][0]["results"] == []
    else:
        assert json.loads((repository / "findings.json").read_text()) == []
        suites = ElementTree.parse(repository / "tests.xml").getroot()
        assert suites[0].get("tests") == "2"


def test_a_wrong_program_is_annotated(repository):
    _spoil(repository)
    outcomes = _run_all(repository, "github.yml")
    assert outcomes["annotations"].returncode != 0
    assert outcomes["annotations"].stdout.startswith(("::error file=", "::warning file="))
    report = json.loads((repository / "findings" / "add_loop.sarif").read_text())
    assert report["runs"][0]["results"]


def test_the_programs_after_a_wrong_one_are_checked_too(repository):
    """The first has no module, the second a wrong step."""
    shutil.copytree(repository / "programs" / "add_loop", repository / "programs" / "a_first")
    (repository / "programs" / "a_first" / "bundle.mlir").unlink()
    _spoil(repository)
    outcomes = _run_all(repository, "github.yml")
    assert "title=SPY704" in outcomes["annotations"].stdout
    assert outcomes["annotations"].returncode != 0
    assert len(list((repository / "findings").glob("*.sarif"))) == 2
    assert outcomes["findings"].returncode == 0


def test_a_wrong_program_lowers_code_quality(repository):
    shutil.copytree(ROOT / "examples" / "softmax", repository / "programs" / "softmax")
    _spoil(repository)
    assert _run_all(repository, "gitlab.yml")["programs"].returncode == 1
    issues = json.loads((repository / "findings.json").read_text())
    assert {issue["location"]["path"] for issue in issues} == {"programs/add_loop/bundle.mlir"}
    (suite,) = ElementTree.parse(repository / "findings" / "add_loop.xml").getroot()
    assert int(suite.get("failures", "")) == len(issues)


def test_the_command_of_a_failed_test_repeats_its_program(repository, plugin):
    test = repository / "tests" / "test_card.py"
    test.write_text(test.read_text().replace("function(x, w), rtol", "function(x, -w), rtol"))
    outcome = _run_all(repository, "gitlab.yml", plugin)["tests"]
    assert outcome.returncode == 1
    commands = re.findall(r"^spyre run kept/.*$", outcome.stdout, re.MULTILINE)
    assert commands
    for command in commands:
        again = _run(repository, command)
        assert again.returncode == 0, (command, again.stdout, again.stderr)
        assert "executes agree with the reference implementation" in again.stdout


def test_reports_are_uploaded_whatever_failed():
    workflow = yaml.safe_load((CI / "github.yml").read_text())
    assert workflow["permissions"]["security-events"] == "write"
    (upload,) = (s for s in workflow["jobs"]["spyre"]["steps"] if s.get("name") == "upload")
    assert upload["if"] == "always()"
    pipeline = yaml.safe_load((CI / "gitlab.yml").read_text())
    assert all(pipeline[job]["artifacts"]["when"] == "always" for job in ("programs", "tests"))
