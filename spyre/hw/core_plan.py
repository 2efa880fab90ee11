"""From an SDSC and its cores' start addresses to the plan tables the kernels run.

A :class:`CorePlan` is made once per SDSC and pattern of starts: it does not depend on where the
arguments lie, only on how the cores' starts relate, and is therefore reused across loop iterations
and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from spyre.errors import DeviceLocation, JsonLocation, SdscError, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.access import Access, make_access
from spyre.hw.core_order import shuffled
from spyre.hw.nest import Int64Array
from spyre.hw.ops import Family, OpSpec, find_op
from spyre.hw.plans.context import PlanContext
from spyre.hw.plans.converting import plan_convert
from spyre.hw.plans.copying import plan_copy
from spyre.hw.plans.elementwise import plan_elementwise
from spyre.hw.plans.matmul import plan_matmul
from spyre.hw.plans.reduction import plan_reduction
from spyre.hw.plans.restickify import plan_restickify
from spyre.hw.plans.topk import plan_topk
from spyre.mlir.operation import Operation

_PLANNERS: dict[Family, Callable[[PlanContext], Iterator[Int64Array]]] = {
    Family.ELEMENTWISE: plan_elementwise,
    Family.REDUCTION: plan_reduction,
    Family.COPY: plan_copy,
    Family.CONVERT: plan_convert,
    Family.RESTICKIFY: plan_restickify,
    Family.MATMUL: plan_matmul,
    Family.TOPK: plan_topk,
}


@dataclass(frozen=True, slots=True)
class CorePlan:
    """One SDSC over all its cores.

    ``tables``: int64 [rows, WORDS], run in order. ``low_bytes``/``high_bytes`` per operand (order
    of ``Operation.tensors``): what the cores touch, relative to the first core's start, end
    excluded; for a value tensor without what the index adds.
    """

    op: Operation
    spec: OpSpec
    tables: Int64Array
    accesses: tuple[Access, ...]
    low_bytes: Int64Array
    high_bytes: Int64Array


def plan_operation(
    op: Operation,
    relative_starts: Int64Array,
    arrangements: tuple[str, ...] | None = None,
    half_format: int = tb.DL16,
    threads: int = 1,
    core_order: int | None = None,
) -> CorePlan:
    """Plan ``op``.

    ``relative_starts``: bytes, [operand, core] in the order of ``op.tensors`` and ``op.cores``,
    relative to the first core. ``core_order``: seed of a random order of cores. Raises SdscError
    when the tensors do not have the structure the operation needs, UnsupportedError for what is
    not simulated.
    """
    spec = require_op(op)
    _check_operands(op, spec)
    _check_indirection(op, spec)
    _check_slices(op)
    accesses = tuple(make_access(op, tensor) for tensor in op.tensors)
    whole = PlanContext(
        op,
        spec,
        accesses,
        relative_starts,
        arrangements or ("STANDARD",) * len(accesses),
        half_format,
        threads,
    )
    contexts = [whole] if core_order is None else _one_by_one(whole, core_order)
    tables = np.stack([row for c in contexts for row in _PLANNERS[spec.family](c)])
    spans = np.array([access.span_bytes for access in accesses], np.int64)
    return CorePlan(
        op,
        spec,
        tables,
        accesses,
        relative_starts.min(axis=1),
        relative_starts.max(axis=1) + spans,
    )


def _one_by_one(context: PlanContext, seed: int) -> list[PlanContext]:
    """A context per core, in shuffled order; cores that combine their results share one."""
    return [
        replace(context, op=op, starts=starts)
        for op, starts in shuffled(context.op, context.starts, seed)
    ]


def require_op(op: Operation) -> OpSpec:
    """The op-table row of ``op``; raises UnsupportedError naming the operation."""
    spec = find_op(op.name)
    if spec is None:
        raise UnsupportedError(
            "SPY520",
            f"operation {op.name!r} is not simulated",
            JsonLocation(op.file, "$.dscs_[0].computeOp_[0].opFuncName"),
            expected="an operation of docs/operations.md",
            found=op.name,
        )
    return spec


def _check_indirection(op: Operation, spec: OpSpec) -> None:
    count = len(op.index_tensors)
    if count == 0 or (count == 1 and spec.family is Family.COPY):
        return
    raise UnsupportedError(
        "SPY532",
        f"{op.name} with {count} index tensors is not simulated",
        JsonLocation(op.file, "$.dscs_[0].computeOp_[0].indirectAccessIndexLabeledDs"),
        expected="an identity with one index tensor",
        found=", ".join(tensor.name for tensor in op.index_tensors),
    )


def _check_slices(op: Operation) -> None:
    """The checker's SPY211 and SPY214, for programs that were not checked."""
    for dim, count in op.slices.items():
        if count < 1 or op.extents[dim] % count:
            raise SdscError(
                "SPY214" if count > 0 else "SPY211",
                f"{op.name}: dim {dim!r} cannot be divided by its work slices",
                JsonLocation(op.file, "$.numWkSlicesPerDim_"),
                expected=f"a divisor of {op.extents[dim]}",
                found=str(count),
            )


def _check_operands(op: Operation, spec: OpSpec) -> None:
    if len(op.inputs) == spec.inputs and len(op.outputs) == 1:
        return
    raise SdscError(
        "SPY280",
        f"{op.name}: wrong number of tensors",
        DeviceLocation(op.file),
        expected=f"{spec.inputs} inputs and 1 output",
        found=f"{len(op.inputs)} inputs and {len(op.outputs)} outputs",
    )
