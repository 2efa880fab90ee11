"""Counts of one execute statement in a launch: work and traffic, in all and per core.

Pure functions of plans; nothing is measured while a program runs. Every core counts the sticks it
touches, once each, so a stick that several cores read counts several times. Counts that depend on
the addresses of the cores' parts are added to these: sticks that several cores read at once cross
the memory interface once; partial sums of cores that reduce together, and reads from another core's
scratchpad, go over the ring. Assumptions: partial sums go from core to core in the order of their
numbers, in the format of the result, and the core with the last one writes; other traffic takes the
shorter way. The terms of the calibrated model follow from the operation and its tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from math import prod
from operator import add

import numpy as np
from msgspec.structs import replace

from spyre.hw.access import TensorAccess, core_boxes
from spyre.hw.counters.counts import (
    CostClass,
    Counters,
    OperationCounts,
    ProductShape,
    is_broadcast,
    product_dims,
    product_shape,
)
from spyre.hw.ops import Family
from spyre.hw.plans import CorePlan, LinkedPart, reduction_groups
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES, STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import (
    INDEX_LIMIT_CONSTANT,
    MASK_CONSTANT,
    OVERFLOW_CONSTANT,
    RESTICKIFY,
    Component,
    Indirection,
    Operation,
    Tensor,
)


def count_plan(plan: CorePlan) -> Counters:
    """The work of one execute of ``plan``, without memory interface, ring and executions."""
    moved: Counter[tuple[Component, bool]] = Counter()
    for access, size_bytes in zip(plan.accesses, operand_bytes(plan), strict=True):
        moved[access.tensor.component, access.tensor in plan.op.outputs] += size_bytes
    points = prod(plan.op.extents.values())
    is_matmul = plan.spec.unit == "pt"
    return Counters(
        moved[Component.HBM, False],
        moved[Component.HBM, True],
        moved[Component.LX, False],
        moved[Component.LX, True],
        points if is_matmul else 0,
        0 if is_matmul else points,
    )


def operand_bytes(plan: CorePlan) -> list[int]:
    """Bytes that all cores move for each operand, in the order of ``Operation.tensors``."""
    op = plan.op
    return [sticks_per_core(op, a) * len(op.cores) * STICK_BYTES for a in plan.accesses]


def sticks_per_core(op: Operation, access: TensorAccess) -> int:
    """Sticks one core touches of an operand.

    For the value tensor of an indirect access: one per step of the dims it has and of those its
    index tensor has, since every index may lead to another stick.
    """
    if access.tensor.indirection is Indirection.VALUE:
        return _indirect_sticks(op, access)
    dims = [dim for dim in access.tensor.dims if access.tensor.holds(dim)]
    return prod(_steps(op, access, dim) for dim in dims)


def _steps(op: Operation, access: TensorAccess, dim: str) -> int:
    """Sticks (along a stick dim) or elements of ``dim`` that one core visits."""
    window = op.window_of(access.tensor, dim)
    if window is not None:
        count = min(op.window_span(access.tensor, dim), access.stored[dim])
    else:
        count = op.core_extent(dim)
    if op.name == RESTICKIFY:
        count = min(count, access.stored[dim])
    if access.tensor.by_elements and access.pitch_bytes[dim] == access.tensor.unit_bytes:
        return -(-count * access.tensor.unit_bytes // STICK_BYTES)
    return -(-count // access.sticks.get(dim, 1))


def _indirect_sticks(op: Operation, access: TensorAccess) -> int:
    tensors = (access.tensor, *op.index_tensors)
    visited = [dim for dim in op.dims if any(tensor.holds(dim) for tensor in tensors)]
    per_lane = any(tensor.holds(access.stick_dim) for tensor in op.index_tensors)
    steps = [
        op.core_extent(dim) if per_lane or dim != access.stick_dim else _steps(op, access, dim)
        for dim in visited
    ]
    return prod(steps)


CORE_COLUMNS = (
    "hbm_read_bytes",
    "hbm_written_bytes",
    "lx_read_bytes",
    "lx_written_bytes",
    "ring_bytes",
    "multiply_adds",
    "element_operations",
)
"""Columns of :func:`count_cores`."""
CORE_TRAFFIC = slice(CORE_COLUMNS.index("ring_bytes"))
"""Columns of bytes a core moves to and from HBM and LX, in sticks."""
CORE_WORK = slice(CORE_COLUMNS.index("multiply_adds"), len(CORE_COLUMNS))
"""Columns of a core's computation."""
SliceKey = tuple[int, ...]
"""Equal for two cores that have the same part of an operand: its start, then the slice indices of
the index tensor's dims.
"""


