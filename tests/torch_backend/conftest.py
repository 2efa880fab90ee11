"""The device is registered in the test process; operations may fall back without a word."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend import autoload

autoload()


@pytest.fixture(autouse=True)
def silent_fallback(monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "silent")


@pytest.fixture
def host():
    """A small float32 matrix on the CPU."""
    return torch.arange(24.0).reshape(4, 6)


@pytest.fixture
def card(host):
    """The same on the card."""
    return host.to("spyre")
