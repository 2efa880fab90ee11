"""Cards that are visible to a process."""

from __future__ import annotations

import pytest

from spyre.errors import LaunchError
from spyre.runtime.memory.flex_mode import first_device, visible_devices


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    names = ("AIU_WORLD_SIZE", "SPYRE_DEVICES", "FLEX_DEVICE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name in names:
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


@pytest.mark.parametrize(("own", "local", "count"), [("", "4", 4), ("2", "4", 2), ("1", "16", 1)])
def test_ranks_of_torchrun_have_a_card_each(monkeypatch, own: str, local: str, count: int):
    monkeypatch.setenv("AIU_WORLD_SIZE", own)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert len(visible_devices()) == count


@pytest.mark.parametrize(
    ("cards", "size", "devices", "visible"),
    [
        ("2", "", "", (0, 1)),
        ("2", "1", "", (0,)),
        ("2", "3", "", (0, 1)),
        ("2", "", "1,0", (1, 0)),
        ("4", "2", "0,1", (0, 1)),
    ],
)
def test_a_machine_has_a_number_of_cards(monkeypatch, cards, size, devices, visible):
    monkeypatch.setenv("SPYRE_CARDS", cards)
    monkeypatch.setenv("AIU_WORLD_SIZE", size)
    monkeypatch.setenv("SPYRE_DEVICES", devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert visible_devices() == visible


@pytest.mark.parametrize("cards", ["0", "9", "two"])
def test_wrong_number_of_cards(monkeypatch, cards):
    monkeypatch.setenv("SPYRE_CARDS", cards)
    with pytest.raises(LaunchError, match=rf"(?s)SPY805.*SPYRE_CARDS.*1 to 8.*found: {cards}"):
        visible_devices()


@pytest.mark.parametrize(("devices", "visible"), [("0,1,1", (0, 1)), ("0, 3", (0,)), ("5", ())])
def test_torch_spyre_ignores_cards_that_are_not_there(monkeypatch, devices, visible):
    monkeypatch.setenv("SPYRE_FRONTEND", "torch-spyre")
    monkeypatch.setenv("SPYRE_CARDS", "2")
    monkeypatch.setenv("SPYRE_DEVICES", devices)
    assert visible_devices() == visible
    monkeypatch.setenv("SPYRE_DEVICES", "a")
    with pytest.raises(LaunchError, match="SPY806"):
        visible_devices()


def test_more_ranks_than_an_ensemble_has_cards(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    with pytest.raises(LaunchError, match=r"(?s)SPY805.*LOCAL_WORLD_SIZE.*1 to 8.*found: 9"):
        visible_devices()


def test_threads_begin_with_the_card_of_local_rank(monkeypatch):
    assert first_device(4) == 0
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert first_device(4) == 3
    for text, message in (
        ("one", "LOCAL_RANK is not a valid integer"),
        ("1.5", "LOCAL_RANK is not a valid integer"),
        ("-1", "LOCAL_RANK value is out of range"),
        ("4", "LOCAL_RANK exceeds the highest device index"),
    ):
        monkeypatch.setenv("LOCAL_RANK", text)
        with pytest.raises(LaunchError, match=f"(?s)SPY809]: {message}.*0 to 3.*found: {text}"):
            first_device(4)


def test_without_world_size_there_is_one_card(monkeypatch):
    monkeypatch.setenv("SPYRE_DEVICES", "1")
    with pytest.raises(LaunchError, match="SPY806"):
        visible_devices()


def test_the_mode_is_checked(monkeypatch):
    monkeypatch.setenv("FLEX_DEVICE", "TPU")
    with pytest.raises(LaunchError, match="SPY803"):
        visible_devices()
