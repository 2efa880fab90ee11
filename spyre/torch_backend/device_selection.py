"""Which cards there are, which one is current, and waiting for them: ``torch.spyre.device`` etc.

The current card is a matter of the calling thread. Nothing here loads the simulator before a card
is needed. Any thread.
"""

from __future__ import annotations

from typing import Any

from spyre.torch_backend.cards import (
    card_at,
    index_of,
    is_in_bad_fork,
    is_initialized,
    made_cards,
)


def device_count() -> int:
    """Number of visible cards; errors as of `visible_devices` for a wrong environment."""
    from spyre.runtime.memory.device_enumeration import visible_devices

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
    from spyre.runtime.flex.devices import devices

    return devices().current_index


def set_device(device: Any) -> None:
    """Make ``device`` the calling thread's card; nothing for -1 or a device without an index."""
    _exchange_device(index_of(device))


def _exchange_device(index: int) -> int:
    """Make card ``index`` current, unless it is negative; returns the one before."""
    before = current_device()
    if index >= 0 and index != before:
        from spyre.runtime.flex.devices import devices

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


def check_index(index: int) -> None:
    """LaunchError SPY883 unless there is a card ``index``."""
    if not 0 <= index < device_count():
        card_at(index)


__all__ = [
    "_exchange_device",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "check_index",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "init",
    "is_available",
    "is_initialized",
    "set_device",
    "synchronize",
]
