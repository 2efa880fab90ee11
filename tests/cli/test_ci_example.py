"""The workflow of ``spyre example ci``: its commands run, on a right program and on a wrong one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spyre

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"
NOT_HERE = ("install", "doctor")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "add_loop", tmp_path / "programs" / "add_loop")
    (tmp_path / "tests").mkdir()
    shutil.copy(CI / "test_card.py", tmp_path / "tests")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("spyre", "spyre"), ("pytest", "pytest")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


def _run(repository: Path, plugin: str = "") -> dict[str, subprocess.CompletedProcess[str]]:
    """Run the commands of the workflow's steps; return their outcomes by name."""
    workflow = yaml.safe_load((CI / "github.yml").read_text())
    steps = workflow["jobs"]["spyre"]["steps"]
    environment = {
        **os.environ,
        "PATH": f"{repository / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(spyre.__file__).parents[1]),
        "PYTEST_ADDOPTS": plugin,
        "SPYRE_PROGRESS": "0",
    }
    return {
        step["name"]: subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for step in steps
        if "run" in step and step["name"] not in NOT_HERE
    }


def test_the_workflow_passes(repository, pytestconfig):
    plugin = "" if pytestconfig.pluginmanager.hasplugin("spyre") else "-p spyre.pytest_plugin"
    outcomes = _run(repository, plugin)
    for name, outcome in outcomes.items():
        assert outcome.returncode == 0, (name, outcome.stdout, outcome.stderr)
    assert "2 passed" in outcomes["tests"].stdout
    report = json.loads((repository / "findings" / "add_loop.sarif").read_text())
    assert report["runs"][0]["results"] == []


def test_a_wrong_program_is_annotated(repository):
    module = repository / "programs" / "add_loop" / "bundle.mlir"
    module.write_text(module.read_text().replace("8192", "4096"))
    (repository / "tests" / "test_card.py").unlink()
    outcomes = _run(repository)
    assert outcomes["annotations"].returncode != 0
    assert outcomes["annotations"].stdout.startswith(("::error file=", "::warning file="))
    report = json.loads((repository / "findings" / "add_loop.sarif").read_text())
    assert report["runs"][0]["results"]


def test_findings_may_be_uploaded():
    workflow = yaml.safe_load((CI / "github.yml").read_text())
    assert workflow["permissions"]["security-events"] == "write"
    (upload,) = (s for s in workflow["jobs"]["spyre"]["steps"] if s.get("name") == "upload")
    assert upload["if"] == "always()"
