"""The matmul microkernel: a block of C in vector registers, written as LLVM IR.

C[ROWS, WIDTH] += A[ROWS, K] · B[K, WIDTH] with every accumulator a phi node, so that nothing of C
touches memory inside the K loop. The shape follows the host's registers: 12x32 with 32 vectors of
16 lanes (AVX-512), 6x16 with 16 vectors of 8 lanes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spyre import config
from spyre.hw.kernels.intrinsics import F32, I32, I64, has_feature


def vector_width() -> int:
    """float32 lanes of the widest vector worth using: 16 with AVX-512, else 8."""
    chosen = config.VECTOR_WIDTH.read()
    if chosen in ("8", "16"):
        return int(chosen)
    return 16 if has_feature("avx512f") else 8


LANES = vector_width()
WIDTH = 32 if LANES == 16 else 16
"""Columns of one packed panel of B."""
# 24 of 32, or 12 of 16 registers hold C; the rest B's vectors and one element of A
TALL = 12 if LANES == 16 else 6
"""Rows of the main microkernel."""
SHORT = 4
"""Rows of the microkernel for what is left over."""

_VECTORS = WIDTH // LANES
_FLOAT_BYTES = 4


class _Emitter:
    """Builds the loop of one microkernel; every address is an i64 of bytes."""

    def __init__(self, builder: Any, rows: int) -> None:
        self.b = builder
        self.rows = rows
        self.vector = ir.VectorType(F32, LANES)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        # one rounding on every processor, as `.intrinsics.multiply_add`
        name = f"llvm.fma.v{LANES}f32"
        self.multiply_add = cgutils.get_or_insert_function(builder.function.module, kind, name)

    def constant(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def address(self, base: Any, index: int) -> Any:
        return self.b.add(base, self.constant(index * LANES * _FLOAT_BYTES))

    def load_vector(self, address: Any) -> Any:
        loaded = self.b.load(self.b.inttoptr(address, self.vector.as_pointer()))
        loaded.align = _FLOAT_BYTES
        return loaded

    def store_vector(self, value: Any, address: Any) -> None:
        stored = self.b.store(value, self.b.inttoptr(address, self.vector.as_pointer()))
        stored.align = _FLOAT_BYTES

    def splat(self, address: Any) -> Any:
        scalar = self.b.load(self.b.inttoptr(address, F32.as_pointer()))
        scalar.align = _FLOAT_BYTES
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
        return self.b.shuffle_vector(first, undefined, mask)

    def row_addresses(self, base: Any, row_floats: Any) -> list[Any]:
        row_bytes = self.b.mul(row_floats, self.constant(_FLOAT_BYTES))
        rows = [base]
        for _ in range(self.rows - 1):
            rows.append(self.b.add(rows[-1], row_bytes))
        return rows

    def step(self, a_rows: list[Any], b_base: Any, k: Any, accumulators: list[Any]) -> list[Any]:
        """One k: broadcast each A element against the B row."""
        b_row = self.b.add(b_base, self.b.mul(k, self.constant(WIDTH * _FLOAT_BYTES)))
        b_vectors = [self.load_vector(self.address(b_row, j)) for j in range(_VECTORS)]
        k_bytes = self.b.mul(k, self.constant(_FLOAT_BYTES))
        result = []
        for m in range(self.rows):
            a = self.splat(self.b.add(a_rows[m], k_bytes))
            for j in range(_VECTORS):
                old = accumulators[m * _VECTORS + j]
                result.append(self.b.call(self.multiply_add, [a, b_vectors[j], old]))
        return result

    def emit(self, args: Any) -> None:
        """The whole loop over k, from loading C to storing it."""
        a, a_row_floats, b_base, k_count, c, c_row_floats = args
        builder = self.b
        a_rows = self.row_addresses(a, a_row_floats)
        c_rows = self.row_addresses(c, c_row_floats)
        cells = [self.address(row, j) for row in c_rows for j in range(_VECTORS)]
        initial = [self.load_vector(cell) for cell in cells]
        # a phi per accumulator: all of C stays in registers over the loop, which runs at least once
        before = builder.block
        head = builder.function.append_basic_block("k_loop")
        done = builder.function.append_basic_block("k_done")
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(I64)
        k.add_incoming(self.constant(0), before)
        accumulators = [builder.phi(self.vector) for _ in cells]
        for phi, value in zip(accumulators, initial, strict=True):
            phi.add_incoming(value, before)
        updated = self.step(a_rows, b_base, k, accumulators)
        following = builder.add(k, self.constant(1))
        k.add_incoming(following, builder.block)
        for phi, value in zip(accumulators, updated, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, k_count), head, done)
        builder.position_at_end(done)
        for value, cell in zip(updated, cells, strict=True):
            self.store_vector(value, cell)


def _make(rows: int) -> Any:
    @intrinsic
    def microkernel(typing_context, a, a_row_floats, b, k_count, c, c_row_floats):
        """C += A·B at byte addresses a, b, c; k_count >= 1; row pitches in floats."""

        def codegen(context, builder, signature, args):
            _Emitter(builder, rows).emit(args)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 6)), codegen

    return microkernel


tall_microkernel = _make(TALL)
short_microkernel = _make(SHORT)