def count_execute(runs: Sequence[LinkedPart]) -> Counters:
    """The work of an execute statement: all its executions, all their parts."""
    total = Counters()
    for together, times in _parts_together(runs):
        plain = reduce(add, (count_plan(run.plan) for run in together))
        read, written = memory_bytes(together)
        moved, hops = (sum(column) for column in zip(*map(_ring_traffic, together), strict=True))
        one = replace(
            plain,
            rdmem_bytes=read,
            wrmem_bytes=written,
            ring_bytes=moved,
            ring_byte_hops=hops,
            executions=1,
        )
        total += one.times(times)
    return total


def _parts_together(runs: Sequence[LinkedPart]) -> Iterator[tuple[list[LinkedPart], int]]:
    """Runs that are the parts of the same executions, and how many these are."""
    if len(runs) == 1:
        yield [runs[0]], len(runs[0].instances)
        return
    if not runs:  # in a loop that this launch does not enter
        return
    # Parts of one execution share sticks, so they are counted together: executions are grouped
    # by the set of runs they are in.
    instances = np.unique(np.concatenate([run.instances for run in runs]))
    member = np.stack([np.isin(instances, run.instances) for run in runs])
    kinds, counts = np.unique(member, axis=1, return_counts=True)
    for kind, count in zip(kinds.T, counts.tolist(), strict=True):
        yield [run for run, used in zip(runs, kind, strict=True) if used], count


# --- memory interface -------------------------------------------------------------------------


def memory_bytes(runs: Sequence[LinkedPart]) -> tuple[int, int]:
    """Bytes read and written in HBM by one execution, a stick once per operand.

    ``runs``: the parts of the execution.
    """
    read, written = (sum(moved.values()) for moved in interface_bytes(runs))
    return read, written


def interface_bytes(runs: Sequence[LinkedPart]) -> tuple[dict[int, int], dict[int, int]]:
    """The same by operand in HBM, with its first address: of those read, and of those written."""
    moved: tuple[dict[int, int], dict[int, int]] = {}, {}
    op, starts = runs[0].plan.op, runs[0].bases[0].tolist()
    for operand, tensor in enumerate(op.tensors):
        if tensor.component is Component.HBM:
            size_bytes = operand_sticks(runs, operand) * STICK_BYTES
            by_start = moved[tensor in op.outputs]
            by_start[starts[operand]] = by_start.get(starts[operand], 0) + size_bytes
    return moved


def operand_sticks(runs: Sequence[LinkedPart], operand: int) -> int:
    """Sticks of an operand in HBM that one execution touches, each once; ``runs``: its parts."""
    sticks = {key: count for run in runs for key, count in _slice_sticks(run, operand)}
    # Parts with different starts are disjoint unless windows or index tensors overlap, so counting
    # them is enough; listing the sticks one by one is much slower.
    if not any(_overlaps(run, operand) for run in runs):
        return sum(sticks.values())
    return len(np.unique(np.concatenate([_stick_numbers(run, operand) for run in runs])))


