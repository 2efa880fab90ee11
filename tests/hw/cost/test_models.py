"""The two models: terms, bounds and how they follow the machine."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import (
    MODELS,
    Bound,
    Terms,
    copy_out_ns,
    core_share,
    high_tile_factor,
    ideal,
    kernel_ns,
    low_tile_factor,
    multicast_reads,
    valley_factor,
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

BY_SIZE = (CostClass.CONCATENATION, CostClass.COPY_OUT, CostClass.MEMSET)
"""Classes whose time does not depend on the cores."""
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
    assert found.name == model
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
    again = replace(doing(NEG, executions=2), hbm_reread_bytes=8 * MIB)
    first = replace(again, hbm_reread_bytes=0)
    assert kernel_ns([again], MACHINE).terms.memory < kernel_ns([first], MACHINE).terms.memory


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 24])
@pytest.mark.parametrize("kind", [k for k in CostClass if k not in BY_SIZE])
def test_few_cores_cannot_take_all_bandwidth(kind: CostClass, cores: int):
    """But one core gets more than its share of it, except where arithmetic limits it."""
    whole = replace(NEG, cost_class=kind, product=None)
    few = kernel_ns([replace(whole, cores=cores)], MACHINE).total_ns
    ratio = few / kernel_ns([whole], MACHINE).total_ns
    if kind is CostClass.MATMUL:
        assert ratio == pytest.approx(1)
    else:
        assert 0.97 < ratio < 32 / cores


@pytest.mark.parametrize(
    ("x", "y"), [(0, 0.5), (1, 0.5), (3, 0.75), (5, 1), (14, 2 / 3), (32, 0), (48, 0)]
)
def test_shares_lie_between_points(x: int, y: float):
    points = ((1, 0.5), (5, 1), (32, 0))
    machine = MACHINE.with_values({"core_share.pointwise": points})
    assert core_share(replace(NEG, cores=x), machine) == pytest.approx(y)
    assert core_share(replace(MM, cores=x), machine) == 1


def test_copies_have_a_latency_and_two_rates():
    """The link's, and for sizes beyond the host's caches the one of its memory."""
    cal, link = MACHINE.calibration, MACHINE.hardware.pcie_gbps
    times = [copy_out_ns(size, MACHINE) for size in (1, MIB, 1 << 30, 1 << 31)]
    assert times[0] == pytest.approx(1e3 * cal.copy_latency_us, rel=1e-3)
    assert MIB / link < times[1] - times[0] < 1.5 * MIB / link
    slow = (times[3] - times[2]) / (1 << 30)
    assert slow == pytest.approx(1 / link + 1 / cal.copy_missed_gbps)
    assert copy_out_ns(4 * MIB, MACHINE) == pytest.approx(390e3, rel=0.05)


def test_a_memset_has_a_latency_and_a_rate():
    small, large = (
        replace(doing(NEG, rdmem_bytes=0, wrmem_bytes=size), cost_class=CostClass.MEMSET)
        for size in (4 * MIB, 512 * MIB)
    )
    assert kernel_ns([small], MACHINE).total_ns == pytest.approx(80e3, rel=0.1)
    assert kernel_ns([large], MACHINE).total_ns == pytest.approx(6e6, rel=0.1)
    assert kernel_ns([large], MACHINE).spread == MACHINE.spread["memset"]


def product(counts: OperationCounts = MM, lx_fraction: float = 0.2, **shape: object) -> Terms:
    """Terms of a product of another shape."""
    assert counts.product is not None
    changed = replace(counts, product=replace(counts.product, **shape))  # type: ignore[arg-type]
    machine = MACHINE.with_values({"hardware.lx_fraction": lx_fraction})
    return kernel_ns([changed], machine).terms


def test_one_read_serves_a_few_cores():
    """32 cores that share an operand read it three times; one alone reads it a little slower."""
    cal = MACHINE.calibration
    assert multicast_reads(2, cal) == pytest.approx(1, abs=1e-3)
    assert multicast_reads(1, cal) == 1 + cal.unshared_ratio
    assert 1 < multicast_reads(8, cal) < 1.2
    assert multicast_reads(32, cal) == pytest.approx(32 / cal.multicast_cores, rel=0.01)
    wide, tall = (product(m_cores=m, n_cores=32 // m, lx_fraction=0.8).spill for m in (1, 32))
    assert wide == pytest.approx(tall)  # both operands of MM have 8 MiB
    times = multicast_reads(1, cal) + multicast_reads(32, cal) - 2
    assert wide == pytest.approx(times * 8 * MIB / cal.product_gbps)


def test_rows_read_the_weights_again_where_lx_is_small():
    """512 rows and 256 columns a core: four times; 128 rows or 64 columns: once."""
    cal = MACHINE.calibration
    shared = multicast_reads(4, cal)
    small, large = (product(m_cores=4, n_cores=8, lx_fraction=lx).spill for lx in (0.2, 0.8))
    assert small - large == pytest.approx(3 * shared * 8 * MIB / cal.product_gbps)
    for m_cores, n_cores in ((16, 2), (1, 32)):
        changed = {"m_cores": m_cores, "n_cores": n_cores, "n": 2048 if m_cores > 1 else 64 * 32}
        small, large = (product(lx_fraction=lx, **changed).spill for lx in (0.2, 0.8))
        assert small == pytest.approx(large)


def test_partial_sums_count_once_per_element():
    """Not per core: a part beside the array, the other grows with the doublings of the cores."""
    cal, elements = MACHINE.calibration, 2048 * 2048
    two, sixteen = (product(k_cores=k, lx_fraction=0.8).ring for k in (2, 16))
    assert two == sixteen == pytest.approx(cal.partial_sum_ns * elements)
    more = product(k_cores=16).ring - product(k_cores=2).ring
    assert more == pytest.approx(3 * cal.partial_sum_doubling_ns * elements)


def test_alternating_batches_are_read_in_short_pieces():
    shape = {"m": 512, "k": 128, "n": 512, "batch": 8, "m_cores": 1, "n_cores": 1}
    together, apart, plain = (
        product(**shape, batch_cores=cores, interleaved=(True, True, both))
        if cores
        else product(**shape, batch_cores=8)
        for cores, both in ((1, True), (8, True), (0, False))
    )
    assert plain.spill < together.spill < apart.spill
    beside = product(**shape, batch_cores=8, interleaved=(False, False, True), lx_fraction=0.8)
    assert beside.spill > 0
    in_lx = product(
        **shape, batch_cores=8, interleaved=(True, True, True), in_hbm=(False, False, False)
    )
    assert in_lx.spill == 0


def test_formats_of_8_bits_are_twice_as_fast():
    narrow = replace(MM, mac_format="SEN143_FP8")
    assert product(narrow).pt == pytest.approx(product().pt / 2)


def test_an_operand_that_was_just_written():
    """Only beside another one: a function of the last result costs nothing more."""
    first = replace(NEG, reads={1: MIB, 2: MIB}, writes={3: MIB})
    second = replace(NEG, reads={3: MIB, 4: MIB}, writes={5: MIB})
    plain = kernel_ns([first, replace(second, reads={4: MIB, 6: MIB})], MACHINE)
    after = kernel_ns([first, second], MACHINE)
    assert plain.terms.dependent == 0
    assert after.total_ns - plain.total_ns == pytest.approx(after.terms.dependent)
    assert after.terms.dependent == pytest.approx(
        MACHINE.calibration.dependent_ratio * after.operations[0].total_ns
    )
    assert kernel_ns([first, replace(second, reads={3: MIB})], MACHINE).terms.dependent == 0


@pytest.mark.parametrize(
    ("rows", "columns", "factor"),
    [(256, 16384, 1), (512, 16384, 0.5), (1024, 16384, 0), (128, 16384, 0), (192, 12288, 0)],
)
def test_valleys(rows: int, columns: int, factor: float):
    tensor = replace(NEG, cost_class=CostClass.BROADCAST, rows=rows, columns=columns)
    found = valley_factor(tensor, MACHINE.calibration)
    assert found == pytest.approx(1 + factor * MACHINE.calibration.valley_ratio)
    assert valley_factor(replace(tensor, cost_class=CostClass.POINTWISE), MACHINE.calibration) == 1


CLASSES = {
    "pointwise": NEG,
    "few_cores": replace(NEG, cores=4),
    "tiled": doing(NEG, executions=4),
    "product": MM,
    "reduction": replace(NEG, cost_class=CostClass.COLUMN_REDUCTION),
    "product_8_bit": replace(MM, mac_format="SEN143_FP8"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_times_carry_the_error_of_their_class(name: str):
    found = kernel_ns([CLASSES[name]], MACHINE)
    assert found.spread == pytest.approx(MACHINE.spread[name])
    assert kernel_ns([CLASSES[name]], MACHINE, "ideal").spread is None


def test_errors_of_a_class_do_not_cancel():
    both = kernel_ns([NEG, MM], MACHINE)
    parts = [each.total_ns * (each.spread or 0) for each in both.operations]
    assert both.spread == pytest.approx(sum(parts) / both.total_ns)


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
    """Not both: the published times of low tiles include the begins of runs."""
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
