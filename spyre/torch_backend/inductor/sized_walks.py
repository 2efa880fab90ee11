"""Tensors in memory whose pitches depend on sizes that only a launch knows.

Of a [s0, 128] tensor in default layout, column sticks are s0 sticks apart. An SDSC cannot say that,
the affine map of its address can: along such a pitch only loops move, one tile at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from spyre.dtypes import FORMATS, STICK_BYTES
from spyre.torch_backend.inductor.linear_forms import Form, NotLinear, Reader, collapsed
from spyre.torch_backend.inductor.op_spec import TensorArg
from spyre.torch_backend.inductor.size_values import is_sized
from spyre.torch_backend.inductor.spec_text import plain
from spyre.torch_backend.inductor.symbol_steps import symbol_steps


def lanes_of(arg: TensorArg) -> int:
    """Elements of a stick."""
    return FORMATS[str(arg.device_dtype)].elements_per_stick


@dataclass(frozen=True, slots=True)
class SizedWalk:
    """``inside``: the tensor as one tile sees it, without what depends on sizes. ``shift_bytes``:
    where it begins besides. ``rows``: (coordinate, pitch in bytes) of the dims outside of a stick.
    """

    inside: TensorArg
    shift_bytes: sympy.Expr
    rows: tuple[tuple[sympy.Expr, sympy.Expr], ...]
    lane: sympy.Expr
    lanes: int

    def stride_bytes(self, symbol: str, elements: int, count: int) -> sympy.Expr:
        """Bytes that ``elements`` of a symbol move it by, the same ``count`` times. NotLinear if
        they vary.
        """
        named = {s.name for s in self.lane.free_symbols}
        if symbol in named and elements % self.lanes:
            raise NotLinear(f"tiles of {elements} lanes of {self.lanes}")
        found = sympy.Integer(0)
        for coordinate, pitch in self.rows:
            if symbol not in {s.name for s in coordinate.free_symbols}:
                continue
            extents = {s.name: elements * count for s in coordinate.free_symbols}
            form = collapsed(Reader(extents).read(coordinate))
            steps = symbol_steps(form, None, self.lanes)
            if symbol in steps:
                found += steps[symbol].stride_bytes(elements, count) * pitch
        return sympy.expand(found)


def sized_walk(arg: TensorArg, tile: Mapping[str, int]) -> SizedWalk:
    """How ``arg`` lies for tiles of ``tile`` elements by symbol. NotLinear where a tile is not in
    one piece: its own pitches depend on sizes.
    """
    sizes, pitches = [plain(n) for n in arg.within or arg.device_size], []
    pitch = sympy.Integer(STICK_BYTES)
    for size in reversed(sizes[:-1]):
        pitches.append(pitch)
        pitch = pitch * size
    pitches.reverse()
    *outer, lane = map(plain, arg.device_coordinates)
    shift, rows, inside = sympy.Integer(0), [], []
    for coordinate, pitch in zip(outer, pitches, strict=True):
        moving, begin = _split(coordinate, tile)
        shift += begin * pitch
        if is_sized(pitch):
            shift += _constant(moving, tile) * pitch
            moving_inside = sympy.Integer(0)
        else:
            moving_inside = moving
        rows.append((moving, pitch))
        inside.append(moving_inside)
    seen = [_numbered(size) for size in sizes]
    whole = replace(arg, device_size=seen, within=(), device_coordinates=[*inside, lane])
    return SizedWalk(whole, sympy.expand(shift), tuple(rows), lane, lanes_of(arg))


UNBOUNDED = 1 << 40
"""Stands for a device dim of unknown length in checks of what a tile reaches."""


def _numbered(size: sympy.Expr) -> Any:
    return UNBOUNDED if is_sized(size) else size


def _split(coordinate: sympy.Expr, tile: Mapping[str, int]) -> tuple[sympy.Expr, sympy.Expr]:
    """What depends on the iteration, and what on sizes."""
    terms = sympy.Add.make_args(sympy.expand(coordinate))
    symbols = tuple(tile)
    sized = [t for t in terms if is_sized(t, symbols)]
    for term in sized:
        if any(s.name in tile for s in term.free_symbols):
            raise NotLinear(str(term))
    begin = sum(sized, sympy.Integer(0))
    return sympy.Add(*(t for t in terms if t not in sized)), begin


def _constant(moving: sympy.Expr, tile: Mapping[str, int]) -> sympy.Expr:
    """The one place a tile has along a pitch that depends on sizes."""
    form: Form = collapsed(Reader(tile).read(moving))
    if form.terms:
        raise NotLinear(f"{moving} within a tile, at a pitch that only a launch knows,")
    return sympy.Rational(form.constant.numerator, form.constant.denominator)
