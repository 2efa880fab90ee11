"""Numbers of a KTIR function, evaluated for all iterations and tiles at once: rows by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError, SourceLocation

Array = npt.NDArray[Any]
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "si32": 32, "i64": 64, "index": 64}


def _unsigned(values: Array, bits: int) -> Array:
    """Two's complement read as a natural number; 64 bits stay as they are."""
    return values if bits == 64 else values & ((1 << bits) - 1)


def _towards_zero(a: Array, b: Array) -> Array:
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient)


_SIGNED: Mapping[str, Callable[[Array, Array], Array]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": _towards_zero,
    "remsi": lambda a, b: a - b * _towards_zero(a, b),
    "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b),
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << b,
    "shrsi": lambda a, b: a >> b,
    "minsi": np.minimum,
    "maxsi": np.maximum,
}
_UNSIGNED: Mapping[str, Callable[[Array, Array], Array]] = {
    "divui": lambda a, b: a // b,
    "remui": lambda a, b: a % b,
    "ceildivui": lambda a, b: -(-a // b),
    "shrui": lambda a, b: a >> b,
    "minui": np.minimum,
    "maxui": np.maximum,
}
_FLOAT: Mapping[str, Callable[..., Array]] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
    "negf": np.negative,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "absf": np.abs,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": np.vectorize(erf, otypes=[np.float64]),
    "floor": np.floor,
    "ceil": np.ceil,
    "powf": np.power,
    "fma": lambda a, b, c: a * b + c,
}
_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def integer_operation(
    name: str, a: Array, b: Array, kind: str, active: Array, place: SourceLocation | None
) -> Array:
    """``name`` of arith on integers of ``kind``, wrapped to its bits.

    LaunchError SPY125 for a division by zero on a tile that takes part.
    """
    bits = BITS[kind]
    unsigned = name in _UNSIGNED
    if unsigned:
        a, b = _unsigned(a, bits), _unsigned(b, bits)
    if "div" in name or "rem" in name:
        zero = np.broadcast_to(b == 0, active.shape) & active
        if zero.any():
            tile = int(np.argwhere(zero)[0][1])
            raise LaunchError(
                "SPY125", f"arith.{name} divides by zero", place,
                expected="a divisor other than 0", found=f"0 on tile {tile}",
            )  # fmt: skip
        b = np.where(b == 0, 1, b)
    return wrapped((_UNSIGNED if unsigned else _SIGNED)[name](a, b), kind)


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
    if kind not in BITS:
        return values
    if cast in ("uitofp", "extui", "index_castui"):
        return _unsigned(values.astype(np.int64), BITS[kind])
    return -values.astype(np.int64) if kind == "i1" and cast in ("sitofp", "extsi") else values


def is_integer_operation(name: str) -> bool:
    """True for binary operations of arith on integers."""
    return name in _SIGNED or name in _UNSIGNED


def float_operation(name: str, *operands: Array) -> Array | None:
    """``name`` of arith or math on numbers, in double precision; None if it is not known here."""
    function = _FLOAT.get(name)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        return function(*(np.asarray(x, np.float64) for x in operands))


def comparison(predicate: str, a: Array, b: Array, kind: str) -> Array:
    """``cmpi`` and ``cmpf`` on numbers."""
    if kind in BITS:
        if predicate[0] == "u":
            a, b = _unsigned(a, BITS[kind]), _unsigned(b, BITS[kind])
        return _COMPARE[predicate[-2:]](a, b)
    if predicate in ("true", "false"):
        return np.full(np.broadcast(a, b).shape, predicate == "true")
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in ("ord", "uno"):
        return unordered if predicate == "uno" else ~unordered
    found = _COMPARE[predicate[1:]](a, b)
    return found | unordered if predicate[0] == "u" else found & ~unordered
