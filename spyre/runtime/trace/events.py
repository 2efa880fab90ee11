"""Events of a Chrome trace: times as Perfetto reads them, and counter tracks of quantities that
hold from one moment to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nextafter
from typing import Any

import numpy as np

from spyre.hw.memory.regions import PROGRAM_REGION
from spyre.layout.access_map import Int64Array


def microseconds(time_ns: int) -> float:
    """The number that Perfetto reads as ``time_ns``, from 0 to a quarter of a year (2**53).

    It multiplies by 1000 and rounds. Past 2**42 microseconds numbers are almost a nanosecond apart
    and products half of one below 2**52: the nearest number may have a product that is rounded up.
    """
    found = time_ns / 1000
    return found if found * 1000 - time_ns < 0.5 else nextafter(found, 0.0)


TraceEvent = dict[str, Any]
HBM_TRACK = "HBM bytes allocated"


def counter_events(
    process: int, name: str, times_ns: Int64Array, values: Mapping[str, Int64Array]
) -> Iterator[TraceEvent]:
    """An event per moment (ns in the trace) with all ``values``, each a track of its own.

    ``values``: [moments], like the times. Moments at which nothing changes are left out.
    """
    rows = np.stack(list(values.values()), axis=1)
    changed = np.append(True, (np.diff(rows, axis=0) != 0).any(axis=1))
    for moment, row in zip(times_ns[changed].tolist(), rows[changed].tolist(), strict=True):
        head = {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": microseconds(moment)}
        yield {**head, "args": dict(zip(values, row, strict=True))}


def hbm_counters(allocated_bytes: Int64Array) -> dict[str, Int64Array]:
    """Regions that hold something at some time, by name. ``allocated_bytes``: [moments, REGIONS].

    The first region always, so that there is something to see.
    """
    used = np.flatnonzero(allocated_bytes.any(axis=0)).tolist() or [0]
    return {region_name(region): allocated_bytes[:, region] for region in used}


def region_name(region: int) -> str:
    """How a region of device memory is called in what people read."""
    return "programs" if region == PROGRAM_REGION else f"region {region}"
