"""Counters: bytes and work of hand-counted operations, and their sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.hw.counters.counts import Counters
from spyre.hw.counters.execute import count_plan, operand_bytes, sticks_per_core
from spyre.hw.plans.core_plan import CorePlan, plan_operation
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction, restickify
from spyre.mlir.operation.operation import Component, Indirection, Operation

KIB = 1024
LX = Component.LX


def plan(spec: OperationSpec) -> CorePlan:
    op = build_operation(spec)
    starts = np.array([t.starts for t in op.tensors], np.int64)
    return plan_operation(op, starts - starts[:, :1])


def addresses(count: int) -> list[int]:
    return [k << 30 for k in range(count)]


def test_pointwise():
    a, b, c = (HostOperand(base) for base in addresses(3))
    counted = count_plan(plan(pointwise("add", (128, 256), [a, b], c, {"mb": 8})))
    assert counted == Counters(2 * 64 * KIB, 64 * KIB, 0, 0, 0, 128 * 256)


def test_padding_of_the_stick_counts():
    a, b = (HostOperand(base) for base in addresses(2))
    counted = count_plan(plan(pointwise("neg", (10, 100), [a], b)))
    assert counted.hbm_read_bytes == 10 * 2 * 128
    assert counted.element_operations == 10 * 128


def test_a_broadcast_operand_is_read_by_every_core():
    whole, row, out = (HostOperand(base) for base in addresses(3))
    row = HostOperand(row.base, absent_axes=(0,))
    counted = plan(pointwise("mul", (64, 128), [whole, row], out, {"mb": 4}))
    names = [tensor.name for tensor in counted.op.tensors]
    traffic = dict(zip(names, operand_bytes(counted), strict=True))
    assert traffic == {"Tensor0": 64 * 256, "Tensor1": 4 * 256, "Tensor2": 64 * 256}


def test_reduction_over_the_stick_keeps_a_stick_per_row():
    source, target = HostOperand(0), HostOperand(0, component=LX)
    counted = count_plan(plan(reduction("sum", (128, 256), (1,), source, target, {"mb": 8})))
    assert counted == Counters(64 * KIB, 0, 0, 128 * 128, 0, 128 * 256)


def test_scratchpad_traffic_is_apart():
    a, b = HostOperand(0, component=LX), HostOperand(1 << 20, component=LX)
    counted = count_plan(plan(pointwise("exp", (64, 64), [a], b, {"mb": 2})))
    assert counted == Counters(0, 0, 8 * KIB, 8 * KIB, 0, 64 * 64)


def test_matmul():
    a, b, c = (HostOperand(base) for base in addresses(3))
    counted = count_plan(plan(matmul(128, 256, 192, a, b, c, splits={"mb": 4, "in": 2})))
    assert counted.multiply_adds == 128 * 192 * 256
    assert counted.element_operations == 0
    assert counted.hbm_read_bytes == 128 * 256 * 2 + 4 * 256 * 192 * 2
    assert counted.hbm_written_bytes == 2 * 128 * 192 * 2


def test_restickify_moves_only_what_is_stored():
    a, b = (HostOperand(base) for base in addresses(2))
    counted = count_plan(plan(restickify((70, 100), a, b)))
    assert counted.hbm_read_bytes == 70 * 2 * 128
    assert counted.hbm_written_bytes == 100 * 2 * 128


def test_gather_reads_a_stick_per_index():
    value = OperandSpec(
        ("mb", "out"),
        (("out", 64),),
        0,
        max_dim_sizes={"mb": 1, "out": -1},
        indirection=Indirection.VALUE,
    )
    index = OperandSpec(
        ("mb",), (("mb", 32),), 1 << 30, data_format="SENUINT32", indirection=Indirection.INDEX
    )
    target = OperandSpec(("mb", "out"), (("out", 64),), 2 << 30)
    op = build_operation(
        OperationSpec("identity", {"mb": 64, "out": 128}, [value], [target], index_inputs=[index])
    )
    sticks = _sticks(op)
    assert sticks == [64 * 2, 2, 64 * 2]


def _sticks(op: Operation) -> list[int]:
    from spyre.hw.access import make_access

    return [sticks_per_core(op, make_access(op, tensor)) for tensor in op.tensors]


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    split=st.sampled_from([1, 2, 4]),
)
def test_unbroadcast_traffic_is_the_tensor(rows, columns, split):
    shape = (rows * split, columns)
    a, b = (HostOperand(base) for base in addresses(2))
    counted = count_plan(plan(pointwise("abs", shape, [a], b, {"mb": split})))
    size = shape[0] * -(-columns // 64) * 128
    assert (counted.hbm_read_bytes, counted.hbm_written_bytes) == (size, size)


@given(st.lists(st.tuples(*[st.integers(0, 10**12)] * 11), max_size=5), st.integers(0, 1000))
def test_sums(rows, count):
    counters = [Counters(*row) for row in rows]
    total = sum(counters, Counters())
    expected = tuple(map(sum, zip(*rows, strict=True))) if rows else (0,) * 11
    assert total.values == expected
    assert total.times(count).values == tuple(count * v for v in expected)


@pytest.mark.parametrize("cores", [1, 4])
def test_operand_order_and_directions(cores):
    a, b, c = (HostOperand(base) for base in addresses(3))
    planned = plan(pointwise("sub", (64, 64), [a, b], c, {"mb": cores}))
    assert operand_bytes(planned) == [8 * KIB] * 3
    assert count_plan(planned).values[:4] == (16 * KIB, 8 * KIB, 0, 0)
