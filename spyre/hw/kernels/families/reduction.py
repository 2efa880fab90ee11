"""The reduction kernels: sum, max, min, absmax, prod and exx2 over any axes, split or not; top-k.

One unit is a block of up to MAX_KEPT_STICKS kept sticks (CONSTANT word 0). Accumulators are
float32, one per lane; the order is increasing coordinate, then work slices in order, and the result
is rounded once. Work slices of a reduced dim are ordinary reduced axes here, so partial sums never
leave float32.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import (
    begin,
    fill,
    follow,
    load_one,
    load_sticks,
    mask,
    store_sticks,
)
from spyre.hw.kernels.dl16_vectors import (
    add_four,
    add_lanes,
    largest_lane,
    largest_of_four,
    smallest_lane,
    smallest_of_four,
)
from spyre.hw.kernels.intrinsics import (
    add_product_rounded,
    add_rounded,
    bits_float,
    decode_dl16,
    key_code,
    maximum_i16,
    maximum_number,
    minimum_i16,
    minimum_number,
    multiply_add,
    order_key,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.vector_math import absolute
from spyre.hw.spec_choices import EXX2_LANES, TOKEN_CLIP, TOPK_TIES

F = np.float32

SUM, MAX, MIN, ABSMAX, PROD, EXX2, SCALED_SUM = range(len(tb.REDUCTIONS))
OPCODE, INNER, BLOCKS, LANES, FLAGS = tb.OPCODE, tb.INNER, tb.BLOCKS, tb.LANES, tb.FLAGS
MASK, VALUE = tb.MASK, tb.VALUE
EXTENT, PITCH, INNER_PITCH = tb.EXTENT, tb.PITCH, tb.INNER_PITCH
BASE, TENSOR, LANE, FORMAT = tb.BASE, tb.TENSOR, tb.LANE, tb.FORMAT
IN, OUT, AT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
DL16 = tb.DL16
BLOCK_STICKS, WHOLE_STICK = tb.BLOCK_STICKS, tb.WHOLE_STICK
KEPT_STICKS, LOW, HIGH, CORE_STEPS = range(tb.CONSTANT, tb.CONSTANT + 4)
BUFFER = tb.MAX_KEPT_STICKS * 64
CHUNK_BUFFER = tb.MAX_CHUNK_STICKS * 64
STICK = 64
CLIP_SCALE = TOKEN_CLIP == "scale"
ALTERNATE = EXX2_LANES == "alternate"
ROUNDING_ADD, ROUNDING_ODD = tb.ROUNDING_ADD, tb.ROUNDING_ODD


@kernel
def identity_of(opcode):
    """The value a reduction starts from; NaN loses against every number."""
    if opcode == MAX or opcode == MIN or opcode == ABSMAX:
        return F(np.nan)  # and is the result where there is nothing but NaN
    return F(1.0) if opcode == PROD else F(0.0)


@kernel
def accumulate(opcode, source, target, squares):
    """target[i] = combine(target[i], source[i]); exx2 also adds squares."""
    n = target.size
    if opcode == SUM:
        for i in range(n):
            target[i] += source[i]
    elif opcode == MAX:
        for i in range(n):
            target[i] = maximum_number(source[i], target[i])
    elif opcode == MIN:
        for i in range(n):
            target[i] = minimum_number(source[i], target[i])
    elif opcode == ABSMAX:
        for i in range(n):
            target[i] = maximum_number(absolute(source[i]), target[i])
    elif opcode == PROD:
        for i in range(n):
            target[i] *= source[i]
    else:
        for i in range(n):
            target[i] += source[i]
            squares[i] = multiply_add(source[i], source[i], squares[i])


@kernel
def fold_sticks(opcode, source, sticks, lanes, target, squares):
    """Combine ``sticks`` staged sticks into one stick of accumulators, sums and maxima by fours."""
    s = 0
    while s + 4 <= sticks and (opcode == SUM or opcode == MAX):
        a = source[s * lanes : (s + 1) * lanes]
        b = source[(s + 1) * lanes : (s + 2) * lanes]
        c = source[(s + 2) * lanes : (s + 3) * lanes]
        d = source[(s + 3) * lanes : (s + 4) * lanes]
        # a tree of four: operations that do not wait for the accumulator
        if opcode == SUM:
            for i in range(target.size):
                target[i] += (a[i] + b[i]) + (c[i] + d[i])
        else:
            for i in range(target.size):
                left, right = maximum_number(a[i], b[i]), maximum_number(c[i], d[i])
                target[i] = maximum_number(target[i], maximum_number(left, right))
        s += 4
    while s < sticks:
        accumulate(opcode, source[s * lanes : (s + 1) * lanes], target, squares)
        s += 1


@kernel
def combine_lanes(opcode, values):
    """Tree reduction over the lanes of one stick; the result is in lane 0."""
    half = values.size // 2
    while half > 0:
        left, right = values[:half], values[half : 2 * half]
        if opcode == MAX or opcode == ABSMAX:
            for i in range(half):
                left[i] = maximum_number(right[i], left[i])
        elif opcode == MIN:
            for i in range(half):
                left[i] = minimum_number(right[i], left[i])
        elif opcode == PROD:
            for i in range(half):
                left[i] *= right[i]
        else:
            for i in range(half):
                left[i] += right[i]
        half //= 2


@kernel
def reduce_lanes(opcode, values, lanes):
    """Fill each stick with the combination of its lanes; see `combine_lanes`."""
    address = (values.ctypes.data,)
    if lanes == STICK and opcode == SUM:
        add_lanes(address, values.size)
    elif lanes == STICK and opcode == MAX:
        largest_lane(address, values.size)
    elif lanes == STICK and opcode == MIN:
        smallest_lane(address, values.size)
    else:
        for start in range(0, values.size, lanes):
            row = values[start : start + lanes]
            combine_lanes(opcode, row)
            fill(row, row[0])


@kernel
def scale_results(table, scale, values):
    """Scale results, and bound them where the table asks for that."""
    if table[FLAGS] & tb.CLIP == 0:
        for i in range(values.size):
            values[i] *= scale
        return
    low, high = bits_float(np.int32(table[LOW])), bits_float(np.int32(table[HIGH]))
    for i in range(values.size):
        if CLIP_SCALE:
            values[i] = minimum_number(maximum_number(values[i] * scale, low), high)
        else:
            values[i] = minimum_number(maximum_number(values[i], low), high) * scale


@kernel
def store_pair(flags, pair, row):
    """exx2: the mean square beside the mean, in the lanes of the reading ``exx2_lanes``."""
    mean = F(0.0) if flags & tb.ZERO_MEAN else row[0]
    for i in range(0, row.size, 2):
        row[i] = mean
        row[i + 1] = pair
    if not ALTERNATE:
        for i in range(2, row.size):
            row[i] = F(0.0)


@kernel
def finish(table, scale, lanes, sums, squares):
    """Lane reduction, scaling and replication of the sticks of accumulators."""
    opcode, flags = table[OPCODE], table[FLAGS]
    if flags & tb.REDUCE_LANES:
        reduce_lanes(opcode, sums, lanes)
    scale_results(table, scale, sums)
    if opcode == EXX2:
        for start in range(0, sums.size, lanes):
            second = squares[start : start + lanes]
            combine_lanes(SUM, second)
            store_pair(flags, second[0] * scale, sums[start : start + lanes])


@kernel
def stage(table, half, word, address, coordinate, sticks, pitch, step, lanes, buffer):
    """Load ``sticks`` input sticks and replace masked elements."""
    lane, code = table[IN + LANE], table[IN + FORMAT]
    load_sticks(half, word, address, sticks, pitch, lane, code, lanes, buffer)
    mask(table, coordinate, step, sticks, lanes, buffer)


@kernel
def add_runs(half, at, pitch, count, target):
    """Add ``count`` runs of DL16 codes, one every ``pitch`` elements, to ``target``; no staging."""
    n, step, total = target.size, pitch * 2, target.ctypes.data
    a = half.ctypes.data + at * 2
    fours = count // 4
    for _ in range(fours):
        add_four((a, step, total), n)
        a += 4 * step
    for r in range(fours * 4, count):
        run = half[at + r * pitch : at + r * pitch + n]
        for i in range(n):
            target[i] += decode_dl16(run[i])


@kernel
def extreme_codes(opcode, half, at, pitch, count, keys):
    """Largest or smallest of ``count`` runs of DL16 codes and ``keys``, compared as integers.

    Four runs at once keep as many streams of memory going.
    """
    n, step, target = keys.size, pitch * 2, keys.ctypes.data
    a = half.ctypes.data + at * 2
    for _ in range(count // 4):
        if opcode == MAX:
            largest_of_four((a, step, target), n)
        else:
            smallest_of_four((a, step, target), n)
        a += 4 * step
    for r in range(count // 4 * 4, count):
        run = half[at + r * pitch : at + r * pitch + n]
        for i in range(n):
            key = order_key(run[i])
            keys[i] = maximum_i16(key, keys[i]) if opcode == MAX else minimum_i16(key, keys[i])


@kernel
def reduce_codes(table, half, address, sticks, sums, keys):
    """:func:`reduce_block` for DL16 sums, maxima and minima without a mask."""
    opcode, flags, runs = table[OPCODE], table[FLAGS], table[EXTENT + 6]
    kept_pitch, run_pitch = table[IN + INNER_PITCH] >> 1, table[IN + PITCH + 6] >> 1
    # neighbouring kept sticks are one long run; others are taken stick by stick
    width, pieces = sticks * 64, 1
    if kept_pitch != 64 or flags & tb.RUN_REDUCED:
        width, pieces = 64, sticks
    for r0 in range(table[EXTENT + 4]):
        for r1 in range(table[EXTENT + 5]):
            moved = address + r0 * table[IN + PITCH + 4] + r1 * table[IN + PITCH + 5]
            for s in range(pieces):
                at = (moved >> 1) + s * kept_pitch
                if opcode == SUM:
                    add_runs(half, at, run_pitch, runs, sums[s * width : (s + 1) * width])
                else:
                    extremes = keys[s * width : (s + 1) * width]
                    extreme_codes(opcode, half, at, run_pitch, runs, extremes)


@kernel
def reduce_direct(table, half, address, sticks, sums, squares):
    """Sums or extremes of DL16 codes into float32 ``sums``; ``squares`` is scratch for keys."""
    n = sticks * 64
    keys = squares.view(np.int16)[:n]
    lowest = np.int16(-0x8000) if table[OPCODE] == MAX else np.int16(0x7FFF)
    if table[OPCODE] != SUM:
        for i in range(n):
            keys[i] = lowest
    reduce_codes(table, half, address, sticks, sums, keys)
    if table[OPCODE] != SUM:
        for i in range(n):
            sums[i] = decode_dl16(key_code(keys[i]))


@kernel
def reduce_block(table, half, word, address, coordinate, sticks, buffer, sums, squares):
    """Accumulate all reduced indices of ``sticks`` kept sticks."""
    opcode, lanes, flags = table[OPCODE], table[LANES], table[FLAGS]
    kept_pitch, kept_step = table[IN + INNER_PITCH], table[AT + INNER_PITCH]
    run_pitch, run_step = table[IN + PITCH + 6], table[AT + PITCH + 6]
    runs = table[EXTENT + 6]
    for r0 in range(table[EXTENT + 4]):
        for r1 in range(table[EXTENT + 5]):
            a = address + r0 * table[IN + PITCH + 4] + r1 * table[IN + PITCH + 5]
            c = coordinate + r0 * table[AT + PITCH + 4] + r1 * table[AT + PITCH + 5]
            if flags & tb.RUN_REDUCED:
                for s in range(sticks):
                    target = sums[s * lanes : (s + 1) * lanes]
                    second = squares[s * lanes : (s + 1) * lanes]
                    for r2 in range(0, runs, BLOCK_STICKS):
                        count = min(BLOCK_STICKS, runs - r2)
                        stage(
                            table, half, word, a + s * kept_pitch + r2 * run_pitch,
                            c + s * kept_step + r2 * run_step, count, run_pitch, run_step,
                            lanes, buffer,
                        )  # fmt: skip
                        fold_sticks(opcode, buffer, count, lanes, target, second)
            else:
                n = sticks * lanes
                for r2 in range(runs):
                    stage(
                        table, half, word, a + r2 * run_pitch, c + r2 * run_step, sticks,
                        kept_pitch, kept_step, lanes, buffer,
                    )  # fmt: skip
                    accumulate(opcode, buffer[:n], sums[:n], squares[:n])


@kernel
def unit_place(table, bases, unit):
    """Kept sticks of a unit; input and output addresses and coordinate of the first of them."""
    blocks, kept_sticks = table[BLOCKS], table[KEPT_STICKS]
    outer = unit // blocks
    at = (unit - outer * blocks) * kept_sticks
    sticks = min(kept_sticks, table[INNER] - at)
    address = table[IN + BASE] + bases[table[IN + TENSOR]] + at * table[IN + INNER_PITCH]
    result = table[OUT + BASE] + bases[table[OUT + TENSOR]] + at * table[OUT + INNER_PITCH]
    coordinate = table[AT + BASE] + at * table[AT + INNER_PITCH]
    for axis in range(3, -1, -1):
        index = outer % table[EXTENT + axis]
        outer //= table[EXTENT + axis]
        address += index * table[IN + PITCH + axis]
        result += index * table[OUT + PITCH + axis]
        coordinate += index * table[AT + PITCH + axis]
    return sticks, address, result, coordinate


@kernel
def reduction(table, bases, half, word, scratch, first, last):
    """Run units ``first`` .. ``last`` of a reduction table."""
    opcode, lanes = table[OPCODE], table[LANES]
    scale = bits_float(np.int32(table[VALUE]))
    buffer, sums = scratch[:BUFFER], scratch[BUFFER : 2 * BUFFER]
    squares = scratch[2 * BUFFER : 3 * BUFFER]
    # DL16 codes without a mask need no staging: extremes are compared as integers, see `order_key`
    direct = table[MASK] == 0 and table[IN + FORMAT] == DL16 and opcode <= MIN
    direct = direct and table[IN + LANE] == WHOLE_STICK
    for unit in range(first, last):
        sticks, address, result, coordinate = unit_place(table, bases, unit)
        start = identity_of(opcode)
        for i in range(sticks * lanes):
            sums[i] = start
            squares[i] = F(0.0)
        if direct:
            reduce_direct(table, half, address, sticks, sums, squares)
        else:
            reduce_block(table, half, word, address, coordinate, sticks, buffer, sums, squares)
        finish(table, scale, lanes, sums[: sticks * lanes], squares)
        store_sticks(
            half, word, result, sticks, table[OUT + INNER_PITCH], table[OUT + FORMAT], sums
        )


run = entry(reduction)


# --- sums rounded at every addition -----------------------------------------------------------


@kernel
def add_chunk_lanes(source, sticks, chunk, add, odd):
    """chunk[s] = rounded sum of the 64 lanes of stick s, in order of the lanes."""
    for s in range(sticks):
        chunk[s] = F(0.0)
    for i in range(STICK):
        for s in range(sticks):
            chunk[s] = add_rounded(chunk[s], source[s * STICK + i], add, odd)


@kernel
def join(source, target, add, odd):
    """target[i] += source[i], rounded; the source becomes zero."""
    for i in range(target.size):
        target[i] = add_rounded(target[i], source[i], add, odd)
        source[i] = F(0.0)


@kernel
def sum_block(table, half, word, address, coordinate, sticks, squares, buffer, chunk, core, total):
    """Sums (of squares) of all reduced indices of ``sticks`` kept sticks into ``total``.

    SCALED_SUM: per lane, which `spread` adds up.
    """
    scaled, scale = table[OPCODE] == SCALED_SUM, bits_float(np.int32(table[VALUE]))
    code, lanes_too = table[IN + FORMAT], table[FLAGS] & tb.REDUCE_LANES != 0 and not scaled
    add, odd = ROUNDING_ADD[code], ROUNDING_ODD[code]
    kept_pitch, kept_step = table[IN + INNER_PITCH], table[AT + INNER_PITCH]
    n = sticks if lanes_too else sticks * STICK
    for i in range(n):
        chunk[i], core[i], total[i] = F(0.0), F(0.0), F(0.0)
    staged = buffer[: sticks * STICK]
    step, within = 0, 0
    for r0 in range(table[EXTENT + 4]):
        for r1 in range(table[EXTENT + 5]):
            for r2 in range(table[EXTENT + 6]):
                moved, at = address, coordinate
                moved += r0 * table[IN + PITCH + 4] + r1 * table[IN + PITCH + 5]
                moved += r2 * table[IN + PITCH + 6]
                at += r0 * table[AT + PITCH + 4] + r1 * table[AT + PITCH + 5]
                at += r2 * table[AT + PITCH + 6]
                stage(table, half, word, moved, at, sticks, kept_pitch, kept_step, STICK, buffer)
                if squares:
                    for i in range(staged.size):
                        staged[i] *= staged[i]
                if lanes_too:
                    add_chunk_lanes(staged, sticks, chunk, add, odd)
                    within = tb.CHUNK  # a stick is a chunk
                elif scaled:
                    for i in range(n):
                        core[i] = add_product_rounded(core[i], staged[i], scale, add, odd)
                else:
                    for i in range(n):
                        chunk[i] = add_rounded(chunk[i], staged[i], add, odd)
                    within += 1
                step += 1
                if scaled and step == table[CORE_STEPS]:
                    for i in range(n):
                        total[i] += core[i]
                        core[i] = F(0.0)
                    step = 0
                elif within == tb.CHUNK or step == table[CORE_STEPS]:
                    join(chunk[:n], core[:n], add, odd)
                    within = 0
                if step == table[CORE_STEPS]:
                    join(core[:n], total[:n], add, odd)
                    step = 0


@kernel
def spread(table, sticks, sums, squares, out):
    """Scaled sums as sticks; a reduced stick holds its sum in all lanes, or exx2's pairs."""
    scaled, scale = table[OPCODE] == SCALED_SUM, bits_float(np.int32(table[VALUE]))
    if table[FLAGS] & tb.REDUCE_LANES == 0 or scaled:
        for i in range(sticks * STICK):
            out[i] = sums[i] if scaled else sums[i] * scale
    if table[FLAGS] & tb.REDUCE_LANES == 0:
        return
    for s in range(sticks):
        row = out[s * STICK : (s + 1) * STICK]
        if scaled:
            reduce_lanes(SUM, row, STICK)
            continue
        value = sums[s] * scale
        for i in range(STICK):
            row[i] = value
        if table[OPCODE] == EXX2:
            store_pair(table[FLAGS], squares[s] * scale, row)


