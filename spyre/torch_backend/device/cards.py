"""Which cards there are, which one is current, and waiting for them: ``torch.spyre.device`` etc.

Cards are made when they are first used; nothing here loads the simulator before. The current card
is a matter of the calling thread. A child made by fork has neither the threads of the cards its
parent used nor memory of its own, so every use of them there is refused; a child of a parent that
used none may use its own. Any thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from spyre.runtime.flex import Devices, FlexDevice

_forked = False
_devices: Callable[[], Devices] | None = None
"""`spyre.runtime.flex.device.devices`, once a card has been asked for."""


def card_at(index: int) -> FlexDevice:
    """Card ``index``, made if need be; -1: the calling thread's current one.

    LaunchError SPY883 for a card that is not there, RuntimeError after a fork.
    """
    if _forked or _devices is None:
        _begin()
    assert _devices is not None
    return _devices()[index]


def card_of(device: Any = None) -> FlexDevice:
    """The card ``device`` names, in any form `index_of` takes."""
    return card_at(index_of(device))


def index_of(device: Any) -> int:
    """Index of ``device``: None, a number, "spyre", "spyre:1" or a torch.device; -1: the current.

    ValueError for a device of another kind.
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
    """Whether a card has been made in this process."""
    return not _forked and bool(_made())


def is_in_bad_fork() -> bool:
    """True in a child made by fork after a card was used."""
    return _forked


def made_cards() -> list[FlexDevice]:
    """The cards made so far."""
    return [] if _forked else _made()


def _made() -> list[FlexDevice]:
    # None also while another thread imports the module
    made = getattr(sys.modules.get("spyre.runtime.flex.device"), "made_devices", None)
    return [] if made is None else made()


def _begin() -> None:
    global _devices
    if _forked:
        _refuse()
    from spyre.runtime.flex import devices

    os.register_at_fork(after_in_child=_after_fork)
    devices().let_streams_recover()
    _devices = devices


def _after_fork() -> None:
    """Make what the parent's cards had unusable; takes no lock, since its owner may be gone."""
    global _forked
    for card in _made():
        _forked = True
        vars(card)["streams"] = _NoStreams()


class _NoStreams:
    """Stands for the streams of a card whose threads stayed with the parent."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError(
        "Cannot re-initialize spyre in forked subprocess. To use spyre with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def device_count() -> int:
    """Number of visible cards; errors as of `visible_devices` for a wrong environment."""
    from spyre.runtime.memory import visible_devices

    return len(visible_devices())


def is_available() -> bool:
    """Whether there is a card."""
    return device_count() > 0


def init() -> None:
    """Make the current card now rather than at its first use."""
    card_at(-1)


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return is_in_bad_fork()


def current_device() -> int:
    """Index of the calling thread's card."""
    from spyre.runtime.flex import devices

    return devices().current_index


def current_if_used() -> int | None:
    """As `current_device`; None as long as no card was asked for, when it asks nobody."""
    return None if _devices is None else _devices().current_index


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a card reaches the memory of another one: all do. LaunchError SPY883 for no card."""
    one, other = card_of(device).index, card_of(peer_device).index
    return one != other


def set_device(device: Any) -> None:
    """Make ``device`` the calling thread's card; nothing for -1 or a device without an index."""
    _exchange_device(index_of(device))


def _exchange_device(index: int) -> int:
    """Make card ``index`` current, unless it is negative; returns the one before."""
    before = current_device()
    if index >= 0 and index != before:
        from spyre.runtime.flex import devices

        devices().set_current(card_at(index).index)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """``with torch.spyre.device(1):`` makes a card current within the block; None changes nothing.

    ``device``: an index, "spyre:1", a torch.device or None.
    """

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """``with torch.spyre.device_of(x):`` makes the card of ``x`` current; nothing if it has none.

    ``x``: a tensor or a storage.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "spyre" else None)


def synchronize(device: Any = None) -> None:
    """Wait for all streams of ``device``; of all cards that were used if it is None.

    Raises the first error of a stream that nobody has been told yet. Nothing to wait for on a card
    that was not used.
    """
    wanted = None if device is None else index_of(device)
    if wanted == -1:
        wanted = current_device()
    if wanted is not None:
        check_index(wanted)
    if is_in_bad_fork():
        init()
    for card in made_cards():
        if wanted is None or card.index == wanted:
            card.synchronize()


def reset(device: Any = None) -> None:
    """Drop all work of ``device`` that has not run, and forget the errors of its streams.

    None: of all cards that were used. Memory stays as it is.
    """
    wanted = None if device is None else card_of(device)
    if is_in_bad_fork():
        init()
    for card in made_cards():
        if wanted is None or card is wanted:
            card.reset()


def check_index(index: int) -> None:
    """LaunchError SPY883 unless there is a card ``index``."""
    if not 0 <= index < device_count():
        card_at(index)


__all__ = [
    "_exchange_device",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "can_device_access_peer",
    "check_index",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "init",
    "is_available",
    "is_initialized",
    "reset",
    "set_device",
    "synchronize",
]


def is_on_card(value: object) -> bool:
    """True for a tensor on the card."""
    return isinstance(value, torch.Tensor) and value.device.type == "spyre"
