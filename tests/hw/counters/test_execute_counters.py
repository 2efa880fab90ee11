"""Bytes moved by executes, against every element's address and hand-counted rings and parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.hw.counters.counts import Counters
from spyre.hw.counters.execute import CORE_COLUMNS, chain_hops, count_cores, count_execute
from spyre.hw.plans.core_plan import LinkedPart
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Component, Indirection, Operation
from tests.examples import examples
from tests.hw.counters.reference_counts import (
    reference_memory_bytes,
    reference_partial_sums,
    shortest_chain,
)
from tests.hw.device.test_overhead import count_calls
from tests.hw.division_strategies import shuffles
from tests.hw.harness import allocations_of, engine, link, region, windows
from tests.hw.movement_strategies import copy_specs, restickify_specs
from tests.hw.packed_strategies import convolutions
from tests.hw.strategies import elementwise_specs, reduction_specs

LX = Component.LX


def runs_of(op: Operation, repeat: int = 1) -> Sequence[LinkedPart]:
    return link(engine(), [op], allocations_of(windows(op)), repeat).runs[0]


def operands(count: int) -> list[HostOperand]:
    return [HostOperand(region(k)) for k in range(count)]


def agrees(op: Operation) -> Counters:
    """Memory interface against the reference; per-core bytes against the sums."""
    runs = runs_of(op)
    counted = count_execute(runs)
    assert (counted.rdmem_bytes, counted.wrmem_bytes) == reference_memory_bytes(op)
    by_core = count_cores(runs).sum(axis=0)
    assert tuple(by_core[:4]) == counted.values[:4]
    assert by_core[CORE_COLUMNS.index("ring_bytes")] == counted.ring_bytes
    assert counted.executions == 1
    return counted


@examples(40)
@given(spec=elementwise_specs("add", 2))
def test_elementwise(spec: OperationSpec):
    counted = agrees(build_operation(spec))
    assert counted.ring_bytes == 0


@examples(40)
@given(spec=reduction_specs("sum"))
def test_reduction(spec: OperationSpec):
    op = build_operation(spec)
    counted = agrees(op)
    assert (counted.ring_bytes, counted.ring_byte_hops) == reference_partial_sums(op)


@examples(25)
@given(spec=copy_specs())
def test_copy(spec: OperationSpec):
    agrees(build_operation(spec))


@examples(25)
@given(spec=restickify_specs())
def test_restickify(spec: OperationSpec):
    agrees(build_operation(spec))


@examples(15)
@given(op=convolutions(""))
def test_convolution(op: Operation):
    agrees(op)


@examples(20)
@given(
    extents=st.tuples(*[st.integers(1, 3)] * 3),
    splits=st.sampled_from([(1, 1, 1), (2, 2, 2), (4, 1, 3), (1, 2, 5), (2, 8, 2)]),
    order=st.permutations(("mb", "out", "in")),
)
def test_matmul(extents, splits, order):
    m, k, n = (
        e * s * (64 if c else 1) for c, (e, s) in enumerate(zip(extents, splits, strict=True))
    )
    named = {"mb": splits[0], "in": splits[1], "out": splits[2]}
    spec = matmul(m, k, n, *operands(3), splits=named)
    op = build_operation(OperationSpec(**{**vars_of(spec), "core_order": order}))
    counted = agrees(op)
    assert (counted.ring_bytes, counted.ring_byte_hops) == reference_partial_sums(op)
    assert counted.wrmem_bytes == m * n * 2


def vars_of(spec: OperationSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


@given(st.sets(st.integers(0, 31), min_size=1, max_size=32))
def test_chains_take_the_shortest_way(cores):
    assert chain_hops(np.array(sorted(cores))) == shortest_chain(sorted(cores))


@examples(15)
@given(op=shuffles())
def test_shuffles_take_the_ring(op: Operation):
    """Ring bytes are those in another core's scratchpad, by the linker's addresses."""
    runs = runs_of(op)
    counted = count_execute(runs)
    moved = 0
    for run in runs:
        each = counted.lx_read_bytes // len(run.plan.op.cores)
        owners = (run.starts(0)[0] >> 21) & 31
        moved += each * sum(o != c for o, c in zip(owners.tolist(), run.plan.op.cores, strict=True))
    assert counted.ring_bytes == moved
    by_core = count_cores(runs)[:, CORE_COLUMNS.index("ring_bytes")]
    senders = {int(c) for run in runs for c in (run.starts(0)[0] >> 21) & 31}
    assert by_core.sum() == moved
    assert set(np.flatnonzero(by_core).tolist()) <= senders
    assert counted.ring_bytes <= counted.ring_byte_hops <= 16 * counted.ring_bytes
    assert (counted.rdmem_bytes, counted.wrmem_bytes) == (0, 0)


def test_partial_sums_hop_from_core_to_core():
    spec = matmul(128, 256, 192, *operands(3), splits={"mb": 4, "in": 2})
    neighbours = build_operation(
        OperationSpec(**{**vars_of(spec), "core_order": ("in", "mb", "out")})
    )
    apart = build_operation(OperationSpec(**{**vars_of(spec), "core_order": ("mb", "in", "out")}))
    size = 128 * 192 * 2
    close, far = (count_execute(runs_of(op)) for op in (neighbours, apart))
    assert (close.ring_bytes, close.ring_byte_hops) == (size, size)
    assert (far.ring_bytes, far.ring_byte_hops) == (size, 4 * size)
    sent = (
        count_cores(runs_of(op))[:, CORE_COLUMNS.index("ring_bytes")] for op in (neighbours, apart)
    )
    assert [row[:9].tolist() for row in sent] == [
        [size // 4, 0] * 4 + [0],
        [size // 4] * 4 + [0] * 5,
    ]
    assert close.rdmem_bytes == (128 * 256 + 256 * 192) * 2
    assert close.wrmem_bytes == size


def test_shorter_last_slices_share_what_all_cores_read():
    a, b, c = operands(3)
    spec = matmul(7, 128, 64, a, b, c, splits={"mb": 4})
    uneven = OperationSpec(**{**vars_of(spec), "last_extents": {"mb": 1}})
    op = build_operation(uneven)
    runs = runs_of(op, repeat=3)
    assert len(runs) == 2
    counted = count_execute(runs)
    assert counted.rdmem_bytes == 3 * (7 * 128 * 2 + 128 * 64 * 2)
    assert counted.wrmem_bytes == 3 * 7 * 128
    assert counted.hbm_read_bytes == 3 * (7 * 256 + 4 * 128 * 128)
    assert counted.executions == 3
    work = dict(zip(CORE_COLUMNS, count_cores(runs).T.tolist(), strict=True))
    assert work["multiply_adds"][:5] == [3 * 2 * 128 * 64] * 3 + [3 * 128 * 64, 0]


def test_a_row_for_all_cores_is_read_once():
    x, out = operands(2)
    row = HostOperand(region(2), absent_axes=(0,))
    counted = agrees(build_operation(pointwise("mul", (64, 128), [x, row], out, {"mb": 4})))
    assert counted.rdmem_bytes == 64 * 256 + 256
    assert counted.hbm_read_bytes == 64 * 256 + 4 * 256


def test_scratchpads_do_not_cross_the_interface():
    source, target = HostOperand(region(0)), HostOperand(0, component=LX)
    counted = agrees(build_operation(reduction("max", (64, 128), (1,), source, target, {"mb": 8})))
    assert (counted.rdmem_bytes, counted.wrmem_bytes) == (64 * 256, 0)
    assert counted.sticks == 64 * 2 + 64


@pytest.mark.parametrize("repeat", [1, 7])
def test_trips_count(repeat: int):
    op = build_operation(pointwise("neg", (8, 64), [operands(2)[0]], operands(2)[1], {"mb": 2}))
    once, many = count_execute(runs_of(op)), count_execute(runs_of(op, repeat))
    assert many == once.times(repeat)
    assert many.executions == repeat


@pytest.mark.parametrize("split", [{"mb": 2}, {"out": 2}, {"mb": 4, "out": 2}])
def test_gathers_count_a_stick_per_index(split: dict[str, int]):
    """64 rows of two sticks by 64 indices; cores of one index range share its sticks."""
    value = OperandSpec(
        ("out", "mb"),
        (("out", 64),),
        region(0),
        max_dim_sizes={"mb": 1, "out": -1},
        indirection=Indirection.VALUE,
    )
    index = OperandSpec(
        ("mb",),
        (("mb", 32),),
        region(1),
        data_format="SENUINT32",
        indirection=Indirection.INDEX,
    )
    target = OperandSpec(("mb", "out"), (("out", 64),), region(2))
    spec = OperationSpec(
        "identity",
        {"mb": 64, "out": 128},
        [value],
        [target],
        index_inputs=[index],
        splits=split,
    )
    op = build_operation(spec)
    counted = count_execute(
        link(engine(), [op], allocations_of(windows(op, {0: 64 * 256}))).runs[0]
    )
    assert counted.rdmem_bytes == (64 * 2 + 2) * 128
    assert counted.wrmem_bytes == 64 * 2 * 128


def test_counting_is_not_per_execution():
    op = build_operation(pointwise("neg", (8, 64), [operands(2)[0]], operands(2)[1], {"mb": 2}))
    few, many = (runs_of(op, repeat) for repeat in (1, 1000))
    assert count_calls(lambda: count_execute(few)) == count_calls(lambda: count_execute(many))
    linked = link(engine(), [op], allocations_of(windows(op)), 1000)
    assert linked.counters[0].executions == 1000
    assert count_calls(lambda: linked.counters) < 10
