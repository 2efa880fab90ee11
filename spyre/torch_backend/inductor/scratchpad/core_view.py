"""What each core touches of a tensor: the division an access implies, or why it has none.

A buffer may lie in LX only where all its users divide it over the cores alike, since a core reads
its own scratchpad only. Source: hardware reference §4.3 (per-core view), §4.1 (core numbering).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.division.core_numbering import core_order
from spyre.torch_backend.inductor.op_spec import OpSpec, TensorArg


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
class NoView:
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


def core_view(spec: OpSpec, arg: TensorArg) -> CoreView | NoView:
    """How the cores share ``arg``, or why that cannot be said of a buffer in LX.

    It can where every device dim is walked from end to end by one symbol of its own.
    """
    if arg.within:
        return NoView("is a tile of a larger buffer")
    if (why := _cut_stick(spec, arg)) is not None:
        return why
    strides, seen = core_strides(spec), _Seen(arg.device_coordinates, arg.device_size[-1])
    dims: list[tuple[int, int, int]] = []
    for size, coordinate in zip(arg.device_size[:-1], arg.device_coordinates[:-1], strict=True):
        walked = seen.walk(sympy.sympify(coordinate))
        dim = walked if isinstance(walked, NoView) else _divided(spec, *walked, size, strides)
        if isinstance(dim, NoView):
            return dim
        dims.append(dim)
    kept = [dim for dim in dims if dim[:2] != (1, 1)]
    extents, splits, steps = zip(*kept, strict=True) if kept else ((), (), ())
    cores = prod(cores for _, cores in spec.iteration_space.values())
    return CoreView(extents, splits, steps, cores)


class _Seen:
    """Reads the coordinates of one tensor, and notes which symbols it has met."""

    def __init__(self, coordinates: Sequence[sympy.Expr], lanes: int) -> None:
        self.lanes = lanes
        self.stick = lane_symbol(sympy.sympify(coordinates[-1]), lanes)
        self.symbols: set[sympy.Symbol] = set()

    def walk(self, coordinate: sympy.Expr) -> tuple[sympy.Expr, int] | NoView:
        """The symbol a device dim is walked by (0: none), and its elements per step."""
        unit = 1
        symbol = coordinate
        if self.stick is not None and _is_quotient(coordinate, self.stick, self.lanes):
            symbol, unit = self.stick, self.lanes
        if symbol != 0 and (not symbol.is_Symbol or (unit == 1 and symbol == self.stick)):
            return NoView(f"has the coordinate {coordinate}, which is not one symbol")
        if symbol in self.symbols:
            return NoView(f"is walked by {symbol} along two dims")
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
) -> tuple[int, int, int] | NoView:
    """(extent per core, slices, stride in cores) of a device dim of ``size`` steps."""
    if symbol == 0:
        return (size, 1, 0) if size == 1 else NoView(f"is touched in one of {size} steps only")
    if symbol not in spec.iteration_space:
        return NoView(f"is addressed by {symbol}, which the iteration does not walk")
    elements, split = spec.iteration_space[symbol]
    if not sympy.sympify(elements).is_Integer:
        return NoView(f"has the size {elements}, known at run time only")
    steps = -(-int(elements) // unit)
    if steps != size:
        return NoView(f"is touched in {steps} of {size} steps along {symbol}")
    if size % split:
        return NoView(f"is cut unevenly along {symbol}: {size} steps over {split} cores")
    return size // split, split, strides[symbol] if split > 1 else 0


def _cut_stick(spec: OpSpec, arg: TensorArg) -> NoView | None:
    """Why lanes of one stick are shared out over cores, or skipped, if they are."""
    lanes = arg.device_size[-1]
    stick = sympy.sympify(arg.device_coordinates[-1])
    symbol = lane_symbol(stick, lanes)
    if symbol is None:
        return None if stick == 0 else NoView(f"has the lanes {stick}, which are not one symbol")
    if symbol not in spec.iteration_space:
        return NoView(f"is addressed by {symbol}, which the iteration does not walk")
    outer = set().union(*(sympy.sympify(c).free_symbols for c in arg.device_coordinates[:-1]))
    if symbol in outer:
        return None
    elements, split = spec.iteration_space[symbol]
    if not sympy.sympify(elements).is_Integer:
        return NoView(f"has the size {elements}, known at run time only")
    if split > 1 or int(elements) > lanes:
        return NoView(f"is cut along {symbol} within a stick")
    return None
