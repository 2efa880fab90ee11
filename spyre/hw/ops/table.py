"""The operation table: per opFuncName its family, opcode, operands, constants and definition.

Checker, planners, kernels, cost model and the documentation read this one table; elementwise rows
are in `elementwise`. Definitions and their sources: operations reference §3.
"""

from __future__ import annotations

from collections.abc import Mapping

from spyre.hw.ops.definition import FLOATS, HALF, WORD, Category, Family, OpDefinition
from spyre.hw.ops.elementwise import ELEMENTWISE
from spyre.mlir.operation import INDEX_LIMIT_CONSTANT, OVERFLOW_CONSTANT

POSITIONS = (*FLOATS, "IEEE_INT32", "SENUINT32")


def _reduction(
    name: str, kernel_op: str, definition: str, constants: tuple[str, ...] = ()
) -> OpDefinition:
    return OpDefinition(
        name,
        Category.REDUCTION,
        Family.REDUCTION,
        kernel_op,
        1,
        definition,
        constants,
        formats=FLOATS,
        nonstick=True,
    )


def _pair(name: str, definition: str, optional: tuple[str, ...] = ()) -> OpDefinition:
    return OpDefinition(
        name,
        Category.REDUCTION,
        Family.REDUCTION,
        "exx2",
        1,
        definition,
        ("exx2scale",),
        optional_constants=optional,
        formats=FLOATS,
    )


def _token_scale(name: str, definition: str, constants: tuple[str, ...] = ()) -> OpDefinition:
    return OpDefinition(
        name,
        Category.REDUCTION,
        Family.REDUCTION,
        "absmax",
        1,
        definition,
        constants,
        formats=HALF,
    )


def _topk(
    name: str, kernel_op: str, definition: str, results: tuple[str, ...] = ()
) -> OpDefinition:
    return OpDefinition(
        name,
        Category.SCAN,
        Family.TOPK,
        kernel_op,
        1,
        definition,
        formats=FLOATS,
        result_formats=results,
    )


def _conversion(
    name: str, kernel_op: str, definition: str, formats: tuple[str, ...], results: tuple[str, ...]
) -> OpDefinition:
    return OpDefinition(
        name,
        Category.CONVERT,
        Family.CONVERT,
        kernel_op,
        1,
        definition,
        formats=formats,
        result_formats=results,
    )


def _packed_matmul(
    name: str, kernel_op: str, definition: str, windowed: bool = False
) -> OpDefinition:
    category = Category.CONVOLUTION if windowed else Category.MATMUL
    return OpDefinition(
        name,
        category,
        Family.PACKED_MATMUL,
        kernel_op,
        2,
        definition,
        (),
        0.03,
        "pt",
        windowed=windowed,
    )


def _windowing(
    name: str,
    kernel_op: str,
    inputs: int,
    definition: str,
    constants: tuple[str, ...] = (),
    category: Category = Category.POOLING,
    unit: str = "sfp",
) -> OpDefinition:
    return OpDefinition(
        name,
        category,
        Family.WINDOWING,
        kernel_op,
        inputs,
        definition,
        constants,
        0.3,
        unit,
        windowed=True,
    )


