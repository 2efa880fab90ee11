"""From an SDSC and its cores' start addresses to the plan tables the kernels run.

A :class:`CorePlan` is made once per SDSC and pattern of starts: it depends on the cores' starts
relative to each other, not on the addresses of arguments, and is therefore reused across loop
iterations and launches.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.errors import Finding, JsonLocation, SdscError, UnsupportedError
from spyre.hw.access import TensorAccess, make_access, require_plain, touched_bytes
from spyre.hw.numerics import Numerics
from spyre.hw.ops import FATAL, Family, OpDefinition, find_faults, require_op, require_rules
from spyre.hw.plans.context import PlanContext
from spyre.hw.plans.normalise import check_slices, uniform_operations
from spyre.hw.spec import LX_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import OVERFLOW_CONSTANT, Component, Operation, Padding, slice_offsets

_IRREGULAR = "SPY523"
"""The one refusal of planners that depends on a program's start addresses."""

_PLANNERS: dict[Family, str] = {
    Family.ELEMENTWISE: "spyre.hw.plans.vector_units.plan_elementwise",
    Family.REDUCTION: "spyre.hw.plans.vector_units.plan_reduction",
    Family.COPY: "spyre.hw.plans.movement.plan_copy",
    Family.CONVERT: "spyre.hw.plans.movement.plan_convert",
    Family.RESTICKIFY: "spyre.hw.plans.movement.plan_restickify",
    Family.MATMUL: "spyre.hw.plans.matmul.plan_product",
    Family.TOPK: "spyre.hw.plans.vector_units.plan_topk",
    Family.PACKED_MATMUL: "spyre.hw.plans.matmul.plan_packed_matmul",
    Family.REQUANTIZE: "spyre.hw.plans.requantize.plan_requantize",
    Family.WINDOWING: "spyre.hw.plans.windowing.plan_windowing",
    Family.SHUFFLE: "spyre.hw.plans.movement.plan_shuffle",
}
"""Function of each family, imported when one of it is first planned."""

PACKED_FAMILIES = (Family.PACKED_MATMUL, Family.REQUANTIZE)
"""Families whose kernels read any stick; the others need plain ones (one dim, 16 or 32 bits)."""
UNMASKED_FAMILIES = (Family.PACKED_MATMUL, Family.REQUANTIZE, Family.WINDOWING)


@cache
def _planner(family: Family) -> Callable[[PlanContext], Iterator[Int64Array]]:
    module, _, name = _PLANNERS[family].rpartition(".")
    planner: Callable[[PlanContext], Iterator[Int64Array]] = getattr(import_module(module), name)
    return planner


class CorePlan(msgspec.Struct, frozen=True):
    """One SDSC over all its cores.

    ``tables``: int64 [rows, WORDS], run in order. ``low_bytes``/``high_bytes`` per operand (order
    of ``Operation.tensors``): range that the cores touch, relative to the first core's start, end
    excluded, without the offsets of an index. A core's part of an index tensor may begin within a
    stick.
    """

    op: Operation
    spec: OpDefinition
    tables: Int64Array
    accesses: tuple[TensorAccess, ...]
    low_bytes: Int64Array
    high_bytes: Int64Array


class LinkedPart(msgspec.Struct, frozen=True):
    """A plan and the instances of a static execute it runs for.

    ``bases``: start addresses of the first core, int64 [instance, operand]; ``pattern``: those of
    all cores relative to it, [operand, core]. ``divided``: the operation with its tensors' own work
    slices, where the plan's is in cells, which may be in other cores' scratchpads.
    ``base_allocations``: index of the allocation each base moves with, [instance, operand], or
    FIXED or UNKNOWN of :mod:`spyre.hw.linking.binding`. ``tables``: of the plan, with the ends of
    arguments filled in where its kernel asks for them.
    """

    plan: CorePlan
    instances: Int64Array
    bases: Int64Array
    pattern: Int64Array
    divided: Operation | None
    base_allocations: Int64Array
    tables: Int64Array

    def starts(self, operand: int) -> Int64Array:
        """Start addresses of an operand, [instance, core]."""
        starts: Int64Array = self.bases[:, operand, None] + self.pattern[operand]
        return starts


def plan_operation(
    op: Operation,
    relative_starts: Int64Array,
    arrangements: tuple[str, ...] | None = None,
    numerics: Numerics | None = None,
    threads: int = 1,
    core_order: int | None = None,
) -> CorePlan:
    """Plan ``op``.

    ``relative_starts``: bytes, [operand, core] in the order of ``op.tensors`` and ``op.cores``,
    relative to the first core. ``core_order``: seed of a random order of cores. Raises SdscError
    if the tensors do not have the structure the operation needs, UnsupportedError if it is not
    simulated.
    """
    numerics = numerics or Numerics()
    spec = require_op(op, numerics.errata)
    require_rules(op, spec)
    _check_indirection(op, spec)
    check_slices(op)
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
        numerics,
        threads,
    )
    contexts = [context]
    if core_order is not None:  # a context per core; cores that combine their results share one
        parts = shuffled(op, relative_starts, core_order)
        contexts = [replace(context, op=part, starts=starts) for part, starts in parts]
    tables = np.vstack([row for c in contexts for row in _planner(spec.family)(c)])
    touched = [
        touched_bytes(op, tensor, starts)
        for tensor, starts in zip(op.tensors, relative_starts, strict=True)
    ]
    low, high = np.array(touched, np.int64).reshape(-1, 2).T
    return CorePlan(op, spec, tables, accesses, low, high)


