"""Sizes only a launch knows: their symbols in specs, the same in bundles, and pitches that depend
on them.

A spec may say ``s0`` in loop counts, device sizes and coordinates where a `SizeSpec` of that name
stands beside it. Of a [s0, 128] tensor in default layout, column sticks are s0 sticks apart. An
SDSC
cannot say that, the affine map of its address can: along such a pitch only loops move, one tile at
a time. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from spyre.dtypes import FORMATS, STICK_BYTES
from spyre.errors import LaunchError
from spyre.mlir.builder import RuntimeSize, SizeValue
from spyre.mlir.program import AffineConstant, AffineExpr, AffineSymbol
from spyre.torch_backend.inductor.bundles.coordinates import (
    AffineForm,
    AffineReader,
    NotAffine,
    collapsed,
    symbol_digits,
)
from spyre.torch_backend.inductor.bundles.op_spec import SizeSpec, TensorArg, plain_expression

Sizes = Mapping[str, int]
"""Elements, by the name of the size."""


def size_value(expression: Any, sizes: Mapping[str, RuntimeSize]) -> int | SizeValue:
    """An expression of sizes as bundles have it. NotAffine for what affine maps lack."""
    plain = plain_expression(expression)
    if plain.is_Integer:
        return int(plain)
    used = tuple(sizes[s] for s in sorted(sizes) if sympy.Symbol(s) in plain.free_symbols)
    places = {size.name: AffineSymbol(k) for k, size in enumerate(used)}
    return SizeValue(_affine(plain, places), used)


def _affine(e: sympy.Expr, places: Mapping[str, AffineSymbol]) -> AffineExpr:
    if e.is_Integer:
        return AffineConstant(int(e))
    if e.is_Symbol and e.name in places:
        return places[e.name]
    if e.is_Add:
        first, *rest = (_affine(a, places) for a in e.args)
        return sum(rest, first)
    if e.is_Mul and all(a.is_Integer or not a.is_number for a in e.args):
        first, *rest = (_affine(a, places) for a in e.args)
        for factor in rest:
            first = first * factor
        return first
    if isinstance(e, (sympy.floor, sympy.ceiling)):
        upper, lower = sympy.fraction(sympy.together(e.args[0]))
        top, bottom = _affine(upper, places), _affine(lower, places)
        return top // bottom if isinstance(e, sympy.floor) else top.ceildiv(bottom)
    if isinstance(e, sympy.Mod):
        return _affine(e.args[0], places) % _affine(e.args[1], places)
    raise NotAffine(str(e))


def is_dynamic(expression: Any, iteration: Sequence[str] = ()) -> bool:
    """Whether an expression has symbols beside those of the iteration."""
    symbols = sympy.sympify(expression).free_symbols
    return any(s.name not in iteration for s in symbols)


def value_at(number: Any, sizes: Sizes) -> Any:
    """A number, or an expression of sizes, at given sizes; an expression where some are missing."""
    if isinstance(number, int):
        return number
    plain = plain_expression(number)
    if plain.free_symbols:
        plain = plain.subs({sympy.Symbol(name): value for name, value in sizes.items()})
    return int(plain) if plain.is_Integer else plain


def evaluated(numbers: Sequence[Any], sizes: Sizes) -> tuple[int, ...]:
    """Numbers, and expressions of sizes, at given sizes."""
    return tuple(int(value_at(n, sizes)) for n in numbers)


def smallest(sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """The least value of every size."""
    return {size.name: size.granularity for size in sizes}


def sizes_of_launch(
    name: str, sizes: Sequence[SizeSpec], given: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The sizes of one launch: those of the tensors, or as ``given`` for sizes no tensor has.

    ``given``: all sizes in their order, or none. LaunchError SPY965 where tensors disagree or a
    size is out of its range or said by nobody.
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


def lanes_of(arg: TensorArg) -> int:
    """Elements of a stick."""
    return FORMATS[str(arg.device_dtype)].elements_per_stick


@dataclass(frozen=True, slots=True)
class DynamicWalk:
    """``inside``: the tensor as one tile sees it, without what depends on sizes. ``shift_bytes``:
    where it begins besides. ``rows``: (coordinate, pitch in bytes) of the dims outside of a stick.
    """

    inside: TensorArg
    shift_bytes: sympy.Expr
    rows: tuple[tuple[sympy.Expr, sympy.Expr], ...]
    lane: sympy.Expr
    lanes: int

    def stride_bytes(self, symbol: str, elements: int, count: int) -> sympy.Expr:
        """Bytes that ``elements`` of a symbol move it by, the same ``count`` times. NotAffine if
        they vary.
        """
        named = {s.name for s in self.lane.free_symbols}
        if symbol in named and elements % self.lanes:
            raise NotAffine(f"tiles of {elements} lanes of {self.lanes}")
        stride = sympy.Integer(0)
        for coordinate, pitch in self.rows:
            if symbol not in {s.name for s in coordinate.free_symbols}:
                continue
            extents = {s.name: elements * count for s in coordinate.free_symbols}
            form = collapsed(AffineReader(extents).read(coordinate))
            steps = symbol_digits(form, None, self.lanes)
            if symbol in steps:
                stride += steps[symbol].stride_bytes(elements, count) * pitch
        return sympy.expand(stride)


def dynamic_walk(arg: TensorArg, tile: Mapping[str, int]) -> DynamicWalk:
    """How ``arg`` lies for tiles of ``tile`` elements by symbol. NotAffine where a tile is not in
    one piece: its own pitches depend on sizes.
    """
    sizes, pitches = [plain_expression(n) for n in arg.within or arg.device_size], []
    pitch = sympy.Integer(STICK_BYTES)
    for size in reversed(sizes[:-1]):
        pitches.append(pitch)
        pitch = pitch * size
    pitches.reverse()
    *outer, lane = map(plain_expression, arg.device_coordinates)
    shift, rows, inside = sympy.Integer(0), [], []
    for coordinate, pitch in zip(outer, pitches, strict=True):
        moving, begin = _split(coordinate, tile)
        shift += begin * pitch
        if is_dynamic(pitch):
            shift += _constant(moving, tile) * pitch
            moving_inside = sympy.Integer(0)
        else:
            moving_inside = moving
        rows.append((moving, pitch))
        inside.append(moving_inside)
    seen = [_numbered(size) for size in sizes]
    whole = replace(arg, device_size=seen, within=(), device_coordinates=[*inside, lane])
    return DynamicWalk(whole, sympy.expand(shift), tuple(rows), lane, lanes_of(arg))


UNBOUNDED = 1 << 40
"""Stands for a device dim of unknown length in checks of what a tile reaches."""


def _numbered(size: sympy.Expr) -> Any:
    return UNBOUNDED if is_dynamic(size) else size


def _split(coordinate: sympy.Expr, tile: Mapping[str, int]) -> tuple[sympy.Expr, sympy.Expr]:
    """What depends on the iteration, and what on sizes."""
    terms = sympy.Add.make_args(sympy.expand(coordinate))
    symbols = tuple(tile)
    sized = [t for t in terms if is_dynamic(t, symbols)]
    for term in sized:
        if any(s.name in tile for s in term.free_symbols):
            raise NotAffine(str(term))
    begin = sum(sized, sympy.Integer(0))
    return sympy.Add(*(t for t in terms if t not in sized)), begin


def _constant(moving: sympy.Expr, tile: Mapping[str, int]) -> sympy.Expr:
    """The one place a tile has along a pitch that depends on sizes."""
    form: AffineForm = collapsed(AffineReader(tile).read(moving))
    if form.terms:
        raise NotAffine(f"{moving} within a tile, at a pitch that only a launch knows,")
    return sympy.Rational(form.constant.numerator, form.constant.denominator)
