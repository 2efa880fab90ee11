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

import sympy

from spyre.errors import BundleError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles.op_spec import (
    MATMUL,
    LoopSpec,
    OpSpec,
    Spec,
    TensorArg,
    UnimplementedOp,
)
from spyre.torch_backend.inductor.bundles.views import INDIRECT
from spyre.torch_backend.inductor.division.plan import core_order, split_reductions


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

    ``coordinates``: device coordinates, sympy. ``size_bytes``: of the whole buffer in HBM, all
    cores together. ``moves``: a loop advances its address.
    """

    buffer: str
    is_write: bool
    view: CoreView | NoCoreView
    device_dtype: str
    coordinates: tuple[sympy.Expr, ...]
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
        found: dict[str, list[tuple[int, BufferAccess]]] = {}
        for step, operation in enumerate(self.steps):
            for access in operation.accesses:
                found.setdefault(access.buffer, []).append((step, access))
        return found


def access_trace(specs: Sequence[Spec], names: Sequence[Sequence[str]]) -> AccessTrace:
    """``specs`` flattened, their tensors named by ``names``.

    ``names``: per operation in the order they stand (loops entered, nothing repeated) a name per
    argument; () for an UnimplementedOp. BundleError SPY988 if they do not fit.
    """
    flat: list[OpSpec | UnimplementedOp] = []
    loops: list[tuple[int, int]] = []
    depths: list[int] = []
    _flatten(specs, 0, flat, depths, loops)
    if len(flat) != len(names):
        _misnamed("the kernel", f"{len(flat)} operations", f"names for {len(names)}")
    steps = (
        _trace_step(spec, named, depth)
        for spec, named, depth in zip(flat, names, depths, strict=True)
    )
    return AccessTrace(tuple(steps), tuple(loops))


def _flatten(
    specs: Sequence[Spec],
    depth: int,
    flat: list[OpSpec | UnimplementedOp],
    depths: list[int],
    loops: list[tuple[int, int]],
) -> None:
    for spec in specs:
        if isinstance(spec, LoopSpec):
            place, begin = len(loops), len(flat)
            _flatten(spec.body, depth + 1, flat, depths, loops)
            loops.insert(place, (begin, len(flat)))
        else:
            flat.append(spec)
            depths.append(depth)


def _misnamed(what: str, expected: str, found: str) -> None:
    raise BundleError(
        "SPY988", f"names do not fit the tensors of {what}", expected=expected, found=found
    )


def _trace_step(spec: OpSpec | UnimplementedOp, names: Sequence[str], depth: int) -> TraceStep:
    args = spec.args if isinstance(spec, OpSpec) else ()
    if len(args) != len(names):
        _misnamed(spec.op, f"{len(args)} arguments", f"{len(names)} names")
    if isinstance(spec, UnimplementedOp):
        return TraceStep(spec.op, StepKind.EXTERNAL)
    accesses = tuple(_access(spec, arg, name, depth) for arg, name in zip(args, names, strict=True))
    return TraceStep(spec.op, _step_kind(spec), accesses, bool(split_reductions(spec)))


def _step_kind(spec: OpSpec) -> StepKind:
    if spec.op in ("topkvalue", "topkindex") or INDIRECT in spec.op_info:
        return StepKind.EXTERNAL
    if spec.op == "ReStickifyOpHBM":
        return StepKind.RESTICKIFY
    if spec.op == MATMUL:
        return StepKind.MATMUL
    return StepKind.REDUCTION if spec.is_reduction else StepKind.POINTWISE


def _access(spec: OpSpec, arg: TensorArg, name: str, depth: int) -> BufferAccess:
    coordinates = tuple(sympy.sympify(c) for c in arg.device_coordinates)
    touched: set[sympy.Symbol] = set().union(*(c.free_symbols for c in coordinates))
    tiled = {symbol for symbol in spec.tiled_symbols if symbol != 0}
    return BufferAccess(
        buffer=name,
        is_write=not arg.is_input,
        view=core_view(spec, arg),
        device_dtype=str(arg.device_dtype),
        coordinates=coordinates,
        size_bytes=prod((arg.within or arg.device_size)[:-1]) * STICK_BYTES,
        moves=depth > 0 and not arg.per_tile_fixed and bool(tiled & touched),
    )


@dataclass(frozen=True, slots=True)
class CoreView:
    """A tensor as the cores see it; dims of one step are left out, the stick is not among them.

    ``extents``: steps of each device dim that one core holds. ``splits``: slices of each dim.
    ``strides``: core c holds slice ``c // stride % split`` (0 where the dim is not split).
    ``cores``: how many hold a slice.
    """

    extents: tuple[int, ...]
    splits: tuple[int, ...]
    strides: tuple[int, ...]
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


def core_strides(spec: OpSpec) -> dict[sympy.Symbol, int]:
    """Cores from one slice of a symbol to the next."""
    strides: dict[sympy.Symbol, int] = {}
    cores = 1
    for symbol in core_order(spec):
        strides[symbol] = cores
        cores *= spec.iteration_space[symbol][1]
    return strides


def core_view(spec: OpSpec, arg: TensorArg) -> CoreView | NoCoreView:
    """How the cores share ``arg``, or why that cannot be said of a buffer in LX.

    It can where every device dim is walked from end to end by one symbol of its own.
    """
    if arg.within:
        return NoCoreView("is a tile of a larger buffer")
    if (why := _cut_stick(spec, arg)) is not None:
        return why
    strides, seen = (
        core_strides(spec),
        _CoordinateReader(arg.device_coordinates, arg.device_size[-1]),
    )
    dims: list[tuple[int, int, int]] = []
    for size, coordinate in zip(arg.device_size[:-1], arg.device_coordinates[:-1], strict=True):
        walked = seen.walk(sympy.sympify(coordinate))
        dim = walked if isinstance(walked, NoCoreView) else _divided(spec, *walked, size, strides)
        if isinstance(dim, NoCoreView):
            return dim
        dims.append(dim)
    kept = [dim for dim in dims if dim[:2] != (1, 1)]
    extents, splits, steps = zip(*kept, strict=True) if kept else ((), (), ())
    cores = prod(cores for _, cores in spec.iteration_space.values())
    return CoreView(extents, splits, steps, cores)


class _CoordinateReader:
    """Reads the coordinates of one tensor, and notes which symbols it has met."""

    def __init__(self, coordinates: Sequence[sympy.Expr], lanes: int) -> None:
        self.lanes = lanes
        self.stick = lane_symbol(sympy.sympify(coordinates[-1]), lanes)
        self.symbols: set[sympy.Symbol] = set()

    def walk(self, coordinate: sympy.Expr) -> tuple[sympy.Expr, int] | NoCoreView:
        """The symbol a device dim is walked by (0: none), and its elements per step."""
        unit = 1
        symbol = coordinate
        if self.stick is not None and _is_quotient(coordinate, self.stick, self.lanes):
            symbol, unit = self.stick, self.lanes
        if symbol != 0 and (not symbol.is_Symbol or (unit == 1 and symbol == self.stick)):
            return NoCoreView(f"has the coordinate {coordinate}, which is not one symbol")
        if symbol in self.symbols:
            return NoCoreView(f"is walked by {symbol} along two dims")
        self.symbols |= symbol.free_symbols
        return symbol, unit


def lane_symbol(stick: sympy.Expr, lanes: int) -> sympy.Symbol | None:
    """The symbol whose elements lie in the lanes of a stick; None for a single lane or a sum."""
    free = sorted(stick.free_symbols, key=str)
    if len(free) != 1:
        return None
    is_modulus = type(stick).__name__ in ("Mod", "PythonMod") and stick.args == (free[0], lanes)
    is_indexing = type(stick).__name__ == "ModularIndexing" and stick.args == (free[0], 1, lanes)
    return free[0] if stick.is_Symbol or is_modulus or is_indexing else None


def _is_quotient(expression: sympy.Expr, symbol: sympy.Symbol, lanes: int) -> bool:
    """True for floor(symbol / lanes), in sympy's form or that of torch (FloorDiv)."""
    name, args = type(expression).__name__, expression.args
    return expression == sympy.floor(symbol / lanes) or (
        name == "FloorDiv" and args == (symbol, lanes)
    )


