"""Affine expressions of both program forms while their names are unresolved, and bracket nesting.

The readers of bundle.mlir and of KTIR make `DraftExpr`s of their tokens; `resolve` gives the
expression over the dims and symbols that a map or a set declares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from spyre.errors import BundleError
from spyre.mlir.program import (
    AffineBinary,
    AffineConstant,
    AffineDim,
    AffineExpr,
    AffineSymbol,
    Operator,
)
from spyre.mlir.text.syntax import Rejection


class Placed(Protocol):
    """A token: text with the offset of its first character."""

    @property
    def start_pos(self) -> int | None:
        """Offset in the text."""


MAX_DEPTH = 100


class DraftExpr(msgspec.Struct, frozen=True):
    """An expression with unresolved names: ``content`` is a name, an integer or an operation."""

    position: int
    content: str | int | tuple[Operator, DraftExpr, DraftExpr]
    depth: int = 0


def draft_binary(operator: Operator, position: int, left: DraftExpr, right: DraftExpr) -> DraftExpr:
    """``left operator right``; refuses trees deeper than MAX_DEPTH (SPY116)."""
    depth = max(left.depth, right.depth) + 1
    if depth > MAX_DEPTH:
        raise Rejection(
            "SPY116", "an affine expression has too many operators", position,
            expected=f"at most {MAX_DEPTH} nested operators",
        )  # fmt: skip
    return DraftExpr(position, (operator, left, right), depth)


def draft_negation(operand: DraftExpr) -> DraftExpr:
    """``-operand``, as MLIR reads it: a negative constant, or a product with -1."""
    if isinstance(operand.content, int):
        return DraftExpr(operand.position, -operand.content)
    return draft_binary(Operator.MUL, operand.position, operand, DraftExpr(operand.position, -1))


def declared(dims: Sequence[Placed], symbols: Sequence[Placed]) -> dict[str, AffineExpr]:
    """Dims and symbols of a map by name; refuses SPY123."""
    names: dict[str, AffineExpr] = {}
    for kind, identifiers in ((AffineDim, dims), (AffineSymbol, symbols)):
        for index, name in enumerate(identifiers):
            if str(name) in names:
                raise Rejection(
                    "SPY123", f"'{name}' is declared twice in this affine map", name.start_pos or 0
                )
            names[str(name)] = kind(index)
    return names


def resolve(draft: DraftExpr, names: Mapping[str, AffineExpr]) -> AffineExpr:
    """The expression of a draft; refuses SPY122 (names), SPY124, SPY125."""
    if isinstance(draft.content, int):
        return AffineConstant(draft.content)
    if isinstance(draft.content, str):
        if draft.content not in names:
            known = f"one of {', '.join(names)}" if names else "a constant (nothing is declared)"
            message = f"'{draft.content}' is not declared in this affine map"
            raise Rejection("SPY122", message, draft.position, expected=known)
        return names[draft.content]
    operator, left, right = draft.content
    resolved = resolve(left, names), resolve(right, names)
    try:
        return AffineBinary(operator, *resolved)
    except BundleError as error:
        problem = error.finding
        raise Rejection(
            problem.code, problem.message, draft.position, expected=problem.expected,
            found=problem.found,
        ) from None  # fmt: skip


MAX_NESTING = 100
_BRACKETS = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\[^\n])*"|[(\[{]|[)\]}]')


def check_nesting(text: str) -> None:
    """Refuse brackets nested deeper than MAX_NESTING: later stages recurse once per level."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "([{":
            depth += 1
        elif bracket in ")]}":
            depth -= 1
        if depth > MAX_NESTING:
            raise Rejection(
                "SPY116", "brackets are nested too deep", match.start(),
                expected=f"at most {MAX_NESTING} levels",
            )  # fmt: skip
