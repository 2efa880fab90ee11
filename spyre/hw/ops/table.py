"""The operation table: per opFuncName its family, opcode, operands, constants and definition.

Checker, planners, kernels, cost model and the documentation read this one table; elementwise rows
are in `elementwise`. Definitions and their sources: operations reference §3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spyre.hw.ops.elementwise import ELEMENTWISE, FLOATS, HALF, WORD, Category, Family, OpDefinition
from spyre.mlir.operation import INDEX_LIMIT_CONSTANT, OVERFLOW_CONSTANT

POSITIONS = (*FLOATS, "IEEE_INT32", "SENUINT32")


def _rows_of(
    category: Category, family: Family, inputs: int = 1, **columns: Any
) -> Callable[..., OpDefinition]:
    """A function that makes rows of ``(name, kernel_op, definition)``, with these defaults."""

    def row(name: str, kernel_op: str, definition: str, **others: Any) -> OpDefinition:
        known = {"category": category, "inputs": inputs, **columns, **others}
        return OpDefinition(
            name=name, family=family, kernel_op=kernel_op, definition=definition, **known
        )

    return row


_reduction = _rows_of(Category.REDUCTION, Family.REDUCTION, formats=FLOATS, nonstick=True)
_pair = _rows_of(Category.REDUCTION, Family.REDUCTION, formats=FLOATS, constants=("exx2scale",))
_token_scale = _rows_of(Category.REDUCTION, Family.REDUCTION, formats=HALF)
_topk = _rows_of(Category.SCAN, Family.TOPK, formats=FLOATS)
_conversion = _rows_of(Category.CONVERT, Family.CONVERT)
_identity = _rows_of(Category.UNARY, Family.COPY, optional_constants=(INDEX_LIMIT_CONSTANT,))
_restickify = _rows_of(Category.DATA, Family.RESTICKIFY)
_shuffle = _rows_of(Category.DATA, Family.SHUFFLE)
_matmul = _rows_of(Category.MATMUL, Family.MATMUL, 2, element_ns=0.02, unit="pt", formats=HALF)
_packed_matmul = _rows_of(Category.MATMUL, Family.PACKED_MATMUL, 2, element_ns=0.03, unit="pt")
_convolution = _rows_of(
    Category.CONVOLUTION, Family.PACKED_MATMUL, 2, element_ns=0.03, unit="pt", windowed=True
)
_pooling = _rows_of(Category.POOLING, Family.WINDOWING, element_ns=0.3, windowed=True)
_depthwise = _rows_of(
    Category.CONVOLUTION, Family.WINDOWING, 2, element_ns=0.3, unit="pt", windowed=True
)
_quantizing = _rows_of(
    Category.QUANTIZE, Family.REQUANTIZE, element_ns=2.0, constants=("scaleact", "shiftact")
)
_to_fp8 = _rows_of(Category.QUANTIZE, Family.REQUANTIZE, element_ns=2.0)
_from_fp8 = _rows_of(Category.CONVERT, Family.REQUANTIZE, element_ns=2.0)
_integer = _rows_of(Category.INTEGER, Family.REQUANTIZE, element_ns=2.0)

_QUANTIZED = "x·scaleact + shiftact to the nearest (even) integer that fits"
_REFUSAL = (OVERFLOW_CONSTANT,)

_ROWS = (
    *ELEMENTWISE,
    _reduction("sum", "sum", "Σ x"),
    _reduction("max", "max", "max x"),
    _reduction("min", "min", "min x"),
    _reduction("absmax", "absmax", "max |x|"),
    _reduction("mean", "sum", "scaling_factor · Σ x", constants=("scaling_factor",)),
    _reduction("prod", "prod", "Π x"),
    _pair(
        "exx2",
        "exx2",
        "lane 0: s·Σx (0 with useZeroMean), lane 1: s·Σx²",
        optional_constants=("useZeroMean",),
    ),
    _pair("exx2_zeromean", "exx2", "lane 0: 0, lane 1: s·Σx²"),
    _token_scale("quantscalepertoken", "absmax", "max |x| / 127 (our reading)"),
    _token_scale(
        "quantscalepertokenfp8",
        "absmax",
        "min(max(m · max |x|, lo), hi) (our reading)",
        constants=("mulConst", "clipMin", "clipMax"),
    ),
    _identity("identity", "copy", "copy of bits; gathers through an index tensor"),
    _conversion(
        "dl16tofp32", "widen", "value conversion to binary32", formats=HALF, result_formats=WORD
    ),
    _conversion(
        "fp32todl16", "narrow", "value conversion to DL16", formats=WORD, result_formats=HALF
    ),
    _restickify("ReStickifyOpHBM", "restickify", "same values, other stick dim"),
    _topk("topkvalue", "value", "the k largest, falling"),
    _topk(
        "topkindex", "index", "their positions, lowest first among equals", result_formats=POSITIONS
    ),
    _shuffle("shuffle", "copy", "copy of bits between the scratchpads of cores"),
    _matmul("batchmatmul", "matmul", "Σ_k A·B", result_formats=FLOATS),
    _packed_matmul("batchmatmulfp8", "fp8", "Σ_k A·B of 8-bit floats"),
    _packed_matmul("batchmatmulint8", "int8", "Σ_k A·B of integers, exact"),
    _packed_matmul("batchmatmulint4", "int4", "Σ_k A·B of integers, exact"),
    _convolution("conv2d", "dl16", "Σ_{c,ki,kj} X[b,c,i·s+ki·d-p,…]·W[o,c,ki,kj], 0 outside"),
    _convolution("conv2dfp8", "fp8", "conv2d of 8-bit floats"),
    _convolution("conv2dint8", "int8", "conv2d of integers, exact"),
    _convolution("conv2dint4", "int4", "conv2d of integers, exact"),
    _depthwise("depthwiseconv2dnative", "channel", "Σ_{ki,kj} X·W per channel"),
    _pooling("maxpoolfwd", "max", "max over the window, padding -∞"),
    _pooling("avgpoolfwd", "sum", "nmap · Σ over the window, padding 0", constants=("nmap",)),
    _pooling("avgpoolnmapfwd", "map", "b · Σ over the window of a, padding 0", inputs=2),
    _quantizing("csqint8ch", "quantize8", _QUANTIZED),
    _quantizing("csqint8mb", "quantize8", _QUANTIZED),
    _quantizing("csqint8wt", "quantize8", _QUANTIZED),
    _quantizing("csqint4", "quantize4", _QUANTIZED),
    _quantizing("csqint4wt", "quantize4", _QUANTIZED),
    _to_fp8("qfp8ch", "to_fp8", "value conversion, at most ±448"),
    _to_fp8("qfp8mb", "to_fp8", "value conversion, at most ±448"),
    _to_fp8("qfp8wt", "to_fp8", "value conversion, at most ±448"),
    _from_fp8("fp8todl16", "value", "value conversion"),
    _integer("addi32toi32", "add", "a + b modulo 2³²", inputs=2, optional_constants=_REFUSAL),
    _integer("muli32toi32", "mul", "a · b modulo 2³²", inputs=2, optional_constants=_REFUSAL),
    _integer(
        "fp32toint32", "truncate", "towards zero, within int32, NaN 0", optional_constants=_REFUSAL
    ),
    _integer("int32tofp32", "from_int", "nearest binary32"),
)

OPS: dict[str, OpDefinition] = {row.name: row for row in _ROWS}
_NONSTICK = "nonstick"

_UNDEFINED = "its mathematics is not public"
REFUSED = {"maskbyindex": (Category.SCAN, _UNDEFINED), "keepbyindex": (Category.SCAN, _UNDEFINED)}
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
