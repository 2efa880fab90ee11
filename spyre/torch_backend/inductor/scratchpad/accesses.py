"""A kernel as memory planning sees it: its operations in the order they run, what each core
touches of their buffers, and how long these live.

Loops are kept as ranges of operations, since a loop says how long a buffer lives. A buffer may lie
in LX only where all its users divide it over the cores alike, since a core reads its own scratchpad
only. Time counts operations: a buffer lives from its first use to behind its last; a loop that it
enters or leaves, or carries from one iteration to the next, is lived through as a whole. Source:
hardware reference §4.3 (per-core view), §4.1 (core numbering); the rule for loops is ours (the
reference unrolls them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from spyre.errors import BundleError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles import (
    DeviceDim,
    Kernel,
    KernelLoop,
    KernelOp,
    UnimplementedOp,
)
from spyre.torch_backend.program import Ints, OpKind


class StepKind(StrEnum):
    """What planning must know of an operation besides its name."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    RESTICKIFY = "restickify"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """One argument of an operation.

    ``coordinates``: per device dim what moves along it and where it begins, then the lane.
    ``size_bytes``: of the whole buffer in HBM, all cores together. ``moves``: a loop advances its
    address.
    """

    buffer: str
    is_write: bool
    view: CoreView | NoCoreView
    device_dtype: str
    coordinates: tuple[object, ...]
    size_bytes: int
    moves: bool = False


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One operation: ``name`` is its opFuncName, ``splits_reduction``: cores share what it sums."""

    name: str
    kind: StepKind
    accesses: tuple[BufferAccess, ...] = ()
    splits_reduction: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers it reads, each once, in the order of its arguments."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if not a.is_write))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the buffers it writes, each once."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if a.is_write))


@dataclass(frozen=True, slots=True)
class AccessTrace:
    """A kernel flattened. ``loops``: [begin, end) of every loop's operations, outer loops first."""

    steps: tuple[TraceStep, ...]
    loops: tuple[tuple[int, int], ...] = ()

    def accesses(self) -> dict[str, list[tuple[int, BufferAccess]]]:
        """Per buffer, in the order of first use: (index of the operation, access)."""
        by_name: dict[str, list[tuple[int, BufferAccess]]] = {}
        for step, operation in enumerate(self.steps):
            for access in operation.accesses:
                by_name.setdefault(access.buffer, []).append((step, access))
        return by_name


def access_trace(kernel: Kernel, names: Sequence[Sequence[str]]) -> AccessTrace:
    """``kernel`` flattened, its tensors named by ``names``.

    ``names``: per operation in the order they stand (loops entered, nothing repeated) a name per
    tensor; () for an UnimplementedOp. BundleError SPY988 if they do not fit.
    """
    flat: list[KernelOp | UnimplementedOp] = []
    loops: list[tuple[int, int]] = []
    depths: list[int] = []
    _flatten(kernel, 0, flat, depths, loops)
    if len(flat) != len(names):
        _misnamed("the kernel", f"{len(flat)} operations", f"names for {len(names)}")
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
            place, begin = len(loops), len(flat)
            _flatten(op.body, depth + 1, flat, depths, loops)
            loops.insert(place, (begin, len(flat)))
        else:
            flat.append(op)
            depths.append(depth)


def _misnamed(what: str, expected: str, found: str) -> None:
    raise BundleError(
        "SPY988", f"names do not fit the tensors of {what}", expected=expected, found=found
    )


def _trace_step(op: KernelOp | UnimplementedOp, names: Sequence[str], depth: int) -> TraceStep:
    tensors = op.tensors if isinstance(op, KernelOp) else ()
    if isinstance(op, UnimplementedOp):
        if names:
            _misnamed(op.op, "0 arguments", f"{len(names)} names")
        return TraceStep(op.op, StepKind.EXTERNAL)
    if len(tensors) != len(names):
        _misnamed(op.name, f"{len(tensors)} arguments", f"{len(names)} names")
    accesses = tuple(_access(op, number, name, depth) for number, name in enumerate(names))
    return TraceStep(op.name, _STEP_KINDS[op.kind], accesses, bool(op.split_reductions))


_STEP_KINDS = {
    OpKind.POINTWISE: StepKind.POINTWISE,
    OpKind.REDUCTION: StepKind.REDUCTION,
    OpKind.MATMUL: StepKind.MATMUL,
    OpKind.RESTICKIFY: StepKind.RESTICKIFY,
    OpKind.TOPK: StepKind.EXTERNAL,
    OpKind.GATHER: StepKind.EXTERNAL,
}


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
    """A tensor as the cores see it; dims of one step are left out, the stick is not among them.

    ``extents``: steps of each device dim that one core holds. ``splits``: slices of each dim.
    ``strides``: core c holds slice ``c // stride % split`` (0 where the dim is not split).
    ``cores``: how many hold a slice.
    """

    extents: Ints
    splits: Ints
    strides: Ints
    cores: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one core's slice: whole sticks, packed."""
        return prod(self.extents) * STICK_BYTES

    def __str__(self) -> str:
        dims = (
            f"{extent}×{split}" + (f"/{stride}" if split > 1 else "")
            for extent, split, stride in zip(self.extents, self.splits, self.strides, strict=True)
        )
        return f"[{', '.join(dims)}] on {self.cores} cores"


@dataclass(frozen=True, slots=True)
class NoCoreView:
    """An access without a per-core view that LX can have, and the reason."""

    why: str


