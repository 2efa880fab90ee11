"""Which card a call means, and whether this process may use the cards at all.

Cards are made when they are first used. A child made by fork has neither the threads of the cards
its parent used nor memory of its own, so every use of them there is refused; a child of a parent
that used none may use its own. Any thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from spyre.runtime.flex.devices import Devices
    from spyre.runtime.flex.flex_device import FlexDevice

_forked = False
_devices: Callable[[], Devices] | None = None
"""`spyre.runtime.flex.devices.devices`, once a card has been asked for."""


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
    found = torch.device(device)
    if found.type != "spyre":
        raise ValueError(f"Expected a spyre device, but got: {device}")
    return -1 if found.index is None else found.index


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
    module = sys.modules.get("spyre.runtime.flex.devices")
    return [] if module is None else module.made_devices()


def _begin() -> None:
    global _devices
    if _forked:
        _refuse()
    from spyre.runtime.flex.devices import devices

    os.register_at_fork(after_in_child=_after_fork)
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
