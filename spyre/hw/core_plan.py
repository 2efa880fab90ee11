"""From an SDSC and its cores' start addresses to the plan tables the kernels run.

A :class:`CorePlan` is made once per SDSC and pattern of starts: it does not depend on where the
arguments lie, only on how the cores' starts relate, and is therefore reused across loop iterations
and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from spyre.errors import Finding, JsonLocation, SdscError, Severity, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.access import Access, make_access, require_plain
from spyre.hw.nest import Int64Array
from spyre.hw.op_rules import FATAL, find_faults, require_op, require_rules
from spyre.hw.ops import Family, OpSpec
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
from spyre.hw.spec import LX_BYTES
from spyre.mlir.operation import Component, Operation
from spyre.mlir.sdsc_builder import slice_offsets

_IRREGULAR = "SPY523"
"""The one refusal of planners that depends on a program's start addresses."""

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
    chunked: bool = False,
) -> CorePlan:
    """Plan ``op``.

    ``relative_starts``: bytes, [operand, core] in the order of ``op.tensors`` and ``op.cores``,
    relative to the first core. Raises SdscError when the tensors do not have the structure the
    operation needs, UnsupportedError for what is not simulated.
    """
    spec = require_op(op)
    require_rules(op, spec)
    _check_indirection(op, spec)
    _check_slices(op)
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
        chunked,
    )
    tables = np.vstack(list(_PLANNERS[spec.family](context)))
    spans = np.array([access.span_bytes for access in accesses], np.int64)
    return CorePlan(
        op,
        spec,
        tables,
        accesses,
        relative_starts.min(axis=1),
        relative_starts.max(axis=1) + spans,
    )


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


def check_operation(op: Operation) -> tuple[Finding, ...]:
    """What running ``op`` would refuse, as findings: the op rules, then structure and sticks.

    For the latter it is planned at the addresses the address rule gives its slices; whatever
    depends on where a program really puts its tensors is left to the launch. What is not simulated
    is a warning.
    """
    faults = find_faults(op)
    if any(fault.code in FATAL for fault in faults):
        return faults
    try:
        plan_operation(op, _regular_starts(op))
    except UnsupportedError as error:
        if error.code == _IRREGULAR:
            return faults
        return (*faults, replace(error.finding, severity=Severity.WARNING))
    except SdscError as error:
        return (*faults, error.finding)
    return faults


def _regular_starts(op: Operation) -> Int64Array:
    """Bytes, [operand, core], relative to the first core."""
    starts = np.array([slice_offsets(op, tensor) for tensor in op.tensors], np.int64)
    for operand, tensor in enumerate(op.tensors):
        if tensor.component is Component.LX:
            starts[operand] = np.array(op.cores, np.int64) * LX_BYTES
    relative: Int64Array = starts - starts[:, :1]
    return relative
