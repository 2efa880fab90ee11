"""The restickify kernel: the stick dim changes, element values do not (SDSC reference §7).

One unit is a square block, one stick of the input's stick dim ``a`` by one stick of the output's
stick dim ``b``. Rows beyond the stored extents read as zero and are not written: VALUE limits b
in the input, MASK_END limits a in the output. Operands 2 and 3 are the coordinates of a and b.
"""

from __future__ import annotations

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from spyre.hw.kernels.blocks import begin, follow
from spyre.hw.kernels.intrinsics import I16, I32, I64, pointer_i32, pointer_i64, pointer_u16
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import plan as tb

INNER, LANES, VALUE, A_END = tb.INNER, tb.LANES, tb.VALUE, tb.MASK_END
INNER_PITCH, FLAGS = tb.INNER_PITCH, tb.FLAGS
IN, OUT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS
AT_A, AT_B = tb.OPERAND + 2 * tb.OPERAND_WORDS, tb.OPERAND + 3 * tb.OPERAND_WORDS
B_PITCH, A_PITCH = tb.CONSTANT, tb.CONSTANT + 1
"""Bytes between consecutive b in the input, and between consecutive a in the output."""
WORDS, COUNTERS = tb.WORDS, tb.SCRATCH_COUNTERS
HALVES, WORDS32 = HOST_BYTES // 2, HOST_BYTES // 4

_SIDE = 16
_STAGES = (8, 4, 2, 1)


def _interleave(low: bool, stage: int) -> list[int]:
    if low:
        return [p if not p & stage else _SIDE + (p ^ stage) for p in range(_SIDE)]
    return [(p | stage) if not p & stage else _SIDE + p for p in range(_SIDE)]


def _transpose_tile(b, rows):
    """A butterfly network of vector shuffles over 16 rows of 16 elements."""
    mask_type = ir.VectorType(I32, _SIDE)
    for stage in _STAGES:
        # rows that differ in this bit exchange the elements whose column differs in it
        nxt = list(rows)
        for k in range(_SIDE):
            if k & stage:
                continue
            for low, place in ((True, k), (False, k | stage)):
                mask = ir.Constant(mask_type, _interleave(low, stage))
                nxt[place] = b.shuffle_vector(rows[k], rows[k | stage], mask)
        rows = nxt
    return rows


@intrinsic
def transpose_tile(typing_context, source, source_pitch, target, target_pitch):
    """Transpose 16x16 uint16 between byte addresses with byte pitches, in registers."""

    def codegen(context, b, signature, args):
        vector = ir.VectorType(I16, _SIDE)

        def pointer(address, pitch, row):
            offset = b.mul(pitch, ir.Constant(I64, row))
            return b.inttoptr(b.add(address, offset), vector.as_pointer())

        rows = []
        for row in range(_SIDE):
            loaded = b.load(pointer(args[0], args[1], row))
            loaded.align = 2  # sticks of a tensor may begin anywhere that is even
            rows.append(loaded)
        for row, value in enumerate(_transpose_tile(b, rows)):
            stored = b.store(value, pointer(args[2], args[3], row))
            stored.align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@kernel
def whole_block(memory, source, source_pitch, target, target_pitch):
    """A 64x64 block of 16-bit elements, all of it stored on both sides."""
    for i in range(4):
        for j in range(4):
            transpose_tile(
                memory + source + 16 * i * source_pitch + 32 * j,
                source_pitch,
                memory + target + 16 * j * target_pitch + 32 * i,
                target_pitch,
            )


@kernel
def partial_block(view, shift, source, source_pitch, target, target_pitch, rows, columns, side):
    """A block of which ``rows`` of the input exist and ``columns`` of the output do."""
    for j in range(columns):
        at = (target + j * target_pitch) >> shift
        out = view[at : at + side]
        for i in range(rows):
            out[i] = view[((source + i * source_pitch) >> shift) + j]
        for i in range(rows, side):
            out[i] = 0


@kernel
def restickify(table, bases, memory, half, word, counters, first, last):
    """Run blocks ``first`` .. ``last`` of a restickify table."""
    inner, side = table[INNER], table[LANES]
    source_pitch, target_pitch = table[B_PITCH], table[A_PITCH]
    at = begin(table, bases, counters, first, inner)
    for _ in range(first, last):
        source = counters[8] + at * table[IN + INNER_PITCH]
        target = counters[9] + at * table[OUT + INNER_PITCH]
        columns = min(side, table[A_END] - counters[10] - at * table[AT_A + INNER_PITCH])
        rows = min(side, table[VALUE] - counters[11] - at * table[AT_B + INNER_PITCH])
        if side == 64 and rows == 64 and columns == 64:
            whole_block(memory, source, source_pitch, target, target_pitch)
        elif side == 64:
            partial_block(
                half, 1, source, source_pitch, target, target_pitch,
                max(rows, 0), max(columns, 0), 64,
            )  # fmt: skip
        else:
            partial_block(
                word, 2, source, source_pitch, target, target_pitch,
                max(rows, 0), max(columns, 0), 32,
            )  # fmt: skip
        at = follow(table, counters, at, inner)


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`restickify`."""
    restickify(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        memory,
        carray(pointer_u16(memory), HALVES),
        carray(pointer_i32(memory), WORDS32),
        carray(pointer_i64(scratch), COUNTERS),
        first,
        last,
    )
    return 0
