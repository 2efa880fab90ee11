"""Reads specs in the document's form: those written by hand, and those of dynamic kernels.

The coordinates of a tensor, weighted with the strides of the row-major buffer, are one sum over
symbols; the last coordinate says which symbol runs along the lanes of the sticks. Enclosing loops
go on where a tile ends, so a symbol's range is that of all tiles together. Kernels that are
compiled here are `KernelOp`s from the beginning and do not come this way.

One of the coordinates of a gather's table comes from an index tensor. ``op_info["indirect"]`` of
the gather is (name, along, rows): the table's coordinates hold the symbol ``name``, which no dim of
the iteration has; the symbol ``along`` steps through the index, and through the rows of the output;
``rows`` are those of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.hw.ops import Family, find_op
from spyre.layout import DeviceView, Factor
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.bundles.coordinates import (
    AffineForm,
    AffineReader,
    NotAffine,
    SymbolDigits,
    collapsed,
    form_text,
    symbol_digits,
)
from spyre.torch_backend.inductor.bundles.document import INDIRECT, SEGMENT_BYTES
from spyre.torch_backend.inductor.bundles.emission import (
    UNKNOWN_COUNT,
    LoopCounts,
    inexpressible,
    integer,
    not_divisible,
    unimplemented,
)
from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    LX,
    Kernel,
    KernelLoop,
    KernelOp,
    KernelTensor,
    UnimplementedOp,
    roles_of,
)
from spyre.torch_backend.inductor.bundles.op_spec import (
    AnySpec,
    LoopSpec,
    OpSpec,
    TensorArg,
    plain_expression,
)
from spyre.torch_backend.inductor.bundles.sizes import dynamic_walk, is_dynamic, lanes_of
from spyre.torch_backend.program import IterationDim, LoweringError, OpKind, cut

_POINTWISE_FAMILIES = (Family.ELEMENTWISE, Family.COPY, Family.CONVERT, Family.REQUANTIZE)
_KINDS = dict.fromkeys(_POINTWISE_FAMILIES, OpKind.POINTWISE) | {
    Family.REDUCTION: OpKind.REDUCTION,
    Family.MATMUL: OpKind.MATMUL,
    Family.RESTICKIFY: OpKind.RESTICKIFY,
    Family.TOPK: OpKind.TOPK,
}
_INPUT_COUNTS = {OpKind.MATMUL: 2, OpKind.RESTICKIFY: 1, OpKind.REDUCTION: 1}
_INPUT_COUNTS |= {OpKind.TOPK: 1, OpKind.GATHER: 2}
OP_INFO = ("constants", "mask_from", "lane_multiple", "part", "k_fast", INDIRECT)
"""Keys of ``op_info``: constant name → bits as float32; fields of the program's `OpSpec`; False
where cores that add up one tile of a matmul have no neighbouring numbers; how a gather reads its
table.
"""


def kernel_of(specs: Sequence[AnySpec], sizes: Collection[str] = ()) -> Kernel:
    """``specs`` as a kernel: operations of compiled kernels as they are, the document's read.

    ``sizes``: names of those that only a launch knows, which counts of loops may hold.
    UnsupportedError SPY960 for what an SDSC cannot say, SPY961 for a work division that does not
    fit, SPY962 for names without an SDSC, SPY964 for counts and extents that no launch says.
    """
    return tuple(_read(specs, (), sizes))


def _read(
    specs: Sequence[AnySpec], loops: LoopCounts, sizes: Collection[str]
) -> Iterator[KernelOp | UnimplementedOp | KernelLoop]:
    for spec in specs:
        match spec:
            case LoopSpec():
                count = sympy.sympify(spec.count)
                names = {symbol.name for symbol in count.free_symbols}
                is_sized = bool(names) and names <= set(sizes)
                known = UNKNOWN_COUNT if is_sized else integer(count, "loop count")
                inside = (*loops, (f"i_{len(loops)}", known))
                body = tuple(_read(spec.body, inside, sizes))
                yield KernelLoop(count if is_sized else known, body)
            case OpSpec():
                yield _operation(spec, loops)
            case _:
                yield spec


def _operation(spec: OpSpec, loops: LoopCounts) -> KernelOp:
    kind, name = _kind_of(spec)
    args = sorted(spec.args, key=lambda arg: not arg.is_input)
    views, row_pitch = _views(spec, args, loops)
    try:
        dims, cores, numbering = _dims(spec, [operand.view for operand in views])
    except LoweringError as error:
        raise inexpressible(spec.op, "its tensors", error.finding.found) from error
    if row_pitch is not None and not any(dim.role for dim in dims):
        # An SDSC has a dim for the rows of a gather, however few (SDSC reference §6.4).
        row = (Factor(1, row_pitch), Factor(1, STICK_BYTES), Factor(1, STICK_BYTES))
        dims, cores, numbering = (
            [*dims, IterationDim(1, row, 1)],
            [*cores, 1],
            [*numbering, len(dims)],
        )
    tensors = tuple(
        _tensor(spec, arg, operand, [dim.factors[k] for dim in dims], loops)
        for k, (arg, operand) in enumerate(zip(args, views, strict=True))
    )
    is_gather = row_pitch is not None
    roles = [dim.role for dim in dims] if is_gather else roles_of(kind, tensors, len(dims))
    info = spec.op_info
    return KernelOp(
        name,
        kind,
        tuple(dim.extent for dim in dims),
        tensors,
        tuple(roles),
        tuple(cores),
        tuple(info.get("constants", {}).items()),
        int(info.get("mask_from", 0)),
        int(info.get("lane_multiple", 0)),
        info[INDIRECT][2] if is_gather else 0,
        bool(info.get("k_fast", True)),
        (-1,) * len(loops),
        tuple(numbering),
    )


def _kind_of(spec: OpSpec) -> tuple[OpKind, str]:
    """What ``spec`` does. UnsupportedError SPY962 for a name the cores do not have, SPY960 for an
    operation that is more than its tensors' coordinates.
    """
    row = find_op(spec.op)
    if row is None:
        raise unimplemented(spec.op)
    kind = _KINDS.get(row.family)
    if kind is None:
        raise inexpressible(spec.op, "it", f"a {row.family} operation")
    if INDIRECT in spec.op_info:
        kind = OpKind.GATHER
    _check_form(spec, kind)
    unknown = [key for key in spec.op_info if key not in OP_INFO]
    if unknown:
        hint = f"known: {', '.join(OP_INFO)}"
        raise inexpressible(spec.op, "it", f"op_info {unknown[0]!r}", hint)
    return kind, row.name


def _check_form(spec: OpSpec, kind: OpKind) -> None:
    inputs = sum(arg.is_input for arg in spec.args)
    outputs = len(spec.args) - inputs
    if inputs != _INPUT_COUNTS.get(kind, inputs) or outputs != 1:
        raise inexpressible(spec.op, "it", f"{inputs} inputs and {outputs} outputs of {spec.op}")
    if kind in (OpKind.POINTWISE, OpKind.REDUCTION) and spec.is_reduction != (
        kind is OpKind.REDUCTION
    ):
        raise inexpressible(spec.op, "it", f"{spec.op} with is_reduction={spec.is_reduction}")


def _dims(
    spec: OpSpec, views: Sequence[DeviceView]
) -> tuple[list[IterationDim], list[int], list[int]]:
    """The symbols' dims, cut where a tensor has other pitches, how many cores share each, and the
    order of core numbers: a symbol's pieces in turn, the innermost first.
    """
    dims: list[IterationDim] = []
    shares: list[int] = []
    numbering: list[int] = []
    along = spec.op_info.get(INDIRECT, ("", "", 0))[1]
    for k, (symbol, (extent, cores)) in enumerate(spec.iteration_space.items()):
        factors = [view.dims[k] for view in views]
        pieces = cut(int(extent), factors, views, int(str(symbol) == along)) if factors[0] else []
        if cores > 1 and not pieces:
            raise not_divisible(spec.op, f"{cores} slices of one element along {symbol}")
        for piece in pieces:
            slices = cores if piece is pieces[-1] else gcd(cores, piece.extent)
            cores //= slices
            dims.append(piece)
            shares.append(slices)
        numbering += range(len(dims) - 1, len(dims) - 1 - len(pieces), -1)
    return dims, shares, numbering


def _tensor(
    spec: OpSpec, arg: TensorArg, operand: ArgView, factors: Sequence[Factor], loops: LoopCounts
) -> KernelTensor:
    memory, start = _allocation(spec, arg, operand)
    sizes = [plain_expression(n) for n in (arg.within or arg.device_size)]
    size_bytes = prod(sizes[:-1], start=sympy.Integer(STICK_BYTES))
    return KernelTensor(
        str(arg.device_dtype),
        tuple(factor.pitch_bytes for factor in factors),
        next((k for k, factor in enumerate(factors) if factor.lane), -1),
        arg.arg_index,
        memory,
        start,
        int(size_bytes) if size_bytes.is_Integer else size_bytes,
        operand.view.offset_bytes,
        tuple(operand.loop_strides.get(loop, 0) for loop, _ in loops),
        operand.shift_bytes,
        arg.per_tile_fixed,
        tuple(int(n) if n.is_Integer else n for n in sizes),
    )


def _allocation(spec: OpSpec, arg: TensorArg, operand: ArgView) -> tuple[str, int]:
    """What the buffer lies in, and where."""
    match dict(arg.allocation):
        case {"lx": start} if len(arg.allocation) == 1 and not operand.view.offset_bytes:
            return LX, start
        case {"pool": start} if len(arg.allocation) == 1:
            return POOL, start
        case {"hbm": start} if len(arg.allocation) == 1 and arg.arg_index >= 0:
            return HBM, start % SEGMENT_BYTES
    text = f"allocation {dict(arg.allocation)}, from byte {operand.view.offset_bytes} on"
    hint = "one of hbm (of an argument), pool, and lx (from the start of the tensor on)"
    raise inexpressible(spec.op, _arg_name(spec, arg), text, hint)


def _views(
    spec: OpSpec, args: Sequence[TensorArg], loops: LoopCounts
) -> tuple[list[ArgView], int | None]:
    """Where the tensors lie, and of a gather the bytes from row to row of its table."""
    if INDIRECT not in spec.op_info:
        views = [arg_view(spec, arg, loops) for arg in args]
        return [*views[:-1], _part(spec, views[-1])], None
    if loops:
        raise inexpressible(spec.op, "its table", "a gather in a loop")
    table, row_pitch = table_view(spec)
    return [table, *(arg_view(spec, arg) for arg in args[1:])], row_pitch


def _part(spec: OpSpec, operand: ArgView) -> ArgView:
    """The output from the place on that ``part`` (symbol's number, start, length) names."""
    if "part" not in spec.op_info:
        return operand
    dim, start, length = spec.op_info["part"]
    factors, lanes = operand.view.dims[dim], operand.view.elements_per_stick
    unit = lanes if factors and factors[0].lane else 1
    if len(factors) != 1 or factors[0].extent != length or start % unit:
        raise inexpressible(spec.op, "its output", f"part {(dim, start, length)}")
    offset_bytes = operand.view.offset_bytes + start // unit * factors[0].pitch_bytes
    return replace(operand, view=replace(operand.view, offset_bytes=offset_bytes))


def table_view(spec: OpSpec) -> tuple[ArgView, int]:
    """The table of a gather, with as many rows as the output has, and the bytes from row to row.

    UnsupportedError SPY960 for one whose rows do not follow each other at one pitch.
    """
    name, along, count = spec.op_info[INDIRECT]
    space = {**spec.iteration_space, sympy.Symbol(name): (sympy.Integer(count), 1)}
    view = arg_view(replace(spec, iteration_space=space), spec.args[0]).view
    *dims, factors = view.dims
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise inexpressible(spec.op, "its table", f"rows along {factors}")
    tile = tile_extents(spec)
    place, row_pitch = list(tile).index(along), factors[0].pitch_bytes if factors else STICK_BYTES
    dims[place] = (Factor(tile[along], row_pitch),) if tile[along] > 1 else ()
    return ArgView(DeviceView(tuple(dims), view.device_format, view.offset_bytes), {}), row_pitch


# --- where a tensor lies -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArgView:
    """One tensor of an operation.

     ``view``: one dim per symbol, over one tile; of pitch 0 where it has no elements of its own.
    ``loop_strides``: bytes by which the enclosing loops move it. ``shift_bytes``: what of its begin
    depends on sizes that only a launch knows, as strides may.
    """

    view: DeviceView
    loop_strides: Mapping[str, int | sympy.Expr]
    shift_bytes: int | sympy.Expr = 0


def _arg_name(spec: OpSpec, arg: TensorArg) -> str:
    """What messages call a tensor: its place in the operation and in memory."""
    number = next((k for k, other in enumerate(spec.args) if other is arg), 0)
    kind, address = next(iter(arg.allocation.items()), (HBM, 0))
    where = f"argument {arg.arg_index}" if arg.arg_index >= 0 else f"{kind} {address}"
    return f"tensor {number} ({where})"


def tile_extents(spec: OpSpec) -> dict[str, int]:
    """Elements of one tile by symbol, in the order of the iteration space.

    UnsupportedError SPY964 for extents that only a launch knows.
    """
    return {str(s): integer(n, f"{spec.op}: {s}") for s, (n, _) in spec.iteration_space.items()}


def arg_view(spec: OpSpec, arg: TensorArg, loops: LoopCounts = ()) -> ArgView:
    """Where ``arg`` lies, and how ``loops`` move it. UnsupportedError SPY960 or SPY964."""
    tile = tile_extents(spec)
    steps = _loop_steps(spec, arg, tile, loops)
    if is_dynamic_arg(arg):
        return _dynamic_view(spec, arg, tile, steps)
    extents = dict(tile)
    for symbol, step, count in steps.values():
        extents[symbol] = max(extents[symbol], step * count)
    try:
        walk = _tile_walk(spec, arg, extents)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: walk.stride_bytes(*step) for loop, step in steps.items()}
    except NotAffine as error:
        reason = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec.op, _arg_name(spec, arg), reason) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: stride for loop, stride in strides.items() if stride})


