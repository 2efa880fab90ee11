"""The op table: per opFuncName its family, opcode, operands, constants and definition.

Checker, planner, engine and the documentation read this one table; adding an operation is a row
here and a branch in its kernel. Definitions and their sources: operations reference §3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from spyre.mlir.operation import INDEX_LIMIT_CONSTANT, OVERFLOW_CONSTANT


class Family(StrEnum):
    """Which kernel runs an operation."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    CONVERT = "convert"
    RESTICKIFY = "restickify"
    MATMUL = "matmul"
    TOPK = "topk"
    PACKED_MATMUL = "packed_matmul"
    REQUANTIZE = "requantize"
    WINDOWING = "windowing"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class OpDefinition:
    """One operation.

    ``kernel_op``: name in the kernel's opcode list. ``constants``: names the SDSC must hold, in
    the order the kernel takes them; ``optional_constants`` it may hold. ``element_ns``: rough host
    cost per output element, used only to decide between one thread and several. ``formats``: data
    formats of operands and result, ``result_formats`` where the result may have others; empty:
    the planner of the family decides. ``nonstick``: the name may carry that suffix.
    ``windowed``: windows slide over the first input.
    """

    name: str
    family: Family
    kernel_op: str
    inputs: int
    definition: str
    constants: tuple[str, ...] = ()
    element_ns: float = 0.2
    unit: str = "sfp"
    optional_constants: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    result_formats: tuple[str, ...] = ()
    nonstick: bool = False
    windowed: bool = False


HALF = ("SEN169_FP16",)
"""Formats of operations the precision column lists for DL16 only (operations reference §3)."""
WORD = ("IEEE_FP32",)
FLOATS = (*HALF, *WORD)
"""Formats of operations in DL16 or float32; operands and result have the same."""
POSITIONS = (*FLOATS, "IEEE_INT32", "SENUINT32")


def _pointwise(
    name: str,
    kernel_op: str,
    inputs: int,
    definition: str,
    constants: tuple[str, ...] = (),
    element_ns: float = 0.2,
    formats: tuple[str, ...] = FLOATS,
) -> OpDefinition:
    return OpDefinition(
        name,
        Family.ELEMENTWISE,
        kernel_op,
        inputs,
        definition,
        constants,
        element_ns,
        formats=formats,
    )


def _reduction(
    name: str, kernel_op: str, definition: str, constants: tuple[str, ...] = ()
) -> OpDefinition:
    return OpDefinition(
        name, Family.REDUCTION, kernel_op, 1, definition, constants, formats=FLOATS, nonstick=True
    )


def _pair(name: str, definition: str, optional: tuple[str, ...] = ()) -> OpDefinition:
    return OpDefinition(
        name,
        Family.REDUCTION,
        "exx2",
        1,
        definition,
        ("exx2scale",),
        optional_constants=optional,
        formats=FLOATS,
    )


def _token_scale(name: str, definition: str, constants: tuple[str, ...] = ()) -> OpDefinition:
    return OpDefinition(name, Family.REDUCTION, "absmax", 1, definition, constants, formats=HALF)


def _topk(
    name: str, kernel_op: str, definition: str, results: tuple[str, ...] = ()
) -> OpDefinition:
    return OpDefinition(
        name, Family.TOPK, kernel_op, 1, definition, formats=FLOATS, result_formats=results
    )


def _conversion(
    name: str, kernel_op: str, definition: str, formats: tuple[str, ...], results: tuple[str, ...]
) -> OpDefinition:
    return OpDefinition(
        name, Family.CONVERT, kernel_op, 1, definition, formats=formats, result_formats=results
    )


def _packed_matmul(
    name: str, kernel_op: str, definition: str, windowed: bool = False
) -> OpDefinition:
    return OpDefinition(
        name, Family.PACKED_MATMUL, kernel_op, 2, definition, (), 0.03, "pt", windowed=windowed
    )


def _windowing(
    name: str,
    kernel_op: str,
    inputs: int,
    definition: str,
    constants: tuple[str, ...] = (),
    unit: str = "sfp",
) -> OpDefinition:
    return OpDefinition(
        name, Family.WINDOWING, kernel_op, inputs, definition, constants, 0.3, unit, windowed=True
    )


