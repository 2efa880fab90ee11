"""The matmul kernel: batches, rows, columns and K of any core split as lists of addresses.

One unit is a batch, a block of rows and up to 4 sticks of columns. Per `K_BLOCK` the block of B is
decoded once into packed panels and A in chunks of rows; the microkernel accumulates in float32, in
order of increasing k and then of K work slices, and C is rounded once. One or two rows, as of a
decoder that makes one token, multiply the codes of B without packing.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import fill, store_sticks
from spyre.hw.kernels.dl16_vectors import decode_runs, row_products
from spyre.hw.kernels.intrinsics import LANES, add_product_rounded, add_rounded, prefetch_line
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.microkernel import SHORT, TALL, WIDTH, short_microkernel, tall_microkernel

A, B, C = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
BASE, TENSOR, FORMAT = tb.BASE, tb.TENSOR, tb.FORMAT
FP32_FORMAT = tb.FP32
BATCH, ROWS = tb.MATMUL_BATCH, tb.MATMUL_ROWS
COLUMNS, REDUCED = tb.MATMUL_COLUMNS, tb.MATMUL_REDUCED
ROW_COUNT, COLUMN_COUNT, REDUCED_COUNT = tb.ROW_COUNT, tb.COLUMN_COUNT, tb.REDUCED_COUNT
ROW_BLOCK, ROW_BLOCKS, COLUMN_BLOCKS = tb.ROW_BLOCK, tb.ROW_BLOCKS, tb.COLUMN_BLOCKS
COLUMN_BLOCK, B_ROW_PITCH, CORE_DEPTH = tb.COLUMN_BLOCK, tb.B_ROW_PITCH, tb.CORE_DEPTH
F = np.float32
STICK = 64

K_STICKS = 8 if LANES == 16 else 4
"""Sticks of K decoded at once: the block of B has to stay in the second cache."""
K_BLOCK = 64 * K_STICKS
# rows of A a line more than a power of two apart: else they would share a few sets of the cache
A_ROW_FLOATS = K_BLOCK + 16
ROW_CHUNK = 8 * TALL
PANELS = 64 // WIDTH
FEW_ROWS = 2
"""Up to this many rows of A, B is not copied into panels: each row multiplies the stored codes."""
PIECES = K_BLOCK * 128 // 4096
"""4 KiB pieces in a K block of one B stick."""
ROUNDING_ADD, ROUNDING_ODD = tb.ROUNDING_ADD, tb.ROUNDING_ODD


@kernel
def axis_offsets(table, first_word, member, offsets):
    """Byte offsets of every index of three axes; ``member`` picks the operand's pitch (1 or 2)."""
    e0, e1, e2 = table[first_word], table[first_word + 3], table[first_word + 6]
    p0 = table[first_word + member]
    p1 = table[first_word + 3 + member]
    p2 = table[first_word + 6 + member]
    n = 0
    for i in range(e0):
        for j in range(e1):
            for k in range(e2):
                offsets[n] = i * p0 + j * p1 + k * p2
                n += 1


@kernel
def pack_b_rows(half, address, row_pitch, code, panels, k_at):
    """Decode 64 rows of one B stick into panels of WIDTH columns, rows from ``k_at`` on."""
    source, target = half.ctypes.data + address, panels.ctypes.data + 4 * k_at * WIDTH
    for p in range(PANELS):
        places = source + 2 * p * WIDTH, target + 4 * p * K_BLOCK * WIDTH
        decode_runs(code, places, (row_pitch, 4 * WIDTH), 64, WIDTH)


@kernel
def prefetch_piece(address, piece):
    """Ask for 4 KiB of the next K block of one B stick, while the microkernel is busy."""
    for line in range(64):
        prefetch_line(address + piece * 4096 + line * 64)


@kernel
def tile_of(c_pointer, c_stick_floats, row, panel):
    """Host address of the tile of C that begins at a row of a chunk and a panel."""
    stick, within = panel // PANELS, panel % PANELS
    return c_pointer + 4 * (stick * c_stick_floats + row * 64 + within * WIDTH)


