"""From the words of an ``affine_map<…>`` to an :class:`AffineMap`.

Expressions come before anybody knows which identifier is a dim and which a symbol, so the tree
builder first makes :class:`Draft` nodes; ``build_map`` resolves them once the map is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spyre.errors import BundleError
from spyre.mlir.affine import AffineExpr, AffineMap, Binary, Constant, Dim, Operator, Symbol
from spyre.mlir.rejection import Rejection

MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Draft:
    """An expression with unresolved names: ``content`` is a name, an integer or an operation."""

    position: int
    content: str | int | tuple[Operator, Draft, Draft]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name declared in ``( )`` or ``[ ]`` of a map."""

    name: str
    position: int


def join(operator: Operator, position: int, left: Draft, right: Draft) -> Draft:
    """``left operator right``; refuses trees deeper than MAX_DEPTH (SPY116)."""
    depth = max(left.depth, right.depth) + 1
    if depth > MAX_DEPTH:
        raise Rejection(
            "SPY116",
            "an affine expression has too many operators",
            position,
            expected=f"at most {MAX_DEPTH} nested operators",
        )
    return Draft(position, (operator, left, right), depth)


def negate(position: int, draft: Draft) -> Draft:
    """``-draft``, as MLIR reads it: a negative constant, or a product with -1."""
    if isinstance(draft.content, int):
        return Draft(position, -draft.content)
    return join(Operator.MUL, position, draft, Draft(position, -1))


def build_map(
    position: int,
    dims: Sequence[Identifier],
    symbols: Sequence[Identifier],
    results: Sequence[Draft],
) -> AffineMap:
    """Resolve the names; refuses SPY121 (results), SPY122, SPY123 (names), SPY124, SPY125."""
    if len(results) != 1:
        raise Rejection(
            "SPY121",
            "an affine map must have exactly one result",
            position,
            expected="one expression after ->",
            found=f"{len(results)}",
        )
    names = _declared(dims, symbols)
    return AffineMap(len(dims), len(symbols), _resolve(results[0], names))


def _declared(dims: Sequence[Identifier], symbols: Sequence[Identifier]) -> dict[str, AffineExpr]:
    names: dict[str, AffineExpr] = {}
    for kind, identifiers in ((Dim, dims), (Symbol, symbols)):
        for index, identifier in enumerate(identifiers):
            if identifier.name in names:
                raise Rejection(
                    "SPY123",
                    f"'{identifier.name}' is declared twice in this affine map",
                    identifier.position,
                )
            names[identifier.name] = kind(index)
    return names


def _resolve(draft: Draft, names: Mapping[str, AffineExpr]) -> AffineExpr:
    if isinstance(draft.content, int):
        return Constant(draft.content)
    if isinstance(draft.content, str):
        return _lookup(draft.content, draft.position, names)
    operator, left, right = draft.content
    resolved = _resolve(left, names), _resolve(right, names)
    try:
        return Binary(operator, *resolved)
    except BundleError as error:
        problem = error.finding
        raise Rejection(
            problem.code,
            problem.message,
            draft.position,
            expected=problem.expected,
            found=problem.found,
        ) from None


def _lookup(name: str, position: int, names: Mapping[str, AffineExpr]) -> AffineExpr:
    if name not in names:
        raise Rejection(
            "SPY122",
            f"'{name}' is not declared in this affine map",
            position,
            expected=f"one of {', '.join(names)}" if names else "a constant (nothing is declared)",
        )
    return names[name]