@kernel
def chunk_reduction(table, bases, half, word, scratch, first, last):
    """Run units ``first`` .. ``last`` of a table in the number mode dl16-chunk, or of SCALED_SUM.

    Per lane (or per row, where the stick is reduced) the elements of one core are added up in order
    of their place in the input, in chunks of CHUNK: a chunk's total starts at zero and is rounded
    to DL16 after every addition, then joins the core's total, and that the total of all work
    slices, each time rounded. SCALED_SUM scales the elements, adds those of a lane of a core in
    DL16, and lanes and cores in float32.
    """
    buffer, chunk = scratch[:CHUNK_BUFFER], scratch[CHUNK_BUFFER : 2 * CHUNK_BUFFER]
    core, total = (
        scratch[2 * CHUNK_BUFFER : 3 * CHUNK_BUFFER],
        scratch[3 * CHUNK_BUFFER : 4 * CHUNK_BUFFER],
    )
    second = scratch[4 * CHUNK_BUFFER : 5 * CHUNK_BUFFER]
    for unit in range(first, last):
        sticks, address, result, coordinate = unit_place(table, bases, unit)
        if table[OPCODE] == EXX2:
            sum_block(
                table, half, word, address, coordinate, sticks, True, buffer, chunk, core, second
            )
        sum_block(table, half, word, address, coordinate, sticks, False, buffer, chunk, core, total)
        spread(table, sticks, total, second, buffer)
        store_sticks(
            half, word, result, sticks, table[OUT + INNER_PITCH], table[OUT + FORMAT], buffer
        )


run_chunked = entry(chunk_reduction)


# --- the k largest along a dim outside the stick, or their positions --------------------------

# One unit is one kept stick; every lane is a separate list. Pass j finds the largest element that
# comes after the one pass j-1 found, in falling order; `TOPK_TIES` is the order of equal elements.
INT32 = tb.INT32
COUNT, STEP, KEPT, KEPT_STEP = tb.CONSTANT, tb.CONSTANT + 1, tb.CONSTANT + 2, tb.CONSTANT + 3
"""Elements along the reduced dim and their pitch in the input; k and its pitch in the output."""
SHARE, SHARE_STEP = tb.CONSTANT + 4, tb.CONSTANT + 5
"""Ranks per work slice of k, and the pitch of the slices in the output."""
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
        load_one(half, word, source + r * table[STEP], WHOLE_STICK, table[IN + FORMAT], stick)
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


run_topk = entry(topk)
