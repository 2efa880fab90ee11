"""Specs that several tests use: the coarse-tiling document's example, and small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import sympy

from spyre.dtypes import FORMATS
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.torch_backend.inductor.bundles.op_spec_form import (
    LoopSpec,
    OpSpec,
    TensorArg,
)

HALF = "SEN169_FP16"
DATA_FORMATS = SimpleNamespace(**{name: name for name in FORMATS})
FULL = (1024, 4096)


def arg(
    index: int,
    size: Sequence[int],
    coordinates: Sequence[str],
    *,
    out: bool = False,
    place: Mapping[str, int] | None = None,
    dtype: str = HALF,
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


FORMATS_OF = {"float16": HALF, "float32": "IEEE_FP32"}


def default_arg(index, shape, steps, *, dtype="float16", order=None, **more) -> TensorArg:
    """A tensor of host ``shape`` in its default layout (or one of a dim order), whose host dims
    are at ``steps`` (expressions).
    """
    strides = contiguous_strides(shape)
    layout = SpyreTensorLayout.from_host(shape, dtype)
    if order is not None:
        layout = SpyreTensorLayout.from_dim_order(shape, strides, dtype, order)
    lanes = layout.elements_per_stick
    lane = layout.stride_map[-1]
    by_stride = {s: f"({e})" for s, e, n in zip(strides, steps, shape, strict=True) if n > 1}
    coordinates = []
    for size, stride in zip(layout.device_size[:-1], layout.stride_map[:-1], strict=True):
        if size == 1:
            coordinates.append("0")
        elif stride in by_stride and stride != lane:
            coordinates.append(by_stride[stride])
        else:
            coordinates.append(f"floor({by_stride[lane]}/{lanes})")
    coordinates.append(f"Mod({by_stride[lane]}, {lanes})" if lane in by_stride else "0")
    return arg(index, layout.device_size, coordinates, dtype=FORMATS_OF[dtype], **more)