def _check_indirection(op: Operation, spec: OpDefinition) -> None:
    count = len(op.index_tensors)
    if count == 0 or (spec.family is Family.COPY and (count == 1 or op.index_steps)):
        return
    raise UnsupportedError(
        "SPY532",
        f"{op.name} with {count} index tensors is not simulated",
        JsonLocation(op.file, "$.dscs_[0].computeOp_[0].indirectAccessIndexLabeledDs"),
        expected="an identity with one index tensor",
        found=", ".join(tensor.name for tensor in op.index_tensors),
    )


def _check_windows(op: Operation, spec: OpDefinition) -> None:
    """Windows only where the operation has them, padding only along them in the first input."""
    path = "$.dscs_[0].N_.paddingSizes_"
    stray = [] if spec.windowed else list(op.windows)
    for tensor in op.tensors:
        windowed = op.windows if tensor.index == op.inputs[0].index else {}
        unknown = [d for d, k in tensor.padding.items() if k is not Padding.NONE]
        elsewhere = [f"{dim} of {tensor.name}" for dim in unknown if dim not in windowed]
        path = path if stray or not elsewhere else tensor.json_path
        stray += elsewhere
    if stray:
        raise UnsupportedError(
            "SPY548",
            f"{op.name} with windows or padding here is not simulated",
            JsonLocation(op.file, path),
            expected="windows and padding of the first input of a windowed operation",
            found=", ".join(stray),
        )


def _check_masks(op: Operation, spec: OpDefinition) -> None:
    takes_masks = (
        spec.family not in UNMASKED_FAMILIES or OVERFLOW_CONSTANT in spec.optional_constants
    )
    if takes_masks or not any(op.masks.values()):
        return
    raise UnsupportedError(
        "SPY549",
        f"masked coordinates are not simulated in {op.name}",
        JsonLocation(op.file, "$.dscs_[0].coordinateMasking_"),
        expected="no mask",
        found=", ".join(
            f"{dim} {first} to {first + count - 1}"
            for dim, spans in op.masks.items()
            for first, count in spans
        ),
    )


def check_operation(op: Operation) -> tuple[Finding, ...]:
    """Findings for which running ``op`` would raise: the op rules, then structure and sticks.

    For the latter it is planned at the addresses of the address rule; refusals that depend on the
    real addresses of tensors are left to the launch, and so are windowed operations, whose slices
    overlap. An operation that is not simulated is a warning.
    """
    faults = find_faults(op)
    if op.windows or any(fault.code in FATAL for fault in faults):
        return faults
    try:
        for (part, starts), _ in uniform_operations(op, _regular_starts(op)[None]):
            plan_operation(part, starts[0] - starts[0, :, :1])
    except UnsupportedError as error:
        if error.code == _IRREGULAR:
            return faults
        return (*faults, error.finding.as_warning)
    except SdscError as error:
        return (*faults, error.finding)
    return faults


def _regular_starts(op: Operation) -> Int64Array:
    """Bytes, [operand, core], of tensors that begin at 0."""
    starts = np.array([slice_offsets(op, tensor) for tensor in op.tensors], np.int64)
    for operand, tensor in enumerate(op.tensors):
        if tensor.component is Component.LX:
            starts[operand] = np.array(op.cores, np.int64) * LX_BYTES
    return starts


def reduction_groups(op: Operation) -> list[Int64Array]:
    """Positions of the cores of each group that reduces together, by their first cores."""
    output, spec = op.outputs[0], require_op(op)
    combines = spec.family is Family.REDUCTION
    split = [d for d in op.dims if op.slices.get(d, 1) > 1]
    missing = [d for d in split if not output.holds(d)]
    reduced = [d for d in missing if combines or any(t.holds(d) for t in op.inputs)]
    if not reduced:
        return [np.array([position]) for position in range(len(op.cores))]
    shared = [d for d in split if d not in reduced]
    members: dict[tuple[int, ...], list[int]] = {}
    for position, slices in enumerate(op.core_slices):
        members.setdefault(tuple(slices.get(d, 0) for d in shared), []).append(position)
    return [np.array(positions) for positions in members.values()]


def shuffled(
    op: Operation, starts: Int64Array, seed: int
) -> Iterator[tuple[Operation, Int64Array]]:
    """The operation restricted to one of `reduction_groups` after another, with its cores' starts.

    ``starts``: bytes, [operand, core]. The order depends on seed and SDSC only.
    """
    parts = reduction_groups(op)
    rng = np.random.default_rng((seed, zlib.crc32(op.file.encode())))
    for k in rng.permutation(len(parts)):
        positions = parts[int(k)]
        part = replace(
            op,
            cores=tuple(op.cores[p] for p in positions),
            core_slices=tuple(op.core_slices[p] for p in positions),
        )
        yield part, starts[:, positions]
