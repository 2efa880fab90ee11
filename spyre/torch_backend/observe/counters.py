"""``torch.spyre.counting``: what eager and compiled code moves and computes, and nothing else."""

from __future__ import annotations

from functools import reduce
from operator import add
from types import TracebackType

from spyre.hw.counters.counts import Counters
from spyre.hw.counters.launches import LaunchCounts
from spyre.runtime.flex.device import FlexDevice
from spyre.torch_backend.observe.watch import WatchedCards


class counting:
    """``with torch.spyre.counting() as c:`` then ``c.counters``, ``c.launches``.

    Counts what all cards run in the block, on any thread and stream; what was submitted before runs
    first, what was submitted in it has ended when the block is left. Launches run as without it.
    ``cards``: by index. LaunchError SPY950 within a trace or profile of the process.
    """

    def __init__(self) -> None:
        self._watched: WatchedCards[LaunchCounts] = WatchedCards(FlexDevice.counting)

    def __enter__(self) -> counting:
        self._watched.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watched.end(kind, error, traceback)

    @property
    def cards(self) -> dict[int, LaunchCounts]:
        """What each card ran."""
        return self._watched.found

    @property
    def launches(self) -> int:
        """Programs that ran to their end, on all cards."""
        return sum(each.launches for each in self.cards.values())

    @property
    def counters(self) -> Counters:
        """Their work, computed when it is asked for."""
        return reduce(add, (each.counters for each in self.cards.values()), Counters())
