"""Specs of small kernels for tests of planning."""

from __future__ import annotations

import sympy

from spyre.torch_backend.inductor.bundles.op_spec import DataFormats, OpSpec, TensorArg

C = sympy.symbols("c0:4")
LANES = 64


def tensor(is_input, sizes, symbols, *, fixed=False, within=(), dtype=DataFormats.SEN169_FP16):
    """A tensor in the default layout of rank 1 or 2; the symbol 0 is a lane of its own sticks."""
    *outer, lane = symbols
    rows = list(sizes[:-1])
    sticks = -(-sizes[-1] // LANES)
    return TensorArg(
        is_input=is_input,
        arg_index=0,
        device_dtype=dtype,
        device_size=[sticks, *rows, LANES],
        device_coordinates=[
            sympy.floor(lane / LANES) if lane != 0 else sympy.Integer(0),
            *outer,
            sympy.Mod(lane, LANES) if lane != 0 else sympy.Integer(0),
        ],
        allocation={"hbm": 0},
        per_tile_fixed=fixed,
        within=within,
    )


def pointwise(op, sizes, operands, splits=(), **options):
    """An operation over ``sizes``; ``operands``: symbols per tensor, the result last."""
    return _operation(op, sizes, operands, splits, False, **options)


def reduction(op, sizes, operands, splits=(), **options):
    return _operation(op, sizes, operands, splits, True, **options)


def _operation(op, sizes, operands, splits, is_reduction, *, tiled=(), info=None, **options):
    cores = [*splits, *[1] * (len(sizes) - len(splits))]
    extents = dict(zip(C, sizes, strict=False))
    args = [
        tensor(
            k < len(operands) - 1,
            [extents[s] if s != 0 else 1 for s in symbols],
            symbols,
            **options,
        )
        for k, symbols in enumerate(operands)
    ]
    return OpSpec(
        op=op,
        is_reduction=is_reduction,
        iteration_space={
            s: (sympy.Integer(n), c) for s, n, c in zip(C, sizes, cores, strict=False)
        },
        args=args,
        op_info=info or {},
        tiled_symbols=list(tiled),
    )


ROWS, COLUMNS = C[:2]
FULL = (ROWS, COLUMNS)
LANE = (ROWS, 0)


def softmax(sizes=(512, 1024), splits=()):
    """max, sub, exp, sum, realdiv over the columns; the specs and the names of their tensors."""
    specs = [
        reduction("max", sizes, [FULL, LANE], splits),
        pointwise("sub", sizes, [FULL, LANE, FULL], splits),
        pointwise("exp", sizes, [FULL, FULL], splits),
        reduction("sum", sizes, [FULL, LANE], splits),
        pointwise("realdiv", sizes, [FULL, LANE, FULL], splits),
    ]
    names = [
        ("x", "max"),
        ("x", "max", "sub"),
        ("sub", "exp"),
        ("exp", "sum"),
        ("exp", "sum", "y"),
    ]
    return specs, names


def chain(*ops, sizes=(512, 1024), splits=()):
    """Unary operations one after another: b0 = op(x), b1 = op(b0), …"""
    specs = [pointwise(op, sizes, [FULL, FULL], splits) for op in ops]
    names = [("x" if k == 0 else f"b{k - 1}", f"b{k}") for k in range(len(ops))]
    return specs, names
