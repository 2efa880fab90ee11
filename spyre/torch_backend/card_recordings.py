"""Recording what all cards do in a block: what `torch.spyre.trace` and `torch.spyre.profile` share.

One recording at a time in a process; the block may use the cards from any thread.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from spyre.errors import LaunchError
from spyre.runtime.flex.devices import devices
from spyre.torch_backend.cards import card_at

if TYPE_CHECKING:
    from spyre.runtime.flex.command_stream import CommandStream
    from spyre.runtime.flex.flex_device import FlexDevice
    from spyre.runtime.flex.runner import Runner

_recording = threading.Lock()


class CardRecordings:
    """The command streams of all cards that are used until `end`, by index: ``found``, which is in
    order of the cards when it has ended.

    ``runner``: how launches run meanwhile, if not plainly.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self.found: dict[int, CommandStream] = {}
        self._runner = runner
        self._stack = ExitStack()

    def begin(self) -> None:
        """Record from now on. LaunchError SPY950 within another recording of the process."""
        if not _recording.acquire(blocking=False):
            raise _nested()
        try:
            self.found.clear()
            card_at(-1)
            devices().watch(self._record)
        except BaseException:
            self.end(None, None, None)
            raise

    def _record(self, card: FlexDevice) -> None:
        if self._runner is not None:
            self._stack.callback(setattr, card, "runner", card.runner)
        self.found[card.index] = self._stack.enter_context(card.recording())
        if self._runner is not None:
            card.runner = self._runner

    def end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what was submitted, and record no more. The arguments are those of __exit__."""
        try:
            devices().watch(None)
            self._stack.__exit__(kind, error, traceback)
        finally:
            self.found = dict(sorted(self.found.items()))
            _recording.release()


def _nested() -> LaunchError:
    return LaunchError(
        "SPY950",
        "what the cards do is being recorded already",
        expected="one torch.spyre.trace or torch.spyre.profile at a time in a process",
        hint="leave the other block first",
    )
