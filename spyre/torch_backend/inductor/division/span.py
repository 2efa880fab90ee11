"""Spans: how much memory from first to last byte a core's slice of a tensor lies in.

A core reaches 256 MiB of device memory per tensor (hardware reference §2). `reduce_spans` divides
dims until every slice fits; `check_spans` raises where one does not (§4.1, step 3). Bounds of
device coordinates are computed for many ways to divide at once: arrays, one entry per way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import lcm, prod

import numpy as np
import numpy.typing as npt
import sympy

from spyre.errors import UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles.op_spec import TensorArg
from spyre.torch_backend.inductor.division.iteration import (
    MODULO_NAMES,
    Iteration,
    Splits,
    splits_within,
    symbols_of,
)

MAX_SPAN_BYTES = 256 << 20
"""What a core reaches of one tensor."""
_MIB = 1 << 20

logger = logging.getLogger(__name__)


def spans_bytes(iteration: Iteration, tensor: TensorArg, splits: Splits) -> npt.NDArray[np.int64]:
    """Span of ``tensor`` per core for every row of ``splits`` (a column per dim), in bytes.

    The outermost device dim a core moves along at all decides: its extent times everything below.
    A coordinate from an index tensor reaches all of its dim.
    """
    sizes = tuple(tensor.within) or tuple(tensor.device_size)
    found = np.full(len(splits), STICK_BYTES, np.int64)
    for place in reversed(range(len(sizes) - 1)):
        extent = _steps_along(iteration, tensor, place, splits)
        below = prod(int(size) for size in sizes[place + 1 : -1]) * STICK_BYTES
        found = np.where(extent > 1, extent * below, found)
    return found


def _steps_along(
    iteration: Iteration, tensor: TensorArg, place: int, splits: Splits
) -> npt.NDArray[np.int64]:
    """Steps a core takes along device dim ``place``, per row of ``splits``."""
    expr = sympy.sympify(tensor.device_coordinates[place])
    if not expr.free_symbols <= set(iteration.symbols):
        return np.full(len(splits), int(tensor.device_size[place]), np.int64)
    last = {
        dim.symbol: dim.elements_per_core(splits[:, k]) - 1
        for k, dim in enumerate(iteration.dims)
        if dim.symbol in expr.free_symbols
    }
    return np.broadcast_to(coordinate_extent(expr, last), (len(splits),))


def reduce_spans(
    iteration: Iteration,
    cores: int,
    committed: Mapping[sympy.Symbol, int],
    limit_bytes: int = MAX_SPAN_BYTES,
) -> dict[sympy.Symbol, int]:
    """Pass 1: the splits needed so that spans fit, on top of ``committed``; only those over 1.

    Device dims are looked at from the outermost in, the symbols in each are divided together: by
    what leaves the largest span that fits, else by what leaves the smallest. UnsupportedError
    SPY981 if several reduced dims would be divided.
    """
    found = {symbol: committed.get(symbol, 1) for symbol in iteration.symbols}
    for tensor in device_tensors(iteration):
        for place in range(len(tensor.device_size) - 1):
            if _span(iteration, tensor, found) <= limit_bytes:
                break
            found |= _best_splits(iteration, tensor, place, found, cores, limit_bytes)
            if int(_steps_along(iteration, tensor, place, _row(iteration, found))[0]) > 1:
                break
    check_one_reduction(iteration, found, "to fit the memory a core reaches")
    return {symbol: count for symbol, count in found.items() if count > 1}


def _best_splits(
    iteration: Iteration,
    tensor: TensorArg,
    place: int,
    found: Mapping[sympy.Symbol, int],
    cores: int,
    limit_bytes: int,
) -> dict[sympy.Symbol, int]:
    """New splits of the symbols in one device coordinate; the first of equally good ones."""
    inside = symbols_of([tensor.device_coordinates[place]])
    options = [
        [n for n in dim.splits(cores) if n >= found[dim.symbol]]
        if dim.symbol in inside and not dim.kept_whole
        else [found[dim.symbol]]
        for dim in iteration.dims
    ]
    rows = splits_within(options, cores)
    if not len(rows):
        return {}
    spans = spans_bytes(iteration, tensor, rows)
    fits = spans <= limit_bytes
    best = int(np.argmax(np.where(fits, spans, -1)) if fits.any() else np.argmin(spans))
    return dict(zip(iteration.symbols, map(int, rows[best]), strict=True))


def device_tensors(iteration: Iteration) -> list[TensorArg]:
    """Tensors in device memory: the limit does not concern the scratchpads."""
    return [tensor for tensor in iteration.tensors if "lx" not in tensor.allocation]


def check_one_reduction(
    iteration: Iteration, splits: Mapping[sympy.Symbol, int], purpose: str
) -> None:
    """UnsupportedError SPY981 if more than one reduced dim is divided."""
    divided = [s for s in iteration.symbols if s in iteration.reduced and splits.get(s, 1) > 1]
    if len(divided) > 1:
        raise UnsupportedError(
            "SPY981",
            f"{iteration.name} would have several reduced dims divided {purpose}",
            expected="at most one",
            found=splits_text({symbol: splits[symbol] for symbol in divided}),
            hint="tile the operation, or make its tensors smaller",
        )


def check_spans(
    iteration: Iteration, splits: Mapping[sympy.Symbol, int], *, raises: bool = True
) -> list[str]:
    """What does not fit under the final ``splits``: UnsupportedError SPY980 (planner August), or
    a critical log record and a line per tensor (planner June) where ``raises`` is False.
    """
    lines: list[str] = []
    for number, tensor in enumerate(iteration.tensors):
        span = _span(iteration, tensor, splits) if "lx" not in tensor.allocation else 0
        if span <= MAX_SPAN_BYTES:
            continue
        error = _overflow(iteration, number, span, splits)
        if raises:
            raise error
        logger.critical("%s", error)
        lines.append(f"argument {number} spans {_mib(span)} per core, more than a core reaches")
    return lines


def _overflow(
    iteration: Iteration, number: int, span: int, splits: Mapping[sympy.Symbol, int]
) -> UnsupportedError:
    return UnsupportedError(
        "SPY980",
        f"argument {number} of {iteration.name} lies too far apart for one core",
        expected=f"at most {_mib(MAX_SPAN_BYTES)} from first to last byte of a core's slice",
        found=f"{_mib(span)}, divided as {splits_text(splits)}",
        hint="tile the operation, or divide the dim of its outermost device coordinate",
    )


def _span(iteration: Iteration, tensor: TensorArg, splits: Mapping[sympy.Symbol, int]) -> int:
    return int(spans_bytes(iteration, tensor, _row(iteration, splits))[0])


def _row(iteration: Iteration, splits: Mapping[sympy.Symbol, int]) -> Splits:
    return np.array([[splits.get(symbol, 1) for symbol in iteration.symbols]], np.int64)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.6g} MiB"


def splits_text(splits: Mapping[sympy.Symbol, int] | Iterable[tuple[sympy.Symbol, int]]) -> str:
    """``c0:4, c1:8``: splits over 1, as every message and line writes them."""
    text = ", ".join(f"{symbol}:{count}" for symbol, count in dict(splits).items() if count > 1)
    return text or "one core"


Integers = npt.NDArray[np.int64]
Bounds = tuple[Integers, Integers]
"""The least and the largest value, per way to divide."""


def coordinate_extent(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Integers:
    """Largest value of ``expr`` minus the least, plus 1.

    Each symbol runs from 0 to its entry of ``last``. Exact where no two terms hold the same
    symbol, else an upper bound. UnsupportedError SPY983 for what is neither a sum, a product, a
    floored quotient nor a remainder.
    """
    low, high = _bounds(sympy.sympify(expr), last)
    return high - low + 1


def _bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    if expr.is_Integer:
        value = np.asarray(int(expr), np.int64)
        return value, value
    if expr.is_Symbol:
        high = last[expr]
        return np.zeros_like(high), high
    rule = _RULES.get(type(expr).__name__)
    if rule is None:
        raise _not_understood(expr)
    return rule(expr, last)


def _sum_bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    low = high = np.asarray(0, np.int64)
    for term in expr.args:
        term_low, term_high = _bounds(term, last)
        low, high = low + term_low, high + term_high
    return low, high


def _product_bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    low = high = np.asarray(1, np.int64)
    for factor in expr.args:
        a, b = _bounds(factor, last)
        corners = (low * a, low * b, high * a, high * b)
        low = np.minimum.reduce(np.broadcast_arrays(*corners))
        high = np.maximum.reduce(np.broadcast_arrays(*corners))
    return low, high


def _floor_bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    numerator, denominator = _fraction(expr.args[0])
    return _quotient(_bounds(numerator, last), denominator)


def _floor_division(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    return _quotient(_bounds(expr.args[0], last), _positive(expr.args[1], expr))


def _modulo_bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    return _remainder(_bounds(expr.args[0], last), _positive(expr.args[1], expr))


def _modular_indexing(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    """(x // step) mod size, as Inductor writes it."""
    quotient = _quotient(_bounds(expr.args[0], last), _positive(expr.args[1], expr))
    return _remainder(quotient, _positive(expr.args[2], expr))


_RULES: dict[str, Callable[[sympy.Expr, Mapping[sympy.Symbol, Integers]], Bounds]] = {
    "Add": _sum_bounds,
    "Mul": _product_bounds,
    "floor": _floor_bounds,
    "FloorDiv": _floor_division,
    "CleanDiv": _floor_division,
    "ModularIndexing": _modular_indexing,
    **dict.fromkeys(MODULO_NAMES, _modulo_bounds),
}


def _quotient(bounds: Bounds, divisor: int) -> Bounds:
    return bounds[0] // divisor, bounds[1] // divisor


def _remainder(bounds: Bounds, size: int) -> Bounds:
    low, high = bounds
    within = low // size == high // size
    return np.where(within, low % size, 0), np.where(within, high % size, size - 1)


@lru_cache(maxsize=4096)
def _fraction(expr: sympy.Expr) -> tuple[sympy.Expr, int]:
    """A sum with rational factors as one of integer factors, and what to divide it by."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(expr)]
    common = lcm(*(int(factor.q) for factor, _ in terms))
    return sympy.Add(*(factor * common * rest for factor, rest in terms)), common


def _positive(value: sympy.Expr, whole: sympy.Expr) -> int:
    if not (value.is_Integer and value > 0):
        raise _not_understood(whole)
    return int(value)


def _not_understood(expr: sympy.Expr) -> UnsupportedError:
    return UnsupportedError(
        "SPY983",
        "a coordinate cannot be divided",
        expected="sums, products, floored quotients and remainders of iteration symbols",
        found=str(expr),
    )
