"""Which simulated cards this process sees (documents: device enumeration).

There is one unless AIU_WORLD_SIZE says how many, at most eight. SPYRE_DEVICES chooses among them
and orders them: logical device k is the k-th card it names. LOCAL_RANK is not read here.
"""

from __future__ import annotations

from spyre import config
from spyre.errors import LaunchError
from spyre.runtime.memory.mode import read_mode

MAX_DEVICES = 8


def visible_devices() -> tuple[int, ...]:
    """Card indices by logical device index.

    An empty SPYRE_DEVICES is the same as none: all cards. LaunchError SPY805 for a wrong
    AIU_WORLD_SIZE, SPY806 for a wrong SPYRE_DEVICES, SPY803 for a wrong FLEX_DEVICE.
    """
    read_mode()
    count = _world_size()
    text = config.SPYRE_DEVICES.read()
    if not text:
        return tuple(range(count))
    words = [word.strip() for word in text.split(",")]
    if not all(_is_number(word) and int(word) < count for word in words):
        raise _wrong_devices(count, text)
    devices = tuple(map(int, words))
    if len(set(devices)) < len(devices):
        raise _wrong_devices(count, text)
    return devices


def _world_size() -> int:
    text = config.AIU_WORLD_SIZE.read().strip()
    if not (_is_number(text) and 1 <= int(text) <= MAX_DEVICES):
        raise LaunchError(
            "SPY805",
            "AIU_WORLD_SIZE is no number of cards",
            expected=f"1 to {MAX_DEVICES}",
            found=text,
        )
    return int(text)


def _wrong_devices(count: int, text: str) -> LaunchError:
    return LaunchError(
        "SPY806",
        "SPYRE_DEVICES is no list of cards",
        expected=f"different numbers from 0 to {count - 1}, separated by commas",
        found=text,
        hint="AIU_WORLD_SIZE says how many cards there are",
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
