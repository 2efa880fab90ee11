"""The accesses of a kernel to its buffers: which part each core touches, and in which operations.

A kernel is flattened to a list of steps, one per operation; loops are kept as ranges of steps,
because a buffer that enters or leaves a loop, or carries a value from one iteration to the next,
is alive during the whole loop. A buffer can be placed in LX only if all operations divide it over
the cores alike, since a core reads only its own scratchpad. Source: hardware reference §4.3
(per-core view) and §4.1 (core numbers); the reference unrolls loops instead of keeping ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from spyre.errors import BundleError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import (
    DeviceDim,
    Kernel,
    KernelLoop,
    KernelOp,
    UnimplementedOp,
)
from spyre.torch_backend.program import Ints, OpKind


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """One tensor of an operation.

    ``view``: the part that each core touches, or the reason why LX cannot hold the tensor.
    ``coordinates``: per device dim, the iteration dims along it and the first position; then the
    lane. ``size_bytes``: of the whole buffer in HBM. ``moves``: a loop advances its address.
    """

    buffer: str
    is_write: bool
    view: CoreView | str
    device_dtype: str
    coordinates: tuple[object, ...]
    size_bytes: int
    moves: bool = False


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One operation: ``name`` is its opFuncName. ``kind``: None if it is not implemented.
    ``splits_reduction``: each core sums only a part of the terms.
    """

    name: str
    kind: OpKind | None
    accesses: tuple[BufferAccess, ...] = ()
    splits_reduction: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers it reads, without repetition, in the order of its arguments."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if not a.is_write))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers it writes, without repetition."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if a.is_write))


@dataclass(frozen=True, slots=True)
class AccessTrace:
    """A flattened kernel. ``loops``: [begin, end) of every loop's steps, outer loops first."""

    steps: tuple[TraceStep, ...]
    loops: tuple[tuple[int, int], ...] = ()

    def accesses(self) -> dict[str, list[tuple[int, BufferAccess]]]:
        """Return the (step, access) pairs of each buffer, buffers in the order of first use."""
        by_name: dict[str, list[tuple[int, BufferAccess]]] = {}
        for step, operation in enumerate(self.steps):
            for access in operation.accesses:
                by_name.setdefault(access.buffer, []).append((step, access))
        return by_name


def access_trace(kernel: Kernel, names: Sequence[Sequence[str]]) -> AccessTrace:
    """Flatten ``kernel`` to steps.

    ``names``: for each operation in program order, the buffer of each of its tensors; () for an
    UnimplementedOp. Operations in a loop occur once. BundleError SPY988 for missing or extra names.
    """
    flat: list[KernelOp | UnimplementedOp] = []
    loops: list[tuple[int, int]] = []
    depths: list[int] = []
    _flatten(kernel, 0, flat, depths, loops)
    if len(flat) != len(names):
        raise misnamed("the kernel", f"{len(flat)} operations", f"names for {len(names)}")
    steps = (
        _trace_step(op, named, depth) for op, named, depth in zip(flat, names, depths, strict=True)
    )
    return AccessTrace(tuple(steps), tuple(loops))


def _flatten(
    kernel: Kernel,
    depth: int,
    flat: list[KernelOp | UnimplementedOp],
    depths: list[int],
    loops: list[tuple[int, int]],
) -> None:
    for op in kernel:
        if isinstance(op, KernelLoop):
            position, begin = len(loops), len(flat)
            _flatten(op.body, depth + 1, flat, depths, loops)
            loops.insert(position, (begin, len(flat)))
        else:
            flat.append(op)
            depths.append(depth)


def misnamed(owner: str, expected: str, found: str) -> BundleError:
    """Return the SPY988 error for buffer names that do not match the tensors of ``owner``."""
    return BundleError(
        "SPY988", f"names do not fit the tensors of {owner}", expected=expected, found=found
    )


def _trace_step(op: KernelOp | UnimplementedOp, names: Sequence[str], depth: int) -> TraceStep:
    tensors = op.tensors if isinstance(op, KernelOp) else ()
    if isinstance(op, UnimplementedOp):
        if names:
            raise misnamed(op.op, "0 arguments", f"{len(names)} names")
        return TraceStep(op.op, None)
    if len(tensors) != len(names):
        raise misnamed(op.name, f"{len(tensors)} arguments", f"{len(names)} names")
    accesses = tuple(_access(op, number, name, depth) for number, name in enumerate(names))
    return TraceStep(op.name, op.kind, accesses, bool(op.split_reductions))


