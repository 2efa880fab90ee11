"""Words of the plan table that only a matmul uses (the header and operand words are common).

An axis is an extent and the byte pitches of the operands that move along it. N and K axes count
sticks (64 elements of the generated and the reduction dim).
"""

from __future__ import annotations

BATCH = 68
"""4 axes of (extent, A, B, C)."""
BATCH_AXES = 4
ROWS = 84
"""3 axes of (extent, A, C): the preserved dims."""
COLUMNS = 93
"""3 axes of (extent, B, C): sticks of the generated dim."""
REDUCED = 102
"""3 axes of (extent, A, B): sticks of the reduction dim."""
AXES = 3
B_ROW_PITCH = 111
"""Bytes between consecutive k in B."""
ROW_COUNT = 112
COLUMN_COUNT = 113
REDUCED_COUNT = 114
ROW_BLOCK = 115
"""Rows of one unit."""
ROW_BLOCKS = 116
COLUMN_BLOCKS = 117
CORE_DEPTH = 118
"""K sticks of one core's work slice, for chunked accumulation."""
COLUMN_BLOCK = 4
"""Sticks of C one unit computes (256 columns)."""
