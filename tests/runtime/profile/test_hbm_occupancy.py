"""HBM over modelled time: steps of the run in their order, its peak, and where they are shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

import spyre
from spyre.hw.cost.timeline import Overlap, Task, TaskKind, simulate
from spyre.hw.memory.regions import AllocationHistory
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.profile.charts import MAX_STEPS, hbm_chart
from spyre.runtime.profile.profile import (
    Activity,
    HbmOccupancy,
    hbm_occupancy,
    profile_of_recording,
)
from spyre.runtime.profile.trace import LX, modelled_events
from spyre.runtime.trace import HBM_TRACK


class Noted(AllocationHistory):
    """A history at times of the test's."""

    def __init__(self, *changes: tuple[int, int, int]) -> None:
        super().__init__((512, *[0] * 7))
        self._changes = list(changes)


def two_copies() -> tuple[list[Activity], list[Task]]:
    """On the host they end at 100 and 200, on the card at 10 and 30."""
    activities = [
        Activity(f"copy {k}", TaskKind.COPY_IN, "x", ended_ns=100 * (k + 1)) for k in range(2)
    ]
    return activities, [Task(TaskKind.COPY_IN, 10.0, 0, ()), Task(TaskKind.COPY_IN, 20.0, 0, (0,))]


def test_steps_are_where_what_had_ended_ends():
    activities, tasks = two_copies()
    history = Noted((50, 0, 128), (100, 1, 256), (150, 0, -128), (250, 0, -512))
    found = hbm_occupancy(history, activities, (0, 1), simulate(tasks, Overlap.SERIAL))
    assert found.time_ns.tolist() == [0, 0, 10, 10, 30]
    assert found.total_bytes.tolist() == [512, 640, 896, 768, 256]
    assert (found.peak_bytes, found.peak_ns) == (896, 10)
    assert found.region_peak_bytes[:3] == (640, 256, 0)
    thin = found.thinned()
    assert thin.time_ns.tolist() == [0, 10, 10, 30]
    assert thin.total_bytes.tolist() == [640, 896, 768, 256]


def test_a_run_holds_its_arguments_all_the_time(softmax):
    found = spyre.profile(softmax).hbm
    assert found is not None
    assert found.time_ns.tolist() == [0]
    tensors = found.allocated_bytes[0, :7]
    assert tensors.sum() == sum(a.spec.layout.device_bytes for a in softmax.arguments)
    assert tuple(found.allocated_bytes[0]) == softmax.hbm_bytes


@pytest.fixture(scope="module")
def recording():
    """Two tensors, the first freed before the second is there."""
    card = FlexDevice()
    with card.recording() as commands:
        for rows in (64, 128):
            card.to_host(card.to_device(np.ones((rows, 64), np.float16)))
    assert card.device.regions.history is None
    return commands


def test_a_recording(recording):
    found = profile_of_recording(recording).hbm
    assert found is not None
    sizes = (64 * 128, 128 * 128)
    assert found.total_bytes.tolist() == [0, sizes[0], 0, sizes[1], 0]
    assert found.peak_bytes == sizes[1]
    assert found.time_ns[3] > 0


def test_counters_of_a_trace(recording, softmax):
    profile = profile_of_recording(recording)
    events = [e for e in modelled_events(profile, begin_ns=7000) if e["ph"] == "C"]
    assert {e["name"] for e in events} == {HBM_TRACK}
    assert max(sum(e["args"].values()) for e in events) == profile.hbm.peak_bytes
    assert events[0]["ts"] == 7.0
    found = spyre.profile(softmax)
    live = [e["args"]["live"] for e in modelled_events(found) if e["name"] == LX]
    assert (max(live), live[-1]) == (found.lx_peak_bytes, 0)


def test_json(recording):
    content = json.loads(json.dumps(profile_of_recording(recording).to_json()))
    assert content["totals"]["hbm_peak_bytes"] == content["hbm"]["peak_bytes"] == 128 * 128
    times, by_region = content["hbm"]["time_ns"], content["hbm"]["allocated_bytes"]
    assert all(len(values) == len(times) for values in by_region.values())


def test_of_many_moments_the_fullest_are_drawn():
    count = 5 * MAX_STEPS
    rows = np.zeros((count, 8), np.int64)
    rows[:, 1] = 128
    rows[4321, 1] = 1 << 20
    found = HbmOccupancy(np.arange(count, dtype=np.float64), rows)
    drawn = hbm_chart(found, float(count))
    assert drawn.count("<polygon") == 1
    (points,) = (part.split('"')[1] for part in drawn.split("<polygon")[1:])
    corners = [tuple(map(float, corner.split(","))) for corner in points.split()]
    assert len(corners) <= 4 * MAX_STEPS
    assert min(y for _, y in corners) == 16.0
