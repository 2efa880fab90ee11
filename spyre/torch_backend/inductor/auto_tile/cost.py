"""What the cost model says of a kernel.

The same records as those of executed kernels (:mod:`spyre.hw.counters.execute`), before there is a
bundle. An operand's sticks are those its device dims reach; what several cores read at once counts
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from spyre.dtypes import STICK_BYTES
from spyre.hw.cost import default_machine, kernel_ns
from spyre.hw.counters import (
    CostClass,
    Counters,
    OperationCounts,
    ProductShape,
    is_broadcast,
    product_dims,
    product_shape,
)
from spyre.hw.ops import OPS
from spyre.torch_backend.inductor.bundles import LX, Kernel, KernelLoop, KernelOp
from spyre.torch_backend.program import Ints, OpKind


@dataclass(frozen=True, slots=True)
class ModelledCost:
    """A launch of a kernel on the card, by the counts of its operations.

    ``intermediate_bytes``: HBM traffic of what the kernel makes itself. ``lx_bytes``: the end of
    the highest buffer in a scratchpad.
    """

    operations: tuple[OperationCounts, ...]
    intermediate_bytes: int
    lx_bytes: int

    @property
    def time_ns(self) -> float:
        """By the calibrated model of the default machine, without what the host adds."""
        return kernel_ns(self.operations, default_machine()).total_ns

    @property
    def hbm_bytes(self) -> int:
        """Read and written in device memory."""
        return sum(counts.hbm_bytes for counts in self.operations)


def modelled_cost(kernel: Kernel) -> ModelledCost:
    """The cost of one launch of a kernel whose work is divided and whose memory is planned."""
    operations = [_Operation(op, counts) for op, counts in _flattened(kernel, ())]
    return ModelledCost(
        tuple(operation.counts() for operation in operations),
        sum(operation.intermediate_bytes() for operation in operations),
        max((operation.lx_end() for operation in operations), default=0),
    )


def _flattened(kernel: Kernel, loops: Ints) -> Iterator[tuple[KernelOp, Ints]]:
    for op in kernel:
        if isinstance(op, KernelLoop):
            yield from _flattened(op.body, (*loops, int(op.count)))
        elif isinstance(op, KernelOp):
            yield op, loops


class _Operation:
    """One operation and the loops around it; tensors and dims by their numbers."""

    def __init__(self, op: KernelOp, loops: Ints) -> None:
        self.op, self.loops = op, loops
        self.runs, self.cores = prod(loops), prod(op.splits)
        self.share = [-(-n // cores) for n, cores in zip(op.extents, op.splits, strict=True)]
        self.output = len(op.tensors) - 1

    def counts(self) -> OperationCounts:
        op, product, kind = self.op, self._product(), self._cost_class()
        points, first = self._points() * self.runs, op.tensors[0]
        columns = self._padded(0) if product is None else product.n
        inner = columns if product is None else columns * product.k
        inputs = range(self.output)
        column_cores = op.splits[first.lane] if first.lane >= 0 else 1
        return OperationCounts(
            name=op.name,
            cost_class=kind,
            cores=self.cores,
            counters=Counters(
                rdmem_bytes=sum(map(self._hbm_bytes, inputs)),
                wrmem_bytes=self._hbm_bytes(self.output),
                lx_read_bytes=sum(map(self._lx_bytes, inputs)),
                lx_written_bytes=self._lx_bytes(self.output),
                multiply_adds=points if product else 0,
                element_operations=0 if product else points,
                executions=self.runs,
            ),
            hbm_reread_bytes=sum(map(self._reread_bytes, inputs)),
            transcendental=OPS[op.name].transcendental,
            largest_share=1.0 / self.cores,
            mac_format=first.format,
            rows=points // self.runs // inner,
            columns=columns,
            column_cores=column_cores if product is None else product.n_cores,
            scalar_operand=self._has_scalar() and kind is CostClass.POINTWISE,
            product=product,
        )

    def intermediate_bytes(self) -> int:
        """HBM traffic of tensors that are no arguments of the kernel."""
        tensors = enumerate(self.op.tensors)
        return sum(self._hbm_bytes(number) for number, t in tensors if t.argument < 0)

    def lx_end(self) -> int:
        """Where the highest of its tensors in LX ends."""
        ends = (
            tensor.start_bytes + self._sticks(number, self.share) * STICK_BYTES
            for number, tensor in enumerate(self.op.tensors)
            if tensor.memory == LX
        )
        return max(ends, default=0)

    def _hbm_bytes(self, number: int) -> int:
        if self.op.tensors[number].memory == LX:
            return 0
        return self._sticks(number, self.op.extents) * STICK_BYTES * self.runs

    def _lx_bytes(self, number: int) -> int:
        if self.op.tensors[number].memory != LX:
            return 0
        return self._sticks(number, self.share) * STICK_BYTES * self.cores * self.runs

    def _sticks(self, number: int, extents: Sequence[int]) -> int:
        """Sticks of a tensor that an iteration over ``extents`` touches, each once."""
        dims = self.op.device_dims(number)
        return prod(-(-extents[k] // unit) for dim in dims for k, unit in dim.walked)

    def _reread_bytes(self, number: int) -> int:
        """What an earlier run has read already: loops that do not move the operand."""
        moved, touched = 1, self.op.dims_of(number)
        if not self.op.tensors[number].is_tile:
            moves = zip(self.loops, self.op.loop_dims, strict=True)
            moved = prod(n for n, dim in moves if dim in touched)
        return self._hbm_bytes(number) * (self.runs - moved) // self.runs

    def _points(self) -> int:
        """Points of one run: whole sticks are worked on, sticks of one element too."""
        number = 0 if self.op.kind in (OpKind.REDUCTION, OpKind.MATMUL) else self.output
        lane = self.op.tensors[number].lane
        others = prod(n for k, n in enumerate(self.op.extents) if k != lane)
        return others * self._padded(number)

    def _padded(self, number: int) -> int:
        """Elements along the sticks of a tensor, whole sticks."""
        tensor = self.op.tensors[number]
        extent = self.op.extents[tensor.lane] if tensor.lane >= 0 else 1
        return -(-extent // tensor.lanes) * tensor.lanes

    def _cost_class(self) -> CostClass:
        op = self.op
        if op.kind is OpKind.MATMUL:
            return CostClass.MATMUL
        if op.kind is OpKind.RESTICKIFY:
            return CostClass.TRANSPOSE
        if op.kind is OpKind.REDUCTION:
            kept = op.tensors[0].lane in op.dims_of(self.output)
            return CostClass.COLUMN_REDUCTION if kept else CostClass.ROW_REDUCTION
        if any(map(self._is_broadcast, range(self.output))):
            return CostClass.BROADCAST
        return CostClass.POINTWISE

    def _is_broadcast(self, number: int) -> bool:
        """An operand in HBM that lacks some dims of the result, but not all of them."""
        varying = {k for k in self.op.dims_of(self.output) if self.op.extents[k] > 1}
        in_hbm = self.op.tensors[number].memory != LX
        return in_hbm and is_broadcast(self.op.dims_of(number), varying)

    def _has_scalar(self) -> bool:
        """A constant, or one of several operands is one number for all elements."""
        numbers = [not self.op.dims_of(number) for number in range(self.output)]
        return (len(numbers) > 1 and any(numbers)) or bool(self.op.constants)

    def _product(self) -> ProductShape | None:
        op = self.op
        if op.kind is not OpKind.MATMUL:
            return None
        dims = product_dims(range(len(op.extents)), *map(op.dims_of, range(3)))
        return product_shape(dims, dict(enumerate(op.extents)), dict(enumerate(op.splits)))
