"""Assumptions ("our readings") where the public text leaves an operation's mathematics open.

Planners, kernels and reference read the constants here; changing one changes all of them. Kernels
are compiled with them, so they are no options of a run. The values are those that the operations
reference proposes (§3, §4). `python -m tools.docs` lists this file in docs/operations.md: every
constant with the text below it, in which operations are in backquotes. Two more are in the layers
below: `spyre.dtypes.NIBBLE_SHIFTS` (order of 4-bit elements in a byte) and
`spyre.mlir.operation.footprint.STORED_PADDING`.
"""

from __future__ import annotations

from dataclasses import dataclass
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

# --- questions with one answer simulated --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Convention:
    """An open question about ``ops`` of which one answer, ``meaning``, is simulated."""

    name: str
    ops: tuple[str, ...]
    meaning: str


CONVENTIONS = (
    Convention(
        "fast",
        ("fastexp", "fastsigmoid"),
        "computed as `exp` and `sigmoid`; what the card approximates is not public",
    ),
    Convention(
        "replicate",
        (
            *("layernormscale", "sum", "max", "min", "absmax", "mean", "prod"),
            *("quantscalepertoken", "quantscalepertokenfp8"),
        ),
        "a tensor with scale -2 keeps one value per stick; writers put it into all lanes, since "
        "programs read such a tensor as a full stick under another dim name, readers take lane 0 "
        "(and `layernormscale` lanes 0 and 1)",
    ),
    Convention(
        "zero",
        ("realdiv", "reciprocal"),
        "division by zero gives infinity, which is stored as NINF; `0/0` is a NaN, stored as NINF "
        "too",
    ),
    Convention(
        "nan",
        ("equal", "notequal", "greaterequal", "lesserequal", "greaterthan", "lesserthan"),
        "comparisons with NaN are false, but `notequal` is true; DL16 operands are never NaN (see "
        "*ninf*), float32 ones may be",
    ),
    Convention(
        "zero mean",
        ("exx2",),
        "`useZeroMean` may be missing; where its bits are not zero the mean is stored as 0, as "
        "`exx2_zeromean` does",
    ),
    Convention(
        "positions",
        ("topkindex",),
        "stored as int32 or, where the output has a float format, as numbers",
    ),
    Convention(
        "owner",
        ("shuffle",),
        "where several cores hold the element a core asks for, it reads its own, or else that of "
        "the first in the file's order; they are taken to be equal",
    ),
    Convention(
        "pages",
        ("identity",),
        "`maxDimSizes_` p of an indexed dim makes an index v move v·p elements along it, and the "
        "iteration does not move there. Where the table has none of the index tensor's dims, its "
        "one dim with a page size is the one that is moved along, and the iteration runs within "
        "the page. Indexed dims of extent 1 and page size 1 count as outermost wherever they are "
        "listed: an index moves by what all other dims hold",
    ),
    Convention(
        "windows",
        (
            *("conv2d", "conv2dfp8", "conv2dint8", "conv2dint4", "depthwiseconv2dnative"),
            *("maxpoolfwd", "avgpoolfwd", "avgpoolnmapfwd"),
        ),
        "input coordinate = position · stride + place · dilation - front padding. Memory holds the "
        "padding if its kind is `padded_wzeropad`, `padded_fullspan` or "
        "`padded_fullspan_wunneeded`: the zeros are then read from there, and the input's extent "
        "is `totalSize_`, what is called unneeded padding included. With `padded_nozeropad`, "
        "`nopad` or nothing the extent is `totalSize_` less the padding, and what lies outside "
        "counts as 0",
    ),
    Convention(
        "nmap",
        ("avgpoolnmapfwd",),
        "the second input is a map of factors over (some of) the output's dims; each sum is "
        "multiplied by its factor",
    ),
    Convention(
        "integers",
        ("batchmatmulint8", "batchmatmulint4", "conv2dint8", "conv2dint4"),
        "sums of products are exact and rounded to DL16 by way of float32; sums beyond int32 do "
        "not wrap",
    ),
    Convention(
        "quantise",
        ("csqint8ch", "csqint8mb", "csqint8wt", "csqint4", "csqint4wt"),
        "x · scaleact + shiftact in float64, to the nearest integer, ties to even, within the "
        "range of the format; NaN is 0. Of two 4-bit elements in a byte the first has the low bits",
    ),
    Convention(
        "int32",
        ("addi32toi32", "muli32toi32", "fp32toint32", "int32tofp32"),
        "sums and products modulo 2³²; to int32 drops the fraction and saturates, NaN is 0; from "
        "int32 rounds to nearest, ties to even",
    ),
    Convention(
        "arrangement",
        ("dl16tofp32", "fp32todl16"),
        "64 columns may be spread over two 32-bit sticks (or gathered) in groups of four; the SDSC "
        "does not say whether. A conversion permutes only if the argument it writes or reads has "
        "that element arrangement in its layout (`DL16_TO_FP32`, `FP32_TO_DL16`); with `STANDARD` "
        "on both sides it converts values and keeps their places",
    ),
)
"""Readings that are no switch; shown with the constants."""
