"""Affine maps: exact MLIR semantics, equal on integers and arrays; maps that are not affine."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import BundleError
from spyre.mlir.program.affine import (
    INTEGERS,
    AffineBinary,
    AffineConstant,
    AffineDim,
    AffineExpr,
    AffineMap,
    AffineSymbol,
    Operator,
    fold,
)
from spyre.mlir.text.parser import parse_module
from spyre.mlir.text.printer import print_module
from spyre.mlir.text.syntax import Function, MapAlias, Module
from tests.examples import examples

d0, d1, s0 = AffineDim(0), AffineDim(1), AffineSymbol(0)

DIVISORS = st.one_of(st.integers(1, 9).map(AffineConstant), st.just(AffineSymbol(1)))
LEAVES = st.one_of(
    st.integers(-9, 9).map(AffineConstant), st.sampled_from([d0, d1, s0, AffineSymbol(1)])
)


def evaluate(expr: AffineExpr, dims: Sequence[Any], symbols: Sequence[Any]) -> Any:
    return fold(expr, dims, symbols, INTEGERS)


def grow(inner: st.SearchStrategy[AffineExpr]) -> st.SearchStrategy[AffineExpr]:
    sums = st.builds(AffineBinary, st.sampled_from([Operator.ADD, Operator.SUB]), inner, inner)
    products = st.builds(
        AffineBinary, st.just(Operator.MUL), inner, LEAVES.filter(lambda e: not e.has_dim)
    )
    division = st.sampled_from([Operator.FLOORDIV, Operator.CEILDIV, Operator.MOD])
    return sums | products | st.builds(AffineBinary, division, inner, DIVISORS)


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=8)
SMALL = st.integers(-1000, 1000)


def slow_evaluate(expr: AffineExpr, dims: list[int], symbols: list[int]) -> int:
    """The definition, by rational numbers."""
    match expr:
        case AffineConstant(value):
            return value
        case AffineDim(index):
            return dims[index]
        case AffineSymbol(index):
            return symbols[index]
        case AffineBinary(operator, left, right):
            a = slow_evaluate(left, dims, symbols)
            b = slow_evaluate(right, dims, symbols)
            return {
                "+": lambda: a + b,
                "-": lambda: a - b,
                "*": lambda: a * b,
                "floordiv": lambda: floor(Fraction(a, b)),
                "ceildiv": lambda: ceil(Fraction(a, b)),
                "mod": lambda: a - b * floor(Fraction(a, b)),
            }[operator.value]()
    raise AssertionError(expr)


@given(EXPRESSIONS, SMALL, SMALL, SMALL, st.integers(1, 50))
@examples(150)
def test_integers_follow_the_definition(
    expr: AffineExpr, a: int, b: int, s: int, positive: int
) -> None:
    expected = slow_evaluate(expr, [a, b], [s, positive])
    assert evaluate(expr, [a, b], [s, positive]) == expected


@given(EXPRESSIONS, st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=6), SMALL)
@examples(150)
def test_arrays_equal_integers(expr: AffineExpr, rows: list[tuple[int, int]], s: int) -> None:
    map_ = AffineMap(2, 2, (expr,))
    columns = np.array(rows, np.int64).T
    found = np.broadcast_to(evaluate(map_.result, list(columns), [s, 7]), len(rows))
    assert found.tolist() == [evaluate(map_.result, [a, b], [s, 7]) for a, b in rows]


@given(EXPRESSIONS)
@examples(150)
def test_printed_maps_parse_to_the_same_expression(expr: AffineExpr) -> None:
    alias = MapAlias("map", AffineMap(2, 2, (expr,)))
    module = Module(Function("f", (), ()), (alias,))
    assert parse_module(print_module(module)).aliases == (alias,)


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (d0 // 4, -2),
        (d0.ceildiv(4), -1),
        (d0 % 4, 1),
        (-d0, 7),
        (-AffineConstant(3), -3),
        (s0 + d0 * 65536 + d1 * 2097152, 17179869184 - 7 * 65536 + 3 * 2097152),
        (s0 * d1, 3 * 17179869184),
    ],
)
def test_values(expr: AffineExpr, value: int) -> None:
    assert evaluate(expr, [-7, 3], [17179869184]) == value


def test_integers_are_not_limited_to_int64() -> None:
    assert evaluate(d0 * (2**62), [8], []) == 2**65


def test_prints_as_mlir() -> None:
    expr = s0 + (d0 - d1) * 4 - (d1 - 3) + d0 // 2 % 8
    text = "s0 + (d0 - d1)*4 - (d1 - 3) + d0 floordiv 2 mod 8"
    assert str(AffineMap(2, 1, (expr,))) == f"affine_map<(d0, d1)[s0] -> ({text})>"
    assert str(AffineMap(0, 0, (AffineConstant(5),))) == "affine_map<() -> (5)>"


@pytest.mark.parametrize("operator", [Operator.MUL, Operator.FLOORDIV, Operator.MOD])
def test_two_dims_are_not_affine(operator: Operator) -> None:
    with pytest.raises(BundleError) as caught:
        AffineBinary(operator, d0 + 1, d1)
    assert caught.value.code == "SPY124"


@pytest.mark.parametrize("divisor", [0, -4])
def test_constant_divisors_are_positive(divisor: int) -> None:
    with pytest.raises(BundleError) as caught:
        _ = d0 // divisor
    assert caught.value.code == "SPY125"


@pytest.mark.parametrize("divisor", [0, -1, np.array([3, 0], np.int64)])
def test_symbol_divisors_are_positive(divisor: int) -> None:
    with pytest.raises(BundleError) as caught:
        evaluate(d0 % s0, [5], [divisor])
    assert caught.value.code == "SPY125"
