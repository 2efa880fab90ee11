"""Specs that several tests use: the coarse-tiling document's example, and small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from spyre.torch_backend.inductor.op_spec import DataFormats, LoopSpec, OpSpec, TensorArg

HALF = DataFormats.SEN169_FP16
FULL = (1024, 4096)


def arg(
    index: int,
    size: Sequence[int],
    coordinates: Sequence[str],
    *,
    out: bool = False,
    place: Mapping[str, int] | None = None,
    dtype: DataFormats = HALF,
    **more,
) -> TensorArg:
    found = [sympy.sympify(c) for c in coordinates]
    return TensorArg(not out, index, dtype, list(size), found, dict(place or {"hbm": 0}), **more)


def op(name, space, args, *, reduces=False, tiled=(), info=None) -> OpSpec:
    """``space``: symbol → (extent, cores)."""
    pairs = {sympy.Symbol(s): (sympy.Integer(n), cores) for s, (n, cores) in space.items()}
    return OpSpec(
        name, reduces, pairs, list(args), dict(info or {}), [sympy.sympify(t) for t in tiled]
    )


def loop(count, *body) -> LoopSpec:
    return LoopSpec(sympy.sympify(count), list(body))


MATRIX = ("floor(c1/64)", "c0", "Mod(c1, 64)")


def tiled_example(rows=2, columns=4, cores=32, full=FULL):
    """y = a + b; z = y * c over ``full``, in tiles, with y in LX at 0."""
    height, width = full[0] // rows, full[1] // columns
    whole = [full[1] // 64, full[0], 64]
    tile = [width // 64, height, 64]
    space = {"c0": (height, cores), "c1": (width, 1)}
    within = {"within": whole} if rows * columns > 1 else {}
    tiled = ("c0", "c1") if rows * columns > 1 else ()
    add = op(
        "add",
        space,
        [
            arg(0, whole, MATRIX),
            arg(1, whole, MATRIX),
            arg(-1, tile, MATRIX, out=True, place={"lx": 0}),
        ],
        tiled=tiled,
    )
    mul = op(
        "mul",
        space,
        [
            arg(-1, tile, MATRIX, place={"lx": 0}),
            arg(2, whole, MATRIX),
            arg(3, tile, MATRIX, out=True, **within),
        ],
        tiled=tiled,
    )
    return [loop(rows, loop(columns, add, mul))] if tiled else [add, mul]
