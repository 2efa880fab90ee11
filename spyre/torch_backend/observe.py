"""Observers of all cards: ``torch.spyre.trace``, ``.counting`` and ``.profile``.

Only one can be active in a process; its block may use the cards from any thread.

A group of ranks has one trace: each rank sends its events to the first one, which writes them. All
ranks use the clock of one machine. Process names in the trace begin with the rank, and arrows lead
from the first rank that entered a collective to the others.

Nothing is counted or modelled while profiled code runs: launches only keep their linked programs,
and the profile is computed when it is first read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial, reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec
import torch.distributed as dist
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.hw.cost import Model, Overlap
from spyre.hw.counters import Counters, LaunchCounts
from spyre.runtime.flex import CommandStream, FlexDevice, devices
from spyre.runtime.kernel import run_recorded
from spyre.runtime.profile import (
    FallbackTime,
    MachineLike,
    machine_of,
    modelled_events,
    profile_of_recording,
)
from spyre.runtime.trace import TimeAxis, TraceEvent, check_trace_file, trace_events, write_trace
from spyre.torch_backend.compat import TRACE_BASE_STEP_S
from spyre.torch_backend.device import card_at, made_cards
from spyre.torch_backend.distributed.group import observing
from spyre.torch_backend.fallback import fallback_seconds, fallbacks

if TYPE_CHECKING:
    from rich.table import Table

    from spyre.hw.sanitizer import SanitizerFinding
    from spyre.runtime.comms import CollectiveRecord
    from spyre.runtime.kernel import Runner
    from spyre.runtime.profile import LinkCounts, Profile


# --- one trace for all ranks ---------------------------------------------------------------------

RANK_PROCESSES = 1000
"""Difference between the process numbers of consecutive ranks."""
RANK_ARROWS = 1 << 40
COLLECTIVE_ARROWS = 1 << 50


def write_trace_of_ranks(
    path: Path,
    recordings: dict[int, CommandStream],
    axis: TimeAxis,
    more: Iterable[TraceEvent],
    group: Any,
    has_failed: bool,
) -> None:
    """Write a trace. With a ``group``, all its ranks call this and the first one writes for all.

    A rank that has failed cannot wait for the others, and writes its part to a separate file with
    its rank in the name. LaunchError SPY886.
    """
    if group is None:
        write_trace(path, recordings, axis, more)
        return
    rank = dist.get_rank(group)
    if has_failed:
        write_trace(path.with_stem(f"{path.stem}-rank{rank}"), recordings, axis, more)
        return
    own = msgspec.json.encode((axis.base_ns, list(chain(trace_events(recordings, axis), more))))
    parts: list[Any] | None = [None] * dist.get_world_size(group) if rank == 0 else None
    dist.gather_object(own, parts, group=group, group_dst=0)
    if parts is not None:
        write_trace(path, {}, axis, _joined([msgspec.json.decode(part) for part in parts]))


def _joined(parts: Sequence[tuple[int, list[TraceEvent]]]) -> Iterator[TraceEvent]:
    base_ns = parts[0][0]
    collectives: dict[tuple[str, int], list[TraceEvent]] = {}
    for rank, (own_ns, events) in enumerate(parts):
        for event in events:
            moved = _of_rank(event, rank, (own_ns - base_ns) / 1000)
            yield moved
            key = _collective(moved)
            if key is not None:
                collectives.setdefault(key, []).append(moved)
    for number, same in enumerate(collectives.values()):
        yield from _arrows(COLLECTIVE_ARROWS + number, same)


def _of_rank(event: TraceEvent, rank: int, shift_us: float) -> TraceEvent:
    moved = {**event, "pid": event["pid"] + rank * RANK_PROCESSES}
    if "id" in moved:
        moved["id"] += rank * RANK_ARROWS
    if event["ph"] != "M":
        moved["ts"] += shift_us
    elif event["name"] == "process_name":
        moved["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
    elif event["name"] == "process_sort_index":
        moved["args"] = {"sort_index": event["args"]["sort_index"] + rank * RANK_PROCESSES}
    return moved


def _collective(event: TraceEvent) -> tuple[str, int] | None:
    """Return group and number of a collective's span; None for other events."""
    if event.get("cat") != "collective":
        return None
    operation = event["args"]["operation"]
    return (event["args"]["group"], operation) if operation else None


def _arrows(number: int, same: Sequence[TraceEvent]) -> Iterator[TraceEvent]:
    """Yield arrows from the first span to those of the other ranks, in order of their begin."""
    by_rank = {event["args"]["rank"]: event for event in same}
    ordered = sorted(by_rank.values(), key=lambda event: float(event["ts"]))
    for index, event in enumerate(ordered):
        kind = "s" if index == 0 else "t" if index < len(ordered) - 1 else "f"
        head = {"ph": kind, "name": "collective", "cat": "ranks", "id": number}
        if len(ordered) > 1:
            yield {**head, **{key: event[key] for key in ("pid", "tid", "ts")}, "bp": "e"}


# --- observers of all cards ----------------------------------------------------------------------

T = TypeVar("T")
_observed = threading.Lock()


