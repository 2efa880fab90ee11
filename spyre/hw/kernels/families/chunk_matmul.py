"""The matmul kernel of the number mode dl16-chunk: every addition is rounded to DL16.

A stick of K is a chunk: its products are added up in order of k from zero, rounded after every
addition; the chunk's total joins that of the core, and that the total of all K work slices, each
time rounded. Units and table are those of :mod:`.matmul`; the loops run over 64 columns.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw.kernels.families.matmul import axis_offsets, decode_stick, store_rows
from spyre.hw.kernels.intrinsics import (
    ROUND_ADD,
    ROUND_ODD,
    add_product_rounded,
    add_rounded,
    pointer_i64,
    pointer_u16,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import matmul as mt
from spyre.hw.table import plan as tb

F = np.float32

A, B, C = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
BASE, TENSOR, FORMAT, WORDS = tb.BASE, tb.TENSOR, tb.FORMAT, tb.WORDS
BATCH, ROWS, COLUMNS, REDUCED = mt.BATCH, mt.ROWS, mt.COLUMNS, mt.REDUCED
ROW_COUNT, COLUMN_COUNT, REDUCED_COUNT = mt.ROW_COUNT, mt.COLUMN_COUNT, mt.REDUCED_COUNT
ROW_BLOCK, ROW_BLOCKS, COLUMN_BLOCKS = mt.ROW_BLOCK, mt.ROW_BLOCKS, mt.COLUMN_BLOCKS
COLUMN_BLOCK, B_ROW_PITCH, CORE_DEPTH = mt.COLUMN_BLOCK, mt.B_ROW_PITCH, mt.CORE_DEPTH
HALVES = HOST_BYTES // 2
STICK = 64


@kernel
def multiply_stick(a, b, chunk, add, odd):
    """chunk[j] = rounded Σ_k a[k] · b[k, j] over one stick of k, in order of k."""
    for j in range(STICK):
        chunk[j] = F(0.0)
    for k in range(STICK):
        left, row = a[k], b[k * STICK : (k + 1) * STICK]
        for j in range(STICK):
            chunk[j] = add_product_rounded(chunk[j], left, row[j], add, odd)


@kernel
def join(source, target, add, odd):
    """target[i] += source[i], rounded."""
    for i in range(target.size):
        target[i] = add_rounded(target[i], source[i], add, odd)


@kernel
def multiply_column(table, half, a_base, a_rows, a_depth, b_base, b_depth, core, total, buffers):
    """One stick of columns for all rows of a unit, over all K, into ``total``."""
    a_code, b_code, c_code = table[A + FORMAT], table[B + FORMAT], table[C + FORMAT]
    add, odd = ROUND_ADD[c_code], ROUND_ODD[c_code]
    a, chunk, b = buffers[:STICK], buffers[STICK : 2 * STICK], buffers[2 * STICK :]
    for i in range(total.size):
        core[i], total[i] = F(0.0), F(0.0)
    for d in range(a_depth.size):
        for k in range(STICK):
            at = b_base + b_depth[d] + k * table[B_ROW_PITCH]
            decode_stick(half, at, b_code, b[k * STICK : (k + 1) * STICK])
        for m in range(a_rows.size):
            decode_stick(half, a_base + a_rows[m] + a_depth[d], a_code, a)
            multiply_stick(a, b, chunk, add, odd)
            join(chunk, core[m * STICK : (m + 1) * STICK], add, odd)
        if (d + 1) % table[CORE_DEPTH] == 0:
            join(core, total, add, odd)
            for i in range(core.size):
                core[i] = F(0.0)


@kernel
def chunk_matmul(table, bases, half, first, last):
    """Run units ``first`` .. ``last`` of a chunked matmul table."""
    row_block, row_blocks, column_blocks = table[ROW_BLOCK], table[ROW_BLOCKS], table[COLUMN_BLOCKS]
    row_count, columns, depth = table[ROW_COUNT], table[COLUMN_COUNT], table[REDUCED_COUNT]
    a_rows, c_rows = np.empty(row_count, np.int64), np.empty(row_count, np.int64)
    b_columns, c_columns = np.empty(columns, np.int64), np.empty(columns, np.int64)
    a_depth, b_depth = np.empty(depth, np.int64), np.empty(depth, np.int64)
    axis_offsets(table, ROWS, 1, a_rows)
    axis_offsets(table, ROWS, 2, c_rows)
    axis_offsets(table, COLUMNS, 1, b_columns)
    axis_offsets(table, COLUMNS, 2, c_columns)
    axis_offsets(table, REDUCED, 1, a_depth)
    axis_offsets(table, REDUCED, 2, b_depth)
    buffers = np.empty((STICK + 2) * STICK, np.float32)
    cores, totals = np.empty(row_block * STICK, np.float32), np.empty(row_block * STICK, np.float32)
    for unit in range(first, last):
        column_at = unit % column_blocks * COLUMN_BLOCK
        rest = unit // column_blocks
        row_at = rest % row_blocks * row_block
        batch = rest // row_blocks
        rows = min(row_block, row_count - row_at)
        a_base = table[A + BASE] + bases[table[A + TENSOR]]
        b_base = table[B + BASE] + bases[table[B + TENSOR]]
        c_base = table[C + BASE] + bases[table[C + TENSOR]]
        for axis in range(3, -1, -1):
            word = BATCH + 4 * axis
            index = batch % table[word]
            batch //= table[word]
            a_base += index * table[word + 1]
            b_base += index * table[word + 2]
            c_base += index * table[word + 3]
        core, total = cores[: rows * STICK], totals[: rows * STICK]
        for n in range(column_at, min(column_at + COLUMN_BLOCK, columns)):
            multiply_column(
                table, half, a_base, a_rows[row_at : row_at + rows], a_depth,
                b_base + b_columns[n], b_depth, core, total, buffers,
            )  # fmt: skip
            store_rows(
                half, table[C + FORMAT], c_base + c_columns[n], c_rows[row_at : row_at + rows],
                total, 0, rows,
            )  # fmt: skip


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`chunk_matmul`."""
    chunk_matmul(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        carray(pointer_u16(memory), HALVES),
        first,
        last,
    )
    return 0