def _access(op: KernelOp, number: int, name: str, depth: int) -> BufferAccess:
    tensor = op.tensors[number]
    return BufferAccess(
        buffer=name,
        is_write=op.is_output(number),
        view=core_view(op, number),
        device_dtype=tensor.format,
        coordinates=(*((dim.walked, dim.first) for dim in op.device_dims(number)), tensor.lane),
        size_bytes=op.buffer_bytes(number),
        moves=depth > 0 and any(tensor.strides),
    )


@dataclass(frozen=True, slots=True)
class CoreView:
    """How a tensor is divided over the cores: per device dim above the stick, without dims of one
    step.

    ``extents``: steps in one core's slice. ``splits``: number of slices. ``strides``: core c has
    slice ``c // stride % split`` (0 if the dim is not split). ``cores``: number of cores.
    """

    extents: Ints
    splits: Ints
    strides: Ints
    cores: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one core's slice, in whole sticks."""
        return prod(self.extents) * STICK_BYTES

    def __str__(self) -> str:
        dims = (
            f"{extent}×{split}" + (f"/{stride}" if split > 1 else "")
            for extent, split, stride in zip(self.extents, self.splits, self.strides, strict=True)
        )
        return f"[{', '.join(dims)}] on {self.cores} cores"


def core_strides(op: KernelOp) -> dict[int, int]:
    """Return, per dim, the distance in core numbers between consecutive slices."""
    strides: dict[int, int] = {}
    cores = 1
    for dim in op.core_order:
        strides[dim] = cores
        cores *= op.splits[dim]
    return strides


def core_view(op: KernelOp, number: int) -> CoreView | str:
    """Return how tensor ``number`` is divided over the cores, or why LX cannot hold it.

    LX can hold it if one dim of the operation walks each device dim from end to end.
    """
    device_dims = op.device_dims(number)
    if (why := _cut_stick(op, number, device_dims)) is not None:
        return why
    strides = core_strides(op)
    shares: list[tuple[int, int, int]] = []
    for dim in device_dims:
        share = _share(op, number, dim, strides)
        if isinstance(share, str):
            return share
        shares.append(share)
    divided = [share for share in shares if share[:2] != (1, 1)]
    extents, splits, steps = zip(*divided, strict=True) if divided else ((), (), ())
    return CoreView(extents, splits, steps, prod(op.splits))


def _share(
    op: KernelOp, number: int, dim: DeviceDim, strides: Mapping[int, int]
) -> tuple[int, int, int] | str:
    """Return (extent per core, slices, stride in cores) of a device dim, or a reason."""
    if dim.first or len(dim.walked) > 1:
        coordinate = op.coordinate(number, dim)
        return f"has the coordinate {coordinate}, which is not one symbol"
    if not dim.walked:
        if dim.size == 1:
            return dim.size, 1, 0
        return f"is touched in one of {dim.size} steps only"
    ((walked, unit),) = dim.walked
    symbol, split = op.symbols[walked], op.splits[walked]
    steps = -(-op.extents[walked] // unit)
    if steps != dim.size:
        return f"is touched in {steps} of {dim.size} steps along {symbol}"
    if steps % split:
        return f"is cut unevenly along {symbol}: {steps} steps over {split} cores"
    return steps // split, split, strides[walked] if split > 1 else 0


def _cut_stick(op: KernelOp, number: int, dims: Sequence[DeviceDim]) -> str | None:
    """Return a reason if several cores share the lanes of one stick."""
    lane = op.tensors[number].lane
    if lane < 0 or op.splits[lane] == 1 or any(k == lane for d in dims for k, _ in d.walked):
        return None
    return f"is cut along {op.symbols[lane]} within a stick"


def first_is_write(accesses: Sequence[tuple[int, BufferAccess]]) -> bool:
    """Return True if the first step that touches the buffer does not read it."""
    return all(access.is_write for step, access in accesses if step == accesses[0][0])


def live_range(
    accesses: Sequence[tuple[int, BufferAccess]], loops: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return the steps [start, end) during which a buffer is alive: from its first to its last
    access, and all of every loop that it outlives.
    """
    start, end = accesses[0][0], accesses[-1][0] + 1
    for loop in loops:
        if outlives(accesses, loop):
            start, end = min(start, loop[0]), max(end, loop[1])
    return start, end


def outlives(accesses: Sequence[tuple[int, BufferAccess]], loop: tuple[int, int]) -> bool:
    """Return True if the buffer must stay alive through all iterations of ``loop``.

    That is so if it is also accessed outside of the loop, if an iteration reads it before writing
    it, or if the loop advances its address.
    """
    inside = [(step, access) for step, access in accesses if loop[0] <= step < loop[1]]
    if not inside or len(inside) < len(accesses):
        return bool(inside)
    return not first_is_write(inside) or any(access.moves for _, access in inside)
