"""Events of a Chrome trace: names, spans and counters of a process, times as Perfetto has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import nextafter
from typing import Any, NamedTuple

import numpy as np

from spyre.hw.memory import PROGRAM_REGION
from spyre.layout import Int64Array

TraceEvent = dict[str, Any]
HBM_TRACK = "HBM bytes allocated"
_FIRST_CORE = 3000
"""Number of core 0's track: below those of streams and engines."""


class Track(NamedTuple):
    """A row of the trace, sorted by ``number``. Spans on one track must not overlap."""

    number: int
    name: str


@cache
def core_track(core: int) -> Track:
    """The track of a core."""
    return Track(_FIRST_CORE + core, f"core {core}")


@dataclass(frozen=True, slots=True)
class TraceProcess:
    """Makes the events of a process. Times are nanoseconds from the begin of the trace."""

    number: int

    def names(self, title: str, sort_index: int, tracks: Iterable[Track]) -> Iterator[TraceEvent]:
        """Yield the names of the process and its tracks. ``sort_index``: of the process."""
        yield self._metadata("process_name", 0, name=title)
        yield self._metadata("process_sort_index", 0, sort_index=sort_index)
        for track in tracks:
            yield self._metadata("thread_name", track.number, name=track.name)
            yield self._metadata("thread_sort_index", track.number, sort_index=track.number)

    def _metadata(self, kind: str, track: int, **content: object) -> TraceEvent:
        head = {"ph": "M", "name": kind, "pid": self.number, "tid": track, "ts": 0}
        return {**head, "args": content}

    def span(
        self,
        name: str,
        category: str,
        track: Track,
        span_ns: tuple[int, int],
        details: Mapping[str, object],
    ) -> TraceEvent:
        """Return an event from begin to end."""
        begin_ns, end_ns = span_ns
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self.number,
            "tid": track.number,
            "ts": microseconds(begin_ns),
            "dur": (end_ns - begin_ns) / 1000,
            "args": details,
        }

    def counters(
        self, name: str, times_ns: Int64Array, values: Mapping[str, Int64Array]
    ) -> Iterator[TraceEvent]:
        """Yield an event per moment with all ``values``, which Perfetto shows as separate tracks.

        ``values``: [moments], like the times. Moments without a change are left out.
        """
        # Perfetto holds a counter until its next event: repeating a value only makes files larger.
        rows = np.stack(list(values.values()), axis=1)
        changed = np.append(True, (np.diff(rows, axis=0) != 0).any(axis=1))
        for moment, row in zip(times_ns[changed].tolist(), rows[changed].tolist(), strict=True):
            ts = microseconds(moment)
            head = {"ph": "C", "name": name, "pid": self.number, "tid": 0, "ts": ts}
            yield {**head, "args": dict(zip(values, row, strict=True))}


def microseconds(time_ns: int) -> float:
    """Return the microseconds that Perfetto reads as ``time_ns``, for 0 to 2**53 (100 days).

    Perfetto multiplies by 1000 and rounds. From 2**42 µs on, floats are almost a nanosecond from
    each other, so the product of the nearest float may be rounded up; then the float below is
    returned.
    """
    nearest = time_ns / 1000
    return nearest if nearest * 1000 - time_ns < 0.5 else nextafter(nearest, 0.0)


def hbm_counters(allocated_bytes: Int64Array) -> dict[str, Int64Array]:
    """Return the columns of the used regions by name. ``allocated_bytes``: [moments, REGIONS].

    Without any used region, the first one is returned.
    """
    used = np.flatnonzero(allocated_bytes.any(axis=0)).tolist() or [0]
    return {region_name(region): allocated_bytes[:, region] for region in used}


def region_name(region: int) -> str:
    """Return the name of a region of device memory in reports and traces."""
    return "programs" if region == PROGRAM_REGION else f"region {region}"
