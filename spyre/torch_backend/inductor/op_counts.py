"""Counts of a `KernelOp` for the cost model, without linking a bundle: some ten microseconds.

The planner of LX compares its plans by them. Unlike in the counts of the linked program, every
tensor is moved once per iteration, and reads from another core's scratchpad do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from spyre.hw.counters import CostClass, Counters, OperationCounts, is_broadcast
from spyre.hw.ops import Family, find_op
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import LX, KernelOp
from spyre.torch_backend.inductor.division import product_of, read_iteration


def counts_of(op: KernelOp, in_lx: Collection[str] = (), runs: int = 1) -> OperationCounts:
    """Return the counts of ``runs`` iterations of a divided operation.

    ``in_lx``: names of further buffers in LX, in addition to the operation's.
    """
    known, lane = find_op(op.name), op.tensors[0].lane
    in_hbm = [tensor.memory != LX and tensor.buffer not in in_lx for tensor in op.tensors]
    columns = max(op.extents[lane], 1) if lane >= 0 else 1
    counts = OperationCounts(
        name=op.name,
        cost_class=_class_of(op, known.family if known else None, in_hbm),
        cores=prod(op.splits),
        counters=_moved(op, in_hbm).times(runs),
        transcendental=known is not None and known.transcendental,
        mac_format=op.tensors[0].format,
        rows=prod(op.extents) // columns,
        columns=columns,
        column_cores=op.splits[lane] if lane >= 0 else 1,
        scalar_operand=bool(op.constants),
    )
    if counts.cost_class is not CostClass.MATMUL:
        return counts
    shape = product_of(read_iteration(op))[0].product
    assert shape is not None
    return replace(counts, product=replace(shape, in_hbm=(*in_hbm[:2], in_hbm[-1])))


def _class_of(op: KernelOp, family: Family | None, in_hbm: Sequence[bool]) -> CostClass:
    if family in (Family.MATMUL, Family.PACKED_MATMUL):
        return CostClass.MATMUL
    if family is Family.REDUCTION:
        keeps_stick = op.output.has(op.tensors[0].lane)
        return CostClass.COLUMN_REDUCTION if keeps_stick else CostClass.ROW_REDUCTION
    if family is Family.RESTICKIFY:
        return CostClass.TRANSPOSE
    dims = [k for k, extent in enumerate(op.extents) if extent > 1 and op.output.has(k)]
    far = [tensor for tensor, is_far in zip(op.inputs, in_hbm, strict=False) if is_far]
    broadcasts = any(is_broadcast([k for k in dims if t.has(k)], dims) for t in far)
    is_broadcast_class = family is Family.ELEMENTWISE and broadcasts
    return CostClass.BROADCAST if is_broadcast_class else CostClass.POINTWISE


def _moved(op: KernelOp, in_hbm: Sequence[bool]) -> Counters:
    """One iteration: every stick of a tensor once."""
    moved = dict.fromkeys(((far, out) for far in (True, False) for out in (True, False)), 0)
    for number, (tensor, far) in enumerate(zip(op.tensors, in_hbm, strict=True)):
        steps = (
            -(-extent // tensor.lanes) if k == tensor.lane else extent
            for k, extent in enumerate(op.extents)
            if tensor.has(k)
        )
        moved[far, op.is_output(number)] += prod(steps) * STICK_BYTES
    known, points = find_op(op.name), prod(op.extents)
    is_product = known is not None and known.unit == "pt"
    return Counters(
        rdmem_bytes=moved[True, False],
        wrmem_bytes=moved[True, True],
        lx_read_bytes=moved[False, False],
        lx_written_bytes=moved[False, True],
        multiply_adds=points if is_product else 0,
        element_operations=0 if is_product else points,
        executions=1,
    )
