"""From a kernel to a bundle: arguments, loops, one SDSC per operation.

With symbolic addresses loops stay loops, and tensors move by the strides of their device layout.
Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.hw.spec import CORES
from spyre.mlir.builder import (
    POOL,
    BufferAddress,
    BuiltBundle,
    BundleBuilder,
    OperationSpec,
    RuntimeSize,
    SizeValue,
)
from spyre.mlir.operation import RESTICKIFY
from spyre.torch_backend.inductor.bundles.kernel_op import (
    K_ROLE,
    LX,
    REDUCED,
    Kernel,
    KernelLoop,
    KernelOp,
    Sizes,
    SizeSpec,
    integer,
    size_value,
    smallest,
    value_at,
)
from spyre.torch_backend.program import (
    SCRATCH,
    CoreDivision,
    Ints,
    IterationDim,
    LoweringError,
    OpKind,
    ScratchpadPlace,
    UnevenDivision,
    emit_over,
)


class ArgumentMemory(msgspec.Struct, frozen=True):
    """The memory of one kernel argument. ``is_input``: the first operation to touch it reads it."""

    size_bytes: int = STICK_BYTES
    is_input: bool = True
    is_output: bool = False


_Use = tuple[KernelOp, int]
"""An operation, and the number of one of its tensors."""


class KernelMemory(msgspec.Struct, frozen=True):
    """Memory of a kernel: its arguments by arg_index, and the bytes of its pool."""

    arguments: tuple[ArgumentMemory, ...]
    pool_bytes: int

    @classmethod
    def of(cls, kernel: Kernel, sizes: Sizes | None = None, least: int = 0) -> KernelMemory:
        """The memory of ``kernel`` in launches of ``sizes``, which its loops never leave.

        ``least``: number of arguments, where the operations may touch fewer.
        """
        uses: dict[int, list[_Use]] = {}
        pool_bytes, values = 0, sizes or {}
        for op in _running(kernel, values):
            for number, tensor in enumerate(op.tensors):
                if tensor.argument >= 0:
                    uses.setdefault(tensor.argument, []).append((op, number))
                elif tensor.memory == POOL:
                    end = tensor.start_bytes + value_at(op.buffer_bytes(number), values)
                    pool_bytes = max(pool_bytes, end)
        count = max(max(uses, default=-1) + 1, least)
        return cls(tuple(_memory(uses.get(k, []), values) for k in range(count)), pool_bytes)


def _running(kernel: Kernel, sizes: Sizes) -> Iterator[KernelOp]:
    """All operations, those in loops once, except in loops whose count is 0 at these sizes."""
    for op in kernel:
        if isinstance(op, KernelOp):
            yield op
        elif isinstance(op, KernelLoop) and value_at(op.count, sizes) != 0:
            yield from _running(op.body, sizes)


def _memory(uses: Sequence[_Use], sizes: Sizes) -> ArgumentMemory:
    if not uses:
        return ArgumentMemory()
    first, number = uses[0]
    return ArgumentMemory(
        max(value_at(op.buffer_bytes(k), sizes) for op, k in uses),
        not first.is_output(number),
        any(op.is_output(k) for op, k in uses),
    )


def generate_bundle(
    name: str,
    kernel: Kernel,
    sizes: Sequence[SizeSpec] = (),
    *,
    symbolic: bool = True,
    unrolled: bool = False,
    pool_argument: bool = False,
) -> BuiltBundle:
    """The bundle of a kernel.

    ``symbolic``: addresses are launch arguments; otherwise constants, with argument k in segment k,
    or in k + 1 if the pool takes segment 0. ``unrolled``: no loops, one operation per iteration.
    ``pool_argument``: the pool is the last argument of a symbolic bundle, and not added by the
    runtime. ``sizes``: parameters after the addresses; they need loops and symbolic addresses.
    UnsupportedError SPY960, SPY961, SPY964 or SPY966 for kernels without a bundle.
    """
    if sizes and (unrolled or not symbolic):
        raise UnsupportedError(
            "SPY966",
            f"{name}: sizes that only a launch knows need loops and symbolic addresses",
            expected="UNROLL_LOOPS=0 and BUNDLE_SYMBOLIC_ARGS=1",
            found="unrolled loops" if unrolled else "baked addresses",
        )
    memory = KernelMemory.of(kernel, smallest(sizes))
    builder = BundleBuilder(symbolic=symbolic)
    known = {s.name: builder.size(s.name, None, s.granularity) for s in sizes}
    for argument in memory.arguments:
        builder.argument(argument.size_bytes)
    if memory.pool_bytes and pool_argument:
        builder.argument(memory.pool_bytes, SCRATCH)
    elif memory.pool_bytes:
        builder.temporary(memory.pool_bytes)
    writer = _BundleWriter(name, builder, SCRATCH if pool_argument else POOL, known)
    writer.add(unroll(kernel) if unrolled else kernel, ())
    return builder.build()


LoopCounts = tuple[tuple[str, int], ...]
"""(name, count) of the loops around an operation, the outermost first; UNKNOWN_COUNT for counts
that only a launch knows."""
UNKNOWN_COUNT = 1 << 40


class _BundleWriter(msgspec.Struct):
    """Adds the operations of a kernel to ``builder``. ``shares``: how the cores share the tensor
    last written at each LX address: its size, and the start of each core's part in it, in bytes.
    """

    name: str
    builder: BundleBuilder
    pool: str
    sizes: Mapping[str, RuntimeSize] = msgspec.field(default_factory=dict)
    shares: dict[int, tuple[int, Ints]] = msgspec.field(default_factory=dict)

    def add(self, kernel: Kernel, loops: LoopCounts) -> None:
        for op in kernel:
            match op:
                case KernelLoop():
                    count = self._count(op)
                    known = count if isinstance(count, int) else UNKNOWN_COUNT
                    with self.builder.loop(count) as loop:
                        self.add(op.body, (*loops, (loop, known)))
                case KernelOp():
                    self._add_operation(op, loops)

    def _count(self, loop: KernelLoop) -> int | SizeValue:
        role = f"{self.name}: loop count"
        count = size_value(loop.count, self.sizes, role)
        return integer(count, role) if isinstance(count, int) else count

    def _bytes(self, op: KernelOp, number: Any) -> int | SizeValue:
        return size_value(number, self.sizes, f"{op.name}: a pitch")

    def _add_operation(self, op: KernelOp, loops: LoopCounts) -> None:
        bases = [self._base(op, number, loops) for number in range(len(op.tensors))]
        dims, division = op.iterated.dims, _division(op)
        try:
            operation = emit_over(op.iterated, bases, division)
        except UnevenDivision as error:
            raise not_divisible(op.name, error.finding.found) from error
        except LoweringError as error:
            raise inexpressible(op.name, "its tensors", error.finding.found) from error
        for number in range(len(op.tensors)):
            _check_reach(op, number, _reach_bytes(operation, dims, number), loops)
        for number, tensor in enumerate(op.tensors):
            if tensor.memory == LX:
                self._check_share(op, number, _begins_bytes(operation, dims, division, number))
        self.builder.add(operation)

    def _base(
        self, op: KernelOp, number: int, loops: LoopCounts
    ) -> BufferAddress | ScratchpadPlace:
        tensor = op.tensors[number]
        if tensor.memory == LX and not tensor.offset_bytes:
            return ScratchpadPlace(tensor.start_bytes)
        if tensor.memory == LX or (tensor.memory != POOL and tensor.argument < 0):
            text = f"{tensor.memory} {tensor.start_bytes}, from byte {tensor.offset_bytes} on"
            raise inexpressible(op.name, tensor_name(op, number), text)
        strides = {
            loop: self._bytes(op, tensor.stride(k))
            for k, (loop, _) in enumerate(loops)
            if tensor.stride(k) != 0
        }
        begin, shift = tensor.start_bytes + tensor.offset_bytes, self._bytes(op, tensor.shift)
        name = f"arg_{tensor.argument}" if tensor.argument >= 0 else self.pool
        if isinstance(shift, int):
            return BufferAddress(name, begin + shift, strides)
        return BufferAddress(name, begin, strides, (shift,))

    def _check_share(self, op: KernelOp, number: int, begins_bytes: Ints) -> None:
        """SPY961 if a tensor is read from LX with another division than it was written with."""
        start, share = op.tensors[number].start_bytes, (op.buffer_bytes(number), begins_bytes)
        if op.is_output(number):
            self.shares[start] = share
        elif (written := self.shares.get(start, share)) != share:
            _, begins = written
            text = f"{tensor_name(op, number)} written by {len(begins)} cores, from {begins[:4]}… "
            text += f"on, and read from {begins_bytes[:4]}… on"
            raise not_divisible(op.name, text)


def _division(op: KernelOp) -> CoreDivision:
    """The slices of the dims that are walked. Of reduced dims only K of a matmul may be divided."""
    walked = [dim for dim in range(len(op.extents)) if op.is_walked(dim)]
    splits = {k: op.splits[dim] for k, dim in enumerate(walked) if op.splits[dim] > 1}
    summed = {OpKind.REDUCTION: REDUCED, OpKind.MATMUL: K_ROLE}.get(op.kind, -1)
    reduced = [walked[k] for k in splits if op.roles[walked[k]] == summed]
    is_k = op.kind is OpKind.MATMUL and all(op.tensors[0].lane == dim for dim in reduced)
    if len(reduced) > int(is_k) or prod(splits.values()) > CORES:
        slices = dict(zip(op.symbols, op.splits, strict=True))
        raise not_divisible(op.name, f"slices {slices}")
    return CoreDivision(splits, [walked.index(dim) for dim in op.core_order if dim in walked])


def _check_reach(op: KernelOp, number: int, reach: int, loops: LoopCounts) -> None:
    """SPY960 if the whole sticks that an operation touches reach beyond the tensor's buffer."""
    tensor, size_bytes = op.tensors[number], op.buffer_bytes(number)
    moved = [(count, tensor.stride(k)) for k, (_, count) in enumerate(loops) if tensor.stride(k)]
    if not isinstance(size_bytes, int) or any(count == UNKNOWN_COUNT for count, _ in moved):
        return  # no number yet; loops go on within the pitches
    if (rows := op.indirect_dim(number)) >= 0:
        # The walk steps through as many rows as the output has, an index through all of the table.
        reach += (op.rows - op.extents[rows]) * tensor.pitches[rows]
    reach += tensor.offset_bytes + sum((count - 1) * int(stride) for count, stride in moved)
    if reach > size_bytes:
        text = f"{reach} bytes, in whole sticks, of a buffer of {size_bytes}"
        raise inexpressible(op.name, tensor_name(op, number), text, "pad the buffer")


