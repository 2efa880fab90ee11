"""Reductions of collectives: two runs of codes at any host address are combined into one.

Their operands are in memory shared by the cards' processes, outside of the memory of any card. The
arithmetic is that of the elementwise kernel: same functions, same single rounding, same bits.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw.kernels.blocks import load_sticks, store_sticks
from spyre.hw.kernels.families.elementwise import apply_binary, fused_binary
from spyre.hw.kernels.intrinsics import pointer_f32, pointer_u16
from spyre.hw.kernels.jit import kernel
from spyre.hw.table import plan as tb

STICK_BYTES = 128
BLOCK_STICKS = tb.BLOCK_STICKS
FP32_FORMAT = tb.FP32


@kernel
def _load(address, sticks, code, lanes, buffer):
    half = carray(pointer_u16(address), sticks * STICK_BYTES // 2)
    word = carray(pointer_f32(address), sticks * STICK_BYTES // 4)
    load_sticks(half, word, 0, sticks, STICK_BYTES, -1, code, lanes, buffer)


@kernel
def _store(address, sticks, code, buffer):
    half = carray(pointer_u16(address), sticks * STICK_BYTES // 2)
    word = carray(pointer_f32(address), sticks * STICK_BYTES // 4)
    store_sticks(half, word, 0, sticks, STICK_BYTES, code, buffer)


@kernel
def combine(opcode, code, fused, x, y, z, sticks):
    """z = x op y over ``sticks`` sticks in format ``code``; host addresses, z may be x.

    ``opcode``: of `spyre.hw.ops.OPCODES`. ``fused``: DL16 codes whose operation has a code form.
    """
    if fused:
        fused_binary(opcode, (x, y, z), (0, 0, 0), 1, sticks * 64)
        return
    lanes = 32 if code == FP32_FORMAT else 64
    constants = np.zeros(2, np.float32)
    left = np.empty(BLOCK_STICKS * lanes, np.float32)
    right, result = np.empty_like(left), np.empty_like(left)
    for first in range(0, sticks, BLOCK_STICKS):
        count = min(BLOCK_STICKS, sticks - first)
        at, n = first * STICK_BYTES, count * lanes
        _load(x + at, count, code, lanes, left)
        _load(y + at, count, code, lanes, right)
        apply_binary(opcode, left[:n], right[:n], result[:n], constants)
        _store(z + at, count, code, result)


@kernel
def add_all(code, sources, z, sticks):
    """z = the sum of all ``sources`` (host addresses), in float32 in their order, rounded once."""
    lanes = 32 if code == FP32_FORMAT else 64
    total = np.empty(BLOCK_STICKS * lanes, np.float32)
    term = np.empty_like(total)
    for first in range(0, sticks, BLOCK_STICKS):
        count = min(BLOCK_STICKS, sticks - first)
        at, n = first * STICK_BYTES, count * lanes
        _load(sources[0] + at, count, code, lanes, total)
        for k in range(1, sources.size):
            _load(sources[k] + at, count, code, lanes, term)
            for i in range(n):
                total[i] = total[i] + term[i]
        _store(z + at, count, code, total)