def _slice_sticks(run: LinkedPart, operand: int) -> Iterator[tuple[SliceKey, int]]:
    """Key and number of sticks of every core's part of an operand."""
    op, access = run.plan.op, run.plan.accesses[operand]
    if access.tensor.indirection is Indirection.VALUE:
        yield from _indexed_slices(run, operand)
        return
    starts = run.bases[0, operand] + run.pattern[operand]
    if op.name == RESTICKIFY:
        boxes = core_boxes(op, access.tensor)
        for start, box in zip(starts.tolist(), boxes, strict=True):
            yield (start,), 0 if box is None else box.sticks
        return
    count = sticks_per_core(op, access)
    for start in set(starts.tolist()):
        yield (start,), count


def _indexed_slices(run: LinkedPart, operand: int) -> Iterator[tuple[SliceKey, int]]:
    """The same of a value tensor: equal indices and starts read the same sticks."""
    op = run.plan.op
    dims = [dim for dim in op.dims if any(t.holds(dim) for t in op.index_tensors)]
    count = sticks_per_core(op, run.plan.accesses[operand])
    starts = (run.bases[0, operand] + run.pattern[operand]).tolist()
    for start, slices in zip(starts, op.core_slices, strict=True):
        yield (start, *(slices.get(dim, 0) for dim in dims)), count


def _overlaps(run: LinkedPart, operand: int) -> bool:
    """True if parts with different starts may share sticks, which are then counted one by one."""
    op, tensor = run.plan.op, run.plan.op.tensors[operand]
    if tensor.indirection is Indirection.VALUE:
        return False
    windowed = any(op.window_of(tensor, dim) is not None for dim in tensor.dims)
    return windowed or tensor in op.index_tensors


def _stick_numbers(run: LinkedPart, operand: int) -> Int64Array:
    starts = (run.bases[0, operand] + run.pattern[operand]).tolist()
    boxes = core_boxes(run.plan.op, run.plan.op.tensors[operand])
    distinct = {(start, id(box)): box for start, box in zip(starts, boxes, strict=True)}
    numbers = [
        (start + box.walk.offsets()) // STICK_BYTES
        for (start, _), box in distinct.items()
        if box is not None
    ]
    return np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)


# --- ring -------------------------------------------------------------------------------------


def _ring_traffic(run: LinkedPart) -> tuple[int, int]:
    """Bytes, and bytes times links, of one execution: partial sums, and operands in the scratchpads
    of other cores.
    """
    groups = _reducing(run)
    sum_bytes = _sum_bytes(run) if groups else 0
    moved = sum_bytes * sum(len(cores) - 1 for cores in groups)
    hops = sum_bytes * sum(map(chain_hops, groups))
    cores = np.array(run.plan.op.cores)
    for access, owners in _in_scratchpads(run):
        way = np.abs(owners - cores)
        size_bytes = _slice_bytes(run, access)
        moved += size_bytes * int(np.count_nonzero(way))
        hops += size_bytes * int(np.minimum(way, CORES - way).sum())
    return moved, hops


def _reducing(run: LinkedPart) -> list[Int64Array]:
    """Numbers of the cores of each group that reduces together."""
    cores = np.array(run.plan.op.cores)
    return [cores[positions] for positions in reduction_groups(run.plan.op) if len(positions) > 1]


def _sum_bytes(run: LinkedPart) -> int:
    """Bytes of the partial sums that one core sends to the next."""
    outputs = (a for a in run.plan.accesses if a.tensor in run.plan.op.outputs)
    return sum(_slice_bytes(run, access) for access in outputs)


def _slice_bytes(run: LinkedPart, access: TensorAccess) -> int:
    return sticks_per_core(run.plan.op, access) * STICK_BYTES


def chain_hops(cores: Int64Array) -> int:
    """Links of a chain through all of ``cores`` that begins after the widest gap of the ring."""
    gaps = _gaps(cores)
    return int(gaps.sum() - gaps.max())


