"""Profiles of runs: sums against the counters, times against the models, the timeline's shape."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import spyre
from spyre.errors import MachineError
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import copy_out_ns, kernel_ns
from spyre.hw.cost.timeline import TaskKind
from spyre.hw.counters.counts import Counters
from spyre.hw.counters.program import operation_counts
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.kernel.kernel import run_recorded
from spyre.runtime.profile.kernels import LAUNCH, imbalance
from spyre.runtime.profile.profile import activities_of, make_profile
from spyre.runtime.profile.table import (
    MAX_ROWS,
    ProfileRow,
    execute_rows,
    reuse_text,
    rows_of,
    total_row,
)
from spyre.runtime.spyrecode.compile import compile_directory
from tests.runtime.profile.conftest import EXAMPLES


@pytest.fixture(params=["softmax", "add_loop", "matmul"])
def result(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("model", ["calibrated", "ideal"])
def test_sums_are_those_of_run_and_model(result, model):
    found = spyre.profile(result, model=model)
    linked = result.launches[0].linked
    expected = kernel_ns(operation_counts(linked.view), default_machine(), model)
    assert found.counters == result.counters
    assert found.compute_ns == pytest.approx(expected.total_ns)
    assert [e.bound for _, e in found.executes] == [o.bound for o in expected.operations]
    assert sum(row.share for row in execute_rows(found)) == pytest.approx(
        found.compute_ns / (found.compute_ns + found.launch_ns)
    )


def test_executions_follow_one_another(result):
    found = spyre.profile(result)
    kernel = found.kernels[0]
    assert len(kernel.view.executions) == result.counters.executions
    assert kernel.begin_ns[0] == 0
    assert kernel.begin_ns[1:].tolist() == kernel.end_ns[:-1].tolist()
    assert kernel.end_ns[-1] == pytest.approx(kernel.one_ns)


def test_copies_and_launches(matmul):
    """Two operands in, a launch, a result out, one after another in one stream."""
    found = spyre.profile(matmul)
    kinds = [task.kind for task in found.timeline.tasks]
    assert kinds == [
        TaskKind.COPY_IN,
        TaskKind.COPY_IN,
        TaskKind.LAUNCH,
        TaskKind.COMPUTE,
        TaskKind.COPY_OUT,
    ]
    assert found.copied_bytes(TaskKind.COPY_IN) == (1024 * 256 + 256 * 128) * 2
    machine = default_machine()
    assert found.copied_ns(TaskKind.COPY_OUT) == pytest.approx(copy_out_ns(1024 * 128 * 2, machine))
    limit = spyre.profile(matmul, model="ideal")
    assert limit.copied_ns(TaskKind.COPY_OUT) == pytest.approx(
        1024 * 128 * 2 / machine.hardware.pcie_gbps
    )
    assert found.makespan_ns == pytest.approx(
        sum(task.duration_ns for task in found.timeline.tasks)
    )


def test_lx(softmax, matmul):
    """softmax keeps max (2 KiB a core), sub and exp (8 KiB in place), sum (2 KiB)."""
    assert spyre.profile(softmax).lx_peak_bytes == 10 * 1024
    assert spyre.profile(matmul).lx_peak_bytes == 0


def test_cores(softmax):
    found = spyre.profile(softmax)
    busy = found.per_core.busy_ns
    assert busy[:8].tolist() == pytest.approx([found.compute_ns] * 8)
    assert not busy[8:].any()
    counts = found.per_core.counts.sum(axis=0)
    assert counts.tolist() == [*result_bytes(softmax.counters), 0, 0, 5 * 128 * 256]


def test_balance():
    """Cores without work do not count: here one core has twice the work of two others."""
    assert imbalance(np.array([2, 1, 1, 0])) == pytest.approx(1.5)
    assert imbalance(np.zeros(32)) is None


def test_cores_in_json(softmax, matmul):
    content = spyre.profile(softmax).to_json()
    totals = content["totals"]
    per_core = totals["per_core"]
    assert sum(per_core["hbm_read_bytes"]) == totals["hbm_read_bytes"]
    assert sum(per_core["sticks"]) == totals["sticks"]
    assert [len(values) for values in per_core.values()] == [32] * len(per_core)
    assert totals["imbalance"] == pytest.approx(1)
    assert [row["imbalance"] for row in content["executes"]] == [pytest.approx(1)] * 5
    columns = [row["per_core"]["element_operations"] for row in content["executes"]]
    assert np.sum(columns, axis=0).tolist() == per_core["element_operations"]
    assert max(content["kernels"][0]["lx"]["live_bytes"]) == totals["lx_peak_bytes"]


def result_bytes(counters: Counters) -> tuple[int, ...]:
    return counters.values[:4]


def test_a_small_kernel_is_bound_by_launching(softmax, add_loop):
    assert spyre.profile(softmax).kernels[0].bound == LAUNCH
    assert spyre.profile(add_loop).kernels[0].bound != LAUNCH


def test_another_machine(tmp_path, softmax):
    file = tmp_path / "fast.toml"
    file.write_text(
        'name = "fast"\n[hardware.hbm_peak_gbps]\nvalue = 409.6\nunit = "GB/s"\n'
        'kind = "guessed"\nsource = "a test"\n'
    )
    plain, fast = (spyre.profile(softmax, machine, "ideal") for machine in (None, file))
    rows = [execute_rows(found)[0] for found in (plain, fast)]
    assert rows[1].time_ns == pytest.approx(rows[0].time_ns / 2)
    assert rows[1].hbm_roof == 409.6
    assert "machine fast, model ideal" in str(fast)
    with pytest.raises(MachineError, match="SPY760"):
        spyre.profile(softmax, tmp_path / "none.toml")


def test_rows(softmax):
    found = spyre.profile(softmax)
    assert [row.op for row in rows_of(found)] == ["max", "sub", "exp", "sum", "realdiv"]
    assert [row.lx_reuse for row in rows_of(found)] == [0.25, 1.25, None, None, 1.25]
    assert list(map(reuse_text, rows_of(found))) == ["0.25×", "1.2×", "all LX", "all LX", "1.2×"]
    large = SimpleNamespace(lx_bytes=1, lx_reuse=256.25)
    assert reuse_text(large) == "260×"
    total = total_row(found)
    assert isinstance(total, ProfileRow)
    assert total.hbm_gbps * found.compute_ns == pytest.approx(192 * 1024)
    assert MAX_ROWS > 5


def test_the_json_object_is_json(softmax):
    found = spyre.profile(softmax)
    content = json.loads(json.dumps(found.to_json()))
    totals = content["totals"]
    assert {k: totals[k] for k in softmax.counters.by_name} == softmax.counters.by_name
    assert content["executes"][2]["bound_by"] == "sfu"
    assert sum(row["time_ns"] for row in content["executes"]) == pytest.approx(found.compute_ns)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A compiled kernel of three tensors."""
    copy = shutil.copytree(EXAMPLES / "add_loop", tmp_path_factory.mktemp("kernel") / "add_loop")
    compile_directory(copy)
    return copy


