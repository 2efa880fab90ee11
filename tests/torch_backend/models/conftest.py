"""The device of the models, and tests that must fail on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spyre.torch_backend import autoload

pytest.register_assert_rewrite("tests.torch_backend.models.comparison")

AWAITED: dict[str, str] = {}
"""Beginnings of test ids, and the missing features of the device. Such a test must fail: if it
passes, its line has to be removed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = f"{item.path.name}::{item.name}"
        lacking = [what for test, what in AWAITED.items() if name.startswith(test)]
        if lacking and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xfail(reason=f"awaits {lacking[0]}", strict=True))


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """Name of the device under test, registered with PyTorch, installed or not."""
    autoload()
    return "spyre"
