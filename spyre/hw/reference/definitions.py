"""The operations as one reads them in the operations reference §3, on arrays of numbers.

Arithmetic that float32 rounds correctly is done in float32; transcendental functions in float64,
since the rounding to the output format follows anyway. max and min are maximumNumber and
minimumNumber of IEEE 754-2019, alone and in reductions. Keys are the op table's kernel names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NumericRules, decode_device, encode_device
from spyre.hw import spec_choices
from spyre.hw.ops import decode_constant
from spyre.mlir.operation import Operation

Array = npt.NDArray[Any]

_ZERO = np.zeros((), np.float32)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def select(condition: Array, yes: Array, no: Array) -> Array:
    """condition ? yes : no, element by element."""
    return np.asarray(np.where(condition, yes, no))


def maximum(a: Array, b: Array) -> Array:
    """The larger of two numbers: +0 is above -0, and a NaN loses."""
    negative = np.signbit(a) & np.signbit(b)
    zero = select(negative, -_ZERO, _ZERO)
    return select((a == 0.0) & (b == 0.0), zero, np.fmax(a, b))


def minimum(a: Array, b: Array) -> Array:
    """The smaller of two numbers: -0 is below +0, and a NaN loses."""
    return -maximum(-a, -b)


def logarithm(x: Array) -> Array:
    """ln x; below zero a NaN of positive sign."""
    return select(x < 0.0, np.full((), np.nan), np.log(x.astype(np.float64)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return np.asarray(1.0 / (1.0 + np.exp(-x.astype(np.float64))))


def silu(x: Array) -> Array:
    """x·σ(x), 0 at -inf."""
    return select(np.isneginf(x), _ZERO, x * sigmoid(x))


def gelu(x: Array) -> Array:
    """x·Φ(x) with the normal distribution Φ(x) = erfc(-x/√2)/2 or its tanh form; 0 at -inf."""
    wide = x.astype(np.float64)
    if spec_choices.GELU_FORM == "erf":
        phi = np.asarray(_erfc(-wide / math.sqrt(2.0)), np.float64) / 2.0
    else:
        phi = sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3))
    return select(np.isneginf(x), _ZERO, x * phi)


def leakyrelu(x: Array) -> Array:
    """x above zero, the slope of the readings times x below."""
    return select(x > 0.0, x, x * np.float32(spec_choices.LEAKY_SLOPE))


def mish(x: Array) -> Array:
    """x·tanh(ln(1 + e^x)), 0 at -inf."""
    wide = x.astype(np.float64)
    weight = np.tanh(np.log1p(np.exp(np.minimum(wide, 100.0))))
    return select(np.isneginf(x), _ZERO, x * weight)


def fnms(a: Array, b: Array, c: Array) -> Array:
    """c - a·b, or -c - a·b, the product unrounded as in the next ones."""
    return np.asarray((c if spec_choices.FNMS_FORM == "c-ab" else -c) - a.astype(np.float64) * b)


def batchnormfwd(x: Array, second: Array, third: Array) -> Array:
    """x·scale + shift."""
    if spec_choices.BATCHNORM_OPERANDS == "shift-scale":
        second, third = third, second
    return np.asarray(x.astype(np.float64) * second + third)


def softplus(x: Array, beta: Array, threshold: Array) -> Array:
    """ln(1 + e^{βx})/β, or x itself where βx is above the threshold."""
    scaled = x.astype(np.float64) * beta
    return select(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta)


def clip(x: Array, low: Array, high: Array) -> Array:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def layernormscale(mean: Array, mean_square: Array, epsilon: Array) -> Array:
    """1/√(E[x²] - E[x]² + eps); a variance that rounding made negative counts as 0."""
    variance = mean_square - mean * mean
    if spec_choices.VARIANCE_FLOOR:
        variance = maximum(variance, _ZERO)
    return np.asarray(1.0 / np.sqrt(variance + epsilon))


def layernormnorm(x: Array, mean: Array, scale: Array, weight: Array, bias: Array) -> Array:
    """(x - E[x]) · scale · weight + bias."""
    return np.asarray(((x - mean) * scale).astype(np.float64) * weight + bias)


POINTWISE: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "exp": lambda x: np.exp(x.astype(np.float64)),
    "floored_exp": lambda x: np.exp(np.fmax(x.astype(np.float64), -17.0)),
    "log": logarithm,
    "log_below_zero": lambda x: select(x < 0.0, np.full((), 16.15625), logarithm(x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x.astype(np.float64)),
    "reciprocal": lambda x: np.float32(1.0) / x,
    "tanh": lambda x: np.tanh(x.astype(np.float64)),
    "sigmoid": sigmoid,
    "floor": np.floor,
    "relu": lambda x: maximum(x, _ZERO),
    "gelu": gelu,
    "silu": silu,
    "relu6": lambda x: minimum(maximum(x, _ZERO), np.float32(6.0) + _ZERO),
    "leakyrelu": leakyrelu,
    "mish": mish,
    "clip": clip,
    "softplus": softplus,
    "add": np.add,
    "sub": np.subtract,
    "revsub": lambda a, b: b - a,
    "mul": np.multiply,
    "div": np.divide,
    "max": maximum,
    "min": minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lt": np.less,
    "where": lambda c, a, b: select(c != 0.0, a, b),
    "fnms": fnms,
    "muladd": batchnormfwd,
    "layernormscale": layernormscale,
    "layernormnorm": layernormnorm,
}
"""Elementwise operations: operands, then the constants of the op table, all float32."""


def define(name: str, *operands: Array) -> Array:
    """The elementwise operation ``name`` without floating point warnings."""
    with np.errstate(all="ignore"):
        return POINTWISE[name](*operands)


REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x,
    "max": lambda x: x,
    "min": lambda x: x,
    "absmax": np.abs,
    "prod": lambda x: x,
}
"""Functions that reductions apply to an element before combining."""


def reduce_maximum(values: Array, axis: tuple[int, ...]) -> Array:
    """`maximum` along ``axis``, which stays with extent 1; -0 only if every zero is one."""
    extreme = np.fmax.reduce(values, axis=axis, keepdims=True)
    positive = np.any((values == 0.0) & ~np.signbit(values), axis=axis, keepdims=True)
    return select(extreme == 0.0, select(positive, _ZERO, -_ZERO), extreme)


COMBINE: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "sum": (np.add, partial(np.add.reduce, keepdims=True)),
    "max": (maximum, reduce_maximum),
    "min": (minimum, lambda values, axis: -reduce_maximum(-values, axis)),
    "absmax": (maximum, reduce_maximum),
    "prod": (np.multiply, partial(np.multiply.reduce, keepdims=True)),
}
"""How a reduction combines the partial results of cores, and elements along axes; max and min skip
NaN.
"""

CHUNK = 64
_DL16 = "SEN169_FP16"


def add_rounded(total: Array, term: Array, rules: NumericRules) -> Array:
    """float32 sum of two arrays, rounded to DL16."""
    with np.errstate(all="ignore"):
        exact = np.asarray(total + term, np.float32)
    return decode_device(encode_device(exact, _DL16, rules), _DL16, rules)


def add_all(terms: Iterable[Array], rules: NumericRules) -> Array:
    """Terms in order, starting from zero, rounded after every addition."""
    total: Array = np.zeros((), np.float32)
    for term in terms:
        total = add_rounded(total, term, rules)
    return total


def sum_in_chunks(terms: Iterable[Array], rules: NumericRules) -> Array:
    """The total of one core: chunks of 64 consecutive terms, then their totals."""
    remaining = iter(terms)
    chunks = iter(lambda: list(islice(remaining, CHUNK)), [])
    return add_all((add_all(chunk, rules) for chunk in chunks), rules)


def constant(op: Operation, name: str) -> np.float32:
    """A constant's bit pattern as a number."""
    return np.float32(decode_constant(op.constants[name], op.constant_formats[name]))
