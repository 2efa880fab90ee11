"""Counts of linked programs: the measured kernels built as SDSCs, and inputs of cost terms."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import MODELS, kernel_ns, measured_class
from spyre.hw.cost.rows import KernelRow, counts_of, measured_rows
from spyre.hw.counters.counts import CostClass, OperationCounts
from spyre.hw.counters.execute import count_operation
from spyre.hw.counters.program import operation_counts
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import (
    HostOperand,
    identity,
    matmul,
    pointwise,
    reduction,
    restickify,
)
from spyre.mlir.operation.operation import Component
from tests.hw.harness import allocations_of, engine, link, region, windows

A, B, C = (HostOperand(region(k)) for k in range(3))
BUILT = ("exp", "mul", "neg", "sumrow", "sumcol", "amax", "transpose", "mm", "bcast")


def count(spec: OperationSpec, repeat: int = 1) -> OperationCounts:
    op = build_operation(spec)
    return count_operation(link(engine(), [op], allocations_of(windows(op)), repeat).runs[0])


def built(row: KernelRow) -> OperationSpec:
    """The kernel of a measured row on its cores."""
    shape, split = row.shape, {"mb": row.cores}
    match row.kernel:
        case "sumrow":
            return reduction("sum", shape, (1,), A, B, split)
        case "amax":
            return reduction("max", shape, (1,), A, B, split)
        case "sumcol":
            return reduction("sum", shape, (0,), A, B, {"out": row.cores})
        case "transpose":
            sticks = min(row.cores, row.shape[0] // 64)
            return restickify(shape, A, B, {"mb": sticks, "out": row.cores // sticks})
        case "mm":
            assert row.split is not None
            assert row.sizes is not None
            split = {"mb": row.split["m"], "out": row.split["n"]}
            m, k, n = (row.sizes[name] for name in "MKN")
            return matmul(m, k, n, A, B, C, splits=split)
        case "bcast":
            return pointwise("add", shape, [A, HostOperand(B.base, (0,))], C, split)
    return pointwise(row.kernel, shape, [A, B] if row.kernel == "mul" else [A], C, split)


ROWS = [
    row
    for row in measured_rows()
    if row.kernel in BUILT and row.tiles == 1 and row.cells["source"] == "report"
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_measured_kernels_count_what_is_said(row: KernelRow):
    """All but a broadcast operand's own bytes, which the rows leave out."""
    ((_, (said,)),) = counts_of(row)
    found = count(built(row))
    broadcast = 2 * row.shape[1] if row.kernel == "bcast" else 0
    work = found.counters
    work = replace(
        work, rdmem_bytes=work.rdmem_bytes - broadcast, hbm_read_bytes=0, hbm_written_bytes=0
    )
    found = replace(found, counters=work)
    compared = {"name": "", "column_cores": 1, "largest_share": 0.0}
    assert replace(found, **compared) == replace(said, **compared)
    assert found.largest_share == pytest.approx(1 / row.cores)


def test_tiles_of_a_loop_read_the_weight_again():
    """At literal addresses every operand is the same one in every trip."""
    found = count(matmul(64, 128, 64, A, B, C, splits={"mb": 4}), repeat=3)
    once = (64 * 128 + 128 * 64) * 2
    assert (found.runs, found.counters.rdmem_bytes) == (3, 3 * once)
    assert found.hbm_reread_bytes == 2 * once
    assert found.product is not None
    assert (found.product.m, found.counters.multiply_adds) == (64, 3 * 64 * 128 * 64)


def test_batches_and_splits_of_products():
    spec = matmul(64, 128, 192, A, B, C, batch=(6,), splits={"x": 2, "in": 2, "out": 3})
    shape = count(spec).product
    assert shape is not None
    assert (shape.batch, shape.m, shape.k, shape.n) == (6, 64, 128, 192)
    assert (shape.batch_cores, shape.m_cores, shape.k_cores, shape.n_cores) == (2, 1, 2, 3)


