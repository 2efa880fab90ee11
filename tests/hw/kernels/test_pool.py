"""Claiming chunks of the thread pool: each exactly once, never with a ticket of an older job."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
import pytest
from numba import carray

from spyre.hw import plan_table as tb
from spyre.hw.kernels.driver import AWAKE_NS, PARALLEL_NS, least_parallel
from spyre.hw.kernels.intrinsics import pointer_i64
from spyre.hw.kernels.jit import ENTRY_SIGNATURE
from spyre.hw.kernels.pool import run_chunks, run_job

UNIT_COUNT = 40


@numba.cfunc(ENTRY_SIGNATURE, nopython=True)
def count_units(table, bases, memory, scratch, first, last):
    """Adds one to every unit of the int64 array at ``table``."""
    counts = carray(pointer_i64(table), 40)
    for unit in range(first, last):
        counts[unit] += 1
    return 0


@pytest.fixture
def block() -> npt.NDArray[np.int64]:
    words = np.zeros(tb.POOL_WORDS, np.int64)
    words[tb.POOL_NEXT] = tb.CLOSED
    return words


@pytest.mark.parametrize("chunks", [1, 3, 40])
def test_every_unit_runs_once_in_each_job(block: npt.NDArray[np.int64], chunks: int):
    counts = np.zeros(UNIT_COUNT, np.int64)
    entry, at = count_units.address, counts.ctypes.data
    for job in range(1, 4):
        status = run_job(block.ctypes.data, 0, entry, at, 0, 0, UNIT_COUNT, chunks)
        assert status == 0
        assert (counts == job).all()
    assert block[tb.POOL_NEXT] == tb.CLOSED


@pytest.mark.parametrize(
    ("ticket", "claimed"),
    [((1 << tb.JOB_BITS) + 4, 0), ((2 << tb.JOB_BITS) + 4, 12), (tb.CLOSED + 3, 0)],
    ids=["of the job before", "of this job", "between jobs"],
)
def test_only_tickets_of_the_running_job_count(
    block: npt.NDArray[np.int64], ticket: int, claimed: int
):
    counts = np.zeros(UNIT_COUNT, np.int64)
    block[tb.POOL_ARGUMENTS], block[tb.POOL_ARGUMENTS + 1] = count_units.address, counts.ctypes.data
    block[tb.POOL_UNITS], block[tb.POOL_NEXT] = 16, ticket
    block[tb.POOL_CHUNKS] = (2 << tb.JOB_BITS) + 16
    run_chunks(block.ctypes.data, 0)
    assert block[tb.POOL_DONE] == claimed
    assert counts.sum() == claimed


def test_programs_of_much_work_divide_small_dispatches_too():
    tables = np.zeros((2, tb.WORDS), np.int64)
    tables[:, tb.COST_NS] = 1000, 30_000
    dispatch = np.zeros((40, tb.DISPATCH_WORDS), np.int64)
    assert least_parallel(dispatch, tables, 2, 0, 40) == PARALLEL_NS
    dispatch[:20, 0] = 1
    assert least_parallel(dispatch, tables, 2, 0, 40) == 2 * AWAKE_NS
    assert least_parallel(dispatch, tables, 2, 10, 40) == PARALLEL_NS
    assert least_parallel(dispatch, tables, 64, 0, 40) == PARALLEL_NS