def test_a_recording_of_many_launches(compiled):
    """Launches that differ in addresses only are one kernel; copies run beside another stream."""
    card = FlexDevice()
    plan = spyre.prepare_kernel(compiled, card)
    shape = plan.expected_input_shapes[0]
    card.runner = run_recorded
    with card.recording() as commands:
        for _ in range(3):
            tensors = [card.empty(s) for s in plan.expected_input_shapes]
            spyre.launch_kernel(plan, tensors, card.default_stream)
        other = card.streams.take()
        card.to_device(np.ones(shape, np.float16), stream=other)
    found = make_profile(activities_of(commands))
    (kernel,) = found.kernels
    assert (kernel.launches, len(found.launches)) == (3, 3)
    assert found.counters == kernel.executes[0].statement.counters.times(3)
    copy = next(
        span
        for owner, span in zip(found.owners, found.timeline.spans, strict=True)
        if found.activities[owner].stream == other.stream_id
    )
    assert copy.end_ns < found.makespan_ns
    assert copy.begin_ns < found.timeline.spans[found.launches[0][1]].end_ns
    serial = make_profile(activities_of(commands), overlap="serial")
    assert serial.makespan_ns > found.makespan_ns


def test_what_ran_no_program_takes_no_time_on_the_cores(compiled):
    """Copies recorded without a runner: launches are known, their programs are not."""
    card = FlexDevice()
    plan = spyre.prepare_kernel(compiled, card)
    with card.recording() as commands:
        tensors = [card.empty(s) for s in plan.expected_input_shapes]
        spyre.launch_kernel(plan, tensors, card.default_stream)
        card.synchronize()
    found = make_profile(activities_of(commands))
    assert (found.kernels, found.compute_ns) == ((), 0.0)
    assert "machine spyre, model calibrated" in str(found)
