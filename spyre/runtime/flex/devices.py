"""The cards of this process: how many there are, which one is current, and each by its index.

Cards are independent: memory, scheduler and streams of their own. They are made when first asked
for. Which ones exist is read from the environment once
(:mod:`spyre.runtime.memory.device_enumeration`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spyre.errors import LaunchError
from spyre.runtime.flex.flex_device import FlexDevice
from spyre.runtime.memory.device_enumeration import visible_devices


class Devices:
    """The visible cards, numbered from 0. Usable from any thread.

    ``cards``: number of the physical card behind each.
    """

    def __init__(self, cards: tuple[int, ...] | None = None) -> None:
        self.cards = visible_devices() if cards is None else cards
        self._lock = threading.Lock()
        self.made: dict[int, FlexDevice] = {}
        self._watcher: Callable[[FlexDevice], object] | None = None
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self.cards)

    def __getitem__(self, index: int) -> FlexDevice:
        """Card ``index``; -1 is the calling thread's current one. LaunchError SPY883 for others."""
        chosen = self.current_index if index == -1 else index
        found = self.made.get(chosen)
        if found is not None:
            return found
        if not 0 <= chosen < len(self.cards):
            raise LaunchError(
                "SPY883",
                f"there is no Spyre device {index}",
                expected=f"0 to {len(self.cards) - 1}" if self.cards else "no device is visible",
                found=str(index),
                hint="AIU_WORLD_SIZE and SPYRE_DEVICES say which cards are visible",
            )
        found = self.made.get(chosen)
        if found is not None:
            return found
        with self._lock:
            if chosen not in self.made:
                self.made[chosen] = FlexDevice(index=chosen)
                if self._watcher is not None:
                    self._watcher(self.made[chosen])
            return self.made[chosen]

    def watch(self, watcher: Callable[[FlexDevice], object] | None) -> None:
        """Call ``watcher`` for all cards made until now and for each that is made from now on.

        It is called under a lock and must not ask for cards. One watcher at a time; None ends it.
        """
        with self._lock:
            self._watcher = watcher
            if watcher is None:
                return
            for index in sorted(self.made):
                watcher(self.made[index])

    @property
    def current_index(self) -> int:
        """The calling thread's card."""
        index: int = getattr(self._local, "index", 0)
        return index

    @property
    def current(self) -> FlexDevice:
        """The calling thread's card, made if need be."""
        return self[self.current_index]

    def set_current(self, index: int) -> int:
        """Make card ``index`` the calling thread's; returns the one before."""
        before = self.current_index
        if index != -1:
            self._local.index = self[index].index
        return before

    @contextmanager
    def using(self, index: int) -> Iterator[FlexDevice]:
        """Card ``index`` as the current one within the block."""
        before = self.set_current(index)
        try:
            yield self.current
        finally:
            self.set_current(before)

    def synchronize(self) -> None:
        """Return when everything submitted to any card has ended; raises the first error, once."""
        with self._lock:
            made = [self.made[k] for k in sorted(self.made)]
        for device in made:
            device.synchronize()


_lock = threading.Lock()
_devices: Devices | None = None


def devices() -> Devices:
    """The cards of this process, as the environment said when they were first asked for."""
    global _devices
    if _devices is not None:
        return _devices
    with _lock:
        if _devices is None:
            _devices = Devices()
        return _devices


def made_devices() -> list[FlexDevice]:
    """The cards made so far. Takes no lock, so that a forked child may ask."""
    found = _devices
    return [] if found is None else [found.made[k] for k in sorted(found.made)]
