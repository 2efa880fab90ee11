"""From an SDSC and its cores' start addresses to the plan tables the kernels run.

A :class:`CorePlan` is made once per SDSC and pattern of starts: it does not depend on where the
arguments lie, only on how the cores' starts relate, and is therefore reused across loop iterations
and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from spyre.errors import DeviceLocation, JsonLocation, SdscError, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.access import Access, make_access, require_plain
from spyre.hw.nest import Int64Array
from spyre.hw.ops import Family, OpSpec, find_op
from spyre.hw.plans.context import PlanContext
from spyre.hw.plans.contract import plan_contract
from spyre.hw.plans.converting import plan_convert
from spyre.hw.plans.copying import plan_copy
from spyre.hw.plans.elementwise import plan_elementwise
from spyre.hw.plans.matmul import plan_matmul
from spyre.hw.plans.recode import plan_recode
from spyre.hw.plans.reduction import plan_reduction
from spyre.hw.plans.restickify import plan_restickify
from spyre.hw.plans.topk import plan_topk
from spyre.hw.plans.windowing import plan_windowing
from spyre.hw.touched import touched_bytes
from spyre.mlir.operation import Operation, Padding

_PLANNERS: dict[Family, Callable[[PlanContext], Iterator[Int64Array]]] = {
    Family.ELEMENTWISE: plan_elementwise,
    Family.REDUCTION: plan_reduction,
    Family.COPY: plan_copy,
    Family.CONVERT: plan_convert,
    Family.RESTICKIFY: plan_restickify,
    Family.MATMUL: plan_matmul,
    Family.TOPK: plan_topk,
    Family.CONTRACT: plan_contract,
    Family.RECODE: plan_recode,
    Family.WINDOWING: plan_windowing,
}


PACKED_FAMILIES = (Family.CONTRACT, Family.RECODE)
"""Families whose kernels read any stick; the others need plain ones (one dim, 16 or 32 bits)."""
UNMASKED_FAMILIES = (Family.CONTRACT, Family.RECODE, Family.WINDOWING)


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
) -> CorePlan:
    """Plan ``op``.

    ``relative_starts``: bytes, [operand, core] in the order of ``op.tensors`` and ``op.cores``,
    relative to the first core. Raises SdscError when the tensors do not have the structure the
    operation needs, UnsupportedError for what is not simulated.
    """
    spec = require_op(op)
    _check_operands(op, spec)
    _check_indirection(op, spec)
    _check_slices(op)
    _check_windows(op, spec)
    _check_masks(op, spec)
    accesses = tuple(make_access(op, tensor) for tensor in op.tensors)
    if spec.family not in PACKED_FAMILIES:
        for access in accesses:
            require_plain(op, access)
    context = PlanContext(
        op,
        spec,
        accesses,
        relative_starts,
        arrangements or ("STANDARD",) * len(accesses),
        half_format,
        threads,
    )
    tables = np.vstack(list(_PLANNERS[spec.family](context)))
    touched = [
        touched_bytes(op, access, starts)
        for access, starts in zip(accesses, relative_starts, strict=True)
    ]
    low, high = np.array(touched, np.int64).reshape(-1, 2).T
    return CorePlan(op, spec, tables, accesses, low, high)


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


def _check_windows(op: Operation, spec: OpSpec) -> None:
    """Windows only where the operation has them, padding only along them in the first input."""
    stray = [] if spec.windowed else list(op.windows)
    for tensor in op.tensors:
        windowed = op.windows if tensor.index == op.inputs[0].index else {}
        unknown = [d for d, k in tensor.padding.items() if k is not Padding.NONE]
        stray += [f"{dim} of {tensor.name}" for dim in unknown if dim not in windowed]
    if stray:
        raise UnsupportedError(
            "SPY548",
            f"{op.name} with windows or padding here is not simulated",
            JsonLocation(op.file, "$.dscs_[0].N_.paddingSizes_"),
            expected="windows and padding of the first input of a windowed operation",
            found=", ".join(stray),
        )


def _check_masks(op: Operation, spec: OpSpec) -> None:
    if spec.family not in UNMASKED_FAMILIES or not any(op.masks.values()):
        return
    raise UnsupportedError(
        "SPY549",
        f"masked coordinates are not simulated in {op.name}",
        JsonLocation(op.file, "$.dscs_[0].coordinateMasking_"),
        expected="no mask",
        found=str({dim: spans for dim, spans in op.masks.items() if spans}),
    )


def _check_slices(op: Operation) -> None:
    """The checker's SPY210, SPY211 and SPY214, for programs that were not checked."""
    for dim, count in op.slices.items():
        if count < 1 or op.extents[dim] % count:
            raise SdscError(
                "SPY214" if count > 0 else "SPY211",
                f"{op.name}: dim {dim!r} cannot be divided by its work slices",
                JsonLocation(op.file, "$.numWkSlicesPerDim_"),
                expected=f"a divisor of {op.extents[dim]}",
                found=str(count),
            )
    for core, row in zip(op.cores, op.core_slices, strict=True):
        outside = {d: i for d, i in row.items() if not 0 <= i < op.slices.get(d, 1)}
        if outside:
            raise SdscError(
                "SPY210",
                f"{op.name}: core {core} has a work slice out of range",
                JsonLocation(op.file, "$.coreIdToWkSlice_"),
                expected=f"slices {dict(op.slices)}",
                found=str(outside),
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
