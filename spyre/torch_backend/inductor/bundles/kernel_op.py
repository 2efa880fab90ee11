"""`KernelOp` and `KernelLoop`: the operations of a compiled kernel, and its `SizeSpec`s.

Work division, planning of LX and the pool, the cost model of automatic tiling and emission all work
on them. Pitches in bytes locate elements, as in eager code. The text of a kernel (`kernel_text`) is
a Python expression that makes it again; Inductor's generated and cached code contains it.

Loop counts, strides and extents may be sympy expressions of the names of sizes that only a launch
knows. In a bundle they are affine maps (`size_value`); at a launch they are evaluated. Pure
functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import sympy

from spyre.dtypes import STICK_BYTES, find_stored_format
from spyre.errors import LaunchError, UnsupportedError
from spyre.layout import Factor
from spyre.mlir.builder import POOL as POOL, RuntimeSize, SizeValue
from spyre.mlir.program import AffineConstant, AffineExpr, AffineSymbol
from spyre.records import PartlyCompared
from spyre.torch_backend.program import Ints, IteratedOp, IterationDim, OpKind

HBM, LX = "hbm", "lx"
REDUCED, K_ROLE = 1, 3
"""Roles of the reduced dims of a reduction, and of K of a matmul (`emit_over`)."""
INDENT = "    "


class DeviceDim(msgspec.Struct, frozen=True):
    """A device dim of a tensor: ``size`` steps of ``pitch_bytes``, begun at step ``first``.

    ``walked``: (dim, elements per step) of the operation's dims that move along it.
    """

    pitch_bytes: int
    size: int
    first: int
    walked: tuple[tuple[int, int], ...]


class KernelTensor(PartlyCompared, frozen=True, dict=True):
    """One tensor of an operation, and the layout of its elements in memory.

    ``pitches``: bytes per step of each of the operation's dims, 0 where elements repeat. ``lane``:
    the dim along the sticks, whose pitch is from stick to stick; -1 if every element has its own
    stick. ``argument``: number among the kernel's arguments, -1 in the pool and in LX. ``memory``,
    ``start_bytes``, ``size_bytes``: kind of memory, and range of the buffer in the argument, the
    pool or each core's LX. ``offset_bytes``: of the first element in the buffer, in the first
    iteration of all loops. ``strides``: bytes per iteration of each enclosing loop, the outermost
    first; empty if no loop moves the tensor. ``shift``: a further offset in bytes that depends on
    sizes only a launch knows, as strides and ``size_bytes`` may (sympy expressions); such a tensor
    names its ``device_size``. ``is_tile``: the buffer holds one tile of the loops around it.
    ``buffer``: name of the buffer while memory is planned, not part of the text.
    """

    uncompared = frozenset({"buffer"})

    format: str
    pitches: Ints
    lane: int = -1
    argument: int = -1
    memory: str = POOL
    start_bytes: int = 0
    size_bytes: int = STICK_BYTES
    offset_bytes: int = 0
    strides: tuple[Any, ...] = ()
    shift: Any = 0
    is_tile: bool = False
    device_size: Ints = ()
    buffer: str = ""

    @cached_property
    def lanes(self) -> int:
        """Elements of a stick."""
        return find_stored_format(self.format).elements_per_stick

    def has(self, dim: int) -> bool:
        """Return True if its elements differ along a dim of the operation."""
        return bool(self.pitches[dim]) or self.lane == dim

    def stride(self, loop: int) -> Any:
        """Bytes per iteration of enclosing loop number ``loop``, the outermost being 0."""
        return self.strides[loop] if self.strides else 0


class KernelOp(msgspec.Struct, frozen=True, dict=True):
    """One operation of the card.

    ``name``: opFuncName. ``extents``: elements along each dim, the outermost first; ``roles``: see
    `emit_over`. ``tensors``: the output last. ``cores``: number of cores that share each dim.
    ``constants``: float32 bits by name. ``mask_from``, ``lane_multiple``: see `DeviceOp`. ``rows``:
    of a gather's table. ``k_fast``: cores that add up one tile of a matmul are neighbours.
    ``loop_dims``: per enclosing loop, the outermost first, the dim it moves along, -1 for none. A
    loop over tiles of one element has a separate dim, of extent 1. ``numbering``: the order of dims
    in core numbers, if it differs from their own.
    """

    name: str
    kind: OpKind
    extents: Ints
    tensors: tuple[KernelTensor, ...]
    roles: Ints = ()
    cores: Ints = ()
    constants: tuple[tuple[str, int], ...] = ()
    mask_from: int = 0
    lane_multiple: int = 0
    rows: int = 0
    k_fast: bool = True
    loop_dims: Ints = ()
    numbering: Ints = ()

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of the dims for display."""
        return tuple(f"c{k}" for k in range(len(self.extents)))

    @property
    def inputs(self) -> tuple[KernelTensor, ...]:
        return self.tensors[:-1]

    @property
    def output(self) -> KernelTensor:
        return self.tensors[-1]

    @cached_property
    def splits(self) -> Ints:
        """Number of cores that share each dim; 1 for all before work is divided."""
        return self.cores or (1,) * len(self.extents)

    @cached_property
    def core_order(self) -> Ints:
        """Dims in the order in which core numbers run through them, the fastest first.

        That is the order of the dims. A matmul whose K is divided has K first, so that the cores
        which add up one output tile are neighbours on the ring (hardware reference §4.1, step 7).
        """
        first = self.split_reductions if self.k_fast and self.kind is OpKind.MATMUL else ()
        return (*first, *(k for k in self._order if k not in first))

    @property
    def _order(self) -> Ints:
        return self.numbering or tuple(range(len(self.extents)))

    @cached_property
    def split_reductions(self) -> Ints:
        """Dims that are split although the output lacks them, so that cores add up partial sums."""
        return tuple(k for k in self._order if self.splits[k] > 1 and not self.output.has(k))

    def is_output(self, number: int) -> bool:
        """Return True if tensor ``number`` is the output."""
        return number == len(self.tensors) - 1

    def is_walked(self, dim: int) -> bool:
        """Return True if the SDSC has the dim: it has several elements, or is the rows of a gather,
        which an SDSC always has (SDSC reference §6.4). Along other dims only loops move.
        """
        return self.extents[dim] > 1 or (self.rows > 0 and self.roles[dim] == 1)

    @cached_property
    def iterated(self) -> IteratedOp:
        """The operation over the dims it walks, without loops and memory, as emission takes it."""
        dims = tuple(
            IterationDim(extent, tuple(self._factor(k, t) for t in self.tensors), self.roles[k])
            for k, extent in enumerate(self.extents)
            if self.is_walked(k)
        )
        formats, more = tuple(t.format for t in self.tensors), (self.mask_from, self.lane_multiple)
        return IteratedOp(
            self.kind, self.name, dims, formats, dict(self.constants), *more, self.rows
        )

    def _factor(self, dim: int, tensor: KernelTensor) -> Factor:
        return Factor(self.extents[dim], tensor.pitches[dim], tensor.lane == dim)

    def indirect_dim(self, number: int) -> int:
        """The dim along which an index selects elements of tensor ``number``, -1 for none."""
        return self.roles.index(1) if self.rows and number == 0 else -1

    @cached_property
    def device_dims(self) -> tuple[tuple[DeviceDim, ...], ...]:
        """Per tensor, the device dims of its buffer, the outermost first, without the stick.

        They are derived from its pitches: every pitch is the step of one device dim, and the next
        larger pitch gives its size. For a tensor in default layout they are those of that layout.
        """
        return tuple(tuple(self._dims_by_pitch(k)) for k in range(len(self.tensors)))

    def _dims_by_pitch(self, number: int) -> Iterator[DeviceDim]:
        if not isinstance(self.tensors[number].size_bytes, int):
            return  # its device_size names them
        tensor, steps = self.tensors[number], list(self._steps(number))
        pitches = sorted({STICK_BYTES, *(pitch for pitch, _, _ in steps)}, reverse=True)
        sizes = [-(-tensor.size_bytes // pitches[0]), *(a // b for a, b in pairwise(pitches))]
        rest, indirect = tensor.offset_bytes, self.indirect_dim(number)
        for pitch, size in zip(pitches, sizes, strict=True):
            first, rest = divmod(rest, pitch)
            walked = tuple((k, unit) for p, k, unit in steps if p == pitch and k != indirect)
            yield DeviceDim(pitch, size, first, walked)

    def buffer_bytes(self, number: int) -> Any:
        """Bytes of the buffer of tensor ``number``, in whole steps of its outermost device dim."""
        if not isinstance(self.tensors[number].size_bytes, int):
            return self.tensors[number].size_bytes
        outermost = self.device_dims[number][0]
        return outermost.size * outermost.pitch_bytes

    def coordinate(self, number: int, dim: DeviceDim) -> str:
        """The coordinate of an iteration along a device dim, as text."""
        lane, lanes = self.tensors[number].lane, self.tensors[number].lanes
        steps = [f"floor(c{k}/{lanes})" if k == lane else f"c{k}" for k, _ in dim.walked]
        return " + ".join([*steps, *([str(dim.first)] if dim.first or not steps else [])])

    def _steps(self, number: int) -> Iterator[tuple[int, int, int]]:
        """(pitch in bytes, dim, elements per step) of every move from stick to stick. The lane dim
        has none if it stays within one stick in all loops.
        """
        tensor = self.tensors[number]
        goes_on = bool(self.loop_dims) and not tensor.is_tile
        for dim, pitch in enumerate(tensor.pitches):
            if dim == tensor.lane:
                if goes_on or self.extents[dim] > tensor.lanes:
                    yield pitch, dim, tensor.lanes
            elif pitch:
                yield pitch, dim, 1


class KernelLoop(msgspec.Struct, frozen=True):
    """``body``, run ``count`` times: a number, or an expression of sizes only a launch knows."""

    count: Any
    body: tuple[KernelOp | KernelLoop, ...]


Kernel = Sequence[KernelOp | KernelLoop]
"""The operations of a kernel in the order they run."""


def operations_in(kernel: Kernel) -> Iterator[KernelOp]:
    """All operations of a kernel, those in loops once."""
    for op in kernel:
        if isinstance(op, KernelLoop):
            yield from operations_in(op.body)
        else:
            yield op


def roles_of(kind: OpKind, tensors: Sequence[KernelTensor], dims: int) -> Ints:
    """Roles of dims, derived from the tensors that have them. Not for gathers."""
    return tuple(_role(kind, [tensor.has(k) for tensor in tensors]) for k in range(dims))


def _role(kind: OpKind, held: Sequence[bool]) -> int:
    if kind is OpKind.REDUCTION:
        return 0 if held[-1] else REDUCED
    if kind is OpKind.MATMUL and not held[-1]:
        return K_ROLE
    if kind in (OpKind.MATMUL, OpKind.TOPK):
        return 0 if held[0] == held[1] else 1 if held[0] else 2
    return 0


# --- text ----------------------------------------------------------------------------------------


def kernel_text(kernel: Kernel) -> str:
    """The kernel as a Python tuple expression, without fields that have their default."""
    lines = ["(", *(f"{INDENT}{line}" for op in kernel for line in _lines(op)), ")"]
    return "\n".join(lines)


def _lines(op: KernelOp | KernelLoop) -> Iterator[str]:
    if isinstance(op, KernelLoop):
        yield f"KernelLoop({op.count}, ("
        yield from (f"{INDENT}{line}" for inner in op.body for line in _lines(inner))
        yield ")),"
        return
    yield f"KernelOp({_keywords(op, {'tensors'})}, tensors=("
    for tensor in op.tensors:
        yield f"{INDENT}KernelTensor({_keywords(tensor, tensor.uncompared)}),"
    yield ")),"


def _keywords(value: KernelOp | KernelTensor, leave_out: Set[str]) -> str:
    names, last = value.__struct_fields__, value.__struct_defaults__
    defaults = dict(zip(names[len(names) - len(last) :], last, strict=True))
    pairs = ((n, getattr(value, n)) for n in names if n not in leave_out)
    chosen = ((n, v) for n, v in pairs if n not in defaults or v != defaults[n])
    texts = ((n, f"OpKind.{v.name}" if isinstance(v, OpKind) else repr(v)) for n, v in chosen)
    return ", ".join(f"{name}={text}" for name, text in texts)


# --- sizes of launches ----------------------------------------------------------------------------


class SizeSpec(msgspec.Struct, frozen=True):
    """A size in elements that only a launch knows; expressions contain its ``name`` as a symbol.

    ``places``: (argument, host dim) of the tensor dims of this size. It is a multiple of
    ``granularity`` and at most ``maximum``.
    """

    name: str
    places: Sequence[tuple[int, int]] = ()
    granularity: int = 1
    maximum: int = 2**31 - 1


Sizes = Mapping[str, int]
"""Elements, by the name of the size."""


def size_value(number: Any, sizes: Mapping[str, RuntimeSize], role: str) -> int | SizeValue:
    """``number`` for a bundle: an int, or an affine map of ``sizes``.

    ``role``: of the number, for messages. UnsupportedError SPY964 for other symbols, and for
    functions that affine maps lack.
    """
    if isinstance(number, int):
        return number
    plain = plain_expression(number)
    if plain.is_Integer:
        return int(plain)
    names = {symbol.name for symbol in plain.free_symbols}
    if not names or not names <= set(sizes):
        raise unknown_number(role, plain)
    used = tuple(sizes[name] for name in sorted(names))
    symbols = {size.name: AffineSymbol(k) for k, size in enumerate(used)}
    try:
        return SizeValue(_affine(plain, symbols), used)
    except ValueError as error:
        raise unknown_number(role, plain) from error


def _affine(e: sympy.Expr, symbols: Mapping[str, AffineSymbol]) -> AffineExpr:
    if e.is_Integer:
        return AffineConstant(int(e))
    if e.is_Symbol and e.name in symbols:
        return symbols[e.name]
    if e.is_Add:
        first, *rest = (_affine(a, symbols) for a in e.args)
        return sum(rest, first)
    if e.is_Mul and all(a.is_Integer or not a.is_number for a in e.args):
        first, *rest = (_affine(a, symbols) for a in e.args)
        for factor in rest:
            first = first * factor
        return first
    if isinstance(e, (sympy.floor, sympy.ceiling)):
        upper, lower = sympy.fraction(sympy.together(e.args[0]))
        top, bottom = _affine(upper, symbols), _affine(lower, symbols)
        return top // bottom if isinstance(e, sympy.floor) else top.ceildiv(bottom)
    if isinstance(e, sympy.Mod):
        return _affine(e.args[0], symbols) % _affine(e.args[1], symbols)
    raise ValueError(str(e))


def value_at(number: Any, sizes: Sizes) -> Any:
    """The value of a number or an expression of sizes; an expression if some sizes are missing."""
    if isinstance(number, int):
        return number
    plain = plain_expression(number)
    if plain.free_symbols:
        plain = plain.subs({sympy.Symbol(name): value for name, value in sizes.items()})
    return int(plain) if plain.is_Integer else plain


def evaluated(numbers: Sequence[Any], sizes: Sizes) -> tuple[int, ...]:
    """The values of numbers and expressions of sizes."""
    return tuple(int(value_at(n, sizes)) for n in numbers)


def smallest(sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """The least value of every size."""
    return {size.name: size.granularity for size in sizes}


def sizes_of_launch(
    name: str, sizes: Sequence[SizeSpec], given: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The sizes of one launch, by name, from the shapes of its tensors and from ``given``.

    ``given``: all sizes in their order, or none. LaunchError SPY965 if tensors disagree, or if a
    size is out of range or missing.
    """
    values = dict(zip((s.name for s in sizes), given, strict=True)) if given else {}
    for size in sizes:
        for argument, dim in size.places:
            value = shapes[argument][dim]
            if values.setdefault(size.name, value) != value:
                raise _wrong_size(
                    name, size, f"{values[size.name]}, and {value} in argument {argument}"
                )
        if size.name not in values:
            raise _wrong_size(name, size, "no size behind the tensors")
        value = values[size.name]
        if not 0 < value <= size.maximum or value % size.granularity:
            raise _wrong_size(name, size, str(value))
    return values


def _wrong_size(name: str, size: SizeSpec, found: str) -> LaunchError:
    return LaunchError(
        "SPY965",
        f"{name} cannot be launched with this {size.name}",
        expected=f"one multiple of {size.granularity} from {size.granularity} to {size.maximum}",
        found=found,
    )


def integer(number: Any, role: str) -> int:
    """``number`` as a positive int. UnsupportedError SPY964 for an expression of symbols."""
    if isinstance(number, int) and number > 0:
        return number
    value = sympy.sympify(number)
    if not (value.is_Integer and value > 0):
        raise unknown_number(role, value)
    return int(value)


def unknown_number(role: str, value: Any) -> UnsupportedError:
    """SPY964 about a number that no launch gives."""
    return UnsupportedError(
        "SPY964",
        "a loop count or an extent depends on something that no launch says",
        expected="positive integers; in loop counts and buffers, sizes of the kernel too",
        found=f"{role} of {value}",
    )


def plain_expression(expression: Any) -> sympy.Expr:
    """The expression over symbols without assumptions, with sympy's own floor and Mod."""
    plain = sympy.sympify(expression)
    if plain.is_Symbol:
        return sympy.Symbol(plain.name)
    if not plain.args:
        return plain
    arguments = [plain_expression(argument) for argument in plain.args]
    match type(plain).__name__:
        case "FloorDiv" | "CleanDiv":
            return sympy.floor(arguments[0] / arguments[1])
        case "ModularIndexing":
            return sympy.Mod(sympy.floor(arguments[0] / arguments[1]), arguments[2])
        case "PythonMod":
            return sympy.Mod(*arguments)
    return plain.func(*arguments)
