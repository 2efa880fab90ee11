"""The two models: terms, bounds and how they follow the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import (
    MODELS,
    Bound,
    Terms,
    high_tile_factor,
    ideal,
    kernel_ns,
    low_tile_factor,
)
from spyre.hw.counters.counts import CostClass, Counters, OperationCounts, ProductShape

MACHINE = default_machine()
MIB = 1 << 20
NEG = OperationCounts(
    name="neg",
    cost_class=CostClass.POINTWISE,
    cores=32,
    counters=Counters(
        rdmem_bytes=16 * MIB, wrmem_bytes=16 * MIB, element_operations=8 * MIB, executions=1
    ),
    rows=2048,
    columns=4096,
)
MM = OperationCounts(
    name="batchmatmul",
    cost_class=CostClass.MATMUL,
    cores=32,
    counters=Counters(
        rdmem_bytes=16 * MIB, wrmem_bytes=8 * MIB, multiply_adds=2048**3, executions=1
    ),
    rows=2048,
    columns=2048,
    product=ProductShape(m=2048, k=2048, n=2048, m_cores=4, n_cores=8),
)

sizes = st.integers(0, 1 << 36)


def doing(operation: OperationCounts, **work: int) -> OperationCounts:
    """The operation with other counters."""
    return replace(operation, counters=replace(operation.counters, **work))


@st.composite
def counts(draw: st.DrawFn) -> OperationCounts:
    kind = draw(st.sampled_from(CostClass))
    powers = [2 ** draw(st.integers(0, 5)) for _ in range(3)]
    shape = ProductShape(
        m=draw(st.integers(1, 9000)),
        k=draw(st.integers(1, 9000)),
        n=draw(st.integers(1, 9000)),
        batch=draw(st.integers(1, 64)),
        m_cores=powers[0],
        n_cores=powers[1],
        k_cores=powers[2],
    )
    read = draw(sizes)
    return OperationCounts(
        name=kind.value,
        cost_class=kind,
        cores=draw(st.integers(1, 32)),
        counters=Counters(
            executions=draw(st.integers(1, 100)),
            rdmem_bytes=read,
            wrmem_bytes=draw(sizes),
            lx_read_bytes=draw(sizes),
            ring_bytes=(moved := draw(sizes)),
            ring_byte_hops=moved * draw(st.integers(1, 16)),
            multiply_adds=draw(sizes) if kind is CostClass.MATMUL else 0,
            element_operations=draw(sizes),
        ),
        hbm_reread_bytes=draw(st.integers(0, read)),
        transcendental=draw(st.booleans()),
        rows=draw(st.integers(0, 20000)),
        columns=draw(st.integers(0, 20000)),
        scalar_operand=draw(st.booleans()),
        product=shape if kind is CostClass.MATMUL else None,
    )


@pytest.mark.parametrize("model", MODELS)
@given(operations=st.lists(counts(), max_size=4))
def test_times_are_sums_of_their_terms(model, operations):
    found = kernel_ns(operations, MACHINE, model)
    assert found.model == model
    assert found.total_ns == pytest.approx(sum(o.total_ns for o in found.operations))
    for operation in found.operations:
        assert all(v >= 0 for v in operation.terms.values[:-1])
        assert operation.terms.overlap <= 1e-6 * (1 + operation.total_ns)
        largest = max(operation.terms.values)
        assert operation.total_ns >= 0.999 * largest - 1e-6


@given(operations=st.lists(counts(), min_size=1, max_size=3))
def test_serial_is_never_faster(operations):
    assert ideal(operations, MACHINE, "serial").total_ns >= ideal(operations, MACHINE).total_ns


def test_ideal_is_the_interface_at_its_peak():
    found = kernel_ns([NEG], MACHINE, "ideal")
    assert found.total_ns == pytest.approx(32 * MIB / 204.8)
    assert found.bound is Bound.MEMORY


def test_ideal_products_are_bound_by_the_array():
    found = kernel_ns([MM], MACHINE, "ideal")
    assert found.total_ns == pytest.approx(2048**3 / 32 / 1536)
    assert found.bound is Bound.PT
    halved = replace(MM, mac_format="SEN143_FP8")
    assert kernel_ns([halved], MACHINE, "ideal").terms.pt == pytest.approx(found.terms.pt / 2)


def test_the_busiest_core_counts():
    uneven = replace(MM, largest_share=1 / 16)
    found, slow = (kernel_ns([c], MACHINE, "ideal").terms.pt for c in (MM, uneven))
    assert slow == pytest.approx(2 * found)


def test_functions_and_scratchpads_cost_time():
    in_lx = doing(NEG, rdmem_bytes=0, wrmem_bytes=0, lx_read_bytes=16 * MIB)
    assert kernel_ns([in_lx], MACHINE, "ideal").bound in (Bound.LX, Bound.SFU)
    slow = replace(in_lx, transcendental=True)
    assert kernel_ns([slow], MACHINE, "ideal").bound is Bound.SFU
    assert kernel_ns([slow], MACHINE, "calibrated").total_ns == pytest.approx(
        8 * MIB * 4 / 32 / 192
    )


def test_the_ring_is_shared_by_its_links():
    moved = doing(NEG, ring_bytes=MIB, ring_byte_hops=4 * MIB)
    terms = kernel_ns([moved], MACHINE, "ideal").terms
    assert terms.ring == pytest.approx(4 * MIB / (192 * 64) + 4 * 4 / 1.5)


def test_turning_is_a_matter_of_the_kernel():
    """A reader and a writer in one kernel alternate; the same bytes one way do not."""
    reader = doing(NEG, rdmem_bytes=32 * MIB, wrmem_bytes=0)
    writer = doing(NEG, rdmem_bytes=0, wrmem_bytes=32 * MIB)
    assert kernel_ns([reader], MACHINE).terms.turnaround == 0
    both = kernel_ns([reader, writer], MACHINE).terms.turnaround
    assert both == pytest.approx(kernel_ns([NEG, NEG], MACHINE).terms.turnaround)


def test_reading_again_is_cheaper():
    again = replace(doing(MM, executions=2), hbm_reread_bytes=8 * MIB)
    first = replace(again, hbm_reread_bytes=0)
    assert kernel_ns([again], MACHINE).terms.memory < kernel_ns([first], MACHINE).terms.memory


def test_few_cores_cannot_take_all_bandwidth():
    alone = replace(NEG, cores=1)
    ratio = kernel_ns([alone], MACHINE).terms.memory / kernel_ns([NEG], MACHINE).terms.memory
    assert ratio == pytest.approx(1 / 0.11)


@pytest.mark.parametrize(("cores", "share"), [(1, 0.11), (3, 0.325), (24, 0.77), (32, 1), (48, 1)])
def test_shares_lie_between_points(cores: int, share: float):
    few = kernel_ns([replace(NEG, cores=cores)], MACHINE).terms.memory
    assert kernel_ns([NEG], MACHINE).terms.memory / few == pytest.approx(share)


def test_batched_products_are_slow():
    shape = ProductShape(m=512, k=128, n=512, batch=8, m_cores=32)
    batched = replace(MM, product=shape)
    shared = replace(MM, product=replace(shape, shared=True))
    as_rows = replace(MM, product=replace(shape, m=512 * 8, batch=1))
    slow, quick, rows = (kernel_ns([c], MACHINE).terms.pt for c in (batched, shared, as_rows))
    assert slow > 5 * quick
    assert quick == pytest.approx(rows)


def test_partial_sums_cost_the_ring():
    shape = replace(MM.product, k_cores=2) if MM.product else None
    assert kernel_ns([replace(MM, product=shape)], MACHINE).terms.ring == pytest.approx(
        0.14 * 2048 * 2048
    )


@pytest.mark.parametrize(("rows", "slower"), [(32 * 256, True), (32 * 32, False), (32 * 2, True)])
def test_heights_of_row_tiles(rows: int, slower: bool):
    tile = replace(doing(NEG, executions=8), rows=rows, columns=2048)
    factors = [factor(tile, MACHINE.calibration) for factor in (high_tile_factor, low_tile_factor)]
    assert (max(factors) > 1) is slower
    assert min(factors) == 1
    once = doing(tile, executions=1)
    assert high_tile_factor(once, MACHINE.calibration) == 1
    assert low_tile_factor(once, MACHINE.calibration) == 1


def softmax(rows: int, columns: int, runs: int) -> list[OperationCounts]:
    """A copy into LX, four operations there, and one out of it."""
    size_bytes, shape = rows * columns * 2, {"rows": rows // runs, "columns": columns}
    tile = OperationCounts(
        name="",
        cost_class=CostClass.POINTWISE,
        cores=32,
        counters=Counters(executions=runs),
        **shape,
    )
    inside = doing(tile, lx_read_bytes=size_bytes)
    ends = [doing(tile, rdmem_bytes=size_bytes), doing(tile, wrmem_bytes=size_bytes)]
    return [ends[0], *[inside] * 4, ends[1]]


@pytest.mark.parametrize(("rows", "columns"), [(16384, 2048), (2048, 2048), (1024, 512), (64, 64)])
@pytest.mark.parametrize("runs", [2, 8, 32])
def test_short_runs_cost_low_tiles_or_beginning_them(rows: int, columns: int, runs: int):
    """Not both: what is published for low tiles has in it what beginning runs takes."""
    found = kernel_ns(softmax(rows, columns, runs), MACHINE).terms
    begun = 6 * (runs - 1) * MACHINE.calibration.run_ns
    low = (found.memory + found.turnaround) * (
        low_tile_factor(softmax(rows, columns, runs)[0], MACHINE.calibration) - 1
    )
    assert found.tile == pytest.approx(low)
    assert found.tile + found.runs == pytest.approx(max(low, begun))
    once = kernel_ns(softmax(rows, columns, 1), MACHINE)
    assert kernel_ns(softmax(rows, columns, runs), MACHINE).total_ns > once.total_ns


def test_divided_columns_leave_higher_tiles():
    assert replace(NEG, column_cores=4).core_rows == 4 * NEG.core_rows


def test_nothing_costs_nothing():
    for model in MODELS:
        assert kernel_ns([], MACHINE, model).total_ns == 0
    assert Terms().bound is Bound.MEMORY
