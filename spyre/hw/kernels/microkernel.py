"""The matmul microkernel: a block of C in vector registers, written as LLVM IR.

C[ROWS, WIDTH] += A[ROWS, K] · B[K, WIDTH] with every accumulator a phi node, so that nothing of C
touches memory inside the K loop. The shape follows the host's registers: 12x32 with 32 vectors of
16 lanes (AVX-512), 6x16 with 16 vectors of 8 lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spyre.hw.kernels.dl16_vectors import HOST_CODES, CodeVectors
from spyre.hw.kernels.intrinsics import I64, LANES, counted_loop

WIDTH = 32 if LANES == 16 else 16
"""Columns of one packed panel of B."""
# 24 of 32, or 12 of 16 registers hold C; the rest B's vectors and one element of A
TALL = 12 if LANES == 16 else 6
"""Rows of the main microkernel."""
SHORT = 4
"""Rows of the microkernel for the remaining rows."""

_VECTORS = WIDTH // LANES
_FLOAT_BYTES = 4


def _emit(vectors: CodeVectors, rows: int, args: Any) -> None:
    """The loop of one microkernel; every address is an i64 of bytes."""
    a, a_row_floats, b_base, k_count, c, c_row_floats = args
    b, kind = vectors.b, vectors.float

    def floats(count: int) -> Any:
        return ir.Constant(I64, count * _FLOAT_BYTES)

    def row_addresses(base: Any, row_floats: Any) -> list[Any]:
        row_bytes, addresses = b.mul(row_floats, floats(1)), [base]
        for _ in range(rows - 1):
            addresses.append(b.add(addresses[-1], row_bytes))
        return addresses

    def places(row: Any) -> list[Any]:
        return [b.add(row, floats(j * LANES)) for j in range(_VECTORS)]

    def add_step(k: Any, sums: Sequence[Any]) -> list[Any]:
        """One k: broadcast each A element against the B row."""
        b_row = b.add(b_base, b.mul(k, floats(WIDTH)))
        columns = [vectors.load(kind, place, _FLOAT_BYTES) for place in places(b_row)]
        k_bytes, updated = b.mul(k, floats(1)), []
        for m, a_row in enumerate(a_rows):
            factor = vectors.splat(b.add(a_row, k_bytes), kind)
            old = sums[m * _VECTORS : (m + 1) * _VECTORS]
            pairs = zip(columns, old, strict=True)
            updated += [vectors.multiply_add(factor, column, total) for column, total in pairs]
        return updated

    a_rows = row_addresses(a, a_row_floats)
    cells = [place for row in row_addresses(c, c_row_floats) for place in places(row)]
    # all of C stays in registers over the loop, which runs at least once
    initial = [vectors.load(kind, cell, _FLOAT_BYTES) for cell in cells]
    sums = counted_loop(b, k_count, 1, initial, add_step)
    for value, cell in zip(sums, cells, strict=True):
        vectors.store(value, cell, _FLOAT_BYTES)


def _make(rows: int) -> Any:
    @intrinsic
    def microkernel(typing_context, a, a_row_floats, b, k_count, c, c_row_floats):
        """C += A·B at byte addresses a, b, c; k_count >= 1; row pitches in floats."""

        def codegen(context, builder, signature, args):
            _emit(CodeVectors(builder, HOST_CODES, None), rows, args)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 6)), codegen

    return microkernel


tall_microkernel = _make(TALL)
short_microkernel = _make(SHORT)
