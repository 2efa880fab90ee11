"""Operations with tensors in the default device layout (hardware reference §4.0)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from spyre.torch_backend.inductor.bundles.kernel_op import HBM, KernelOp, KernelTensor, roles_of
from spyre.torch_backend.program.op_spec import OpKind

C = tuple(f"c{k}" for k in range(6))
FORMATS = {16: "SEN169_FP16", 32: "IEEE_FP32", 8: "SENINT8"}
STICK_BYTES = 128


def tensor(count: int, sizes, dims: Sequence[int | None], *, bits=16, **more) -> KernelTensor:
    """Host dims of ``sizes`` along ``dims`` of an operation with ``count`` of them (None: along
    none), the stick along the last one.

    Rank 2 lies as [sticks, d0, stick], rank 3 as [d1, sticks, d0, stick], rank 4 as
    [d1, d2, sticks, d0, stick].
    """
    *outer, lane = dims
    sticks = -(-sizes[-1] // (1024 // bits))
    device = [*zip(sizes[1:-1], outer[1:], strict=True), (sticks, lane)]
    device += zip(sizes[:-1][:1], outer[:1], strict=True)
    pitches, pitch = [0] * count, STICK_BYTES
    for size, dim in reversed(device):
        if dim is not None:
            pitches[dim] = pitch
        pitch *= size
    along = -1 if lane is None else lane
    return KernelTensor(FORMATS[bits], tuple(pitches), along, 0, HBM, size_bytes=pitch, **more)


def operation(name, kind, extents, tensors, **more) -> KernelOp:
    roles = more.pop("roles", roles_of(kind, tensors, len(extents)))
    return KernelOp(name, kind, tuple(extents), tuple(tensors), roles, **more)


def with_tensors(op: KernelOp, **changes) -> KernelOp:
    return replace(op, tensors=tuple(replace(t, **changes) for t in op.tensors))


def pointwise(*sizes, bits=(16, 16, 16), op="add") -> KernelOp:
    dims = range(len(sizes))
    return operation(
        op, OpKind.POINTWISE, sizes, [tensor(len(sizes), sizes, dims, bits=b) for b in bits]
    )


def matmul(m, k, n) -> KernelOp:
    """[M, K] · [K, N] over (c0, c1, c2) = (M, N, K)."""
    row, column, inner = range(3)
    tensors = [
        tensor(3, (m, k), (row, inner)),
        tensor(3, (k, n), (inner, column)),
        tensor(3, (m, n), (row, column)),
    ]
    return operation("batchmatmul", OpKind.MATMUL, (m, n, k), tensors)


def bmm(b, m, k, n, *, shared=False) -> KernelOp:
    """[B, M, K] · [B, K, N], or · [K, N]; dims B, M, N, K."""
    batch, row, column, inner = range(4)
    weight = tensor(4, (k, n), (inner, column))
    if not shared:
        weight = tensor(4, (b, k, n), (batch, inner, column))
    left = tensor(4, (b, m, k), (batch, row, inner))
    output = tensor(4, (b, m, n), (batch, row, column))
    return operation("batchmatmul", OpKind.MATMUL, (b, m, n, k), [left, weight, output])


def reduction(sizes, reduced: Sequence[int], op="sum") -> KernelOp:
    """Dims that stay come first, as Inductor orders them; reduced ones stay as dims of size 1."""
    kept = [k for k in range(len(sizes)) if k not in reduced]
    order = [*kept, *reduced]
    place = {k: order.index(k) for k in order}
    source = tensor(len(sizes), sizes, [place[k] for k in range(len(sizes))])
    output = tensor(
        len(sizes),
        [1 if k in reduced else n for k, n in enumerate(sizes)],
        [None if k in reduced else place[k] for k in range(len(sizes))],
    )
    extents = [sizes[k] for k in order]
    return operation(op, OpKind.REDUCTION, extents, [source, output])


def splits_of(division) -> tuple[int, ...]:
    return tuple(division.splits.values())


def order_of(op: KernelOp) -> tuple[str, ...]:
    """Symbols in the order in which core numbers run through the dims, the fastest first."""
    return tuple(op.symbols[k] for k in op.core_order)
