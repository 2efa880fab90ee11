"""Measured kernels, their operation counts, and the errors of the models.

``measured_kernels.csv`` has a row per kernel: extents in elements, cores, microseconds on a card.
Constants are fitted on one half of the rows. Tensors are fp16 in default layouts, in HBM unless a
row has another place. If the published report does not define a kernel, its function states the
assumption.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from spyre.dtypes import STICK_BYTES
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.models import Model, kernel_ns
from spyre.hw.counters import CostClass, Counters, OperationCounts, ProductShape

FILE = "measured_kernels.csv"


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One kernel on 32 cores or fewer, fp16 tensors.

    ``rows`` x ``columns``: extents of a tensor, columns in the stick dim; of a product those of
    its result, with ``depth`` reduced and its rows and columns divided among ``m_cores`` and
    ``n_cores``. ``inputs``: tensors read. ``tiles``: trips of a loop over rows. ``fitted``: in the
    half that constants are fitted on.
    """

    group: str
    kernel: str
    rows: int
    depth: int
    columns: int
    m_cores: int
    n_cores: int
    cores: int
    inputs: int
    tiles: int
    us: float
    fitted: bool

    @property
    def explained(self) -> bool:
        """False for products whose columns are no power of two: some take twice the time of their
        neighbours, and the published report knows no mechanism (hardware reference §5).
        """
        return not (self.group == "matmul" and self.columns & (self.columns - 1))

    @property
    def title(self) -> str:
        """Name and extents, e.g. ``mm 2048x2048x2048, cores 4x8``."""
        extents = [self.rows, self.depth, self.columns] if self.depth else [self.rows, self.columns]
        text = f"{self.kernel} {'x'.join(map(str, extents))}"
        if self.m_cores:
            text += f", cores {self.m_cores}x{self.n_cores}"
        return text + (f", {self.tiles} tiles" if self.tiles > 1 else "")


@cache
def measured_kernels() -> tuple[MeasuredKernel, ...]:
    """All rows. Of every group the first, third, fifth … row are fitted, the others reported.

    The file is sorted by group, kernel and extents (as text), so the rule looks at no time.
    """
    text = resources.files("spyre.hw.cost").joinpath(FILE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    seen: dict[str, int] = {}
    kernels = []
    for row in csv.DictReader(lines):
        number = seen[row["group"]] = seen.get(row["group"], -1) + 1
        kernels.append(_kernel(row, number % 2 == 0))
    return tuple(kernels)


def _kernel(row: dict[str, str], fitted: bool) -> MeasuredKernel:
    def number(name: str) -> int:
        return int(row[name] or 0)

    return MeasuredKernel(
        group=row["group"],
        kernel=row["kernel"],
        rows=number("rows"),
        depth=number("depth"),
        columns=number("columns"),
        m_cores=number("m_cores"),
        n_cores=number("n_cores"),
        cores=number("cores"),
        inputs=number("inputs"),
        tiles=number("tiles"),
        us=float(row["us"]),
        fitted=fitted,
    )


ELEMENT_BYTES = 2
STICK_ELEMENTS = STICK_BYTES // ELEMENT_BYTES
Counts = tuple[OperationCounts, ...]


def counts_of(row: MeasuredKernel, machine: MachineSpec) -> Counts:
    """Return the operations of a measured kernel; ``machine``: for the size of LX."""
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
        counters=Counters(
            rdmem_bytes=read * size_bytes,
            wrmem_bytes=written * size_bytes,
            lx_read_bytes=lx_read * size_bytes,
            lx_written_bytes=lx_written * size_bytes,
            element_operations=row.rows * row.columns,
            executions=row.tiles,
        ),
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
    """A copy per input. Along dim 0 an input is written to a part of every plane of sticks, along
    dim 1 to one contiguous range.
    """
    is_scattered = row.kernel == "cat_dim0"
    kind = CostClass.CONCATENATION if is_scattered else CostClass.POINTWISE
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
            counters=Counters(
                rdmem_bytes=_tensor_bytes(row),
                wrmem_bytes=sticks.get(row.kernel, row.rows) * STICK_BYTES,
                element_operations=row.rows * row.columns,
                executions=1,
            ),
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
            counters=Counters(
                rdmem_bytes=row.rows * depth * ELEMENT_BYTES + weight * row.tiles,
                wrmem_bytes=_tensor_bytes(row),
                multiply_adds=row.rows * depth * row.columns,
                executions=row.tiles,
            ),
            hbm_reread_bytes=weight * (row.tiles - 1),
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


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured kernel and its modelled time ``us``, in microseconds."""

    row: MeasuredKernel
    us: float

    @property
    def error(self) -> float:
        """Relative error: predicted over measured, minus 1."""
        return self.us / self.row.us - 1.0


def predictions(
    machine: MachineSpec,
    model: Model = "calibrated",
    rows: Sequence[MeasuredKernel] | None = None,
) -> tuple[Prediction, ...]:
    """Return the predictions of ``model`` for ``rows``, by default all measured kernels."""
    return tuple(
        Prediction(row, kernel_ns(counts_of(row, machine), machine, model).total_ns / 1e3)
        for row in (measured_kernels() if rows is None else rows)
    )
