"""Hints, reasons, and the order of core numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.errors import LaunchError, UnsupportedError
from spyre.torch_backend.inductor.division import core_slices, divide_op, with_division
from tests.torch_backend.inductor.division.specs import (
    C,
    matmul,
    order_of,
    pointwise,
    reduction,
    splits_of,
)

M, N, K = C[:3]


def test_hints_are_taken_exactly():
    division = divide_op(matmul(512, 4096, 4096), hints={M: 4})
    assert splits_of(division) == (4, 1, 1)
    assert division.why == "hints: c0:4"


def test_hints_may_divide_one_reduced_dim():
    assert splits_of(divide_op(matmul(512, 4096, 4096), hints={K: 2, N: 16})) == (1, 16, 2)
    with pytest.raises(UnsupportedError, match=r"SPY981.*by a work division hint"):
        divide_op(reduction((4, 6, 128), [0, 1]), hints={C[1]: 2, C[2]: 3})


@pytest.mark.parametrize(
    ("hints", "expected", "found"),
    [
        ({M: 5}, "a divisor of 512: 1, 2, 4", "5"),
        ({N: 3}, "a divisor of 64 (4096 elements in units of 64): 1, 2, 4", "3"),
        ({M: 0}, "an integer from 1 on", "0"),
        ({M: -2}, "an integer from 1 on", "-2"),
        ({M: 2.0}, "an integer from 1 on", "2.0"),
        ({M: True}, "an integer from 1 on", "True"),
        ({M: 32, N: 2}, "at most 32 cores", "64 cores: c0:32, c1:2"),
        ({"z": 2}, "a dim of batchmatmul: c0, c1, c2", "z"),
    ],
)
def test_hints_that_cannot_be(hints, expected, found):
    with pytest.raises(LaunchError, match="SPY982]: a work division hint cannot divide") as caught:
        divide_op(matmul(512, 4096, 4096), hints=hints)
    assert caught.value.finding.expected.startswith(expected)
    assert caught.value.finding.found == found


def test_the_dim_of_a_hint_is_named():
    with pytest.raises(LaunchError, match="cannot divide c1 so"):
        divide_op(matmul(512, 4096, 4096), hints={M: 2, N: 7})


def test_dims_that_stay_whole_take_no_hint():
    with pytest.raises(LaunchError, match="SPY982") as caught:
        divide_op(reduction((4, 1000), [1]), hints={C[1]: 2})
    assert caught.value.finding.expected == "1, because its padding is masked by coordinates"


def test_a_pass_says_what_it_did():
    lines = divide_op(pointwise(7, 4096)).why.splitlines()
    assert lines == [
        "span_reduction: nothing to do, a core reaches every tensor",
        "cost_model_matmul_division: not applied, add is no matmul",
        "work_distribution: c1:32 of c0=7, c1=64",
    ]
    assert (
        divide_op(matmul(512, 4096, 4096))
        .why.splitlines()[1]
        .startswith("cost_model_matmul_division: c0:4, c1:8 in 335.6 us (±9%), of 36")
    )


@pytest.mark.parametrize("cores", [0, 33, -1])
def test_cores(cores):
    with pytest.raises(LaunchError, match="SPY982"):
        divide_op(pointwise(4, 64), cores)


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 32])
def test_fewer_cores(cores):
    assert divide_op(matmul(512, 4096, 4096), cores).cores == cores


def divided(spec, hints, **more):
    return order_of(replace(with_division(spec, divide_op(spec, hints=hints)), **more))


def test_k_comes_first_only_where_it_is_divided():
    spec = matmul(512, 4096, 4096)
    assert divided(spec, {K: 2, M: 16}) == (K, M, N)
    assert divided(spec, {K: 2, M: 16}, k_fast=False) == (M, N, K)
    assert divided(spec, {M: 16}) == (M, N, K)
    reduced = reduction((4, 6, 128), [1])
    assert divided(reduced, {C[2]: 2}) == C[:3]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda n: math.prod(n) <= 32))
def test_core_slices(counts):
    order = C[: len(counts)]
    slices = core_slices(order, dict(zip(order, counts, strict=True)))
    table = np.stack([slices[symbol] for symbol in order], axis=1)
    assert len({tuple(row) for row in table.tolist()}) == math.prod(counts) == len(table)
    for core, row in enumerate(table.tolist()):
        before = 1
        for index, count in zip(row, counts, strict=True):
            assert index == core // before % count
            before *= count
