"""From specs to a bundle: arguments, loops, an SDSC per operation.

Loops stay loops where addresses are symbols; tensors move by the strides their layout says, not by
those of host order the coarse-tiling document prints. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.mlir.builder.bundles import POOL, SEGMENT_BYTES, BuiltBundle, BundleBuilder
from spyre.mlir.builder.operations import BufferAddress, RuntimeSize, SizeValue
from spyre.torch_backend.inductor.bundles.emission import (
    LxShare,
    emit_spec,
    not_divisible,
    unimplemented,
)
from spyre.torch_backend.inductor.bundles.op_spec import (
    LoopSpec,
    OpSpec,
    SizeSpec,
    Spec,
    TensorArg,
    UnimplementedOp,
)
from spyre.torch_backend.inductor.bundles.sizes import size_value, smallest, with_values
from spyre.torch_backend.inductor.bundles.views import (
    LX,
    UNKNOWN_COUNT,
    ArgView,
    LoopCounts,
    arg_view,
    buffer_bytes,
    buffer_size,
    inexpressible,
    integer,
    tensor_name,
)
from spyre.torch_backend.program.builder import SCRATCH
from spyre.torch_backend.program.iteration import ScratchpadPlace

HBM = "hbm"


@dataclass(frozen=True, slots=True)
class ArgumentMemory:
    """What a kernel expects of one argument. ``device_sizes``: those its operations name for the
    whole buffer, none if no operation touches it. ``is_input``: the first one to touch it reads it.
    """

    size_bytes: int = STICK_BYTES
    device_sizes: tuple[tuple[int, ...], ...] = ()
    device_format: str = ""
    is_input: bool = True
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """Memory of a kernel: its arguments by arg_index, and the bytes of its pool."""

    arguments: tuple[ArgumentMemory, ...]
    pool_bytes: int

    @classmethod
    def of(cls, specs: Sequence[Spec], least: int = 0) -> KernelMemory:
        """What ``specs`` touch; loops only move about within it. ``least``: arguments there are
        at any rate.
        """
        uses: dict[int, list[TensorArg]] = {}
        pool_bytes = 0
        in_order = (sorted(s.args, key=lambda arg: not arg.is_input) for s in operations_of(specs))
        for arg in chain.from_iterable(in_order):
            if arg.arg_index >= 0:
                uses.setdefault(arg.arg_index, []).append(arg)
            elif POOL in arg.allocation:
                pool_bytes = max(pool_bytes, arg.allocation[POOL] + buffer_bytes(arg))
        count = max(max(uses, default=-1) + 1, least)
        return cls(tuple(_memory(uses.get(k, [])) for k in range(count)), pool_bytes)


def _memory(uses: Sequence[TensorArg]) -> ArgumentMemory:
    if not uses:
        return ArgumentMemory()
    return ArgumentMemory(
        max(buffer_bytes(arg) for arg in uses),
        tuple(dict.fromkeys(buffer_size(arg) for arg in uses)),
        str(uses[0].device_dtype),
        uses[0].is_input,
        any(not arg.is_input for arg in uses),
    )


def operations_of(specs: Sequence[Spec]) -> Iterator[OpSpec]:
    """All operations of ``specs``, those in loops once."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from operations_of(spec.body)
        elif isinstance(spec, OpSpec):
            yield spec


def generate_bundle(
    name: str,
    specs: Sequence[Spec],
    sizes: Sequence[SizeSpec] = (),
    *,
    symbolic: bool = True,
    unrolled: bool = False,
    pool_argument: bool = False,
) -> BuiltBundle:
    """The bundle of a kernel.

    ``symbolic``: addresses are launch arguments. Otherwise they are baked in: argument k in segment
    k, or k + 1 above the pool in segment 0. ``unrolled``: loops are written out. ``pool_argument``:
    the pool is the last argument of a symbolic bundle, not memory the runtime adds. ``sizes`` are
    parameters behind the addresses; with them loops and addresses stay symbolic.
    UnsupportedError SPY960, SPY961, SPY962, SPY964 or SPY966 for what no bundle can say.
    """
    if sizes and (unrolled or not symbolic):
        raise UnsupportedError(
            "SPY966",
            f"{name}: sizes that only a launch knows need loops and symbolic addresses",
            expected="UNROLL_LOOPS=0 and BUNDLE_SYMBOLIC_ARGS=1",
            found="unrolled loops" if unrolled else "baked addresses",
        )
    memory = KernelMemory.of(with_values(specs, smallest(sizes)))
    builder = BundleBuilder(symbolic=symbolic)
    known = {s.name: builder.size(s.name, None, s.granularity) for s in sizes}
    for argument in memory.arguments:
        builder.argument(argument.size_bytes)
    if memory.pool_bytes and pool_argument:
        builder.argument(memory.pool_bytes, SCRATCH)
    elif memory.pool_bytes:
        builder.temporary(memory.pool_bytes)
    writer = _BundleWriter(name, builder, SCRATCH if pool_argument else POOL, known)
    writer.add(unroll(specs) if unrolled else specs, ())
    return builder.build()


