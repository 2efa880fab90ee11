"""A pytest plugin: tensors without a device in the test are made on the device under test."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import torch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with torch.device(os.environ["UPSTREAM_DEVICE"]):
        return (yield)
