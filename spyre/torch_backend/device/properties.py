"""Properties of a card: ``torch.spyre.get_device_properties`` and related functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from spyre import config
from spyre.errors import LaunchError
from spyre.torch_backend.device.cards import card_of
from spyre.torch_backend.device.dtypes import NAMES


def usable_cores() -> int:
    """Return SENCORES; LaunchError SPY902 unless it is a number from 1 to 32."""
    from spyre.hw.spec import CORES

    text = config.SENCORES.read().strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= CORES):
        raise LaunchError(
            "SPY902", "SENCORES is no number of cores", expected=f"1 to {CORES}", found=text
        )
    return int(text)


NAME = "IBM Spyre (simulated)"


@dataclass(frozen=True, slots=True)
class SpyreDeviceProperties:
    """Sizes of a card; sources: hardware reference §2, runtime reference §4.

    ``total_memory``: bytes for tensors. ``multi_processor_count``: number of cores.
    ``usable_cores``: cores that one operation may use (SENCORES). ``lx_bytes``: scratchpad of one
    core. ``card``: number of the physical card. ``mode``: of the flex runtime.
    """

    name: str
    total_memory: int
    multi_processor_count: int
    usable_cores: int
    lx_bytes: int
    stick_bytes: int
    card: int
    mode: str


def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
    """Return the properties of a card, by default the current one; LaunchError SPY883."""
    from spyre.hw.spec import CORES, LX_BYTES, STICK_BYTES
    from spyre.runtime.flex import devices

    card = card_of(device)
    total = card.allocator.statistics().reserved_bytes
    sizes = (CORES, usable_cores(), LX_BYTES, STICK_BYTES)
    mode = card.allocator.mode.value
    return SpyreDeviceProperties(NAME, total, *sizes, devices().cards[card.index], mode)


def get_device_name(device: Any = None) -> str:
    """Return the name of a card."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, set[torch.dtype]]:
    """Return the supported dtypes of a card, as ``torch.accelerator`` expects them."""
    card_of(device)
    return {"supported_dtypes": set(NAMES)}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True if emulation counts: bfloat16 is stored in the card's 16-bit format."""
    return including_emulation
