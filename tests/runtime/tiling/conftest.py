"""Fixtures of the tests of tiled launches."""

from __future__ import annotations

import pytest

from spyre.hw.device.device import Device


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=1)
