"""Fixtures every test folder shares: golden texts and the real bundles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long inputs take to make says something of the machine and of what else it does, not of us.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def accepted_files(shared: Path, pattern: str) -> list[Path]:
    """Files of the programs that compilers write right and wrong, without those we refuse."""
    return sorted([*shared.glob(f"bundles/{pattern}"), *shared.glob(f"bundles-wrong/{pattern}")])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files with what was found"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """``golden(path, text)`` compares ``text`` with the file, or rewrites it on request."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The directory of real bundles and measurements beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the real bundles (../shared) are not here")
    return SHARED
