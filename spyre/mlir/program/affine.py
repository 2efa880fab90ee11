"""Affine maps: integer expressions over dims and symbols, as MLIR defines them.

The parser builds them from ``affine_map<…>``, the torch backend with the arithmetic operators of
:class:`AffineExpr`. ``fold`` evaluates them: with `INTEGERS` over Python integers or int64 arrays,
where ``floordiv`` rounds down, ``ceildiv`` up, and ``mod`` is never negative; lowering uses it
with symbolic values. Semantics: bundle format reference §2.2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from spyre.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = int | npt.NDArray[np.int64]
T = TypeVar("T")


class Operator(StrEnum):
    """The operators of an affine expression, spelled as MLIR spells them."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    FLOORDIV = "floordiv"
    CEILDIV = "ceildiv"
    MOD = "mod"

    @property
    def is_sum(self) -> bool:
        """True for + and -, which bind weaker than the others."""
        return self in (Operator.ADD, Operator.SUB)


class AffineExpr(msgspec.Struct, frozen=True):
    """Base of the four kinds of expression; + - * // and % build bigger ones."""

    def __add__(self, other: AffineExpr | int) -> AffineExpr:
        return AffineBinary(Operator.ADD, self, _expression(other))

    def __radd__(self, other: int) -> AffineExpr:
        return AffineBinary(Operator.ADD, AffineConstant(other), self)

    def __sub__(self, other: AffineExpr | int) -> AffineExpr:
        return AffineBinary(Operator.SUB, self, _expression(other))

    def __mul__(self, other: AffineExpr | int) -> AffineExpr:
        return AffineBinary(Operator.MUL, self, _expression(other))

    def __rmul__(self, other: int) -> AffineExpr:
        return AffineBinary(Operator.MUL, AffineConstant(other), self)

    def __floordiv__(self, other: AffineExpr | int) -> AffineExpr:
        return AffineBinary(Operator.FLOORDIV, self, _expression(other))

    def __mod__(self, other: AffineExpr | int) -> AffineExpr:
        return AffineBinary(Operator.MOD, self, _expression(other))

    def __neg__(self) -> AffineExpr:
        """``-x`` is ``x * -1``, and a constant is negated in place, as in MLIR."""
        return self * -1

    def ceildiv(self, other: AffineExpr | int) -> AffineExpr:
        """``self ceildiv other``: the quotient rounded up."""
        return AffineBinary(Operator.CEILDIV, self, _expression(other))

    @property
    def has_dim(self) -> bool:
        """True if a dim occurs, so that the value may change inside a loop."""
        return False


class AffineConstant(AffineExpr, frozen=True):
    """An integer."""

    value: int

    def __neg__(self) -> AffineExpr:
        return AffineConstant(-self.value)

    def __str__(self) -> str:
        return str(self.value)


class AffineDim(AffineExpr, frozen=True):
    """Dimension operand number ``index``, printed ``d0``, ``d1``, …"""

    index: int

    @property
    def has_dim(self) -> bool:
        """A dim is one."""
        return True

    def __str__(self) -> str:
        return f"d{self.index}"


class AffineSymbol(AffineExpr, frozen=True):
    """Symbol operand number ``index``, printed ``s0``, ``s1``, …"""

    index: int

    def __str__(self) -> str:
        return f"s{self.index}"


class AffineBinary(AffineExpr, frozen=True):
    """``left operator right``. BundleError SPY124 if not affine, SPY125 for a division by ≤ 0."""

    operator: Operator
    left: AffineExpr
    right: AffineExpr

    def __post_init__(self) -> None:
        if self.operator is Operator.MUL and self.left.has_dim and self.right.has_dim:
            message = "a product in an affine map needs a side without dims"
            expected = "a constant or symbol on one side of *"
            raise BundleError("SPY124", message, expected=expected, found=str(self))
        if self.operator in (Operator.FLOORDIV, Operator.CEILDIV, Operator.MOD):
            _check_divisor(self)

    @property
    def has_dim(self) -> bool:
        """True if either side has a dim."""
        return self.left.has_dim or self.right.has_dim

    def __str__(self) -> str:
        left, right = str(self.left), str(self.right)
        if not self.operator.is_sum and _is_sum(self.left):
            left = f"({left})"
        if _is_sum(self.right) or (
            not self.operator.is_sum and isinstance(self.right, AffineBinary)
        ):
            right = f"({right})"
        blank = "" if self.operator is Operator.MUL else " "  # as torch-spyre writes it
        return f"{left}{blank}{self.operator}{blank}{right}"


