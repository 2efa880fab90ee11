"""Open points of the operations, each decided in one place: a named constant, why, and its source.

Public sources leave these open; `docs/operations.md` lists them as "our readings". To try another
reading, change the constant: planners, kernels and twins read it from here. Two more stand in the
layers below: `spyre.dtypes.NIBBLE_SHIFTS` and `spyre.mlir.footprint.STORED_PADDING`.
"""

from __future__ import annotations

# --- packed formats and windows -----------------------------------------------------------------

ALTERNATING_OPERANDS: frozenset[tuple[str, int]] = frozenset(
    {
        ("qfp8ch", 1),
        ("csqint8ch", 1),
        ("csqint4", 1),
        ("fp8todl16", 0),
        ("batchmatmulfp8", 0),
        ("batchmatmulint8", 0),
        ("batchmatmulint4", 0),
        ("conv2dfp8", 0),
        ("conv2dint8", 0),
        ("conv2dint4", 0),
    }
)
"""(operation, operand) whose stick interleaves groups of 8 of its first stick dim: the elements
64·h + 8·g + e stand in the order of 16·g + 8·h + e.

Operations reference §5 proposes the operation's identity as the mark for 8-bit sticks of one dim;
for 4-bit sticks it derives the inner 16 of csqint4 from prose, with the same permutation."""

ALTERNATE_GROUP = 8
"""Elements of a group; a block of 128 holds 8 groups of each of two input sticks (§5)."""

QUANTIZED_FP8_MAX = 448.0
"""Largest magnitude of qfp8*: what exceeds it, infinity included, saturates (§3)."""

QUANTIZE_TIES_TO_EVEN = True
"""How csq* round what lies halfway: to the even integer, or (False) away from zero (§3)."""

INTEGER_MATMUL_SCALE = 1.0
"""Factor on the int32 sums of int8 and int4 products; the source of a scale is open (§3)."""

WINDOW_MAX_OUTSIDE = float("-inf")
"""What maxpoolfwd takes for coordinates outside of the input (§3); sums take 0."""