def test_layouts_and_places_of_products():
    """In the default layout the sticks of all batches alternate; a rows-inside layout has them
    one after another.
    """
    default = count(matmul(64, 128, 64, A, B, C, batch=(4,))).product
    single = count(matmul(64, 128, 64, A, B, C)).product
    assert default is not None
    assert single is not None
    assert (default.interleaved, single.interleaved) == ((True,) * 3, (False,) * 3)
    assert default.in_hbm == (True,) * 3
    spec = matmul(64, 128, 64, A, B, C, batch=(4,))
    outer = [
        [replace(t, dims=t.dims[::-1]) for t in tensors] for tensors in (spec.inputs, spec.outputs)
    ]
    apart = count(replace(spec, inputs=outer[0], outputs=outer[1])).product
    assert apart is not None
    assert apart.interleaved == (False,) * 3
    in_lx = replace(A, base=1 << 16, component=Component.LX)
    near = count(matmul(64, 128, 64, in_lx, B, C)).product
    assert near is not None
    assert near.in_hbm == (False, True, True)


def test_operations_that_read_what_was_just_written():
    target = HostOperand(region(3))
    specs = [
        pointwise("add", (64, 128), [A, B], C, {"mb": 4}),
        pointwise("add", (64, 128), [C, A], target, {"mb": 4}),
        pointwise("add", (64, 128), [A, B], C, {"mb": 4}),
        pointwise("neg", (64, 128), [C], target, {"mb": 4}),
    ]
    ops = [build_operation(spec) for spec in specs]
    places = {a.address_bytes: a for op in ops for a in allocations_of(windows(op))}
    counts = operation_counts(link(engine(), ops, list(places.values())).view)
    kinds = [measured_class(counts[: place + 1]) for place in range(4)]
    assert kinds == ["few_cores", "chain", "few_cores", "few_cores"]


def test_scratchpad_operands_are_no_broadcast():
    row = HostOperand(1 << 16, (0,), component=Component.LX)
    found = count(pointwise("mul", (64, 128), [A, row], B, {"mb": 4}))
    assert found.cost_class is CostClass.POINTWISE
    assert found.through_lx


def test_a_number_for_all_elements():
    found = count(pointwise("mul", (64, 128), [A, HostOperand(B.base, (0, 1))], C, {"mb": 4}))
    assert (found.cost_class, found.scalar_operand) == (CostClass.POINTWISE, True)


def test_copies_into_parts_of_planes():
    whole = count(identity((64, 128), A, B, {"mb": 4}))
    part = count(identity((64, 128), A, HostOperand(B.base, gap={"mb": 64}), {"mb": 4}))
    beside = count(identity((64, 128), A, HostOperand(B.base, gap={"out": 64}), {"mb": 4}))
    kinds = (CostClass.POINTWISE, CostClass.CONCATENATION, CostClass.POINTWISE)
    assert (whole.cost_class, part.cost_class, beside.cost_class) == kinds


def test_shorter_slices_make_a_busiest_core():
    spec = replace(matmul(7, 128, 64, A, B, C, splits={"mb": 4}), last_extents={"mb": 1})
    found = count(spec)
    assert found.largest_share == pytest.approx(2 / 7)
    assert found.product is not None
    assert found.product.m == 7
    assert found.cores == 4


def test_a_program_has_a_time():
    specs = [pointwise("exp", (64, 128), [A], B, {"mb": 4}), restickify((64, 128), B, C)]
    ops = [build_operation(spec) for spec in specs]
    places = {a.address_bytes: a for op in ops for a in allocations_of(windows(op))}
    counts = operation_counts(link(engine(), ops, list(places.values())).view)
    assert [c.cost_class for c in counts] == [CostClass.POINTWISE, CostClass.TRANSPOSE]
    assert counts[0].transcendental
    for model in MODELS:
        assert kernel_ns(counts, default_machine(), model).total_ns > 0