def _gaps(cores: Int64Array) -> Int64Array:
    """Links from each core, in order of their numbers, to the next one around the ring."""
    # The ring closes: the last gap is the one from the highest core to the lowest.
    around = np.sort(cores)
    gaps: Int64Array = np.diff(around, append=around[0] + CORES)
    return gaps


def _in_scratchpads(run: LinkedPart) -> Iterator[tuple[TensorAccess, Int64Array]]:
    """Operands in LX, with the core whose scratchpad holds each core's part."""
    for operand, access in enumerate(run.plan.accesses):
        if access.tensor.component is Component.LX:
            starts = run.bases[0, operand] + run.pattern[operand] - LX_BASE
            yield access, starts // LX_BYTES


def _sent_bytes(run: LinkedPart) -> Int64Array:
    """Bytes that each core sends to others in one execution, [CORES].

    Reads from another core's scratchpad are sent by its owner, writes to it by the working core.
    """
    sent = np.zeros(CORES, np.int64)
    cores = np.array(run.plan.op.cores)
    for group in _reducing(run):
        last = np.sort(group)[_gaps(group).argmax()]  # of the chain, which writes the sum
        sent[group[group != last]] += _sum_bytes(run)
    for access, owners in _in_scratchpads(run):
        senders = cores if access.tensor in run.plan.op.outputs else owners
        np.add.at(sent, senders[owners != cores], _slice_bytes(run, access))
    return sent


# --- cores ------------------------------------------------------------------------------------


def count_cores(runs: Sequence[LinkedPart]) -> Int64Array:
    """Work of every core in all executions, int64 [CORES, len(CORE_COLUMNS)].

    Bytes add up to those of :func:`count_execute`; ring bytes count at the sender. Points do not
    add up if cores repeat the same work, which counts here for each of them.
    """
    counts = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
    for run in runs:
        op = run.plan.op
        counted = count_plan(run.plan)
        points = prod(op.core_extent(dim) for dim in op.dims)
        row = np.zeros(len(CORE_COLUMNS), np.int64)
        row[CORE_TRAFFIC] = np.array(counted.values[:4], np.int64) // len(op.cores)
        row[CORE_WORK] = (points, 0) if counted.multiply_adds else (0, points)
        np.add.at(counts, np.array(op.cores), row * len(run.instances))
        counts[:, CORE_COLUMNS.index("ring_bytes")] += _sent_bytes(run) * len(run.instances)
    return counts


def count_operation(runs: Sequence[LinkedPart]) -> OperationCounts:
    """All executions of one statement. Runtime sizes that differ between them are averaged."""
    counters = count_execute(runs)
    plan = runs[0].plan
    op = plan.op if runs[0].divided is None else runs[0].divided
    work = count_cores(runs)[:, CORE_WORK].sum(axis=1)
    kind = cost_class(op, plan.spec.family, counters.executions)
    product = _executed(product_of(op), counters) if kind is CostClass.MATMUL else None
    points = (counters.multiply_adds + counters.element_operations) // counters.executions
    columns = max(op.extents.get(_stick_dim(op), 1), 1) if product is None else product.n
    moved = interface_bytes(runs)
    inner = columns if product is None else columns * product.k
    return OperationCounts(
        name=op.name,
        cost_class=kind,
        cores=int(np.count_nonzero(work)) or len(set(op.cores)),
        counters=counters,
        hbm_reread_bytes=reread_bytes(runs),
        transcendental=plan.spec.transcendental,
        largest_share=float(work.max() / work.sum()) if work.any() else 0.0,
        mac_format=op.inputs[0].data_format,
        rows=points // inner,
        columns=columns,
        column_cores=op.slices.get(_stick_dim(op), 1) if product is None else product.n_cores,
        scalar_operand=_has_scalar(op) and kind is CostClass.POINTWISE,
        product=product,
        reads={start: size * counters.executions for start, size in moved[0].items()},
        writes={start: size * counters.executions for start, size in moved[1].items()},
    )