@dataclass(slots=True)
class _BundleWriter:
    """Adds the operations of a kernel to ``builder``. ``shares``: of what was last written to LX,
    by its place there.
    """

    name: str
    builder: BundleBuilder
    pool: str
    sizes: Mapping[str, RuntimeSize] = field(default_factory=dict)
    shares: dict[int, LxShare] = field(default_factory=dict)

    def add(self, specs: Sequence[Spec], loops: LoopCounts) -> None:
        for spec in specs:
            match spec:
                case LoopSpec():
                    count = self._count(spec)
                    known = count if isinstance(count, int) else UNKNOWN_COUNT
                    with self.builder.loop(count) as loop:
                        self.add(spec.body, (*loops, (loop, known)))
                case UnimplementedOp():
                    raise unimplemented(f"{spec.op} (in {self.name})")
                case OpSpec():
                    self._add_operation(spec, loops)

    def _count(self, loop: LoopSpec) -> int | SizeValue:
        names = {symbol.name for symbol in sympy.sympify(loop.count).free_symbols}
        if names and names <= set(self.sizes):
            return size_value(loop.count, self.sizes)
        return integer(loop.count, f"{self.name}: loop count")

    def _bytes(self, spec: OpSpec, number: int | sympy.Expr) -> int | SizeValue:
        names = {symbol.name for symbol in sympy.sympify(number).free_symbols}
        if not names <= set(self.sizes):
            integer(number, f"{spec.op}: a pitch")
        return size_value(number, self.sizes)

    def _add_operation(self, spec: OpSpec, loops: LoopCounts) -> None:
        def place(arg: TensorArg, found: ArgView) -> BufferAddress | ScratchpadPlace:
            return self._place(spec, arg, found)

        emitted = emit_spec(spec, loops, place)
        for arg, share in emitted.shares:
            self._check_share(spec, arg, share)
        self.builder.add(emitted.operation)

    def _place(
        self, spec: OpSpec, arg: TensorArg, found: ArgView
    ) -> BufferAddress | ScratchpadPlace:
        offset_bytes = found.view.offset_bytes
        strides = {loop: self._bytes(spec, s) for loop, s in found.loop_strides.items()}
        shift = self._bytes(spec, found.shift_bytes) if found.shift_bytes != 0 else None
        shift_bytes = None if isinstance(shift, int) else shift
        offset_bytes += shift if isinstance(shift, int) else 0
        match dict(arg.allocation):
            case {"lx": start} if len(arg.allocation) == 1 and not offset_bytes:
                return ScratchpadPlace(start)
            case {"pool": start} if len(arg.allocation) == 1:
                return BufferAddress(self.pool, start + offset_bytes, strides, (), shift_bytes)
            case {"hbm": start} if len(arg.allocation) == 1 and arg.arg_index >= 0:
                begin = start % SEGMENT_BYTES + offset_bytes
                return BufferAddress(f"arg_{arg.arg_index}", begin, strides, (), shift_bytes)
        text = f"allocation {dict(arg.allocation)}, from byte {offset_bytes} on"
        hint = "one of hbm (of an argument), pool, and lx (from the start of the tensor on)"
        raise inexpressible(spec, tensor_name(spec, arg), text, hint)

    def _check_share(self, spec: OpSpec, arg: TensorArg, share: LxShare) -> None:
        """Every core finds in its LX what it reads: who wrote it divided the tensor alike."""
        start = arg.allocation[LX]
        if not arg.is_input:
            self.shares[start] = share
        elif (written := self.shares.get(start, share)) != share:
            found = f"{tensor_name(spec, arg)} written by {len(written.begins_bytes)} cores, from "
            found += f"{written.begins_bytes[:4]}… on, and read from {share.begins_bytes[:4]}… on"
            raise not_divisible(spec, found)


Flat = OpSpec | UnimplementedOp
Iteration = Mapping[str, int]
"""Index by loop."""


def unroll(specs: Sequence[Spec]) -> list[Flat]:
    """``specs`` without loops, in the order they run; ``allocation`` of each tensor is where its
    tile lies. Tensors that loops do not advance stay where they are. Errors as of `arg_view`.
    """
    return list(_unrolled(specs, (), {}, {}))


def _unrolled(
    specs: Sequence[Spec],
    loops: LoopCounts,
    iteration: Iteration,
    strides: dict[int, list[Mapping[str, int]]],
) -> Iterator[Flat]:
    """``strides``: loop strides of every tensor, by id of its operation, found so far."""
    for spec in specs:
        match spec:
            case LoopSpec():
                count, name = integer(spec.count, "loop count"), f"i_{len(loops)}"
                inside = (*loops, (name, count))
                for index in range(count):
                    moved = {**iteration, name: index}
                    yield from _unrolled(spec.body, inside, moved, strides)
            case UnimplementedOp():
                yield spec
            case OpSpec():
                if id(spec) not in strides:
                    found = [arg_view(spec, arg, loops).loop_strides for arg in spec.args]
                    strides[id(spec)] = found
                yield _at_iteration(spec, iteration, strides[id(spec)])


def _at_iteration(
    spec: OpSpec, iteration: Iteration, strides: Sequence[Mapping[str, int]]
) -> OpSpec:
    args = [_moved(arg, iteration, s) for arg, s in zip(spec.args, strides, strict=True)]
    return replace(spec, args=args, tiled_symbols=())


def _moved(arg: TensorArg, iteration: Iteration, strides: Mapping[str, int]) -> TensorArg:
    moved_bytes = sum(iteration[loop] * stride for loop, stride in strides.items())
    if not moved_bytes:
        return arg
    return replace(arg, allocation={k: a + moved_bytes for k, a in arg.allocation.items()})
