"""What the measured kernels count: the operations each row stands for, as a launch would run them.

Tensors are fp16 in default layouts, in HBM unless a row says otherwise. Where the published report
leaves open what ran, the reading is stated at the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spyre.dtypes import STICK_BYTES
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.measured import MeasuredKernel
from spyre.hw.cost.operation_counts import CostClass, OperationCounts, ProductShape

ELEMENT_BYTES = 2
STICK_ELEMENTS = STICK_BYTES // ELEMENT_BYTES
Counts = tuple[OperationCounts, ...]


def counts_of(row: MeasuredKernel, machine: MachineSpec) -> Counts:
    """The operations of a measured kernel; ``machine`` says what fits into LX."""
    return _GROUPS[row.group](row, machine)


def _tensor_bytes(row: MeasuredKernel) -> int:
    return row.rows * row.columns * ELEMENT_BYTES


def _operation(
    row: MeasuredKernel,
    name: str,
    cost_class: CostClass,
    read: int = 0,
    written: int = 0,
    lx_read: int = 0,
    lx_written: int = 0,
    transcendental: bool = False,
    scalar_operand: bool = False,
) -> OperationCounts:
    """An operation over the tensor of ``row``; traffic in tensors of its size."""
    size_bytes = _tensor_bytes(row)
    return OperationCounts(
        name=name,
        cost_class=cost_class,
        cores=row.cores,
        runs=row.tiles,
        hbm_read_bytes=read * size_bytes,
        hbm_written_bytes=written * size_bytes,
        lx_read_bytes=lx_read * size_bytes,
        lx_written_bytes=lx_written * size_bytes,
        element_operations=row.rows * row.columns,
        rows=row.rows // row.tiles,
        columns=row.columns,
        transcendental=transcendental,
        scalar_operand=scalar_operand,
    )


def _pointwise(row: MeasuredKernel, _: MachineSpec) -> Counts:
    function = row.kernel in ("exp", "gelu")
    constant = row.kernel == "add_const"
    counts = _operation(
        row,
        row.kernel,
        CostClass.POINTWISE,
        row.inputs,
        1,
        transcendental=function,
        scalar_operand=constant,
    )
    return (counts,)


def _broadcast(row: MeasuredKernel, _: MachineSpec) -> Counts:
    """A row vector added to every row: one stick row more to read, once for all cores."""
    return (_operation(row, "add", CostClass.BROADCAST, 1, 1),)


def _cat(row: MeasuredKernel, _: MachineSpec) -> Counts:
    """A copy per input. Behind one another (dim 0) they lie in parts of every plane of sticks;
    beside one another (dim 1) each is one range of the result.
    """
    apart = row.kernel == "cat_dim0"
    kind = CostClass.CONCATENATION if apart else CostClass.POINTWISE
    return (_operation(row, "identity", kind, 1, 1),) * row.inputs


def _chain(row: MeasuredKernel, _: MachineSpec) -> Counts:
    """Adds one after another; with LX only the inputs and the last result are in HBM."""
    kind = CostClass.POINTWISE
    adds = row.inputs - 1
    if row.kernel.endswith("off"):
        return (_operation(row, "add", kind, 2, 1),) * adds
    first = _operation(row, "add", kind, 2, 0, 0, 1)
    middle = _operation(row, "add", kind, 1, 0, 1, 1)
    return (first, *(middle,) * (adds - 2), _operation(row, "add", kind, 1, 1, 1, 0))


def _reduction(row: MeasuredKernel, _: MachineSpec) -> Counts:
    """Over rows (``sum_col``) a row of sums is left, of all a stick, else a stick per row."""
    by_column = row.kernel == "sum_col"
    sticks = {"sum_col": row.columns * ELEMENT_BYTES // STICK_BYTES, "sum_all": 1}
    return (
        OperationCounts(
            name=row.kernel,
            cost_class=CostClass.COLUMN_REDUCTION if by_column else CostClass.ROW_REDUCTION,
            cores=row.cores,
            hbm_read_bytes=_tensor_bytes(row),
            hbm_written_bytes=sticks.get(row.kernel, row.rows) * STICK_BYTES,
            element_operations=row.rows * row.columns,
            rows=row.rows,
            columns=row.columns,
        ),
    )


def _transpose(row: MeasuredKernel, _: MachineSpec) -> Counts:
    return (_operation(row, "ReStickifyOpHBM", CostClass.TRANSPOSE, 1, 1),)


def _softmax(row: MeasuredKernel, machine: MachineSpec) -> Counts:
    """Max, subtract, exp, sum, divide. A tile a core's LX has no room for stays in HBM; else the
    input is copied into LX once and only the result leaves it.
    """
    kind, reduce = CostClass.POINTWISE, CostClass.ROW_REDUCTION
    tile_bytes = _tensor_bytes(row) // (row.tiles * row.cores)
    if tile_bytes > machine.hardware.lx_planner_bytes:
        return (
            _operation(row, "max", reduce, 1),
            _operation(row, "sub", kind, 1, 1),
            _operation(row, "exp", kind, 1, 1, transcendental=True),
            _operation(row, "sum", reduce, 1),
            _operation(row, "realdiv", kind, 1, 1),
        )
    return (
        _operation(row, "identity", kind, 1, 0, 0, 1),
        _operation(row, "max", reduce, 0, 0, 1, 0),
        _operation(row, "sub", kind, 0, 0, 1, 1),
        _operation(row, "exp", kind, 0, 0, 1, 1, transcendental=True),
        _operation(row, "sum", reduce, 0, 0, 1, 0),
        _operation(row, "realdiv", kind, 0, 1, 1, 0),
    )


def _matmul(row: MeasuredKernel, _: MachineSpec) -> Counts:
    """The reduced dim is padded to whole sticks; every trip of a loop over rows reads the second
    operand again.
    """
    depth = -(-row.depth // STICK_ELEMENTS) * STICK_ELEMENTS
    weight = depth * row.columns * ELEMENT_BYTES
    return (
        OperationCounts(
            name="batchmatmul",
            cost_class=CostClass.MATMUL,
            cores=row.cores,
            runs=row.tiles,
            hbm_read_bytes=row.rows * depth * ELEMENT_BYTES + weight * row.tiles,
            hbm_written_bytes=_tensor_bytes(row),
            hbm_reread_bytes=weight * (row.tiles - 1),
            multiply_adds=row.rows * depth * row.columns,
            rows=row.rows // row.tiles,
            columns=row.columns,
            product=ProductShape(
                m=row.rows // row.tiles,
                k=depth,
                n=row.columns,
                m_cores=row.m_cores,
                n_cores=row.n_cores,
            ),
        ),
    )


_GROUPS: Mapping[str, Callable[[MeasuredKernel, MachineSpec], Counts]] = {
    "pointwise": _pointwise,
    "broadcast": _broadcast,
    "cat": _cat,
    "chain": _chain,
    "reduction": _reduction,
    "transpose": _transpose,
    "softmax tiled": _softmax,
    "matmul": _matmul,
    "matmul row tiled": _matmul,
}