# --- classes ----------------------------------------------------------------------------------


def cost_class(op: Operation, family: Family, executions: int) -> CostClass:
    """Return the class that selects an operation's terms of the calibrated model."""
    if family in (Family.MATMUL, Family.PACKED_MATMUL):
        return CostClass.MATMUL
    if family is Family.REDUCTION:
        keeps_stick = op.outputs[0].holds(_stick_dim(op))
        return CostClass.COLUMN_REDUCTION if keeps_stick else CostClass.ROW_REDUCTION
    if family is Family.RESTICKIFY:
        return CostClass.TRANSPOSE
    if family is Family.COPY and executions == 1:
        target = op.outputs[0]  # with a gap along a dim other than the outermost it is scattered
        if any(gap > 0 for dim, gap in target.gap_elements.items() if dim != target.dims[-1]):
            return CostClass.CONCATENATION
    if family is Family.ELEMENTWISE and any(_is_broadcast(op, t) for t in op.inputs):
        return CostClass.BROADCAST
    return CostClass.POINTWISE


def _is_broadcast(op: Operation, tensor: Tensor) -> bool:
    """An operand in HBM that lacks some dims of the result, but not all of them."""
    varying = [dim for dim in op.dims if op.extents[dim] > 1 and op.outputs[0].holds(dim)]
    dims = [dim for dim in varying if tensor.holds(dim)]
    return tensor.component is Component.HBM and is_broadcast(dims, varying)


def _has_scalar(op: Operation) -> bool:
    """A constant of the SDSC, or one of several operands is one number for all elements."""
    if set(op.constants) - {MASK_CONSTANT, OVERFLOW_CONSTANT, INDEX_LIMIT_CONSTANT}:
        return True
    return len(op.inputs) > 1 and any(not any(map(t.holds, op.dims)) for t in op.inputs)


# --- shapes -----------------------------------------------------------------------------------


def _stick_dim(op: Operation) -> str:
    return op.inputs[0].stick_dims[-1] if op.inputs else op.outputs[0].stick_dims[-1]


def product_of(op: Operation) -> ProductShape:
    """Shape and division of a matrix product, one run of it."""
    operands = (*op.inputs[:2], op.outputs[0])
    first, second, out = ([dim for dim in op.dims if t.holds(dim)] for t in operands)
    shape = product_shape(product_dims(op.dims, first, second, out), op.extents, op.slices)
    batches = [dim for dim in out if dim in first and dim in second]
    return replace(
        shape,
        in_hbm=tuple(t.component is Component.HBM for t in operands),
        interleaved=tuple(_is_interleaved(op, t, batches) for t in operands),
    )


def _executed(shape: ProductShape, counters: Counters) -> ProductShape:
    """The shape with the rows that were executed."""
    inner = shape.k * shape.n * shape.batch * counters.executions
    return replace(shape, m=counters.multiply_adds // inner)


def _is_interleaved(op: Operation, tensor: Tensor, batches: Collection[str]) -> bool:
    """True if the sticks next to each other in memory are those of different batches."""
    outer = (dim for dim in tensor.dims if tensor.holds(dim) and dim not in tensor.stick_dims)
    return next((dim for dim in outer if op.extents[dim] > 1), "") in batches


# --- memory -----------------------------------------------------------------------------------


def reread_bytes(runs: Sequence[LinkedPart]) -> int:
    """Bytes of HBM that an execution reads where an earlier one read the same operand already."""
    again = 0
    for operand, tensor in enumerate(runs[0].plan.op.tensors):
        if tensor.component is not Component.HBM or tensor in runs[0].plan.op.outputs:
            continue
        for run in runs:
            repeated = len(run.instances) - len(np.unique(run.bases[:, operand]))
            again += repeated * operand_sticks([run], operand) * STICK_BYTES
    return again
