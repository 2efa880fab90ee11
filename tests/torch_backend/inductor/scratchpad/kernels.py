"""Small kernels for tests of planning."""

from __future__ import annotations

from msgspec.structs import replace

from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    KernelLoop,
    KernelOp,
    KernelTensor,
    roles_of,
)
from spyre.torch_backend.program.op_spec import OpKind

C = tuple(range(4))
LANES = 64
KINDS = {"batchmatmul": OpKind.MATMUL, "ReStickifyOpHBM": OpKind.RESTICKIFY}


def tensor(count, sizes, dims, *, tiled=(), fixed=False, dtype="SEN169_FP16", **more):
    """Return a tensor in the default layout along ``dims`` of an operation with ``count`` dims;
    None as the last: one element per stick. ``tiled``: the dims that loops around it move along.
    """
    *outer, lane = dims
    device = [(-(-sizes[-1] // LANES), lane), *zip(sizes[:-1], outer, strict=True)]
    pitches, pitch = [0] * count, 128
    for size, dim in reversed(device):
        if dim is not None:
            pitches[dim] = pitch
        pitch *= size
    strides = () if fixed else tuple(pitches[dim] * 2 if dim in outer else 0 for dim in tiled)
    along = -1 if lane is None else lane
    more = {"size_bytes": pitch, "strides": strides, "is_tile": fixed} | more
    return KernelTensor(dtype, tuple(pitches), along, 0, HBM, **more)


def pointwise(op, sizes, operands, splits=(), **options):
    """An operation over ``sizes``; ``operands``: dims per tensor, the result last."""
    return _operation(op, KINDS.get(op, OpKind.POINTWISE), sizes, operands, splits, **options)


def reduction(op, sizes, operands, splits=(), **options):
    return _operation(op, KINDS.get(op, OpKind.REDUCTION), sizes, operands, splits, **options)


def _operation(name, kind, sizes, operands, splits, *, tiled=(), tensors=None, **options):
    cores = (*splits, *[1] * (len(sizes) - len(splits)))
    tensors = tensors or [
        tensor(
            len(sizes),
            [1 if d is None else sizes[d] for d in dims],
            dims,
            tiled=tiled,
            **options,
        )
        for dims in operands
    ]
    roles = roles_of(kind, tensors, len(sizes))
    return KernelOp(name, kind, tuple(sizes), tuple(tensors), roles, cores, loop_dims=tuple(tiled))


def loop(count, *body):
    return KernelLoop(count, tuple(body))


def named(kernel, names, arguments=()):
    """``kernel`` with buffer names, a row per operation in program order; ``arguments``: those of
    buffers that are arguments.
    """
    rows = iter(names)

    def visit(op):
        if isinstance(op, KernelLoop):
            return replace(op, body=tuple(map(visit, op.body)))
        tensors = (
            replace(t, buffer=name, argument=0 if name in arguments else -1)
            for t, name in zip(op.tensors, next(rows), strict=True)
        )
        return replace(op, tensors=tuple(tensors))

    return tuple(map(visit, kernel))


ROWS, COLUMNS = C[:2]
FULL = (ROWS, COLUMNS)
LANE = (ROWS, None)


def softmax(sizes=(512, 1024), splits=()):
    """max, sub, exp, sum, realdiv over the columns; the operations and names of their tensors."""
    ops = [
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
    return ops, names


def chain(*ops, sizes=(512, 1024), splits=()):
    """Unary operations one after another: b0 = op(x), b1 = op(b0), …"""
    made = [pointwise(op, sizes, [FULL, FULL], splits) for op in ops]
    names = [("x" if k == 0 else f"b{k - 1}", f"b{k}") for k in range(len(ops))]
    return made, names
