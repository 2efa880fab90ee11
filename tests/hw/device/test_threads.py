"""The thread pool: equal results for any thread count, several callers, forks."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from benchmarks.workloads import link_operations
from spyre.hw.device.device import Device
from spyre.hw.device.threads import ThreadPool, shared_pool
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.recipes import HostOperand, pointwise

SHAPE = (512, 2048)
BYTES = 2 * SHAPE[0] * SHAPE[1]


def _device(threads: int) -> tuple[Device, LinkedProgram]:
    device = Device(threads=threads)
    codes = np.random.default_rng(0).integers(0x3000, 0x4800, BYTES // 2).astype(np.uint16)
    device.memory.write(0, codes.view(np.uint8))
    spec = pointwise("exp", SHAPE, [HostOperand(0)], HostOperand(REGION_BYTES), {"mb": 32})
    return device, link_operations(device, [spec])


def _result(device: Device, linked: LinkedProgram) -> bytes:
    device.memory.clear(REGION_BYTES, BYTES)
    device.executor.run(linked)
    return device.memory.read(REGION_BYTES, BYTES).tobytes()


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    expected = _result(*_device(1))
    for threads in (2, 3, 5, 8):
        assert _result(*_device(threads)) == expected


def test_devices_share_the_workers_and_run_side_by_side() -> None:
    expected = _result(*_device(1))
    devices = [_device(2) for _ in range(4)]
    assert len({id(device.pool) for device, _ in devices}) == 1
    found: list[bool] = []

    def run(device: Device, linked: LinkedProgram) -> None:
        found.extend(_result(device, linked) == expected for _ in range(10))

    callers = [threading.Thread(target=run, args=pair) for pair in devices]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == [True] * 40


def test_many_jobs_back_to_back() -> None:
    device, linked = _device(4)
    expected = _result(device, linked)
    assert all(_result(device, linked) == expected for _ in range(200))


def test_workers_avoid_the_callers_cpu() -> None:
    pool = shared_pool(2)
    pool.prepare()
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    (worker,) = pool._workers
    assert os.sched_getaffinity(worker) < os.sched_getaffinity(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_its_own_workers() -> None:
    device, linked = _device(2)
    expected = _result(device, linked)
    child = os.fork()
    if child == 0:
        os._exit(0 if _result(device, linked) == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_one_thread_needs_no_workers() -> None:
    pool = ThreadPool(1)
    pool.prepare()
    assert pool.block != 0
    assert pool._workers == ()
