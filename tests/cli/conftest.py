"""Fixtures for tests of the command line: calls within this process, and example bundles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from spyre.cli.run import main

ROOT = Path(__file__).resolve().parents[2]


class Ran(msgspec.Struct, frozen=True):
    """One call: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def runner_of(
    command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Runs a command line in this process: ``run(*arguments)``."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            code = command([str(a) for a in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``cli(*arguments)`` runs spyre-run."""
    return runner_of(main, capsys)


@pytest.fixture
def examples() -> Path:
    """The directory of the example bundles."""
    return ROOT / "examples"