def _reach_bytes(operation: OperationSpec, dims: Sequence[IterationDim], number: int) -> int:
    """Bytes from a tensor's first stick to the end of the last one the operation touches."""
    reach = STICK_BYTES
    for extent, dim in zip(operation.extents.values(), dims, strict=False):
        factor = dim.factors[number]
        steps = dim.extent if operation.name == RESTICKIFY else extent
        if factor.lane:
            steps = -(-extent // _lanes(operation, number))
        reach += (steps - 1) * factor.pitch_bytes
    return reach


def _begins_bytes(
    operation: OperationSpec, dims: Sequence[IterationDim], division: CoreDivision, number: int
) -> tuple[int, ...]:
    """Bytes from a tensor's start to each core's part of it."""
    names = list(operation.extents)
    rest = np.arange(prod(division.splits.values()), dtype=np.int64)
    begins = np.zeros_like(rest)
    for k in division.order:
        slices, factor = division.splits.get(k, 1), dims[k].factors[number]
        rest, index = np.divmod(rest, slices)
        elements = operation.extents[names[k]] // slices
        lanes = _lanes(operation, number) if factor.lane else 1
        begins += index * (elements // lanes * factor.pitch_bytes)
    return tuple(int(b) for b in begins)


def _lanes(operation: OperationSpec, number: int) -> int:
    """Elements per stick of a tensor, the outputs counted last, an index before them."""
    tensor = [*operation.inputs, *operation.index_inputs, *operation.outputs][number]
    return prod(size for _, size in tensor.stick)


# --- loops written out ---------------------------------------------------------------------------


def unroll(kernel: Kernel, iteration: Ints = ()) -> Kernel:
    """``kernel`` without loops: one operation per iteration, in execution order, with its address
    in that iteration. UnsupportedError SPY964 for counts that only a launch knows.

    ``iteration``: index of every loop around it.
    """
    ops: list[KernelOp | KernelLoop] = []
    for op in kernel:
        if isinstance(op, KernelOp):
            ops.append(_at_iteration(op, iteration))
            continue
        for index in range(integer(op.count, "loop count")):
            ops += unroll(op.body, (*iteration, index))
    return ops


def _at_iteration(op: KernelOp, iteration: Ints) -> KernelOp:
    tensors = [
        replace(
            tensor,
            start_bytes=tensor.start_bytes
            + sum(index * int(tensor.stride(loop)) for loop, index in enumerate(iteration)),
            strides=(),
        )
        for tensor in op.tensors
    ]
    return replace(op, tensors=tuple(tensors))


# --- errors --------------------------------------------------------------------------------------


def tensor_name(op: KernelOp, number: int) -> str:
    """The name of a tensor in messages: its number in the operation, and its memory."""
    tensor = op.tensors[number]
    memory = f"{tensor.memory} {tensor.start_bytes}"
    return f"tensor {number} ({memory if tensor.argument < 0 else f'argument {tensor.argument}'})"


def inexpressible(op: str, tensor: str, found: str, hint: str = "") -> UnsupportedError:
    """SPY960 about a tensor of an operation."""
    return UnsupportedError(
        "SPY960",
        f"{op}: pitches cannot say where {tensor} lies",
        expected="sums of symbols, with one symbol along the lanes from the start of a stick",
        found=found,
        hint=hint,
    )


def not_divisible(op: str, found: str) -> UnsupportedError:
    """SPY961 about the work division of an operation."""
    return UnsupportedError(
        "SPY961",
        f"{op}: the cores cannot share it as its iteration space says",
        expected="whole sticks per core, at most one split reduction symbol, and that K of a "
        "matmul; tensors in LX shared by all their operations alike",
        found=found,
    )
