"""From a kernel to a bundle: arguments, loops, one SDSC per operation.

With symbolic addresses loops stay loops, and tensors move by the strides of their device layout.
Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.mlir.builder import (
    POOL,
    BufferAddress,
    BuiltBundle,
    BundleBuilder,
    RuntimeSize,
    SizeValue,
)
from spyre.torch_backend.inductor.bundles.emission import (
    UNKNOWN_COUNT,
    LoopCounts,
    LxShare,
    emit_op,
    inexpressible,
    integer,
    not_divisible,
    tensor_name,
    unimplemented,
)
from spyre.torch_backend.inductor.bundles.kernel_op import (
    LX,
    Kernel,
    KernelLoop,
    KernelOp,
    UnimplementedOp,
)
from spyre.torch_backend.inductor.bundles.sizes import (
    Sizes,
    SizeSpec,
    size_value,
    smallest,
    value_at,
)
from spyre.torch_backend.program import SCRATCH, Ints, ScratchpadPlace


@dataclass(frozen=True, slots=True)
class ArgumentMemory:
    """The memory of one kernel argument. ``device_sizes``: of the whole buffer, one per distinct
    use, none if no operation touches it. ``is_input``: the first operation to touch it reads it.
    """

    size_bytes: int = STICK_BYTES
    device_sizes: tuple[Ints, ...] = ()
    device_format: str = ""
    is_input: bool = True
    is_output: bool = False


_Use = tuple[KernelOp, int]
"""An operation, and the number of one of its tensors."""


@dataclass(frozen=True, slots=True)
class KernelMemory:
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
        tuple(dict.fromkeys(_device_size(op, k, sizes) for op, k in uses)),
        first.tensors[number].format,
        not first.is_output(number),
        any(op.is_output(k) for op, k in uses),
    )


def _device_size(op: KernelOp, number: int, sizes: Sizes) -> Ints:
    tensor = op.tensors[number]
    named = tensor.device_size
    known = named or (*(dim.size for dim in op.device_dims(number)), tensor.lanes)
    return tuple(value_at(n, sizes) for n in known)


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
    UnsupportedError SPY960, SPY961, SPY962, SPY964 or SPY966 for kernels without a bundle.
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


@dataclass(slots=True)
class _BundleWriter:
    """Adds the operations of a kernel to ``builder``. ``shares``: how the cores share the tensor
    last written at each LX address.
    """

    name: str
    builder: BundleBuilder
    pool: str
    sizes: Mapping[str, RuntimeSize] = field(default_factory=dict)
    shares: dict[int, LxShare] = field(default_factory=dict)

    def add(self, kernel: Kernel, loops: LoopCounts) -> None:
        for op in kernel:
            match op:
                case KernelLoop():
                    count = self._count(op)
                    known = count if isinstance(count, int) else UNKNOWN_COUNT
                    with self.builder.loop(count) as loop:
                        self.add(op.body, (*loops, (loop, known)))
                case UnimplementedOp():
                    raise unimplemented(f"{op.op} (in {self.name})")
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
        operation, shares = emit_op(op, loops, bases)
        for number, share in shares.items():
            self._check_share(op, number, share)
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

    def _check_share(self, op: KernelOp, number: int, share: LxShare) -> None:
        """SPY961 if a tensor is read from LX with another division than it was written with."""
        start = op.tensors[number].start_bytes
        if op.is_output(number):
            self.shares[start] = share
        elif (written := self.shares.get(start, share)) != share:
            text = f"{tensor_name(op, number)} written by {len(written.begins_bytes)} cores, from "
            text += f"{written.begins_bytes[:4]}… on, and read from {share.begins_bytes[:4]}… on"
            raise not_divisible(op.name, text)


# --- loops written out ---------------------------------------------------------------------------


def unroll(kernel: Kernel) -> Kernel:
    """``kernel`` without loops: one operation per iteration, in execution order, with its address
    in that iteration. UnsupportedError SPY964 for counts that only a launch knows.
    """
    return tuple(_unrolled(kernel, ()))


def _unrolled(kernel: Kernel, iteration: Ints) -> Iterator[KernelOp | UnimplementedOp]:
    """``iteration``: index of every enclosing loop."""
    for op in kernel:
        match op:
            case KernelLoop():
                for index in range(integer(op.count, "loop count")):
                    yield from _unrolled(op.body, (*iteration, index))
            case KernelOp():
                yield _at_iteration(op, iteration)
            case UnimplementedOp():
                yield op


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