def core_strides(op: KernelOp) -> dict[int, int]:
    """Cores from one slice of a dim to the next."""
    strides: dict[int, int] = {}
    cores = 1
    for dim in op.core_order:
        strides[dim] = cores
        cores *= op.splits[dim]
    return strides


def core_view(op: KernelOp, number: int) -> CoreView | NoCoreView:
    """How the cores share tensor ``number``, or why that cannot be said of a buffer in LX.

    It can where every device dim is walked from end to end by one dim of the operation.
    """
    device_dims = op.device_dims(number)
    if (why := _cut_stick(op, number, device_dims)) is not None:
        return why
    strides = core_strides(op)
    shares: list[tuple[int, int, int]] = []
    for dim in device_dims:
        share = _share(op, number, dim, strides)
        if isinstance(share, NoCoreView):
            return share
        shares.append(share)
    kept = [share for share in shares if share[:2] != (1, 1)]
    extents, splits, steps = zip(*kept, strict=True) if kept else ((), (), ())
    return CoreView(extents, splits, steps, prod(op.splits))


def _share(
    op: KernelOp, number: int, dim: DeviceDim, strides: Mapping[int, int]
) -> tuple[int, int, int] | NoCoreView:
    """(extent per core, slices, stride in cores) of a device dim."""
    if dim.first or len(dim.walked) > 1:
        coordinate = op.coordinate(number, dim)
        return NoCoreView(f"has the coordinate {coordinate}, which is not one symbol")
    if not dim.walked:
        if dim.size == 1:
            return dim.size, 1, 0
        return NoCoreView(f"is touched in one of {dim.size} steps only")
    ((walked, unit),) = dim.walked
    symbol, split = op.symbols[walked], op.splits[walked]
    steps = -(-op.extents[walked] // unit)
    if steps != dim.size:
        return NoCoreView(f"is touched in {steps} of {dim.size} steps along {symbol}")
    if steps % split:
        return NoCoreView(f"is cut unevenly along {symbol}: {steps} steps over {split} cores")
    return steps // split, split, strides[walked] if split > 1 else 0


def _cut_stick(op: KernelOp, number: int, dims: Sequence[DeviceDim]) -> NoCoreView | None:
    """Why lanes of one stick are shared out over cores, if they are."""
    lane = op.tensors[number].lane
    if lane < 0 or op.splits[lane] == 1 or any(k == lane for d in dims for k, _ in d.walked):
        return None
    return NoCoreView(f"is cut along {op.symbols[lane]} within a stick")


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """Something to place.

    ``size_bytes``: in the memory it is placed in (LX: of one core). ``uses``: indices of the
    operations that touch it, rising. ``held``: (start, end) where loops make it live longer than
    its uses say. ``in_place_of``: the buffer whose place it may take over: one of the same size,
    older than this one, that is used for the last time where this one begins.
    """

    name: str
    size_bytes: int
    uses: tuple[int, ...]
    first_is_write: bool = True
    in_place_of: str | None = None
    held: tuple[int, int] | None = None

    @property
    def start(self) -> int:
        """First operation at which it lives."""
        return self.uses[0] if self.held is None else self.held[0]

    @property
    def end(self) -> int:
        """One past the last operation at which it lives."""
        return self.uses[-1] + 1 if self.held is None else self.held[1]

    def meets(self, other: LiveBuffer) -> bool:
        """True if both live at some operation."""
        return self.start < other.end and other.start < self.end


Places = Mapping[str, int | None]
"""Offset (bytes) of every buffer; None: it does not fit and stays in HBM."""


def first_is_write(accesses: Sequence[tuple[int, BufferAccess]]) -> bool:
    """True if the first operation that touches the buffer only writes it."""
    return all(access.is_write for step, access in accesses if step == accesses[0][0])


def live_range(
    accesses: Sequence[tuple[int, BufferAccess]], loops: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """(start, end) of a buffer: [first use, last use], and all of every loop it outlives.

    Accesses: (index of the operation, access); loops: [begin, end) of their operations.
    """
    start, end = accesses[0][0], accesses[-1][0] + 1
    for loop in loops:
        if outlives(accesses, loop):
            start, end = min(start, loop[0]), max(end, loop[1])
    return start, end


def outlives(accesses: Sequence[tuple[int, BufferAccess]], loop: tuple[int, int]) -> bool:
    """True if the buffer must live through all iterations of ``loop``.

    That is if it is used in it and also outside, is read in it before it is written there, or if
    the loop moves its address.
    """
    inside = [(step, access) for step, access in accesses if loop[0] <= step < loop[1]]
    return bool(inside) and (len(inside) < len(accesses) or _is_carried(inside))


def _is_carried(inside: Sequence[tuple[int, BufferAccess]]) -> bool:
    return not first_is_write(inside) or any(access.moves for _, access in inside)


def buffer_of(
    name: str,
    size_bytes: int,
    accesses: Sequence[tuple[int, BufferAccess]],
    loops: Sequence[tuple[int, int]],
    in_place_of: str | None = None,
) -> LiveBuffer:
    """The buffer ``name`` as solvers take it; ``accesses``: (index of the operation, access)."""
    uses = tuple(sorted({step for step, _ in accesses}))
    live = live_range(accesses, loops)
    held = None if live == (uses[0], uses[-1] + 1) else live
    return LiveBuffer(name, size_bytes, uses, first_is_write(accesses), in_place_of, held)