def _requantizing(
    name: str,
    kernel_op: str,
    definition: str,
    constants: tuple[str, ...] = (),
    inputs: int = 1,
    optional: tuple[str, ...] = (),
) -> OpDefinition:
    return OpDefinition(
        name,
        Family.REQUANTIZE,
        kernel_op,
        inputs,
        definition,
        constants,
        2.0,
        optional_constants=optional,
    )


_QUANTIZED = "x·scaleact + shiftact to the nearest (even) integer that fits"
_QUANTIZERS = ("scaleact", "shiftact")
_REFUSAL = (OVERFLOW_CONSTANT,)

_ROWS = (
    _pointwise("add", "add", 2, "a + b"),
    _pointwise("sub", "sub", 2, "a - b"),
    _pointwise("revsub", "revsub", 2, "b - a"),
    _pointwise("mul", "mul", 2, "a · b"),
    _pointwise("realdiv", "div", 2, "a / b"),
    _pointwise("maximum", "max", 2, "max(a, b)"),
    _pointwise("minimum", "min", 2, "min(a, b)"),
    _pointwise("biasadd", "add", 2, "x + b"),
    _pointwise("equal", "eq", 2, "a = b as 1.0 or 0.0"),
    _pointwise("notequal", "ne", 2, "a ≠ b as 1.0 or 0.0"),
    _pointwise("greaterequal", "ge", 2, "a ≥ b as 1.0 or 0.0"),
    _pointwise("lesserequal", "le", 2, "a ≤ b as 1.0 or 0.0"),
    _pointwise("greaterthan", "gt", 2, "a > b as 1.0 or 0.0"),
    _pointwise("lesserthan", "lt", 2, "a < b as 1.0 or 0.0"),
    _pointwise("fnms", "fnms", 3, "c - a·b (our reading)"),
    _pointwise("batchnormfwd", "muladd", 3, "x · scale + shift (our reading)"),
    _pointwise("where3", "where", 3, "c ≠ 0 ? a : b"),
    _pointwise("layernormnorm", "layernormnorm", 5, "(x - E[x]) · scale · w + b", (), 0.3),
    _pointwise(
        "layernormscale", "layernormscale", 1, "1/√(max(E[x²] - E[x]², 0) + eps)", ("eps",), 0.4
    ),
    _pointwise("abs", "abs", 1, "|x|"),
    _pointwise("neg", "neg", 1, "-x"),
    _pointwise("exp", "exp", 1, "e^x", (), 0.4),
    _pointwise("fastexp", "exp", 1, "e^x (our reading: exact)", (), 0.4),
    _pointwise("log", "log", 1, "ln x", (), 0.5, HALF),
    _pointwise("sqrt", "sqrt", 1, "√x", (), 0.3),
    _pointwise("rsqrt", "rsqrt", 1, "1/√x", (), 0.4),
    _pointwise("reciprocal", "reciprocal", 1, "1/x", (), 0.3),
    _pointwise("tanh", "tanh", 1, "tanh x", (), 0.7, HALF),
    _pointwise("sigmoid", "sigmoid", 1, "1/(1 + e^-x)", (), 0.6),
    _pointwise("fastsigmoid", "sigmoid", 1, "1/(1 + e^-x) (our reading: exact)", (), 0.6),
    _pointwise("floor", "floor", 1, "⌊x⌋"),
    _pointwise("relufwd", "relu", 1, "max(x, 0)"),
    _pointwise("relu6fwd", "relu6", 1, "min(max(x, 0), 6)"),
    _pointwise("leakyrelufwd", "leakyrelu", 1, "x > 0 ? x : 0.01·x (our reading)"),
    _pointwise("gelufwd", "gelu", 1, "x·Φ(x), the erf form (our reading)", (), 1.0, HALF),
    _pointwise("silu", "silu", 1, "x·σ(x)", (), 0.7),
    _pointwise("mish", "mish", 1, "x·tanh(ln(1 + e^x))", (), 0.7, HALF),
    _pointwise("clip", "clip", 1, "min(max(x, lo), hi)", ("clipMin", "clipMax")),
    _pointwise(
        "softplus",
        "softplus",
        1,
        "x·β > t ? x : ln(1 + e^{βx})/β",
        ("softplusBeta", "softplusThresh"),
        1.2,
        HALF,
    ),
    _reduction("sum", "sum", "Σ x"),
    _reduction("max", "max", "max x"),
    _reduction("min", "min", "min x"),
    _reduction("absmax", "absmax", "max |x|"),
    _reduction("mean", "sum", "scaling_factor · Σ x", ("scaling_factor",)),
    _reduction("prod", "prod", "Π x"),
    _pair("exx2", "lane 0: s·Σx (0 with useZeroMean), lane 1: s·Σx²", ("useZeroMean",)),
    _pair("exx2_zeromean", "lane 0: 0, lane 1: s·Σx²"),
    _token_scale("quantscalepertoken", "max |x| / 127 (our reading)"),
    _token_scale(
        "quantscalepertokenfp8",
        "min(max(m · max |x|, lo), hi) (our reading)",
        ("mulConst", "clipMin", "clipMax"),
    ),
    OpDefinition(
        "identity",
        Family.COPY,
        "copy",
        1,
        "copy of bits; gathers through an index tensor",
        optional_constants=(INDEX_LIMIT_CONSTANT,),
    ),
    _conversion("dl16tofp32", "widen", "value conversion to binary32", HALF, WORD),
    _conversion("fp32todl16", "narrow", "value conversion to DL16", WORD, HALF),
    OpDefinition(
        "ReStickifyOpHBM", Family.RESTICKIFY, "restickify", 1, "same values, other stick dim"
    ),
    _topk("topkvalue", "value", "the k largest, falling"),
    _topk("topkindex", "index", "their positions, lowest first among equals", POSITIONS),
    OpDefinition(
        "shuffle", Family.SHUFFLE, "copy", 1, "copy of bits between the scratchpads of cores"
    ),
    OpDefinition(
        "batchmatmul", Family.MATMUL, "matmul", 2, "Σ_k A·B", (), 0.02, "pt", formats=HALF
    ),
    _packed_matmul("batchmatmulfp8", "fp8", "Σ_k A·B of 8-bit floats"),
    _packed_matmul("batchmatmulint8", "int8", "Σ_k A·B of integers, exact"),
    _packed_matmul("batchmatmulint4", "int4", "Σ_k A·B of integers, exact"),
    _packed_matmul(
        "conv2d", "dl16", "Σ_{c,ki,kj} X[b,c,i·s+ki·d-p,…]·W[o,c,ki,kj], 0 outside", True
    ),
    _packed_matmul("conv2dfp8", "fp8", "conv2d of 8-bit floats", True),
    _packed_matmul("conv2dint8", "int8", "conv2d of integers, exact", True),
    _packed_matmul("conv2dint4", "int4", "conv2d of integers, exact", True),
    _windowing("depthwiseconv2dnative", "channel", 2, "Σ_{ki,kj} X·W per channel", (), "pt"),
    _windowing("maxpoolfwd", "max", 1, "max over the window, padding -∞"),
    _windowing("avgpoolfwd", "sum", 1, "nmap · Σ over the window, padding 0", ("nmap",)),
    _windowing("avgpoolnmapfwd", "map", 2, "b · Σ over the window of a, padding 0"),
    _requantizing("csqint8ch", "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint8mb", "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint8wt", "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint4", "quantize4", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint4wt", "quantize4", _QUANTIZED, _QUANTIZERS),
    _requantizing("qfp8ch", "to_fp8", "value conversion, at most ±448"),
    _requantizing("qfp8mb", "to_fp8", "value conversion, at most ±448"),
    _requantizing("qfp8wt", "to_fp8", "value conversion, at most ±448"),
    _requantizing("fp8todl16", "value", "value conversion"),
    _requantizing("addi32toi32", "add", "a + b modulo 2³²", inputs=2, optional=_REFUSAL),
    _requantizing("muli32toi32", "mul", "a · b modulo 2³²", inputs=2, optional=_REFUSAL),
    _requantizing(
        "fp32toint32", "truncate", "towards zero, within int32, NaN 0", optional=_REFUSAL
    ),
    _requantizing("int32tofp32", "from_int", "nearest binary32"),
)

OPS: dict[str, OpDefinition] = {row.name: row for row in _ROWS}
_NONSTICK = "nonstick"


def find_op(name: str, ops: Mapping[str, OpDefinition] = OPS) -> OpDefinition | None:
    """The row of ``name``; reductions carry the suffix ``nonstick`` when the stick stays."""
    spec = ops.get(name)
    if spec is None and name.endswith(_NONSTICK):
        spec = ops.get(name.removesuffix(_NONSTICK))
        return spec if spec is not None and spec.nonstick else None
    return spec
