"""From a linked program to the counts the cost models take: what was executed, not what was meant.

Bytes and work are those of :mod:`spyre.hw.execute_counters`; which terms of the calibrated model
hold is read off the operation and its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spyre.hw.cost.operation_counts import CostClass, OperationCounts, ProductShape
from spyre.hw.cost.operation_traits import is_broadcast, product_dims, product_shape
from spyre.hw.counters import Counters
from spyre.hw.execute_counters import CORE_WORK, count_cores, count_execute, operand_sticks
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.ops import Family
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.operation import Component, Operation, Tensor
from spyre.mlir.sdsc_value_rules import MASK_CONSTANT

TRANSCENDENTAL = frozenset(
    ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "gelu", "silu", "mish", "softplus")
)
"""Kernel operations that take several cycles per element (which, nobody has published)."""


def operation_counts(linked: LinkedProgram) -> tuple[OperationCounts, ...]:
    """A record per execute statement that ran, in program order."""
    return tuple(count_operation(runs) for runs in linked.runs if runs)


def count_operation(runs: Sequence[PlanRun]) -> OperationCounts:
    """All executions of one statement. Runtime sizes that differ between them are averaged."""
    counters = count_execute(runs)
    plan = runs[0].plan
    op = plan.op if runs[0].divided is None else runs[0].divided
    work = count_cores(runs)[:, CORE_WORK].sum(axis=1)
    kind = cost_class(op, plan.spec.family, counters.executions)
    product = _product(op, counters) if kind is CostClass.MATMUL else None
    points = (counters.multiply_adds + counters.element_operations) // counters.executions
    columns = max(_columns(op), 1) if product is None else product.n
    inner = columns if product is None else columns * product.k
    return OperationCounts(
        name=op.name,
        cost_class=kind,
        cores=int(np.count_nonzero(work)) or len(set(op.cores)),
        runs=counters.executions,
        hbm_read_bytes=counters.rdmem_bytes,
        hbm_written_bytes=counters.wrmem_bytes,
        hbm_reread_bytes=reread_bytes(runs),
        lx_read_bytes=counters.lx_read_bytes,
        lx_written_bytes=counters.lx_written_bytes,
        ring_bytes=counters.ring_bytes,
        ring_byte_hops=counters.ring_byte_hops,
        multiply_adds=counters.multiply_adds,
        element_operations=counters.element_operations,
        transcendental=plan.spec.kernel_op in TRANSCENDENTAL,
        largest_share=float(work.max() / work.sum()) if work.any() else 0.0,
        mac_format=op.inputs[0].data_format,
        rows=points // inner,
        columns=columns,
        column_cores=op.slices.get(_stick_dim(op), 1) if product is None else product.n_cores,
        scalar_operand=_has_scalar(op) and kind is CostClass.POINTWISE,
        product=product,
    )


# --- classes ----------------------------------------------------------------------------------


def cost_class(op: Operation, family: Family, executions: int) -> CostClass:
    """Which terms of the calibrated model an operation has."""
    if family in (Family.MATMUL, Family.CONTRACT):
        return CostClass.MATMUL
    if family is Family.REDUCTION:
        kept = op.outputs[0].holds(_stick_dim(op))
        return CostClass.COLUMN_REDUCTION if kept else CostClass.ROW_REDUCTION
    if family is Family.RESTICKIFY:
        return CostClass.TRANSPOSE
    if family is Family.COPY and executions == 1 and _is_scattered(op.outputs[0]):
        return CostClass.CONCATENATION
    if family is Family.ELEMENTWISE and any(_is_broadcast(op, t) for t in op.inputs):
        return CostClass.BROADCAST
    return CostClass.POINTWISE


def _is_broadcast(op: Operation, tensor: Tensor) -> bool:
    """An operand in HBM that lacks some dims of the result, but not all of them."""
    varying = [dim for dim in op.dims if op.extents[dim] > 1 and op.outputs[0].holds(dim)]
    held = [dim for dim in varying if tensor.holds(dim)]
    return tensor.component is Component.HBM and is_broadcast(held, varying)


def _is_scattered(tensor: Tensor) -> bool:
    """Memory goes on, along a dim that is not the outermost, behind what is written."""
    return any(gap > 0 for dim, gap in tensor.gap_elements.items() if dim != tensor.dims[-1])


def _has_scalar(op: Operation) -> bool:
    """A constant of the SDSC, or one of several operands is one number for all elements."""
    if set(op.constants) - {MASK_CONSTANT}:
        return True
    return len(op.inputs) > 1 and any(not any(map(t.holds, op.dims)) for t in op.inputs)


# --- shapes -----------------------------------------------------------------------------------


def _stick_dim(op: Operation) -> str:
    return op.inputs[0].stick_dims[-1] if op.inputs else op.outputs[0].stick_dims[-1]


def _columns(op: Operation) -> int:
    return op.extents.get(_stick_dim(op), 1)


def _product(op: Operation, counters: Counters) -> ProductShape:
    """Its shape, with the rows that ran."""
    operands = (*op.inputs[:2], op.outputs[0])
    first, second, out = ([dim for dim in op.dims if t.holds(dim)] for t in operands)
    shape = product_shape(product_dims(op.dims, first, second, out), op.extents, op.slices)
    inner = shape.k * shape.n * shape.batch * counters.executions
    return replace(shape, m=counters.multiply_adds // inner)


# --- memory -----------------------------------------------------------------------------------


def reread_bytes(runs: Sequence[PlanRun]) -> int:
    """Bytes of HBM that an execution reads where an earlier one read the same operand already."""
    again = 0
    for place, tensor in enumerate(runs[0].plan.op.tensors):
        if tensor.component is not Component.HBM or tensor in runs[0].plan.op.outputs:
            continue
        for run in runs:
            repeated = len(run.instances) - len(np.unique(run.bases[:, place]))
            again += repeated * operand_sticks([run], place) * STICK_BYTES
    return again
