"""Words of the head rows of tables with vectors, per kind, and the order of their vectors.

Operand words BASE, TENSOR and FORMAT are where other tables have them, but BASE counts bits.
"""

from __future__ import annotations

COUNTS = 16
"""First count word: how many elements the vectors of each group have."""

# packed matmul: groups batch (A, B, C), rows (A, C), columns (B, C), depth (A, B)
BATCHES, ROWS, COLUMNS, DEPTH = range(COUNTS, COUNTS + 4)
ROW_BLOCK, ROW_BLOCKS, COLUMN_BLOCKS = range(COUNTS + 4, COUNTS + 7)
COLUMN_BLOCK = 256
"""Columns of one unit."""
EXACT_INTEGERS = 1
"""Packed matmul FLAGS bit: float32 sums of one K block are exact integers and added in float64."""

# requantize: groups outer, middle, inner, each with a vector per operand, the output last
OUTER, MIDDLE, INNER = range(COUNTS, COUNTS + 3)
MIDDLE_BLOCK = 8
"""Middle steps of one unit; whole bytes of 4-bit elements are within one."""
END = 4
"""Operand word: bits from the operand's base on that it may touch, where FLAGS has BOUNDED."""
BOUNDED = 1
"""FLAGS bit: elements beyond END are read as 0 and not written."""
REFUSE_OVERFLOW = 2
"""FLAGS bit: an integer result that does not fit is a fault. CONSTANT word 0 of a masked operation
is the position of its first element along the masked dim.
"""

# windowing: groups kept sticks (a vector per operand), places in the window (per input)
KEPT, PLACES = range(COUNTS, COUNTS + 2)
KEPT_BLOCK = 16
"""Kept sticks of one unit."""
