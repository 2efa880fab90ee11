"""Environment variables about cards: their number, and the mode of the flex runtime.

PF drives the physical card, VF a virtual function of it, MOCK a card of any memory size (runtime
reference §4.1; `FLEX_DEVICE`). AIU_WORLD_SIZE, else LOCAL_WORLD_SIZE, is the number of cards, at
most SPYRE_CARDS and eight; SPYRE_DEVICES selects and orders them; LOCAL_RANK is the initial card.
"""

from __future__ import annotations

import re
from enum import StrEnum

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.spec import HBM_BYTES, REGION_BYTES, REGIONS, STICK_BYTES

VF_REGION_BYTES = 12 << 30
PF_REGION_BYTES = REGION_BYTES


class FlexMode(StrEnum):
    """Values of FLEX_DEVICE."""

    PF = "PF"
    VF = "VF"
    MOCK = "MOCK"

    def region_id(self, region: int) -> int:
        """``region_id`` of a VirtualAddress: the region's index, in PF mode its physical base.

        The simulated card's regions are contiguous from physical address 0, 16 GiB each.
        """
        return region * REGION_BYTES if self is FlexMode.PF else region


def read_mode() -> FlexMode:
    """The mode of FLEX_DEVICE. LaunchError SPY803 for other values than PF, VF and MOCK."""
    text = config.FLEX_DEVICE.read()
    if text not in FlexMode.__members__:
        message = "FLEX_DEVICE is not a mode of the flex runtime"
        raise LaunchError("SPY803", message, expected=", ".join(FlexMode), found=text)
    return FlexMode(text)


def region_capacities(mode: FlexMode) -> tuple[int, ...]:
    """Bytes of each region: 12 GiB in VF, 16 GiB in PF; MOCK divides its memory evenly."""
    if mode is FlexMode.MOCK:
        blocks, more = divmod(_mock_memory_bytes() // STICK_BYTES, REGIONS)
        return tuple((blocks + (region < more)) * STICK_BYTES for region in range(REGIONS))
    return (PF_REGION_BYTES if mode is FlexMode.PF else VF_REGION_BYTES,) * REGIONS


def _mock_memory_bytes() -> int:
    text = config.FLEX_MOCK_DEVICE_MEMORY_SIZE.read()
    smallest = REGIONS * STICK_BYTES
    if not (text.isascii() and text.isdigit() and smallest <= int(text) <= HBM_BYTES):
        message = "FLEX_MOCK_DEVICE_MEMORY_SIZE is not a memory size of a card"
        expected = f"a number of bytes from {smallest} to {HBM_BYTES}"
        raise LaunchError("SPY804", message, expected=expected, found=text)
    return int(text)


MAX_DEVICES = 8


def visible_devices() -> tuple[int, ...]:
    """Card indices by logical device index.

    Without SPYRE_DEVICES, or if it is empty: all cards. LaunchError SPY805 for a wrong
    AIU_WORLD_SIZE or LOCAL_WORLD_SIZE, SPY806 for a wrong SPYRE_DEVICES, SPY803 for a wrong
    FLEX_DEVICE.
    """
    read_mode()
    count = _world_size()
    text = config.SPYRE_DEVICES.read()
    if not text:
        return tuple(range(count))
    words = [word.strip() for word in text.split(",")]
    if all(map(_is_number, words)):
        devices = tuple(dict.fromkeys(n for n in map(int, words) if n < count))
        # the flex runtime, and so torch-spyre, ignores unknown and repeated numbers
        if len(devices) == len(words) or config.FRONTEND.read() == "torch-spyre":
            return devices
    raise _wrong_devices(count, text)


def _world_size() -> int:
    own = config.AIU_WORLD_SIZE.read().strip()
    cards, ranks = config.CARDS.read().strip(), config.LOCAL_WORLD_SIZE.read().strip()
    if not cards:
        return _count(own, config.AIU_WORLD_SIZE) if own else _count(ranks, config.LOCAL_WORLD_SIZE)
    there = _count(cards, config.CARDS)
    return min(there, _count(own, config.AIU_WORLD_SIZE)) if own else there


def _count(text: str, variable: config.Variable) -> int:
    """A number of cards, 1 for an empty text; SPY805."""
    if not (_is_number(text or "1") and 1 <= int(text or "1") <= MAX_DEVICES):
        message = f"{variable.name} is not a number of cards"
        hint = "AIU_WORLD_SIZE is the number of cards of a process, whatever the number of ranks"
        raise LaunchError("SPY805", message, expected=f"1 to {MAX_DEVICES}", found=text, hint=hint)
    return int(text or "1")


def first_device(count: int) -> int:
    """The initial device of threads: LOCAL_RANK, else 0. ``count``: visible devices.

    LaunchError SPY809 if LOCAL_RANK is not one of them.
    """
    text = config.LOCAL_RANK.read().strip()
    if not text:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        problem = "LOCAL_RANK is not a valid integer"
    elif int(text) < 0:
        problem = "LOCAL_RANK value is out of range"
    elif int(text) >= count:
        problem = "LOCAL_RANK exceeds the highest device index"
    else:
        return int(text)
    raise LaunchError("SPY809", problem, expected=f"0 to {count - 1}", found=text)


def _wrong_devices(count: int, text: str) -> LaunchError:
    message = "SPYRE_DEVICES is not a list of cards"
    expected = f"different numbers from 0 to {count - 1}, separated by commas"
    hint = "AIU_WORLD_SIZE is the number of cards"
    return LaunchError("SPY806", message, expected=expected, found=text, hint=hint)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