def _requantizing(
    name: str,
    category: Category,
    kernel_op: str,
    definition: str,
    constants: tuple[str, ...] = (),
    inputs: int = 1,
    optional: tuple[str, ...] = (),
) -> OpDefinition:
    return OpDefinition(
        name,
        category,
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
    *ELEMENTWISE,
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
        Category.UNARY,
        Family.COPY,
        "copy",
        1,
        "copy of bits; gathers through an index tensor",
        optional_constants=(INDEX_LIMIT_CONSTANT,),
    ),
    _conversion("dl16tofp32", "widen", "value conversion to binary32", HALF, WORD),
    _conversion("fp32todl16", "narrow", "value conversion to DL16", WORD, HALF),
    OpDefinition(
        "ReStickifyOpHBM",
        Category.DATA,
        Family.RESTICKIFY,
        "restickify",
        1,
        "same values, other stick dim",
    ),
    _topk("topkvalue", "value", "the k largest, falling"),
    _topk("topkindex", "index", "their positions, lowest first among equals", POSITIONS),
    OpDefinition(
        "shuffle",
        Category.DATA,
        Family.SHUFFLE,
        "copy",
        1,
        "copy of bits between the scratchpads of cores",
    ),
    OpDefinition(
        "batchmatmul",
        Category.MATMUL,
        Family.MATMUL,
        "matmul",
        2,
        "Σ_k A·B",
        (),
        0.02,
        "pt",
        formats=HALF,
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
    _windowing(
        "depthwiseconv2dnative",
        "channel",
        2,
        "Σ_{ki,kj} X·W per channel",
        (),
        Category.CONVOLUTION,
        "pt",
    ),
    _windowing("maxpoolfwd", "max", 1, "max over the window, padding -∞"),
    _windowing("avgpoolfwd", "sum", 1, "nmap · Σ over the window, padding 0", ("nmap",)),
    _windowing("avgpoolnmapfwd", "map", 2, "b · Σ over the window of a, padding 0"),
    _requantizing("csqint8ch", Category.QUANTIZE, "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint8mb", Category.QUANTIZE, "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint8wt", Category.QUANTIZE, "quantize8", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint4", Category.QUANTIZE, "quantize4", _QUANTIZED, _QUANTIZERS),
    _requantizing("csqint4wt", Category.QUANTIZE, "quantize4", _QUANTIZED, _QUANTIZERS),
    _requantizing("qfp8ch", Category.QUANTIZE, "to_fp8", "value conversion, at most ±448"),
    _requantizing("qfp8mb", Category.QUANTIZE, "to_fp8", "value conversion, at most ±448"),
    _requantizing("qfp8wt", Category.QUANTIZE, "to_fp8", "value conversion, at most ±448"),
    _requantizing("fp8todl16", Category.CONVERT, "value", "value conversion"),
    _requantizing(
        "addi32toi32", Category.INTEGER, "add", "a + b modulo 2³²", inputs=2, optional=_REFUSAL
    ),
    _requantizing(
        "muli32toi32", Category.INTEGER, "mul", "a · b modulo 2³²", inputs=2, optional=_REFUSAL
    ),
    _requantizing(
        "fp32toint32",
        Category.INTEGER,
        "truncate",
        "towards zero, within int32, NaN 0",
        optional=_REFUSAL,
    ),
    _requantizing("int32tofp32", Category.INTEGER, "from_int", "nearest binary32"),
)

OPS: dict[str, OpDefinition] = {row.name: row for row in _ROWS}
_NONSTICK = "nonstick"

_UNDEFINED = "its mathematics is not public"
REFUSED = {
    "maskbyindex": (Category.SCAN, _UNDEFINED),
    "keepbyindex": (Category.SCAN, _UNDEFINED),
}
"""Names of the specification that have no row: category, and why they are not simulated."""


def _categories() -> dict[str, Category]:
    found = [
        (row.category, name)
        for row in _ROWS
        for name in (row.name, *([row.name + _NONSTICK] if row.nonstick else []))
    ]
    found += [(category, name) for name, (category, _) in REFUSED.items()]
    return {name: kind for category in Category for kind, name in found if kind is category}


SPEC_NAMES: dict[str, Category] = _categories()
"""Every operation name of the public specifications, in the order of its categories (operations
reference §3)."""


def find_op(name: str, ops: Mapping[str, OpDefinition] = OPS) -> OpDefinition | None:
    """The row of ``name``; reductions carry the suffix ``nonstick`` when the stick stays."""
    spec = ops.get(name)
    if spec is None and name.endswith(_NONSTICK):
        spec = ops.get(name.removesuffix(_NONSTICK))
        return spec if spec is not None and spec.nonstick else None
    return spec
