"""From a `TensorArg` to where its elements lie: pitches per symbol of the iteration.

The coordinates, weighted with the strides of the row-major buffer, are one sum over symbols; the
last coordinate says which symbol runs along the lanes of the sticks. Enclosing loops go on where a
tile ends, so a symbol's range is that of all tiles together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.layout.device_view import DeviceView
from spyre.layout.view_factors import Factor
from spyre.torch_backend.inductor.linear_forms import Form, NotLinear, Reader, collapsed
from spyre.torch_backend.inductor.op_spec import OpSpec, TensorArg
from spyre.torch_backend.inductor.size_values import is_sized
from spyre.torch_backend.inductor.sized_walks import lanes_of, sized_walk
from spyre.torch_backend.inductor.spec_text import plain
from spyre.torch_backend.inductor.symbol_steps import SymbolSteps, form_text, symbol_steps

Loops = tuple[tuple[str, int], ...]
"""(name, count) of the loops around an operation, the outermost first; UNKNOWN for counts that
only a launch knows."""
UNKNOWN = 1 << 40
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


def arg_view(spec: OpSpec, arg: TensorArg, loops: Loops = ()) -> ArgView:
    """Where ``arg`` lies, and how ``loops`` move it. UnsupportedError SPY960 or SPY964."""
    tile = tile_extents(spec)
    steps = _loop_steps(spec, arg, tile, loops)
    if is_sized_arg(arg):
        return _sized_view(spec, arg, tile, steps)
    extents = dict(tile)
    for symbol, step, count in steps.values():
        extents[symbol] = max(extents[symbol], step * count)
    try:
        walk = _walk(spec, arg, extents)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: walk.stride_bytes(*step) for loop, step in steps.items()}
    except NotLinear as error:
        found = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec, tensor_name(spec, arg), found) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: stride for loop, stride in strides.items() if stride})


def is_sized_arg(arg: TensorArg) -> bool:
    """Whether where ``arg`` lies depends on sizes that only a launch knows."""
    return any(is_sized(number) for number in (*arg.device_size, *arg.within))


def _sized_view(
    spec: OpSpec,
    arg: TensorArg,
    tile: Mapping[str, int],
    steps: Mapping[str, tuple[str, int, int]],
) -> ArgView:
    """`arg_view` of a tensor with pitches that only a launch knows: only loops move along them."""
    try:
        sized = sized_walk(arg, tile)
        walk = _walk(spec, sized.inside, tile)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: sized.stride_bytes(*step) for loop, step in steps.items()}
    except NotLinear as error:
        found = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec, tensor_name(spec, arg), found) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: s for loop, s in strides.items() if s != 0}, sized.shift_bytes)


def _loop_steps(
    spec: OpSpec, arg: TensorArg, tile: Mapping[str, int], loops: Loops
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
            if plain(symbol) != 0:
                raise inexpressible(spec, "every tensor", f"loop {loop} tiles unknown {name}")
            continue
        found[loop] = (name, reached[name], count)
        reached[name] *= count
    return dict(reversed(found.items()))


@dataclass(frozen=True, slots=True)
class _Walk:
    """Digits per symbol that moves the tensor."""

    steps: Mapping[str, SymbolSteps]
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


def _walk(spec: OpSpec, arg: TensorArg, extents: Mapping[str, int]) -> _Walk:
    reader, size, lanes = Reader(extents), buffer_size(arg), lanes_of(arg)
    if size[-1] != lanes or len(size) != len(arg.device_coordinates):
        raise NotLinear(f"device size {list(size)} with sticks of {lanes} elements")
    *outer, last = [reader.read(e) for e in arg.device_coordinates]
    _check_reach(spec, arg, reader, [*outer, last])
    address, pitch = Form(), STICK_BYTES
    for coordinate, extent in zip(reversed(outer), reversed(size[:-1]), strict=True):
        address += coordinate.times(pitch)
        pitch *= extent
    if last.constant or len(last.terms) > 1 or any(f != 1 for _, f in last.terms):
        raise NotLinear(f"lanes that {form_text(last)} counts")
    lane = next((term for term, _ in last.terms), None)
    if address.constant.denominator > 1:
        raise NotLinear(f"byte {address.constant}")
    return _Walk(symbol_steps(collapsed(address), lane, lanes), int(address.constant))


def _check_reach(spec: OpSpec, arg: TensorArg, reader: Reader, coordinates: Sequence[Form]) -> None:
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
