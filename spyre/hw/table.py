"""The plan table: 128 int64 words that tell a kernel one execute (or one part of one).

Every address is in bytes. Words are named here once; planners write them, kernels read them.
Operands are the tensors of the SDSC in table order, the output last; a masked operation has one
more pseudo-operand whose "address" is the coordinate (elements) along the masked dim.
"""

from __future__ import annotations

WORDS = 128

EXTRA = -1
"""KIND word of a row that continues the table before it; such rows hold that table's vectors."""

# header, common to every kind
KIND = 0
OPCODE = 1
INPUTS = 2
UNITS = 3
RANK = 4
INNER = 5
BLOCKS = 6
COST_NS = 7
LANES = 8
OPERANDS = 9
MASK = 10
MASK_START = 11
MASK_END = 12
MASK_BITS = 13
FLAGS = 14
VALUE = 15

# axes, outermost first
EXTENT = 16
MAX_RANK = 7
CONSTANT = 24
MAX_CONSTANTS = 8

# operands
OPERAND = 32
OPERAND_WORDS = 12
MAX_TABLE_OPERANDS = 8
BASE = 0
TENSOR = 1
LANE = 2
FORMAT = 3
PITCH = 4
INNER_PITCH = 11

# LANE values: -1 whole sticks, n >= 0 lane n of each stick broadcast to all lanes
WHOLE_STICK = -1

# FORMAT values
DL16 = 0
HALF = 1
FP32 = 2
INT32 = 3
DL16_TRUNC = 4
DL16_EVEN = 5
"""DL16 whose stores round towards zero, or ties to even; DL16 itself rounds ties away."""
FP8_143 = 16
FP8_152 = 17
INT8 = 18
INT4 = 19
"""From FP8_143 on, elements of 8 and 4 bits, decoded by a table of all codes."""

# MASK values: how the masked dim lies
NO_MASK = 0
MASK_LANES = 1
MASK_STICKS = 2

# reduction: EXTENT words 0..3 are kept axes, 4..6 reduced ones
KEPT_RANK = 4
REDUCED_RANK = 3

# scratch handed to a kernel, per host thread
SCRATCH_COUNTERS = 64
SCRATCH_FLOATS = 12288
SCRATCH_BYTES = 8 * SCRATCH_COUNTERS + 4 * SCRATCH_FLOATS

BLOCK_STICKS = 16
"""Sticks a kernel stages at once."""
