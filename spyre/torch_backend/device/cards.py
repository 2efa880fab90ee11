"""Cards of this process, the current one, their properties: ``torch.spyre.device`` etc.

Cards are created at their first use, which also loads the simulator. Each thread has a current
card. After a fork the child has neither the threads nor a copy of the memory of cards that the
parent used, so it may not use cards then; if the parent used none, it may. Thread-safe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import torch

from spyre import config
from spyre.errors import LaunchError

if TYPE_CHECKING:
    from spyre.runtime.flex import Devices, FlexDevice

_forked = False
_devices: Callable[[], Devices] | None = None
"""`spyre.runtime.flex.device.devices`, set at the first use of a card."""


def card_at(index: int) -> FlexDevice:
    """Return card ``index``, created if needed; -1: the calling thread's current card.

    LaunchError SPY883 if there is no such card, RuntimeError after a fork.
    """
    if _forked or _devices is None:
        _begin()
    assert _devices is not None
    return _devices()[index]


def card_of(device: Any = None) -> FlexDevice:
    """Return the card of ``device``, in any form that `index_of` takes."""
    return card_at(index_of(device))


def index_of(device: Any) -> int:
    """Return the index of ``device``: None, a number, "spyre", "spyre:1" or a torch.device.

    -1 for the current card. ValueError for a device of another type.
    """
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    named = torch.device(device)
    if named.type != "spyre":
        raise ValueError(f"Expected a spyre device, but got: {device}")
    return -1 if named.index is None else named.index


def is_initialized() -> bool:
    """Return True if a card has been created in this process."""
    return bool(made_cards())


def is_in_bad_fork() -> bool:
    """Return True in a child that was forked after a card was used."""
    return _forked


def made_cards() -> list[FlexDevice]:
    """Return the cards created so far; none after a fork."""
    # None also while another thread imports the module
    made = getattr(sys.modules.get("spyre.runtime.flex.device"), "made_devices", None)
    return [] if _forked or made is None else made()


def _begin() -> None:
    global _devices
    if _forked:
        _refuse()
    from spyre.runtime.flex import devices

    os.register_at_fork(after_in_child=_after_fork)
    devices().let_streams_recover()
    _devices = devices


def _after_fork() -> None:
    """Make the parent's cards unusable. Takes no lock, because its owner may not exist here."""
    global _forked
    for card in made_cards():
        _forked = True
        vars(card)["streams"] = _NoStreams()


class _NoStreams:
    """Replaces the streams of a card in a forked child, which lacks the card's threads."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError(
        "Cannot re-initialize spyre in forked subprocess. To use spyre with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def device_count() -> int:
    """Return the number of visible cards; raises the errors of `visible_devices`."""
    from spyre.runtime.memory import visible_devices

    return len(visible_devices())


def is_available() -> bool:
    """Return True if there is at least one card."""
    return device_count() > 0


def init() -> None:
    """Create the current card now rather than at its first use."""
    card_at(-1)


_lazy_init, _is_in_bad_fork = init, is_in_bad_fork


def current_device() -> int:
    """Return the index of the calling thread's current card."""
    from spyre.runtime.flex import devices

    return devices().current_index


def current_if_used() -> int | None:
    """Return `current_device`, or None before the first use of a card, without loading anything."""
    return None if _devices is None else _devices().current_index


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return True for two different cards: each can access the other's memory. LaunchError SPY883
    if there is no such card.
    """
    one, other = card_of(device).index, card_of(peer_device).index
    return one != other


def set_device(device: Any) -> None:
    """Make ``device`` the calling thread's current card, unless it has no index or -1."""
    _exchange_device(index_of(device))


def _exchange_device(index: int) -> int:
    """Make card ``index`` current, unless it is negative; return the previous index."""
    before = current_device()
    if index >= 0 and index != before:
        from spyre.runtime.flex import devices

        devices().set_current(card_at(index).index)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """``with torch.spyre.device(1):`` makes a card current within the block.

    ``device``: an index, "spyre:1", a torch.device, or None for no change.
    """

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """``with torch.spyre.device_of(x):`` makes the card of a tensor or storage current, if it is on
    a card.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "spyre" else None)


def synchronize(device: Any = None) -> None:
    """Wait for all streams of ``device``; None: of all cards that were used.

    Raises the first stream error that has not been raised before. Returns at once for a card that
    was not used.
    """
    wanted = None if device is None else index_of(device)
    if wanted == -1:
        wanted = current_device()
    if wanted is not None:
        check_index(wanted)
    if _forked:
        _refuse()
    for card in made_cards():
        if wanted is None or card.index == wanted:
            card.synchronize()


def reset(device: Any = None) -> None:
    """Drop all pending work and stream errors of ``device``; None: of all cards that were used.

    Memory is not changed.
    """
    wanted = None if device is None else card_of(device)
    if _forked:
        _refuse()
    for card in made_cards():
        if wanted is None or card is wanted:
            card.reset()


def check_index(index: int) -> None:
    """Raise LaunchError SPY883 unless there is a card ``index``."""
    if not 0 <= index < device_count():
        card_at(index)


def different_devices(first: object, second: object, where: str = "") -> RuntimeError:
    """Return torch's error for tensors on two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, "
        f"but found at least two devices, {first} and {second}!{where}"
    )


def is_on_card(value: object) -> bool:
    """Return True for a tensor on a card."""
    return isinstance(value, torch.Tensor) and value.device.type == "spyre"


# --- properties ----------------------------------------------------------------------------------


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


class SpyreDeviceProperties(msgspec.Struct, frozen=True):
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
    from spyre.torch_backend.device.dtypes import NAMES

    card_of(device)
    return {"supported_dtypes": set(NAMES)}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True if emulation counts: bfloat16 is stored in the card's 16-bit format."""
    return including_emulation
