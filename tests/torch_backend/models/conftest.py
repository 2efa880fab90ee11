"""The device the models run on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device() -> str:
    """Name of the device under test, registered with PyTorch."""
    return "cpu"
