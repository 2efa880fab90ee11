"""Index values after lowering: canonical integer expressions without SSA names.

An :class:`IndexValue` is a constant plus a linear combination of atoms (parameters, allocations,
loop variables, and :class:`Derived` for non-linear terms). Equal expressions are equal values,
and ``%a = addi %base, const`` costs one small object. :mod:`.schedule` evaluates many of them for
all iterations at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from spyre.errors import BundleError, Location, SpyreError
from spyre.mlir.program.affine import INTEGERS, AffineExpr, ExprArithmetic, Operator, fold, positive

if TYPE_CHECKING:
    import numpy.typing as npt

E = TypeVar("E", bound=SpyreError)


def relocate(error: SpyreError, kind: type[E], location: Location | None) -> E:
    """``error`` as a ``kind`` at ``location``."""
    finding = error.finding
    return kind(
        finding.code,
        finding.message,
        location,
        expected=finding.expected,
        found=finding.found,
        hint=finding.hint,
    )


INT64_MAX = 2**63 - 1
MAX_TERMS = 256
MAX_DEPTH = 32
MAX_SIZE = 1024


class Environment(msgspec.Struct, frozen=True):
    """Values of atoms: integers, and per enclosing loop a column of induction values.

    ``columns[depth]`` is int64 (or, for exactness beyond int64, object) of shape
    ``(n_instances,)``; ``magnitudes[depth]`` bounds its absolute values.
    """

    parameters: tuple[int, ...] = ()
    allocations: tuple[int, ...] = ()
    columns: tuple[npt.NDArray[Any], ...] = ()
    magnitudes: tuple[int, ...] = ()

    def exact(self) -> Environment:
        """The same with columns of Python integers, which cannot overflow."""
        return replace(self, columns=tuple(c.astype(object) for c in self.columns))


class InputAtom(msgspec.Struct, frozen=True):
    """An integer that is not computed: by ``source``, that of parameter ``index``, the device
    address (bytes) of allocation ``index``, or the induction variable of the enclosing loop at
    depth ``index`` (0: outermost).
    """

    source: Literal["parameter", "allocation", "loop"]
    index: int
    name: str

    @property
    def key(self) -> tuple[int, int, str]:
        """Place in the canonical order."""
        return (("parameter", "allocation", "loop").index(self.source), self.index, "")

    def read(self, environment: Environment) -> Any:
        """Its integer, or the column of a loop."""
        if self.source == "parameter":
            return environment.parameters[self.index]
        values = environment.columns if self.source == "loop" else environment.allocations
        return values[self.index]

    def magnitude(self, environment: Environment) -> int:
        """Bound of the absolute value."""
        if self.source == "loop":
            return environment.magnitudes[self.index]
        return abs(int(self.read(environment)))

    def __str__(self) -> str:
        return self.name


class Derived(msgspec.Struct, frozen=True):
    """``left operator right`` where the result is not linear: a division or a product."""

    operator: Operator
    left: IndexValue
    right: IndexValue

    @property
    def key(self) -> tuple[int, int, str]:
        """Place in the canonical order: after all others, by text."""
        return (3, 0, str(self))

    def read(self, environment: Environment) -> Any:
        """Its integer or column; BundleError SPY125 if a divisor is not positive."""
        left, right = self.left.read(environment), self.right.read(environment)
        return INTEGERS.operators[self.operator](left, right)

    def magnitude(self, environment: Environment) -> int:
        """Bound of the absolute values of the result and of everything on the way to it."""
        left, right = self.left.magnitude(environment), self.right.magnitude(environment)
        product = left * right if self.operator is Operator.MUL else 0
        return max(left, right, product)

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


Atom = InputAtom | Derived
Terms = tuple[tuple[Atom, int], ...]


class IndexValue(msgspec.Struct, frozen=True):
    """``constant + Σ coefficient · atom``; terms in canonical order, no coefficient is 0."""

    constant: int = 0
    terms: Terms = ()

    @property
    def is_constant(self) -> bool:
        """True if it needs neither launch nor loop to be known."""
        return not self.terms

    @property
    def depth(self) -> int:
        """Nesting of derived atoms."""
        inner = (max(a.left.depth, a.right.depth) + 1 for a, _ in self.terms if type(a) is Derived)
        return max(inner, default=0)

    @property
    def size(self) -> int:
        """Number of terms, those of derived atoms included."""
        inner = (a.left.size + a.right.size for a, _ in self.terms if type(a) is Derived)
        return len(self.terms) + sum(inner)

    def read(self, environment: Environment) -> Any:
        """Its integer, or the column of its values when it depends on a loop."""
        return self.constant + read_terms(self.terms, environment)

    def magnitude(self, environment: Environment) -> int:
        """Bound of the absolute values, on the way to the result as well."""
        terms = sum(abs(c) * atom.magnitude(environment) for atom, c in self.terms)
        return abs(self.constant) + terms

    def __str__(self) -> str:
        signs = {1: "", -1: "-"}
        parts = [f"{signs.get(c, f'{c}*')}{atom}" for atom, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def read_terms(terms: Terms, environment: Environment) -> Any:
    """Sum of the terms: an integer, or a column when a loop variable is among them."""
    total: Any = 0
    for atom, coefficient in terms:
        total = total + coefficient * atom.read(environment)
    return total


def of_atom(atom: Atom) -> IndexValue:
    """The value of one atom."""
    return IndexValue(0, ((atom, 1),))


def add(left: IndexValue, right: IndexValue) -> IndexValue:
    """``left + right``; BundleError SPY157 (int64), SPY158 (too many terms)."""
    constant = left.constant + right.constant
    if not right.terms:
        return _checked(constant, left.terms)
    if not left.terms:
        return _checked(constant, right.terms)
    coefficients = dict(left.terms)
    for atom, coefficient in right.terms:
        coefficients[atom] = coefficients.get(atom, 0) + coefficient
    return _from(constant, coefficients)


def scale(value: IndexValue, factor: int) -> IndexValue:
    """``value * factor``; BundleError SPY157 (int64)."""
    return _from(value.constant * factor, {atom: c * factor for atom, c in value.terms})


def subtract(left: IndexValue, right: IndexValue) -> IndexValue:
    """``left - right``."""
    return add(left, scale(right, -1))


def multiply(left: IndexValue, right: IndexValue) -> IndexValue:
    """``left * right``: linear if a side is constant, else a derived atom."""
    if right.is_constant:
        return scale(left, right.constant)
    if left.is_constant:
        return scale(right, left.constant)
    first, second = sorted((left, right), key=str)
    return _derive(Operator.MUL, first, second)


def divide(operator: Operator, left: IndexValue, right: IndexValue) -> IndexValue:
    """``left operator right`` for floordiv, ceildiv, mod; folded when both are constants."""
    if right.is_constant:
        positive(right.constant)
        if left.is_constant:
            return _checked(INTEGERS.operators[operator](left.constant, right.constant), ())
    return _derive(operator, left, right)


def _derive(operator: Operator, left: IndexValue, right: IndexValue) -> IndexValue:
    if max(left.depth, right.depth) >= MAX_DEPTH or left.size + right.size > MAX_SIZE:
        raise _too_large()
    return of_atom(Derived(operator, left, right))


def _from(constant: int, coefficients: dict[Atom, int]) -> IndexValue:
    terms = [(atom, c) for atom, c in coefficients.items() if c]
    if any(abs(c) > INT64_MAX for _, c in terms):
        raise outside_int64()
    return _checked(constant, tuple(sorted(terms, key=lambda term: term[0].key)))


def _checked(constant: int, terms: Terms) -> IndexValue:
    if not -INT64_MAX - 1 <= constant <= INT64_MAX:
        raise outside_int64()
    if len(terms) > MAX_TERMS:
        raise _too_large()
    return IndexValue(constant, terms)


def outside_int64(found: str = "") -> BundleError:
    """The error for an integer (its text in ``found``) that int64 cannot hold."""
    message = "an index value does not fit in 64 bits"
    return BundleError("SPY157", message, expected="-2^63 … 2^63 - 1", found=found[:64])


def _too_large() -> BundleError:
    expected = f"at most {MAX_TERMS} terms, {MAX_DEPTH} nested divisions or products"
    return BundleError("SPY158", "an index expression is too large", expected=expected)


SYMBOLIC: ExprArithmetic[IndexValue] = ExprArithmetic(
    constant=IndexValue,
    operators={
        Operator.ADD: add,
        Operator.SUB: subtract,
        Operator.MUL: multiply,
        **{op: partial(divide, op) for op in (Operator.FLOORDIV, Operator.CEILDIV, Operator.MOD)},
    },
)


def fold_shared(
    expr: AffineExpr,
    dims: Sequence[IndexValue],
    symbols: Sequence[IndexValue],
    seen: dict[Terms, Terms],
) -> IndexValue:
    """The value of ``expr`` with the terms object of earlier equal terms, of ``seen``: the schedule
    computes values that share it together.
    """
    value = fold(expr, dims, symbols, SYMBOLIC)
    return IndexValue(value.constant, seen.setdefault(value.terms, value.terms))
