"""From a `TensorArg` to where its elements lie: pitches per symbol of the iteration.

The coordinates, weighted with the strides of the row-major buffer, are one sum over symbols; the
last coordinate says which symbol runs along the lanes of the sticks. Enclosing loops go on where a
tile ends, so a symbol's range is that of all tiles together.

One of the coordinates of a gather's table comes from an index tensor. ``op_info["indirect"]`` of
the
gather is (name, along, rows): the table's coordinates hold the symbol ``name``, which no dim of the
iteration has; the symbol ``along`` steps through the index, and through the rows of the output;
``rows`` are those of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.layout.device_view import DeviceView, Factor
from spyre.torch_backend.inductor.bundles.coordinates import (
    AffineForm,
    AffineReader,
    NotAffine,
    SymbolDigits,
    collapsed,
    form_text,
    symbol_digits,
)
from spyre.torch_backend.inductor.bundles.op_spec import OpSpec, TensorArg, plain_expression
from spyre.torch_backend.inductor.bundles.sizes import dynamic_walk, is_dynamic, lanes_of
from spyre.torch_backend.program.emit import single_row
from spyre.torch_backend.program.iteration import IterationDim

LoopCounts = tuple[tuple[str, int], ...]
"""(name, count) of the loops around an operation, the outermost first; UNKNOWN for counts that
only a launch knows."""
UNKNOWN_COUNT = 1 << 40
LX = "lx"


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


def inexpressible(spec: OpSpec, tensor: str, found: str, hint: str = "") -> UnsupportedError:
    """SPY960 about a tensor of ``spec``."""
    return UnsupportedError(
        "SPY960",
        f"{spec.op}: pitches cannot say where {tensor} lies",
        expected="sums of symbols, with one symbol along the lanes from the start of a stick",
        found=found,
        hint=hint,
    )


def tensor_name(spec: OpSpec, arg: TensorArg) -> str:
    """What messages call a tensor: its place in the operation and in memory."""
    number = next((k for k, other in enumerate(spec.args) if other is arg), 0)
    kind, address = next(iter(arg.allocation.items()), ("hbm", 0))
    where = f"argument {arg.arg_index}" if arg.arg_index >= 0 else f"{kind} {address}"
    return f"tensor {number} ({where})"


def tile_extents(spec: OpSpec) -> dict[str, int]:
    """Elements of one tile by symbol, in the order of the iteration space.

    UnsupportedError SPY964 for extents that only a launch knows.
    """
    return {str(s): integer(n, f"{spec.op}: {s}") for s, (n, _) in spec.iteration_space.items()}


def integer(number: sympy.Expr, what: str) -> int:
    """A positive integer. UnsupportedError SPY964 for an expression of symbols."""
    found = sympy.sympify(number)
    if not (found.is_Integer and found > 0):
        raise UnsupportedError(
            "SPY964",
            "a loop count or an extent depends on something that no launch says",
            expected="positive integers; in loop counts and buffers, sizes of the kernel too",
            found=f"{what} of {found}",
        )
    return int(found)


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
        found = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec, tensor_name(spec, arg), found) from error
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
        found = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec, tensor_name(spec, arg), found) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: s for loop, s in strides.items() if s != 0}, sized.shift_bytes)


def _loop_steps(
    spec: OpSpec, arg: TensorArg, tile: Mapping[str, int], loops: LoopCounts
) -> dict[str, tuple[str, int, int]]:
    """Per loop that moves ``arg``: symbol, elements it moves on by, iterations.

    Of two loops over one symbol the outer one goes on where all tiles of the inner one end.
    """
    found: dict[str, tuple[str, int, int]] = {}
    if arg.per_tile_fixed or LX in arg.allocation or not spec.tiled_symbols:
        return found
    if len(spec.tiled_symbols) != len(loops):
        text = f"{len(spec.tiled_symbols)} tiled symbols in {len(loops)} loops"
        raise inexpressible(spec, "every tensor", text, "one symbol, or 0, per enclosing loop")
    reached = dict(tile)
    for symbol, (loop, count) in reversed([*zip(spec.tiled_symbols, loops, strict=True)]):
        name = str(symbol)
        if name not in tile:
            if plain_expression(symbol) != 0:
                raise inexpressible(spec, "every tensor", f"loop {loop} tiles unknown {name}")
            continue
        found[loop] = (name, reached[name], count)
        reached[name] *= count
    return dict(reversed(found.items()))


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


def buffer_bytes(arg: TensorArg) -> int:
    """Bytes of the buffer it lies in."""
    return prod(buffer_size(arg)[:-1]) * STICK_BYTES


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
            found = f"{text} from {form.constant} to {reach}, along a device dim of {extent}"
            hint = "a tile of a larger buffer names its device size in `within`"
            raise inexpressible(spec, tensor_name(spec, arg), found, hint)


def _shown(coordinates: Sequence[sympy.Expr]) -> str:
    return f"[{', '.join(map(str, coordinates))}]"


INDIRECT = "indirect"
ROW = sympy.Symbol("i0")
"""What an index says, in the coordinates of a table."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """``place``: of the symbol along which the output has its rows, ``extent`` of them; the table
    has ``count``, one every ``pitch_bytes``.
    """

    place: int
    extent: int
    count: int
    pitch_bytes: int

    @property
    def unread_bytes(self) -> int:
        """Bytes from the last row that a step per output row would reach to the table's last."""
        return (self.count - self.extent) * self.pitch_bytes

    def with_single(self, dims: list[IterationDim]) -> list[IterationDim]:
        """``dims`` with one for the rows where there is but one."""
        return dims if self.extent > 1 else [*dims, single_row(self.pitch_bytes)]


def indirect_info(
    symbols: Sequence[sympy.Symbol], dims: Sequence[IterationDim], rows: int
) -> tuple[str, str, int]:
    """The entry of ``op_info``; the one dim of role 1 is that of the rows."""
    along = next(s for s, dim in zip(symbols, dims, strict=True) if dim.role)
    return str(ROW), str(along), rows


def table_view(spec: OpSpec) -> tuple[ArgView, TableRows]:
    """The table, with as many rows as the output has. UnsupportedError SPY960 for one whose rows do
    not follow each other at one pitch.
    """
    name, along, count = spec.op_info[INDIRECT]
    space = {**spec.iteration_space, sympy.Symbol(name): (sympy.Integer(count), 1)}
    arg = spec.args[0]
    found = arg_view(replace(spec, iteration_space=space), arg).view
    *dims, factors = found.dims
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise inexpressible(spec, "its table", f"rows along {factors}")
    tile = tile_extents(spec)
    pitch_bytes = factors[0].pitch_bytes if factors else STICK_BYTES
    rows = TableRows(list(tile).index(along), tile[along], count, pitch_bytes)
    dims[rows.place] = (Factor(rows.extent, pitch_bytes),) if rows.extent > 1 else ()
    view = DeviceView(tuple(dims), found.device_format, found.offset_bytes)
    return ArgView(view, {}), rows
