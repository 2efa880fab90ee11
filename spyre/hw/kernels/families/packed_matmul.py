"""The packed matmul kernel: C = Σ_k A·B over elements of any format at any offsets.

One unit is a batch, a block of rows and up to 256 columns. Per 256 k, B is gathered into packed
panels and A in chunks of rows; the microkernel accumulates in float32. Integer products are exact
there within one K block, and the blocks are added in float64, so that sums are those of int32
below 2^31 and exact beyond. C is rounded once.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import bits_float
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.microkernel import SHORT, TALL, WIDTH, short_microkernel, tall_microkernel
from spyre.hw.kernels.offset_vectors import gather_values, read_vector, scatter_values, vector_word

A, B, C = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
BASE, TENSOR, FORMAT, FLAGS, VALUE = tb.BASE, tb.TENSOR, tb.FORMAT, tb.FLAGS, tb.VALUE
BATCHES, ROWS, COLUMNS, DEPTH = range(tb.COUNTS, tb.COUNTS + 4)
ROW_BLOCK, ROW_BLOCKS, COLUMN_BLOCKS = range(tb.COUNTS + 4, tb.COUNTS + 7)
COLUMN_BLOCK, EXACT_INTEGERS = tb.PACKED_COLUMN_BLOCK, tb.EXACT_INTEGERS

K_BLOCK = 256
ROW_CHUNK = 8 * TALL


@kernel
def base_bit(table, bases, operand):
    """Bit address of an operand."""
    return table[operand + BASE] + 8 * bases[table[operand + TENSOR]]


@kernel
def gather_panels(half, word, octet, code, base, columns, depth, panels):
    """B[depth, columns] into panels of WIDTH columns, each K_BLOCK deep; missing columns are 0."""
    for n in range(0, columns.size, WIDTH):
        count = min(WIDTH, columns.size - n)
        offsets = columns[n : n + count]
        for k in range(depth.size):
            start = n * K_BLOCK + k * WIDTH
            gather_values(
                half, word, octet, code, base + depth[k], offsets, panels[start : start + count]
            )
            for i in range(start + count, start + WIDTH):
                panels[i] = np.float32(0.0)


@kernel
def gather_rows(half, word, octet, code, base, rows, depth, buffer):
    """A[rows, depth], K_BLOCK floats per row, then SHORT - 1 rows of zeros."""
    for m in range(rows.size):
        start = m * K_BLOCK
        gather_values(
            half, word, octet, code, base + rows[m], depth, buffer[start : start + depth.size]
        )
    for i in range(rows.size * K_BLOCK, (rows.size + SHORT - 1) * K_BLOCK):
        buffer[i] = np.float32(0.0)


@kernel
def multiply(a_pointer, rows, b_pointer, panels, k_count, c_pointer):
    """C rows += A rows · B panels."""
    m = 0
    while m < rows:
        tall = m + TALL <= rows
        a = a_pointer + 4 * m * K_BLOCK
        for panel in range(panels):
            b = b_pointer + 4 * panel * K_BLOCK * WIDTH
            c = c_pointer + 4 * (m * COLUMN_BLOCK + panel * WIDTH)
            if tall:
                tall_microkernel(a, K_BLOCK, b, k_count, c, COLUMN_BLOCK)
            else:
                short_microkernel(a, K_BLOCK, b, k_count, c, COLUMN_BLOCK)
        m += TALL if tall else SHORT


@kernel
def flush(sums, totals):
    """Add the exact sums of one K block to the totals and clear them."""
    for i in range(totals.size):
        totals[i] += np.float64(sums[i])
        sums[i] = np.float32(0.0)


@kernel
def packed_matmul(table, bases, half, word, octet, first, last):
    """Run units ``first`` .. ``last`` of a packed matmul table."""
    batches, row_count, column_count = table[BATCHES], table[ROWS], table[COLUMNS]
    depth_count, row_block = table[DEPTH], table[ROW_BLOCK]
    row_blocks, column_blocks = table[ROW_BLOCKS], table[COLUMN_BLOCKS]
    rows_at = 3 * batches
    columns_at = rows_at + 2 * row_count
    depth_at = columns_at + 2 * column_count
    a_depth, b_depth = np.empty(depth_count, np.int64), np.empty(depth_count, np.int64)
    read_vector(table, depth_at, a_depth)
    read_vector(table, depth_at + depth_count, b_depth)
    a_rows, c_rows = np.empty(row_block, np.int64), np.empty(row_block, np.int64)
    b_columns, c_columns = np.empty(COLUMN_BLOCK, np.int64), np.empty(COLUMN_BLOCK, np.int64)
    panels = np.empty(COLUMN_BLOCK * K_BLOCK, np.float32)
    chunk = np.empty((ROW_CHUNK + SHORT) * K_BLOCK, np.float32)
    sums = np.empty((row_block + SHORT) * COLUMN_BLOCK, np.float32)
    exact = table[FLAGS] & EXACT_INTEGERS
    totals = np.empty(sums.size if exact else 0, np.float64)
    scale = np.float64(bits_float(np.int32(table[VALUE])))
    a_code, b_code, c_code = table[A + FORMAT], table[B + FORMAT], table[C + FORMAT]
    for unit in range(first, last):
        column = unit % column_blocks * COLUMN_BLOCK
        rest = unit // column_blocks
        row = rest % row_blocks * row_block
        batch = rest // row_blocks
        rows, columns = min(row_block, row_count - row), min(COLUMN_BLOCK, column_count - column)
        read_vector(table, rows_at + row, a_rows[:rows])
        read_vector(table, rows_at + row_count + row, c_rows[:rows])
        read_vector(table, columns_at + column, b_columns[:columns])
        read_vector(table, columns_at + column_count + column, c_columns[:columns])
        a_base = base_bit(table, bases, A) + vector_word(table, batch)
        b_base = base_bit(table, bases, B) + vector_word(table, batches + batch)
        c_base = base_bit(table, bases, C) + vector_word(table, 2 * batches + batch)
        # sums have SHORT rows more than the unit: the short microkernel writes them, no code reads
        sums[:] = np.float32(0.0)
        totals[:] = 0.0
        for k in range(0, depth_count, K_BLOCK):
            count = min(K_BLOCK, depth_count - k)
            gather_panels(
                half, word, octet, b_code, b_base, b_columns[:columns], b_depth[k : k + count],
                panels,
            )  # fmt: skip
            for m in range(0, rows, ROW_CHUNK):
                some = min(ROW_CHUNK, rows - m)
                gather_rows(
                    half, word, octet, a_code, a_base, a_rows[m : m + some],
                    a_depth[k : k + count], chunk,
                )  # fmt: skip
                multiply(
                    chunk.ctypes.data, some, panels.ctypes.data, -(-columns // WIDTH), count,
                    sums.ctypes.data + 4 * m * COLUMN_BLOCK,
                )  # fmt: skip
            # products of 8-bit integers: 256 of them stay below 2^24, where float32 is exact
            if exact:
                flush(sums, totals)
        for m in range(rows):
            start = m * COLUMN_BLOCK
            values = sums[start : start + columns]
            if exact:
                for i in range(columns):
                    values[i] = np.float32(totals[start + i] * scale)
            scatter_values(
                half, word, octet, c_code, c_base + c_rows[m], c_columns[:columns], values
            )


run = entry(packed_matmul)
