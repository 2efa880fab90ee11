"""One trace for all ranks of a group: each sends its events to the first one, which writes them.

All ranks use the clock of one machine. Process names in the trace begin with the rank, and arrows
lead from the first rank that entered a collective to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from spyre.runtime.flex import CommandStream
from spyre.runtime.trace import TimeAxis, TraceEvent, trace_events, write_trace

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
