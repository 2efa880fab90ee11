"""A plugin of pytest: tensors for which a test names no device are made on the one under test."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import torch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with torch.device(os.environ["UPSTREAM_DEVICE"]):
        return (yield)
