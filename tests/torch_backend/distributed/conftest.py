"""Ranks are threads."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch):
    monkeypatch.setenv("SPYRECCL_TRANSPORT", "shm")
