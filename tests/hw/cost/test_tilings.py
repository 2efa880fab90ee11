"""Faster loops over tiles of rows, estimated from the counts of operations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spyre.hw.cost import Tiling, best_tiling, default_machine, kernel_ns
from spyre.hw.cost.divisions import product_counts
from spyre.hw.cost.tilings import tiling_text
from spyre.hw.counters import CostClass, Counters, OperationCounts, ProductShape

MACHINE = default_machine()
ROWS, COLUMNS = 16384, 2048
SIZE = ROWS * COLUMNS * 2


def operation(name: str, reads: list[int], writes: list[int], **changes: object) -> OperationCounts:
    """A pointwise operation over whole tensors, by their addresses."""
    work = Counters(
        rdmem_bytes=SIZE * len(reads),
        wrmem_bytes=SIZE * len(writes),
        element_operations=ROWS * COLUMNS,
        executions=1,
    )
    counts = OperationCounts(
        name=name, cost_class=CostClass.POINTWISE, cores=32, counters=work, rows=ROWS,
        columns=COLUMNS, reads=dict.fromkeys(reads, SIZE), writes=dict.fromkeys(writes, SIZE),
    )  # fmt: skip
    return replace(counts, **changes)


CHAIN = [operation("exp", [0], [1]), operation("mul", [1, 0], [2]), operation("neg", [2], [3])]


def found(operations: list[OperationCounts], results: tuple[int, ...] = (3,)) -> Tiling:
    best = best_tiling(operations, MACHINE, 0, results)
    assert best is not None
    return best


def test_intermediate_tensors_stay_in_lx():
    """Two of 64 MiB, of which a core has 2 MiB each: the first tiles of which both fit."""
    best = found(CHAIN)
    assert (best.first, best.last, best.tiles) == (0, 2, 4)
    assert best.rows == ROWS // 4
    before = kernel_ns(CHAIN, MACHINE).total_ns
    assert best.time_ns < 0.6 * before
    text = tiling_text(CHAIN, MACHINE, 0, (3,))
    assert "operations 0 to 2 in tiles of 4,096 rows, 4 of them, would make it" in text
    assert f"modelled {before / 1e3:,.4g} us (±" in text


def test_results_and_tensors_of_others_stay_in_hbm():
    kept = found(CHAIN).time_ns
    assert found(CHAIN, (1, 2, 3)).time_ns > 1.5 * kept
    transposed = operation("restickify", [1], [4], cost_class=CostClass.TRANSPOSE)
    more = found([*CHAIN, transposed]).time_ns
    assert more - kernel_ns([transposed], MACHINE).total_ns > 1.2 * kept


def test_differently_divided_neighbours_keep_nothing():
    other = [CHAIN[0], replace(CHAIN[1], column_cores=4), CHAIN[2]]
    assert found(other).time_ns > 1.5 * found(CHAIN).time_ns


def test_operations_that_mix_rows_end_a_loop():
    middle = replace(CHAIN[1], cost_class=CostClass.COLUMN_REDUCTION)
    best = best_tiling([CHAIN[0], middle, CHAIN[2]], MACHINE, 0, (3,))
    assert best is None or best.first == best.last


def test_a_product_reads_its_second_operand_again():
    shape = ProductShape(m=ROWS, k=2048, n=2048, m_cores=4, n_cores=8)
    product = product_counts(shape, "SEN169_FP16")
    weights = 2048 * 2048 * 2
    product = replace(product, reads={0: ROWS * 4096, 9: weights}, writes={1: SIZE})
    alone = replace(product, counters=product.counters.times(1))
    best = best_tiling([alone], MACHINE)
    before = kernel_ns([alone], MACHINE).total_ns
    assert best is None or best.time_ns > 0.95 * before
    assert "no loop over tiles of rows is faster by 5%" in tiling_text([alone], MACHINE, 0, ())


def test_loops_of_a_bundle_may_have_other_tiles():
    """Rows in LX of a core: 1 MiB in 64 tiles; twice as many rows do not fit."""
    inside = operation("exp", [], [], counters=Counters(
        lx_read_bytes=SIZE, lx_written_bytes=SIZE, executions=64), rows=ROWS // 64)  # fmt: skip
    looped = [inside, replace(inside, name="neg")]
    fewer = best_tiling(looped, MACHINE, 1 << 20)
    assert fewer is None or fewer.tiles > 32
    free = best_tiling(looped, MACHINE, 1 << 14)
    assert free is not None
    assert free.tiles < 64


@pytest.mark.parametrize("operations", [[], [replace(CHAIN[0], rows=0)]])
def test_nothing_to_tile(operations: list[OperationCounts]):
    assert best_tiling(operations, MACHINE) is None
