"""Assumptions ("our readings") where the public text leaves an operation's mathematics open.

Planners, kernels and reference read the constants here; changing one changes all of them. Kernels
are compiled with them, so they are no options of a run. The values are those that the operations
reference proposes (§3, §4). `python -m tools.docs` lists this file in docs/operations.md: every
constant with the text below it, in which operations are in backquotes, and the readings that are no
switch (`tools.conventions`). Two more constants are in the layers below:
`spyre.dtypes.NIBBLE_SHIFTS` (order of 4-bit elements in a byte) and
`spyre.mlir.operation.operation.STORED_PADDING`.
"""

from __future__ import annotations

from typing import Literal

# --- elementwise --------------------------------------------------------------------------------

GELU_FORM: Literal["erf", "tanh"] = "erf"
"""`gelufwd`: erf is x·Φ(x), tanh the approximation of it; compilers send both to this one name."""

LEAKY_SLOPE = 0.01
"""`leakyrelufwd`: the slope below zero, for which no constant is listed."""

FNMS_FORM: Literal["c-ab", "-c-ab"] = "c-ab"
"""`fnms` of a, b, c: c - a·b or -c - a·b."""

BATCHNORM_OPERANDS: Literal["scale-shift", "shift-scale"] = "scale-shift"
"""`batchnormfwd`: x·scale + shift; the order of the second and third operand."""

VARIANCE_FLOOR = True
"""`layernormscale`: E[x²] - E[x]² counts as 0 where rounding made it negative; without that, a
negative value under the root is a NaN, stored as NINF."""

# --- reductions and scans -----------------------------------------------------------------------

EXX2_LANES: Literal["alternate", "first"] = "alternate"
"""`exx2`, `exx2_zeromean`: even lanes hold the mean, odd lanes the mean square; with "first" lanes
0 and 1 do and the rest is zero. Only lanes 0 and 1 are read again."""

TOKEN_MAXIMUM = 127.0
"""`quantscalepertoken`: the scale is max |x| divided by this."""

TOKEN_CLIP: Literal["scale", "maximum"] = "scale"
"""`quantscalepertokenfp8`: clipMin and clipMax bound the scale max |x| · mulConst; with "maximum"
they bound max |x|, which is then multiplied by mulConst."""

TOPK_TIES: Literal["lowest", "highest"] = "lowest"
"""`topkvalue`, `topkindex`: which position comes first among equal values."""

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
"""`qfp8ch`, `csqint8ch`, `csqint4`, `fp8todl16`, `batchmatmulfp8`, `batchmatmulint8`,
`batchmatmulint4`, `conv2dfp8`, `conv2dint8`, `conv2dint4`: operations with the number of the
operand whose stick interleaves groups of 8 of its first stick dim, so that the elements
64·h + 8·g + e stand in the order of 16·g + 8·h + e. The operation's name is the only mark for it;
for 4-bit sticks the inner 16 of csqint4 are read as the same permutation."""

ALTERNATE_GROUP = 8
"""`qfp8ch`, `csqint8ch`, `csqint4`: elements of an interleaved group; a block of 128 holds 8 groups
of each of two input sticks."""

QUANTIZED_FP8_MAX = 448.0
"""`qfp8ch`, `qfp8mb`, `qfp8wt`: what exceeds this magnitude, infinity included, saturates."""

QUANTIZE_TIES_TO_EVEN = True
"""`csqint8ch`, `csqint8mb`, `csqint8wt`, `csqint4`, `csqint4wt`: values halfway between two
integers round to the even one, or (False) away from zero."""

INTEGER_MATMUL_SCALE = 1.0
"""`batchmatmulint8`, `batchmatmulint4`, `conv2dint8`, `conv2dint4`: factor on the exact integer
sums; where a scale would come from is open."""

WINDOW_MAX_OUTSIDE = float("-inf")
"""`maxpoolfwd`: what coordinates outside of the input count as; sums take 0."""
