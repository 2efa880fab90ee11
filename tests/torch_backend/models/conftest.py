"""The device the models run on."""

from __future__ import annotations

import pytest

from spyre.torch_backend import autoload


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """Name of the device under test, registered with PyTorch, installed or not."""
    autoload()
    return "spyre"
