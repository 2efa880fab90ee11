"""Every operation name the public specifications list, by category, and which are refused and why.

A name without a reason here has a row in :data:`spyre.hw.ops.table.OPS`; a name with a reason never
had public mathematics. Source: operations reference §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    """The specification's grouping of names."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    BINARY = "binary and ternary"
    UNARY = "unary"
    INTEGER = "integer"
    REDUCTION = "reduction"
    SCAN = "scan"
    POOLING = "pooling"
    QUANTIZE = "quantize"
    CONVERT = "convert"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class SpecName:
    """One name; ``refused``: why it is not simulated ("" where it is, or is to be)."""

    name: str
    category: Category
    refused: str = ""


_NAMES: dict[Category, str] = {
    Category.MATMUL: "batchmatmul batchmatmulfp8 batchmatmulint8 batchmatmulint4",
    Category.CONVOLUTION: "conv2d conv2dfp8 conv2dint8 conv2dint4 depthwiseconv2dnative",
    Category.BINARY: (
        "add sub revsub mul realdiv maximum minimum equal notequal greaterequal lesserequal "
        "greaterthan lesserthan where3 fnms biasadd batchnormfwd layernormnorm"
    ),
    Category.UNARY: (
        "abs neg exp fastexp log sqrt rsqrt reciprocal tanh sigmoid fastsigmoid identity floor "
        "relufwd relu6fwd leakyrelufwd clip gelufwd silu mish softplus layernormscale"
    ),
    Category.INTEGER: "addi32toi32 muli32toi32 fp32toint32 int32tofp32",
    Category.REDUCTION: (
        "sum sumnonstick max maxnonstick min minnonstick mean meannonstick absmax absmaxnonstick "
        "prod prodnonstick exx2 exx2_zeromean quantscalepertoken quantscalepertokenfp8"
    ),
    Category.SCAN: "topkvalue topkindex maskbyindex keepbyindex",
    Category.POOLING: "maxpoolfwd avgpoolfwd avgpoolnmapfwd",
    Category.QUANTIZE: ("csqint8ch csqint8mb csqint8wt csqint4 csqint4wt qfp8ch qfp8mb qfp8wt"),
    Category.CONVERT: "dl16tofp32 fp32todl16 fp8todl16",
    Category.DATA: "ReStickifyOpHBM shuffle",
}

_UNDEFINED = "its mathematics is not public"
_REFUSED = {"maskbyindex": _UNDEFINED, "keepbyindex": _UNDEFINED}

SPEC_NAMES: dict[str, SpecName] = {
    name: SpecName(name, category, _REFUSED.get(name, ""))
    for category, names in _NAMES.items()
    for name in names.split()
}
"""All names, in the order of the specification's categories."""