class CardObserver(Generic[T]):
    """A ``with`` block that observes all cards used in it.

    ``observations``: by card index, the value that ``enter`` provides; sorted at the end of the
    block. Work submitted before the block runs first; work submitted in it, on any thread and
    stream, has ended at its end. LaunchError SPY950 within another observer of the process.
    """

    def __init__(self, enter: Callable[[FlexDevice], AbstractContextManager[T]]) -> None:
        self.observations: dict[int, T] = {}
        self._enter = enter
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not _observed.acquire(blocking=False):
            raise LaunchError(
                "SPY950",
                "the cards are being recorded already",
                expected="one torch.spyre.trace, .profile or .counting at a time in a process",
                hint="leave the other block first",
            )
        try:
            self.observations.clear()
            card_at(-1)
            devices().watch(self._observe)
        except BaseException:
            CardObserver.__exit__(self, None, None, None)
            raise
        return self

    def _observe(self, card: FlexDevice) -> None:
        self.observations[card.index] = self._stack.enter_context(self._enter(card))

    def __exit__(self, *error: Any) -> None:
        try:
            devices().watch(None)
            self._stack.__exit__(*error)
        finally:
            self.observations = dict(sorted(self.observations.items()))
            _observed.release()


@contextmanager
def recorded(runner: Runner | None, card: FlexDevice) -> Iterator[CommandStream]:
    """Record the command stream of a card; ``runner``: runs launches meanwhile, if given."""
    before = card.runner
    try:
        with card.recording() as commands:
            card.runner = before if runner is None else runner
            yield commands
    finally:
        card.runner = before


FIRST_PROCESS = 1 << 22
"""Process number of card 0 in the trace, above all process numbers of Linux."""
_SAMPLES = 16


def time_axis() -> TimeAxis:
    """Return the time axis whose origin is that of ``export_chrome_trace``."""
    base_ns = int(time.time()) // TRACE_BASE_STEP_S * TRACE_BASE_STEP_S * 1_000_000_000
    return TimeAxis(base_ns - _epoch_offset_ns(), base_ns, FIRST_PROCESS)


def _epoch_offset_ns() -> int:
    """Return the nanoseconds since 1970 at host clock 0, from the closest pair of readings."""
    readings = []
    for _ in range(_SAMPLES):
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, now - (before + after) // 2))
    return min(readings)[1]


class trace(CardObserver[CommandStream]):
    """``with torch.spyre.trace("out.json"):`` writes a Perfetto trace of all cards in the block.

    The trace has a process per card with tracks for streams and engines. Its times and process
    numbers match ``torch.profiler``'s ``export_chrome_trace``: both files can be shown together,
    and their ``traceEvents`` joined. Work submitted before the block runs first, work submitted in
    it has ended at its end. The file is written completely or not at all, also if the block raises.
    ``group``: all its ranks enter the block, and the first one writes one file for all, see
    `write_trace_of_ranks`. LaunchError SPY886 for a file that cannot be written, SPY950 within
    another trace, profile or counting of the process.
    """

    def __init__(self, path: Path | str, group: Any = None) -> None:
        super().__init__(partial(recorded, None))
        self._path = check_trace_file(path)
        self._group = group

    def __exit__(self, *error: Any) -> None:
        has_failed = error[0] is not None
        try:
            super().__exit__(*error)
        except BaseException:
            has_failed = True
            raise
        finally:
            write_trace_of_ranks(
                self._path, self.observations, time_axis(), (), self._group, has_failed
            )


def sanitizer_findings() -> tuple[SanitizerFinding, ...]:
    """Return the sanitizer's findings on all cards since the last call, errors first.

    Waits for all submitted work. LaunchError SPY995 unless SPYRE_SANITIZE was set when the cards
    were created.
    """
    sanitizers = []
    for card in made_cards():
        card.synchronize()
        if card.device.sanitizer is None:
            raise LaunchError(
                "SPY995",
                "the cards have no sanitizer",
                expected="SPYRE_SANITIZE=1 in the environment, before the first tensor",
                found=f"spyre:{card.index} was created without",
            )
        sanitizers.append(card.device.sanitizer)
    return tuple(finding for sanitizer in sanitizers for finding in sanitizer.take())


class counting(CardObserver[LaunchCounts]):
    """``with torch.spyre.counting() as c:`` then ``c.counters``, ``c.launches``.

    Counts the work of all cards in the block, on any thread and stream (see `CardObserver`).
    Launches run in the same way as without it. ``cards``: by index. LaunchError SPY950 within a
    trace or profile of the process.
    """

    def __init__(self) -> None:
        super().__init__(FlexDevice.counting)
        self._records: dict[tuple[str, int], list[CollectiveRecord]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._records.clear()
        self._stack.enter_context(observing(self._note))
        return self

    def _note(self, group: str, record: CollectiveRecord) -> None:
        self._records.setdefault((group, record.rank), []).append(record)

    @property
    def links(self) -> dict[tuple[str, int], LinkCounts]:
        """Collectives that ended in the block, and bytes per link, by (group name, rank) of the
        ranks of this process.
        """
        from spyre.runtime.profile import link_counts

        return {key: link_counts(records) for key, records in self._records.items()}

    @property
    def cards(self) -> dict[int, LaunchCounts]:
        """Counts of each card, by index."""
        return self.observations

    @property
    def launches(self) -> int:
        """Number of completed launches on all cards."""
        return sum(each.launches for each in self.cards.values())

    @property
    def counters(self) -> Counters:
        """Total work of these launches, computed at each read."""
        return reduce(add, (each.counters for each in self.cards.values()), Counters())


# --- profiles ------------------------------------------------------------------------------------


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
