"""Scratch memory of a card's eager programs.

One piece serves all of them: a program is one control block, the cores run one at a time, and
nothing in it is read by another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre.layout import SpyreTensorLayout
from spyre.runtime.flex.spyre_tensor import SpyreTensor

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice

LEAST_BYTES = 1 << 20
_kept: dict[tuple[int, int], SpyreTensor] = {}


def scratch_memory(card: FlexDevice, size_bytes: int) -> SpyreTensor:
    """At least ``size_bytes``; launches keep an older, smaller piece while they need it."""
    key = (card.index, card.device.resets)
    found = _kept.get(key)
    if found is None or found.size_bytes < size_bytes:
        wanted = max(LEAST_BYTES, 1 << (size_bytes - 1).bit_length())
        sticks = wanted // 128
        layout = SpyreTensorLayout((sticks, 64), (64, 1), "SEN169_FP16")
        storage = card.allocate(wanted)
        found = _kept[key] = SpyreTensor("scratch", (sticks * 64,), "float16", layout, storage)
    return found
