"""From specs to a bundle: arguments, loops, an SDSC per operation.

Loops stay loops where addresses are symbols; tensors move by the strides their layout says, not by
those of host order the coarse-tiling document prints. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from spyre.dtypes import STICK_BYTES
from spyre.mlir.bundle import BundleParts
from spyre.mlir.bundle_builder import SEGMENT_BYTES, BundleBuilder
from spyre.mlir.sdsc_builder import Place
from spyre.mlir.symbol_emitter import POOL
from spyre.torch_backend.inductor.instruction import unimplemented
from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec, TensorArg, UnimplementedOp
from spyre.torch_backend.inductor.operation_walks import Share
from spyre.torch_backend.inductor.spec_emission import emit_spec, not_divisible
from spyre.torch_backend.inductor.spec_views import (
    LX,
    ArgView,
    Loops,
    buffer_bytes,
    buffer_size,
    inexpressible,
    integer,
    tensor_name,
)
from spyre.torch_backend.inductor.unroll import unroll
from spyre.torch_backend.program.builder import SCRATCH
from spyre.torch_backend.program.emission import ScratchpadPlace

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
    def of(cls, specs: Sequence[Spec]) -> KernelMemory:
        """What ``specs`` touch; loops only move about within it."""
        uses: dict[int, list[TensorArg]] = {}
        pool_bytes = 0
        in_order = (sorted(s.args, key=lambda arg: not arg.is_input) for s in operations(specs))
        for arg in chain.from_iterable(in_order):
            if arg.arg_index >= 0:
                uses.setdefault(arg.arg_index, []).append(arg)
            elif POOL in arg.allocation:
                pool_bytes = max(pool_bytes, arg.allocation[POOL] + buffer_bytes(arg))
        count = max(uses, default=-1) + 1
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


def operations(specs: Sequence[Spec]) -> Iterator[OpSpec]:
    """All operations of ``specs``, those in loops once."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from operations(spec.body)
        elif isinstance(spec, OpSpec):
            yield spec


def generate_bundle(
    name: str,
    specs: Sequence[Spec],
    *,
    symbolic: bool = True,
    unrolled: bool = False,
    pool_argument: bool = False,
) -> BundleParts:
    """The bundle of a kernel.

    ``symbolic``: addresses are launch arguments. Otherwise they are baked in: argument k in segment
    k, or k + 1 above the pool in segment 0. ``unrolled``: loops are written out. ``pool_argument``:
    the pool is the last argument of a symbolic bundle, not memory the runtime adds.
    UnsupportedError SPY960, SPY961, SPY962 or SPY964 for what no bundle can say.
    """
    memory = KernelMemory.of(specs)
    builder = BundleBuilder(symbolic=symbolic)
    for argument in memory.arguments:
        builder.argument(argument.size_bytes)
    if memory.pool_bytes and pool_argument:
        builder.argument(memory.pool_bytes, SCRATCH)
    elif memory.pool_bytes:
        builder.temporary(memory.pool_bytes)
    writer = _Writer(name, builder, SCRATCH if pool_argument else POOL)
    writer.add(unroll(specs) if unrolled else specs, ())
    return builder.build()


@dataclass(slots=True)
class _Writer:
    """Adds the operations of a kernel to ``builder``. ``shares``: of what was last written to LX,
    by its place there.
    """

    name: str
    builder: BundleBuilder
    pool: str
    shares: dict[int, Share] = field(default_factory=dict)

    def add(self, specs: Sequence[Spec], loops: Loops) -> None:
        for spec in specs:
            match spec:
                case LoopSpec():
                    count = integer(spec.count, f"{self.name}: loop count")
                    with self.builder.loop(count) as loop:
                        self.add(spec.body, (*loops, (loop, count)))
                case UnimplementedOp():
                    raise unimplemented(f"{spec.op} (in {self.name})")
                case OpSpec():
                    self._add_operation(spec, loops)

    def _add_operation(self, spec: OpSpec, loops: Loops) -> None:
        def place(arg: TensorArg, found: ArgView) -> Place | ScratchpadPlace:
            return self._place(spec, arg, found)

        emitted = emit_spec(spec, loops, place)
        for arg, share in emitted.shares:
            self._check_share(spec, arg, share)
        self.builder.add(emitted.operation)

    def _place(self, spec: OpSpec, arg: TensorArg, found: ArgView) -> Place | ScratchpadPlace:
        offset_bytes = found.view.offset_bytes
        match dict(arg.allocation):
            case {"lx": start} if len(arg.allocation) == 1 and not offset_bytes:
                return ScratchpadPlace(start)
            case {"pool": start} if len(arg.allocation) == 1:
                return Place(self.pool, start + offset_bytes, found.loop_strides)
            case {"hbm": start} if len(arg.allocation) == 1 and arg.arg_index >= 0:
                begin = start % SEGMENT_BYTES + offset_bytes
                return Place(f"arg_{arg.arg_index}", begin, found.loop_strides)
        text = f"allocation {dict(arg.allocation)}, from byte {offset_bytes} on"
        hint = "one of hbm (of an argument), pool, and lx (from the start of the tensor on)"
        raise inexpressible(spec, tensor_name(spec, arg), text, hint)

    def _check_share(self, spec: OpSpec, arg: TensorArg, share: Share) -> None:
        """Every core finds in its LX what it reads: who wrote it divided the tensor alike."""
        start = arg.allocation[LX]
        if not arg.is_input:
            self.shares[start] = share
        elif (written := self.shares.get(start, share)) != share:
            found = f"{tensor_name(spec, arg)} written by {len(written.begins_bytes)} cores, from "
            found += f"{written.begins_bytes[:4]}… on, and read from {share.begins_bytes[:4]}… on"
            raise not_divisible(spec, found)
