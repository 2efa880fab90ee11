"""``torch.spyre.profile``: the modelled time of eager and compiled code on a card.

Nothing is counted or modelled while the code runs: launches only keep their linked programs, and
the profile is computed when it is first read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from spyre.errors import LaunchError
from spyre.hw.cost import Model, Overlap
from spyre.runtime.flex import CommandStream
from spyre.runtime.kernel import run_recorded
from spyre.runtime.profile import (
    FallbackTime,
    MachineLike,
    machine_of,
    modelled_events,
    profile_of_recording,
)
from spyre.runtime.trace import check_trace_file
from spyre.torch_backend.fallback import fallback_seconds, fallbacks
from spyre.torch_backend.observe.watch import (
    FIRST_PROCESS,
    CardObserver,
    recorded,
    time_axis,
    write_trace_of_ranks,
)

if TYPE_CHECKING:
    from rich.table import Table

    from spyre.runtime.profile import Profile
    from spyre.runtime.trace import TimeAxis


class profile(CardObserver[CommandStream]):
    """``with torch.spyre.profile() as p:`` then ``print(p)``, ``p.table()``, ``p.report(path)``.

    Profiles all work of the cards in the block, on any thread and stream. Work submitted before
    runs first, work submitted in it has ended at its end. ``machine``: a machine file over the
    shipped one (MachineError SPY760 to SPY762); ``model``: "calibrated" or "ideal"; ``overlap``:
    "serial", "overlapped" or "double-buffered". LaunchError SPY950 within another trace, profile or
    counting of the process. While it is active, control blocks run one by one. ``on_host``:
    operations that ran on the CPU meanwhile, with their measured time, which the profiles of all
    cards list. It can be read after the block; if the block raises, it has the work that had ended.
    """

    def __init__(
        self,
        machine: MachineLike = None,
        model: Model = "calibrated",
        overlap: Overlap | str = Overlap.OVERLAPPED,
    ) -> None:
        super().__init__(partial(recorded, run_recorded))
        self._machine = machine_of(machine)
        self._model = model
        self._overlap = Overlap(overlap)
        self._axis: TimeAxis | None = None
        self.on_host: tuple[FallbackTime, ...] = ()

    def __enter__(self) -> Self:
        self.__dict__.pop("cards", None)
        self._axis = None
        super().__enter__()
        self._begin = time.perf_counter(), fallbacks(), fallback_seconds()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.on_host = tuple(_on_host(*self._begin))
        self._axis = time_axis()

    @cached_property
    def cards(self) -> dict[int, Profile]:
        """The profile of each card that was used, by index."""
        self._require_end()
        return {
            index: replace(
                profile_of_recording(commands, self._machine, self._model, self._overlap),
                on_host=self.on_host,
            )
            for index, commands in self.observations.items()
        }

    def of_card(self, card: int | None = None) -> Profile:
        """Return the profile of a card, by default of the first one with any work."""
        if card is not None:
            return self.cards[card]
        busy = [each for each in self.cards.values() if each.activities]
        return busy[0] if busy else next(iter(self.cards.values()))

    def table(self, every: bool = False, card: int | None = None) -> Table:
        """Return a `rich` table, see `spyre.runtime.profile.profile.Profile.table`."""
        return self.of_card(card).table(every)

    def report(
        self, path: Path | str, title: str = "spyre profile", card: int | None = None
    ) -> None:
        """Write the report as one HTML page. ProfileError SPY782."""
        self.of_card(card).report(path, title)

    def roofline(self, path: Path | str, card: int | None = None) -> None:
        """Write the roofline as an SVG file. ProfileError SPY782."""
        self.of_card(card).roofline(path)

    def trace(self, path: Path | str, group: Any = None) -> None:
        """Write host and modelled time of all cards as a Chrome trace, like `torch.spyre.trace`.

        Modelled time begins with a card's first control block. ``group``: all its ranks call this,
        and the first one writes for all. LaunchError SPY886.
        """
        target, axis = check_trace_file(path), self._require_end()
        first = {
            index: min((c.begin_ns for c in commands), default=axis.origin_ns)
            for index, commands in self.observations.items()
        }
        more = (
            event
            for index, each in self.cards.items()
            for event in modelled_events(each, index, FIRST_PROCESS, first[index] - axis.origin_ns)
        )
        write_trace_of_ranks(target, self.observations, axis, more, group, has_failed=False)

    def _require_end(self) -> TimeAxis:
        if self._axis is None:
            raise LaunchError(
                "SPY783",
                "the profile is read before the end of its block",
                expected="with torch.spyre.profile() as p: ..., and p behind it",
            )
        return self._axis

    def __str__(self) -> str:
        return "\n\n".join(
            str(each) if len(self.cards) == 1 else f"card {index}\n{each}"
            for index, each in self.cards.items()
        )


def _on_host(
    start_seconds: float, calls: dict[str, int], seconds: dict[str, float]
) -> Iterator[FallbackTime]:
    """Yield the operations that ran on the CPU since ``start_seconds``, the longest first."""
    block_seconds = time.perf_counter() - start_seconds
    now = fallback_seconds()
    since = {name: now[name] - seconds.get(name, 0.0) for name in now}
    counts = {name: count - calls.get(name, 0) for name, count in fallbacks().items()}
    for name in sorted(since, key=lambda each: -since[each]):
        if counts[name] > 0:
            share = since[name] / block_seconds
            yield FallbackTime(name, counts[name], since[name], share)
