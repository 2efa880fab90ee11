"""Ranks are threads."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch):
    monkeypatch.setenv("SPYRECCL_TRANSPORT", "shm")


@pytest.fixture(autouse=True)
def no_ddp_module_is_left():
    """torch keeps one active module for all threads; ranks that restore the former one may leave
    it, and Dynamo then treats every later function as a part of it.
    """
    from torch.nn.parallel import DistributedDataParallel

    yield
    DistributedDataParallel._active_ddp_module = None