class AffineMap(msgspec.Struct, frozen=True):
    """``affine_map<(d0, …)[s0, …] -> (results)>``; operands by number. Bundles have one result."""

    n_dims: int
    n_symbols: int
    results: tuple[AffineExpr, ...]

    @property
    def result(self) -> AffineExpr:
        """The only result."""
        (result,) = self.results
        return result

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The dim that each result is; None unless the results are distinct dims."""
        dims = tuple(r.index if isinstance(r, AffineDim) else -1 for r in self.results)
        distinct = min(dims, default=0) >= 0 and len({*dims}) == len(dims)
        return dims if distinct else None

    def __str__(self) -> str:
        results = ", ".join(map(str, self.results))
        return f"affine_map<{_operands(self.n_dims, self.n_symbols)} -> ({results})>"


class Constraint(msgspec.Struct, frozen=True):
    """``value >= 0``, or ``value == 0``."""

    value: AffineExpr
    is_equality: bool = False

    def __str__(self) -> str:
        return f"{self.value} {'==' if self.is_equality else '>='} 0"


class AffineSet(msgspec.Struct, frozen=True):
    """``affine_set<(d0, …)[s0, …] : (constraints)>``: the integer points that satisfy all."""

    n_dims: int
    n_symbols: int
    constraints: tuple[Constraint, ...]

    def __str__(self) -> str:
        constraints = ", ".join(map(str, self.constraints))
        return f"affine_set<{_operands(self.n_dims, self.n_symbols)} : ({constraints})>"

    def box(self, symbols: Sequence[Integers]) -> tuple[tuple[Integers, Integers], ...] | None:
        """Per dim the lowest and highest coordinate, with the values of the symbols.

        None unless every constraint bounds one dim, by a slope of ±1, and all dims are bounded.
        """
        import numpy as np

        lows: list[Integers | None] = [None] * self.n_dims
        highs: list[Integers | None] = [None] * self.n_dims
        for constraint in self.constraints:
            slopes = [slope_along(constraint.value, k) for k in range(self.n_dims)]
            moving = [k for k, slope in enumerate(slopes) if slope != 0]
            if len(moving) != 1 or slopes[moving[0]] not in (1, -1):
                return None
            k, slope = moving[0], slopes[moving[0]]
            offset = fold(constraint.value, [0] * self.n_dims, symbols, INTEGERS)
            bound = -offset if slope == 1 else offset
            low, high = lows[k], highs[k]
            if slope == 1 or constraint.is_equality:
                lows[k] = bound if low is None else np.maximum(low, bound)
            if slope == -1 or constraint.is_equality:
                highs[k] = bound if high is None else np.minimum(high, bound)
        pairs = [
            (a, b) for a, b in zip(lows, highs, strict=True) if a is not None and b is not None
        ]
        return tuple(pairs) if len(pairs) == self.n_dims else None

    def contains(self, points: Sequence[Integers], symbols: Sequence[Integers]) -> Any:
        """Return a bool array: the points, one array per dim, that are in the set."""
        inside: Any = True
        for constraint in self.constraints:
            value = fold(constraint.value, points, symbols, INTEGERS)
            inside = inside & ((value == 0) if constraint.is_equality else (value >= 0))
        return inside


def _operands(n_dims: int, n_symbols: int) -> str:
    dims = ", ".join(f"d{i}" for i in range(n_dims))
    symbols = ", ".join(f"s{i}" for i in range(n_symbols))
    return f"({dims})[{symbols}]" if symbols else f"({dims})"


def slope_along(expr: AffineExpr, dim: int) -> int | None:
    """The constant factor of ``dim`` in ``expr``; None if there is none (divisions, symbols)."""
    if isinstance(expr, AffineDim):
        return int(expr.index == dim)
    if not isinstance(expr, AffineBinary):
        return 0
    left, right = slope_along(expr.left, dim), slope_along(expr.right, dim)
    if left is None or right is None:
        return None
    if expr.operator.is_sum:
        return left + right if expr.operator is Operator.ADD else left - right
    if left == right == 0:
        return 0
    factor, slope = (expr.left, right) if right else (expr.right, left)
    if expr.operator is Operator.MUL and isinstance(factor, AffineConstant):
        return slope * factor.value
    return None


class ExprArithmetic(msgspec.Struct, Generic[T], frozen=True):
    """Arithmetic of values of type T: constants from int, and the six operators."""

    constant: Callable[[int], T]
    operators: dict[Operator, Callable[[T, T], T]]


def fold(expr: AffineExpr, dims: Sequence[T], symbols: Sequence[T], with_: ExprArithmetic[T]) -> T:
    """Evaluate ``expr`` in the arithmetic ``with_``."""
    if isinstance(expr, AffineBinary):
        left = fold(expr.left, dims, symbols, with_)
        return with_.operators[expr.operator](left, fold(expr.right, dims, symbols, with_))
    if isinstance(expr, AffineDim):
        return dims[expr.index]
    if isinstance(expr, AffineSymbol):
        return symbols[expr.index]
    assert isinstance(expr, AffineConstant)
    return with_.constant(expr.value)


def positive(divisor: Any) -> Any:
    """``divisor`` itself (integer or array); BundleError SPY125 unless all of it is > 0."""
    smallest = divisor.min(initial=1) if getattr(divisor, "ndim", 0) else divisor
    if smallest <= 0:
        raise _division_error(str(smallest))
    return divisor


def _division_error(found: str) -> BundleError:
    return BundleError(
        "SPY125", "division by a non-positive value", expected="a divisor > 0", found=found
    )


def _check_divisor(expr: AffineBinary) -> None:
    if expr.right.has_dim:
        message = f"the right side of {expr.operator} may not depend on dims"
        expected = "a constant or symbol as divisor"
        raise BundleError("SPY124", message, expected=expected, found=str(expr))
    if isinstance(expr.right, AffineConstant) and expr.right.value <= 0:
        raise _division_error(str(expr))


def _is_sum(expr: AffineExpr) -> bool:
    return isinstance(expr, AffineBinary) and expr.operator.is_sum


def _expression(value: AffineExpr | int) -> AffineExpr:
    return value if isinstance(value, AffineExpr) else AffineConstant(operator.index(value))


INTEGERS: ExprArithmetic[Any] = ExprArithmetic(
    constant=int,
    operators={
        Operator.ADD: operator.add,
        Operator.SUB: operator.sub,
        Operator.MUL: operator.mul,
        Operator.FLOORDIV: lambda left, right: left // positive(right),
        Operator.CEILDIV: lambda left, right: -(-left // positive(right)),
        Operator.MOD: lambda left, right: left % positive(right),
    },
)
EXPRESSIONS: ExprArithmetic[AffineExpr] = ExprArithmetic(
    AffineConstant, {op: partial(AffineBinary, op) for op in Operator}
)
"""With which `fold` puts other expressions in the place of dims and symbols."""