@kernel
def prefetch_tile(address):
    """Ask for a tile of C, which may be in the third cache by now."""
    for row in range(TALL):
        for line in range(0, 4 * WIDTH, 64):
            prefetch_line(address + 256 * row + line)


@kernel
def multiply_chunk(a_pointer, rows, b_pointer, sticks, k_count, c_pointer, c_stick_floats, ahead):
    """C chunk += A chunk · B panels of ``sticks`` sticks.

    ``ahead``: host address of the next K block of each stick (0: none), fetched in passing.
    """
    m = 0
    step = 0
    panels = sticks * PANELS
    while m < rows:
        tall = m + TALL <= rows
        a = a_pointer + 4 * m * A_ROW_FLOATS
        for panel in range(panels):
            b = b_pointer + 4 * panel * K_BLOCK * WIDTH
            stick, within = panel // PANELS, panel % PANELS
            piece = step * PANELS + within
            if piece < PIECES and ahead[stick] != 0:
                prefetch_piece(ahead[stick], piece)
            c = tile_of(c_pointer, c_stick_floats, m, panel)
            if tall:
                last = panel + 1 == panels
                following = (m + TALL, 0) if last else (m, panel + 1)
                prefetch_tile(tile_of(c_pointer, c_stick_floats, *following))
                tall_microkernel(a, A_ROW_FLOATS, b, k_count, c, 64)
            else:
                short_microkernel(a, A_ROW_FLOATS, b, k_count, c, 64)
        m += TALL if tall else SHORT
        step += 1


@kernel
def store_rows(half, word, code, base, offsets, source, start, rows):
    """Encode ``rows`` rows of one C stick, of float32 of two neighbours; ``source`` holds them from
    float ``start`` on. Rows at equal distances are encoded at once.
    """
    sticks = 2 if code == FP32_FORMAT else 1
    m = 0
    while m < rows:
        pitch = offsets[m + 1] - offsets[m] if sticks == 1 and m + 1 < rows else 128 * sticks
        end = m + 1
        while end < rows and offsets[end] - offsets[end - 1] == pitch:
            end += 1
        values = source[start + m * 64 : start + end * 64]
        store_sticks(
            half, word, base + offsets[m], (end - m) * sticks, pitch // sticks, code, values
        )
        m = end


@kernel
def decode_a_chunk(half, code, base, row_offsets, k_offsets, rows, buffer):
    """Decode ``rows`` rows by the given K sticks of A, then SHORT - 1 rows of zeros."""
    for m in range(rows):
        source = half.ctypes.data + base + row_offsets[m]
        target = buffer.ctypes.data + 4 * m * A_ROW_FLOATS
        for ks in range(k_offsets.size):
            decode_runs(code, (source + k_offsets[ks], target + 256 * ks), (0, 0), 1, 64)
    # the short microkernel always takes SHORT rows
    for m in range(rows, rows + SHORT - 1):
        start = m * A_ROW_FLOATS
        fill(buffer[start : start + k_offsets.size * 64], F(0.0))


@kernel
def operand_offsets(table):
    """Bytes of every row of A and C, column stick of B and C, K stick of A and B."""
    rows, columns, depth = table[ROW_COUNT], table[COLUMN_COUNT], table[REDUCED_COUNT]
    a_rows, c_rows = np.empty(rows, np.int64), np.empty(rows, np.int64)
    b_columns, c_columns = np.empty(columns, np.int64), np.empty(columns, np.int64)
    a_depth, b_depth = np.empty(depth, np.int64), np.empty(depth, np.int64)
    axis_offsets(table, ROWS, 1, a_rows)
    axis_offsets(table, ROWS, 2, c_rows)
    axis_offsets(table, COLUMNS, 1, b_columns)
    axis_offsets(table, COLUMNS, 2, c_columns)
    axis_offsets(table, REDUCED, 1, a_depth)
    axis_offsets(table, REDUCED, 2, b_depth)
    return a_rows, c_rows, b_columns, c_columns, a_depth, b_depth


