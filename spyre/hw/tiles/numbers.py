"""Numbers of a KTIR function, evaluated for all iterations and tiles at once: rows by operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.mlir.tiles import BITS, FLOATS

Array = npt.NDArray[Any]


def _towards_zero(a: Array, b: Array) -> Array:
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient)


INTEGER_OPERATIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul,
    "divsi": _towards_zero, "remsi": lambda a, b: a - b * _towards_zero(a, b),
    "floordivsi": operator.floordiv, "ceildivsi": lambda a, b: -(-a // b),
    "divui": operator.floordiv, "remui": operator.mod, "ceildivui": lambda a, b: -(-a // b),
    "andi": operator.and_, "ori": operator.or_, "xori": operator.xor,
    "shli": operator.lshift, "shrsi": operator.rshift, "shrui": operator.rshift,
    "minsi": np.minimum, "maxsi": np.maximum, "minui": np.minimum, "maxui": np.maximum,
}  # fmt: skip
"""Binary operations of arith; names that end in ``ui`` read their operands as natural numbers."""
FLOAT_OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide,
    "maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin,
    "negf": np.negative, "absf": np.abs, "powf": np.power, "fma": lambda a, b, c: a * b + c,
    "rsqrt": lambda a: 1 / np.sqrt(a), "erf": np.vectorize(erf, otypes=[np.float64]),
    "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "floor": np.floor,
    "ceil": np.ceil,
}  # fmt: skip
"""Operations of arith and math, in double precision."""


def integer_operation(name: str, a: Array, b: Array, kind: str) -> Array:
    """``name`` of arith on integers of ``kind``, wrapped to its bits; by 0 it divides as by 1."""
    if name.endswith("ui"):
        a, b = as_unsigned(a, kind), as_unsigned(b, kind)
    if "div" in name or "rem" in name:
        b = np.where(b == 0, 1, b)
    return wrapped(INTEGER_OPERATIONS[name](a, b), kind)


def as_unsigned(values: Array, kind: str) -> Array:
    """Two's complement read as a natural number; 64 bits stay as they are."""
    return values if BITS[kind] == 64 else values & ((1 << BITS[kind]) - 1)


def wrapped(values: Array, kind: str) -> Array:
    """Integers within the bits of ``kind``, as two's complement."""
    bits = BITS[kind]
    if bits == 64 or values.dtype == np.bool_:
        return values
    if bits == 1:
        return (values & 1).astype(np.bool_)
    half = 1 << (bits - 1)
    return ((values + half) & ((1 << bits) - 1)) - half


def signed_as(cast: str, values: Array, kind: str) -> Array:
    """Integers of ``kind`` as the operand of a cast: as natural numbers, or with a sign, which of
    one bit is the bit.
    """
    if kind in FLOATS:
        return values
    if cast in ("uitofp", "extui", "index_castui"):
        return as_unsigned(values.astype(np.int64), kind)
    return -values.astype(np.int64) if kind == "i1" and cast in ("sitofp", "extsi") else values


def comparison(predicate: str, a: Array, b: Array, kind: str) -> Array:
    """``cmpi`` and ``cmpf`` on numbers."""
    if predicate in ("true", "false"):
        return np.full(np.broadcast(a, b).shape, predicate == "true")
    if kind not in FLOATS and predicate[0] == "u":
        a, b = as_unsigned(a, kind), as_unsigned(b, kind)
    found: Array = getattr(operator, predicate[-2:], operator.eq)(a, b)
    if kind not in FLOATS:
        return found
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in ("ord", "uno"):
        return unordered if predicate == "uno" else ~unordered
    return found | unordered if predicate[0] == "u" else found & ~unordered
