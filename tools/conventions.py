"""Open questions on operations of which one answer is simulated: readings that are no switch.

`tools.docs` lists them in docs/operations.md, behind the constants of `spyre.hw.spec_choices`.
"""

from __future__ import annotations

from dataclasses import dataclass


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
