"""Runs the profile tests share: made once."""

from __future__ import annotations

from pathlib import Path

import pytest

import spyre
from spyre.runtime.run.session import RunResult

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="session")
def softmax() -> RunResult:
    """One launch through LX."""
    return spyre.run(EXAMPLES / "softmax")


@pytest.fixture(scope="session")
def add_loop() -> RunResult:
    """One execute in a loop."""
    return spyre.run(EXAMPLES / "add_loop")


@pytest.fixture(scope="session")
def matmul() -> RunResult:
    """A product."""
    return spyre.run(EXAMPLES / "matmul_tile")
