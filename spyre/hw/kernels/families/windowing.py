"""The windowing kernel: pooling and depthwise convolution, one window of sticks per kept stick.

One unit is up to 16 kept sticks. Accumulators are float32, one per lane, in order of increasing
place in the window; a table has only places inside of the input (none: everything is padding).
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import load_one, store_sticks
from spyre.hw.kernels.intrinsics import bits_float, maximum_f32, multiply_add
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.offset_vectors import read_vector, vector_word
from spyre.hw.spec_choices import WINDOW_MAX_OUTSIDE

F = np.float32

MAX, SUM, MAP, CHANNEL = range(len(tb.WINDOWINGS))
BASE, TENSOR, LANE, FORMAT = tb.BASE, tb.TENSOR, tb.LANE, tb.FORMAT
X, SECOND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND_WORDS
OPCODE, INPUTS, LANES, VALUE, WHOLE_STICK = (
    tb.OPCODE, tb.INPUTS, tb.LANES, tb.VALUE, tb.WHOLE_STICK,
)  # fmt: skip
KEPT, PLACES = range(tb.COUNTS, tb.COUNTS + 2)
KEPT_BLOCK = tb.KEPT_BLOCK
OUTSIDE = F(WINDOW_MAX_OUTSIDE)


@kernel
def combine(opcode, value, factor, target):
    """One place of the window: maximum, sum, or sum of products with ``factor``."""
    if opcode == MAX:
        for i in range(target.size):
            target[i] = maximum_f32(value[i], target[i])
    elif opcode == CHANNEL:
        for i in range(target.size):
            target[i] = multiply_add(value[i], factor[i], target[i])
    else:
        for i in range(target.size):
            target[i] += value[i]


@kernel
def windowing(table, bases, half, word, scratch, first, last):
    """Run units ``first`` .. ``last`` of a windowing table."""
    opcode, inputs, lanes = table[OPCODE], table[INPUTS], table[LANES]
    kept, places = table[KEPT], table[PLACES]
    places_at = (inputs + 1) * kept
    x_places, w_places = np.empty(places, np.int64), np.zeros(places, np.int64)
    read_vector(table, places_at, x_places)
    if opcode == CHANNEL:
        read_vector(table, places_at + places, w_places)
    value, factor, total = scratch[:lanes], scratch[64 : 64 + lanes], scratch[128 : 128 + lanes]
    scale = bits_float(np.int32(table[VALUE]))
    out = X + inputs * OPERAND_WORDS
    x_base = table[X + BASE] // 8 + bases[table[X + TENSOR]]
    y_base = table[out + BASE] // 8 + bases[table[out + TENSOR]]
    w_base, w_lane, w_code = np.int64(0), np.int64(0), np.int64(0)
    if inputs == 2:
        w_base = table[SECOND + BASE] // 8 + bases[table[SECOND + TENSOR]]
        w_lane, w_code = table[SECOND + LANE], table[SECOND + FORMAT]
    x_code, y_code = table[X + FORMAT], table[out + FORMAT]
    for step in range(first * KEPT_BLOCK, min(last * KEPT_BLOCK, kept)):
        x = x_base + (vector_word(table, step) >> 3)
        w = w_base + (vector_word(table, kept + step) >> 3) if inputs == 2 else w_base
        y = y_base + (vector_word(table, inputs * kept + step) >> 3)
        for i in range(lanes):
            total[i] = OUTSIDE if opcode == MAX else F(0.0)
        for p in range(places):
            # offsets count bits, see `spyre.hw.plans.offset_tables`
            load_one(half, word, x + (x_places[p] >> 3), WHOLE_STICK, x_code, value)
            if opcode == CHANNEL:
                load_one(half, word, w + (w_places[p] >> 3), w_lane, w_code, factor)
            combine(opcode, value, factor, total)
        if opcode == MAP:
            load_one(half, word, w, w_lane, w_code, factor)
            for i in range(lanes):
                total[i] *= factor[i]
        elif opcode == SUM:
            for i in range(lanes):
                total[i] *= scale
        store_sticks(half, word, y, 1, 128, y_code, total)


run = entry(windowing)
