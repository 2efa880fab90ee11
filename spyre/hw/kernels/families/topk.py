"""The top-k kernel: the k largest along a dim outside the stick, or their positions.

One unit is one kept stick; every lane is a separate list. Pass j finds the largest element that
comes after the one pass j-1 found, in falling order; `TOPK_TIES` is the order of equal elements.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import begin, follow, load_one, store_sticks
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec_choices import TOPK_TIES

F = np.float32

OPCODE, INNER, LANES, VALUE = tb.OPCODE, tb.INNER, tb.LANES, tb.VALUE
INNER_PITCH, FORMAT, INT32 = tb.INNER_PITCH, tb.FORMAT, tb.INT32
IN, OUT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS
COUNT, STEP, KEPT, KEPT_STEP = tb.CONSTANT, tb.CONSTANT + 1, tb.CONSTANT + 2, tb.CONSTANT + 3
"""Elements along the reduced dim and their pitch in the input; k and its pitch in the output."""
SHARE, SHARE_STEP = tb.CONSTANT + 4, tb.CONSTANT + 5
"""Ranks per work slice of k, and the pitch of the slices in the output."""
WORDS, WHOLE_STICK = tb.WORDS, tb.WHOLE_STICK
LOWEST_FIRST = TOPK_TIES == "lowest"
FIRST_POSITION = -1 if LOWEST_FIRST else 1 << 30


@kernel
def next_largest(table, half, word, source, last, last_at, best, best_at, stick):
    """Per lane the largest element after (``last``, ``last_at``) in falling order."""
    lanes = table[LANES]
    for i in range(lanes):
        best[i] = F(-np.inf)
        best_at[i] = -1
    for r in range(table[COUNT]):
        load_one(
            half, word, source + r * table[STEP], WHOLE_STICK, table[IN + FORMAT], lanes, stick
        )
        for i in range(lanes):
            x = stick[i]
            if LOWEST_FIRST:
                follows = x < last[i] or (x == last[i] and r > last_at[i])
                better = x > best[i]
            else:
                follows = x < last[i] or (x == last[i] and r < last_at[i])
                better = x >= best[i]
            # best_at < 0: nothing yet, and -inf is an element like any other
            if follows and (best_at[i] < 0 or better):
                best[i] = x
                best_at[i] = r


@kernel
def store_positions(table, half, word, integers, target, positions, stick):
    """Positions as int32 (two sticks for 64 lanes), or as numbers in the output's float format."""
    lanes = table[LANES]
    if table[OUT + FORMAT] == INT32:
        for i in range(lanes):
            at = target + (i // 32) * table[VALUE] + (i % 32) * 4
            integers[at >> 2] = positions[i]
        return
    for i in range(lanes):
        stick[i] = F(positions[i])
    store_sticks(half, word, target, 1, 128, table[OUT + FORMAT], stick)


@kernel
def topk(table, bases, half, word, integers, counters, scratch, first, last_unit):
    """Run units ``first`` .. ``last_unit`` of a top-k table."""
    lanes, inner = table[LANES], table[INNER]
    stick, last, best = scratch[:64], scratch[64:128], scratch[128:192]
    last_at, best_at = np.empty(64, np.int32), np.empty(64, np.int32)
    at = begin(table, bases, counters, first, inner)
    for _ in range(first, last_unit):
        source = counters[8] + at * table[IN + INNER_PITCH]
        target = counters[9] + at * table[OUT + INNER_PITCH]
        for i in range(lanes):
            last[i] = F(np.inf)
            last_at[i] = FIRST_POSITION
        for k in range(table[KEPT]):
            next_largest(table, half, word, source, last, last_at, best, best_at, stick)
            for i in range(lanes):
                last[i] = best[i]
                last_at[i] = best_at[i]
            part = k // table[SHARE]
            place = target + part * table[SHARE_STEP] + (k % table[SHARE]) * table[KEPT_STEP]
            if table[OPCODE] == tb.TOPK_INDEX:
                store_positions(table, half, word, integers, place, best_at, stick)
            else:
                store_sticks(half, word, place, 1, 128, table[OUT + FORMAT], best)
        at = follow(table, counters, at, inner)


run = entry(topk)