def _divided(
    spec: OpSpec,
    symbol: sympy.Expr,
    unit: int,
    size: int,
    strides: Mapping[sympy.Symbol, int],
) -> tuple[int, int, int] | NoCoreView:
    """(extent per core, slices, stride in cores) of a device dim of ``size`` steps."""
    if symbol == 0:
        return (size, 1, 0) if size == 1 else NoCoreView(f"is touched in one of {size} steps only")
    if symbol not in spec.iteration_space:
        return NoCoreView(f"is addressed by {symbol}, which the iteration does not walk")
    elements, split = spec.iteration_space[symbol]
    if not sympy.sympify(elements).is_Integer:
        return NoCoreView(f"has the size {elements}, known at run time only")
    steps = -(-int(elements) // unit)
    if steps != size:
        return NoCoreView(f"is touched in {steps} of {size} steps along {symbol}")
    if size % split:
        return NoCoreView(f"is cut unevenly along {symbol}: {size} steps over {split} cores")
    return size // split, split, strides[symbol] if split > 1 else 0


def _cut_stick(spec: OpSpec, arg: TensorArg) -> NoCoreView | None:
    """Why lanes of one stick are shared out over cores, or skipped, if they are."""
    lanes = arg.device_size[-1]
    stick = sympy.sympify(arg.device_coordinates[-1])
    symbol = lane_symbol(stick, lanes)
    if symbol is None:
        return (
            None if stick == 0 else NoCoreView(f"has the lanes {stick}, which are not one symbol")
        )
    if symbol not in spec.iteration_space:
        return NoCoreView(f"is addressed by {symbol}, which the iteration does not walk")
    outer = set().union(*(sympy.sympify(c).free_symbols for c in arg.device_coordinates[:-1]))
    if symbol in outer:
        return None
    elements, split = spec.iteration_space[symbol]
    if not sympy.sympify(elements).is_Integer:
        return NoCoreView(f"has the size {elements}, known at run time only")
    if split > 1 or int(elements) > lanes:
        return NoCoreView(f"is cut along {symbol} within a stick")
    return None


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