def is_dynamic_arg(arg: TensorArg) -> bool:
    """Whether where ``arg`` lies depends on sizes that only a launch knows."""
    return any(is_dynamic(number) for number in (*arg.device_size, *arg.within))


def _dynamic_view(
    spec: OpSpec,
    arg: TensorArg,
    tile: Mapping[str, int],
    steps: Mapping[str, tuple[str, int, int]],
) -> ArgView:
    """`arg_view` of a tensor with pitches that only a launch knows: only loops move along them."""
    try:
        sized = dynamic_walk(arg, tile)
        walk = _tile_walk(spec, sized.inside, tile)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: sized.stride_bytes(*step) for loop, step in steps.items()}
    except NotAffine as error:
        reason = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec.op, _arg_name(spec, arg), reason) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: s for loop, s in strides.items() if s != 0}, sized.shift_bytes)


def _loop_steps(
    spec: OpSpec, arg: TensorArg, tile: Mapping[str, int], loops: LoopCounts
) -> dict[str, tuple[str, int, int]]:
    """Per loop that moves ``arg``: symbol, elements it moves on by, iterations.

    Of two loops over one symbol the outer one goes on where all tiles of the inner one end.
    """
    steps: dict[str, tuple[str, int, int]] = {}
    if arg.per_tile_fixed or LX in arg.allocation or not spec.tiled_symbols:
        return steps
    if len(spec.tiled_symbols) != len(loops):
        text = f"{len(spec.tiled_symbols)} tiled symbols in {len(loops)} loops"
        raise inexpressible(spec.op, "every tensor", text, "one symbol, or 0, per enclosing loop")
    reached = dict(tile)
    for symbol, (loop, count) in reversed([*zip(spec.tiled_symbols, loops, strict=True)]):
        name = str(symbol)
        if name not in tile:
            if plain_expression(symbol) != 0:
                raise inexpressible(spec.op, "every tensor", f"loop {loop} tiles unknown {name}")
            continue
        steps[loop] = (name, reached[name], count)
        reached[name] *= count
    return dict(reversed(steps.items()))


