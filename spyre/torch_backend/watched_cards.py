"""Watching what all cards do: what `torch.spyre.trace`, `.profile` and `.counting` share.

One of them at a time in a process; the block may use the cards from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from spyre.errors import LaunchError
from spyre.runtime.flex.devices import devices
from spyre.torch_backend.cards import card_at

if TYPE_CHECKING:
    from spyre.runtime.flex.command_stream import CommandStream
    from spyre.runtime.flex.flex_device import FlexDevice
    from spyre.runtime.flex.runner import Runner

T = TypeVar("T")
_watched = threading.Lock()


class WatchedCards(Generic[T]):
    """What ``enter`` gives for all cards that are used until `end`, by index: ``found``.

    When it has ended, that is in order of the cards.
    """

    def __init__(self, enter: Callable[[FlexDevice], AbstractContextManager[T]]) -> None:
        self.found: dict[int, T] = {}
        self._enter = enter
        self._stack = ExitStack()

    def begin(self) -> None:
        """Watch from now on. LaunchError SPY950 where cards of the process are being watched."""
        if not _watched.acquire(blocking=False):
            raise _nested()
        try:
            self.found.clear()
            card_at(-1)
            devices().watch(self._watch)
        except BaseException:
            self.end(None, None, None)
            raise

    def _watch(self, card: FlexDevice) -> None:
        self.found[card.index] = self._stack.enter_context(self._enter(card))

    def end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what was submitted, and watch no more. The arguments are those of __exit__."""
        try:
            devices().watch(None)
            self._stack.__exit__(kind, error, traceback)
        finally:
            self.found = dict(sorted(self.found.items()))
            _watched.release()


def recordings(runner: Runner | None = None) -> WatchedCards[CommandStream]:
    """The command streams of all cards. ``runner``: how launches run meanwhile, if not plainly."""
    return WatchedCards(partial(_recorded, runner))


@contextmanager
def _recorded(runner: Runner | None, card: FlexDevice) -> Iterator[CommandStream]:
    before = card.runner
    try:
        with card.recording() as commands:
            card.runner = before if runner is None else runner
            yield commands
    finally:
        card.runner = before


def _nested() -> LaunchError:
    return LaunchError(
        "SPY950",
        "what the cards do is being recorded already",
        expected="one torch.spyre.trace, .profile or .counting at a time in a process",
        hint="leave the other block first",
    )
