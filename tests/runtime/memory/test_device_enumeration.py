"""Which cards a process sees."""

from __future__ import annotations

import pytest

from spyre.errors import LaunchError
from spyre.runtime.memory.flex_mode import visible_devices


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("AIU_WORLD_SIZE", "SPYRE_DEVICES", "FLEX_DEVICE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("size", "devices", "visible"),
    [
        (None, None, (0,)),
        ("8", None, tuple(range(8))),
        ("3", "", (0, 1, 2)),
        ("", "0", (0,)),
        ("4", "2,0", (2, 0)),
        (" 4 ", " 3 , 1 ", (3, 1)),
        ("8", "7", (7,)),
    ],
)
def test_visible(monkeypatch, size: str | None, devices: str | None, visible: tuple[int, ...]):
    for name, value in (("AIU_WORLD_SIZE", size), ("SPYRE_DEVICES", devices)):
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert visible_devices() == visible


@pytest.mark.parametrize("size", ["0", "9", "-1", "two", "1.5", "²"])
def test_wrong_world_size(monkeypatch, size: str):
    monkeypatch.setenv("AIU_WORLD_SIZE", size)
    with pytest.raises(LaunchError, match=f"(?s)SPY805.*1 to 8.*found: {size}"):
        visible_devices()


@pytest.mark.parametrize("devices", ["4", "0,0", "0,", ",", "a", "-1", "0;1", "1 2", "0,00"])
def test_wrong_devices(monkeypatch, devices: str):
    monkeypatch.setenv("AIU_WORLD_SIZE", "4")
    monkeypatch.setenv("SPYRE_DEVICES", devices)
    with pytest.raises(LaunchError, match=f"(?s)SPY806.*0 to 3.*found: {devices}"):
        visible_devices()


def test_without_world_size_there_is_one_card(monkeypatch):
    monkeypatch.setenv("SPYRE_DEVICES", "1")
    with pytest.raises(LaunchError, match="SPY806"):
        visible_devices()


def test_the_mode_is_checked(monkeypatch):
    monkeypatch.setenv("FLEX_DEVICE", "TPU")
    with pytest.raises(LaunchError, match="SPY803"):
        visible_devices()
