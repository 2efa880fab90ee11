"""OpSpecs with tensors in the default device layout (hardware reference §4.0)."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from spyre.torch_backend.inductor.bundles.op_spec import DataFormats, OpSpec, TensorArg

C = sympy.symbols("c0:6")
FORMATS = {16: DataFormats.SEN169_FP16, 32: DataFormats.IEEE_FP32, 8: DataFormats.SENINT8}


def tensor(sizes, coordinates: Sequence, *, is_input=True, bits=16, **rest) -> TensorArg:
    """Host dims of ``sizes`` at ``coordinates``, the stick along the last one.

    Rank 2 lies as [sticks, d0, stick], rank 3 as [d1, sticks, d0, stick], rank 4 as
    [d1, d2, sticks, d0, stick].
    """
    stick = 1024 // bits
    *outer, lane = [sympy.sympify(c) for c in coordinates]
    along = [(-(-sizes[-1] // stick), sympy.floor(lane / stick))]
    pairs = [
        *zip(sizes[1:-1], outer[1:], strict=True),
        *along,
        *zip(sizes[:-1][:1], outer[:1], strict=True),
    ]
    pairs.append((stick, sympy.Mod(lane, stick)))
    return TensorArg(
        is_input,
        0,
        FORMATS[bits],
        [size for size, _ in pairs],
        [coordinate for _, coordinate in pairs],
        rest.pop("allocation", {"hbm": 0}),
        **rest,
    )


def space(sizes) -> dict:
    return {C[k]: (sympy.Integer(n), 1) for k, n in enumerate(sizes)}


def pointwise(*sizes, bits=(16, 16, 16), op="add") -> OpSpec:
    dims = C[: len(sizes)]
    inputs = [tensor(sizes, dims, bits=b) for b in bits[:-1]]
    output = tensor(sizes, dims, bits=bits[-1], is_input=False)
    return OpSpec(op, False, space(sizes), [*inputs, output])


def matmul(m, k, n) -> OpSpec:
    """[M, K] · [K, N] over (c0, c1, c2) = (M, N, K)."""
    row, column, inner = C[:3]
    args = [
        tensor((m, k), (row, inner)),
        tensor((k, n), (inner, column)),
        tensor((m, n), (row, column), is_input=False),
    ]
    return OpSpec("batchmatmul", True, space((m, n, k)), args)


def bmm(b, m, k, n, *, shared=False) -> OpSpec:
    """[B, M, K] · [B, K, N], or · [K, N]; dims B, M, N, K."""
    batch, row, column, inner = C[:4]
    weight = tensor((k, n), (inner, column))
    if not shared:
        weight = tensor((b, k, n), (batch, inner, column))
    left = tensor((b, m, k), (batch, row, inner))
    output = tensor((b, m, n), (batch, row, column), is_input=False)
    return OpSpec("batchmatmul", True, space((b, m, n, k)), [left, weight, output])


def reduction(sizes, reduced: Sequence[int], op="sum") -> OpSpec:
    """Dims that stay come first, as Inductor orders them; reduced ones stay as dims of size 1."""
    kept = [k for k in range(len(sizes)) if k not in reduced]
    order = [*kept, *reduced]
    symbol = {k: C[place] for place, k in enumerate(order)}
    source = tensor(sizes, [symbol[k] for k in range(len(sizes))])
    output = tensor(
        [1 if k in reduced else n for k, n in enumerate(sizes)],
        [0 if k in reduced else symbol[k] for k in range(len(sizes))],
        is_input=False,
    )
    return OpSpec(op, True, space([sizes[k] for k in order]), [source, output])


def splits_of(division) -> tuple[int, ...]:
    return tuple(division.splits.values())
