"""The programs of examples/torch run, with the promised output."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="model tests need transformers")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "torch"
NAMES = ("encoder", "generate", "training", "vision")
DISTRIBUTED = ("data_parallel", "tensor_parallel")
"""Tested in tests/torch_backend/distributed."""


@pytest.fixture
def lines(device: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest):
    """Run the example named by the parameter and return its output."""
    runpy.run_path(str(EXAMPLES / f"{request.param}.py"))
    return capsys.readouterr().out.splitlines()


def share_of_error(line: str) -> float:
    """The difference in the line, as part of the largest number beside it."""
    found = re.fullmatch(r"largest difference from float32 on the CPU: (\S+) of (\S+)", line)
    assert found is not None
    return float(found[1]) / float(found[2])


def test_all_examples_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, *DISTRIBUTED}


@pytest.mark.parametrize("lines", ["encoder"], indirect=True)
def test_encoder(lines: list[str]):
    assert lines[0] == "hidden states: (2, 16, 64) torch.float16 on spyre:0"
    assert 0 < share_of_error(lines[1]) < 0.02


@pytest.mark.parametrize("lines", ["vision"], indirect=True)
def test_vision(lines: list[str]):
    classes = re.fullmatch(r"classes: \[(\d), (\d), (\d), (\d)\]", lines[0])
    assert classes is not None
    assert 0 < share_of_error(lines[1]) < 0.02


@pytest.mark.parametrize("lines", ["generate"], indirect=True)
def test_generate(lines: list[str]):
    assert lines[0].count(",") == 7
    assert lines[1] == "cached keys of one layer: (1, 2, 23, 16) torch.float16 on spyre:0"
    memory = re.fullmatch(r"device memory in use: (\d+) bytes", lines[2])
    assert memory is not None
    assert int(memory[1]) > 0


@pytest.mark.parametrize("lines", ["training"], indirect=True)
def test_training(lines: list[str]):
    losses = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert len(losses) == 10
    assert losses[-1] < 0.5 * losses[0]