@kernel
def unit_place(table, bases, unit):
    """First row and column stick of a unit, its column sticks, start of A, B and C of its batch."""
    row_blocks, column_blocks = table[ROW_BLOCKS], table[COLUMN_BLOCKS]
    columns = table[COLUMN_COUNT]
    column_block = -(-columns // column_blocks)
    column = unit % column_blocks * column_block
    block = unit // column_blocks
    row, batch = block % row_blocks * table[ROW_BLOCK], block // row_blocks
    a = table[A + BASE] + bases[table[A + TENSOR]]
    b = table[B + BASE] + bases[table[B + TENSOR]]
    c = table[C + BASE] + bases[table[C + TENSOR]]
    for axis in range(3, -1, -1):
        word = BATCH + 4 * axis
        index = batch % table[word]
        batch //= table[word]
        a += index * table[word + 1]
        b += index * table[word + 2]
        c += index * table[word + 3]
    return row, column, min(column_block, columns - column), a, b, c


@kernel
def multiply_rows(table, half, places, sticks, rows, offsets, factors, sums):
    """A unit of `FEW_ROWS`: ``sums`` of each row and column stick over all K.

    ``places``: where A and B of the unit begin; ``offsets``: of its rows of A, column sticks of B,
    K sticks of A and of B.
    """
    a_base, b_base = places
    a_rows, b_columns, a_depth, b_depth = offsets
    memory = half.ctypes.data
    fill(sums[: sticks * rows * 64], F(0.0))
    # one column stick after the other: the rows of all its K are one run of memory
    for n in range(sticks):
        c = sums.ctypes.data + 256 * n * rows
        for d in range(a_depth.size):
            for m in range(rows):
                row = memory + a_base + a_rows[m] + a_depth[d], factors.ctypes.data + 256 * m
                decode_runs(table[A + FORMAT], row, (0, 0), 1, 64)
            b = memory + b_base + b_columns[n] + b_depth[d]
            operands = factors.ctypes.data, b, table[B_ROW_PITCH], c
            row_products(table[B + FORMAT], operands, (256, 0, 0, 256), rows, 64)


@kernel
def matmul(table, bases, half, word, first, last):
    """Run units ``first`` .. ``last`` of a matmul table."""
    row_block, row_count = table[ROW_BLOCK], table[ROW_COUNT]
    depth = table[REDUCED_COUNT]
    a_rows, c_rows, b_columns, c_columns, a_depth, b_depth = operand_offsets(table)
    padded = row_block + SHORT
    a_buffer = np.empty((ROW_CHUNK + SHORT) * A_ROW_FLOATS, np.float32)
    b_buffer = np.empty(COLUMN_BLOCK * 64 * K_BLOCK, np.float32)
    c_buffer = np.empty(COLUMN_BLOCK * padded * 64, np.float32)
    ahead = np.zeros(COLUMN_BLOCK, np.int64)
    memory = half.ctypes.data
    a_code, b_code, c_code = table[A + FORMAT], table[B + FORMAT], table[C + FORMAT]
    for unit in range(first, last):
        row_at, column_at, sticks, a_base, b_base, c_base = unit_place(table, bases, unit)
        rows = min(row_block, row_count - row_at)
        if rows <= FEW_ROWS:
            multiply_rows(
                table, half, (a_base, b_base), sticks, rows,
                (a_rows[row_at : row_at + rows], b_columns[column_at:], a_depth, b_depth),
                a_buffer, c_buffer,
            )  # fmt: skip
            for n in range(sticks):
                store_rows(
                    half, word, c_code, c_base + c_columns[column_at + n],
                    c_rows[row_at : row_at + rows], c_buffer, n * rows * 64, rows,
                )  # fmt: skip
            continue
        c_stick = padded * 64
        fill(c_buffer[: sticks * c_stick], F(0.0))
        for k_at in range(0, depth, K_STICKS):
            k_sticks = min(K_STICKS, depth - k_at)
            for n in range(sticks):
                panels = b_buffer[n * 64 * K_BLOCK : (n + 1) * 64 * K_BLOCK]
                for ks in range(k_sticks):
                    address = b_base + b_columns[column_at + n] + b_depth[k_at + ks]
                    pack_b_rows(half, address, table[B_ROW_PITCH], b_code, panels, ks * 64)
            following = k_at + k_sticks
            for n in range(sticks):
                ahead[n] = 0
                # only rows of B that are neighbours make one run that can be fetched ahead
                if following < depth and table[B_ROW_PITCH] == 128:
                    offset = b_base + b_columns[column_at + n] + b_depth[following]
                    ahead[n] = memory + offset
            for chunk in range(0, rows, ROW_CHUNK):
                count = min(ROW_CHUNK, rows - chunk)
                begin = row_at + chunk
                decode_a_chunk(
                    half, a_code, a_base, a_rows[begin : begin + count],
                    a_depth[k_at : k_at + k_sticks], count, a_buffer,
                )  # fmt: skip
                multiply_chunk(
                    a_buffer.ctypes.data, count, b_buffer.ctypes.data, sticks, 64 * k_sticks,
                    c_buffer.ctypes.data + 4 * chunk * 64, c_stick, ahead,
                )  # fmt: skip
                # the first chunk of rows has fetched it for all
                for n in range(sticks):
                    ahead[n] = 0
        for n in range(sticks):
            store_rows(
                half, word, c_code, c_base + c_columns[column_at + n],
                c_rows[row_at : row_at + rows], c_buffer, n * c_stick, rows,
            )  # fmt: skip


run = entry(matmul)


# --- sums rounded at every addition -----------------------------------------------------------


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
    add, odd = ROUNDING_ADD[c_code], ROUNDING_ODD[c_code]
    a, chunk, b = buffers[:STICK], buffers[STICK : 2 * STICK], buffers[2 * STICK :]
    memory = half.ctypes.data
    fill(core, F(0.0))
    fill(total, F(0.0))
    for d in range(a_depth.size):
        source = memory + b_base + b_depth[d]
        decode_runs(b_code, (source, b.ctypes.data), (table[B_ROW_PITCH], 256), STICK, STICK)
        for m in range(a_rows.size):
            source = memory + a_base + a_rows[m] + a_depth[d]
            decode_runs(a_code, (source, a.ctypes.data), (0, 0), 1, STICK)
            multiply_stick(a, b, chunk, add, odd)
            join(chunk, core[m * STICK : (m + 1) * STICK], add, odd)
        if (d + 1) % table[CORE_DEPTH] == 0:
            join(core, total, add, odd)
            fill(core, F(0.0))


@kernel
def chunk_matmul(table, bases, half, word, first, last):
    """Run units ``first`` .. ``last`` of a table in the number mode dl16-chunk.

    A stick of K is a chunk: its products are added up in order of k from zero, rounded after every
    addition; the chunk's total joins that of the core, and that the total of all K work slices,
    each time rounded. The loops run over 64 columns.
    """
    row_block, row_count = table[ROW_BLOCK], table[ROW_COUNT]
    a_rows, c_rows, b_columns, c_columns, a_depth, b_depth = operand_offsets(table)
    buffers = np.empty((STICK + 2) * STICK, np.float32)
    cores, totals = np.empty(row_block * STICK, np.float32), np.empty(row_block * STICK, np.float32)
    for unit in range(first, last):
        row_at, column_at, sticks, a_base, b_base, c_base = unit_place(table, bases, unit)
        rows = min(row_block, row_count - row_at)
        core, total = cores[: rows * STICK], totals[: rows * STICK]
        for n in range(column_at, column_at + sticks):
            multiply_column(
                table, half, a_base, a_rows[row_at : row_at + rows], a_depth,
                b_base + b_columns[n], b_depth, core, total, buffers,
            )  # fmt: skip
            store_rows(
                half, word, table[C + FORMAT], c_base + c_columns[n],
                c_rows[row_at : row_at + rows], total, 0, rows,
            )  # fmt: skip


run_chunked = entry(chunk_matmul)