@dataclass(frozen=True, slots=True)
class _TileWalk:
    """Digits per symbol that moves the tensor."""

    steps: Mapping[str, SymbolDigits]
    offset_bytes: int

    def factors(self, symbol: str, extent: int) -> tuple[Factor, ...]:
        if extent == 1:
            return ()
        return self.steps[symbol].factors(extent) if symbol in self.steps else (Factor(extent, 0),)

    def stride_bytes(self, symbol: str, elements: int, count: int) -> int:
        return self.steps[symbol].stride_bytes(elements, count) if symbol in self.steps else 0


def buffer_size(arg: TensorArg) -> tuple[int, ...]:
    """Device size of the buffer whose pitches count."""
    return tuple(int(n) for n in (arg.within or arg.device_size))


def _tile_walk(spec: OpSpec, arg: TensorArg, extents: Mapping[str, int]) -> _TileWalk:
    reader, size, lanes = AffineReader(extents), buffer_size(arg), lanes_of(arg)
    if size[-1] != lanes or len(size) != len(arg.device_coordinates):
        raise NotAffine(f"device size {list(size)} with sticks of {lanes} elements")
    *outer, last = [reader.read(e) for e in arg.device_coordinates]
    _check_reach(spec, arg, reader, [*outer, last])
    address, pitch = AffineForm(), STICK_BYTES
    for coordinate, extent in zip(reversed(outer), reversed(size[:-1]), strict=True):
        address += coordinate.times(pitch)
        pitch *= extent
    if last.constant or len(last.terms) > 1 or any(f != 1 for _, f in last.terms):
        raise NotAffine(f"lanes that {form_text(last)} counts")
    lane = next((term for term, _ in last.terms), None)
    if address.constant.denominator > 1:
        raise NotAffine(f"byte {address.constant}")
    return _TileWalk(symbol_digits(collapsed(address), lane, lanes), int(address.constant))


def _check_reach(
    spec: OpSpec, arg: TensorArg, reader: AffineReader, coordinates: Sequence[AffineForm]
) -> None:
    for form, extent, text in zip(
        coordinates, buffer_size(arg), arg.device_coordinates, strict=True
    ):
        reach = reader.largest(collapsed(form))
        if reach >= extent or form.constant < 0:
            walked = f"{text} from {form.constant} to {reach}, along a device dim of {extent}"
            hint = "a tile of a larger buffer names its device size in `within`"
            raise inexpressible(spec.op, _arg_name(spec, arg), walked, hint)


def _shown(coordinates: Sequence[sympy.Expr]) -> str:
    return f"[{', '.join(map(str, coordinates))}]"
