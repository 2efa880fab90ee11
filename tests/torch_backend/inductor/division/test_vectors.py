"""Divisions the compiler is known to choose: hardware reference §3.2 and §4.1."""

from __future__ import annotations

import pytest

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.division import (
    core_slices,
    divide_matmul,
    divide_op,
    read_iteration,
    with_division,
)
from tests.torch_backend.inductor.division.specs import (
    C,
    bmm,
    matmul,
    order_of,
    pointwise,
    splits_of,
)

M, N, K = C[:3]

VECTORS = {
    (512, 4096, 4096): ((4, 8, 1), 379.6),
    (512, 4096, 1024): ((4, 8, 1), 110.3),
    (512, 4096, 12800): ((4, 8, 1), 1142.6),
    (512, 12800, 4096): ((4, 8, 1), None),
    (4, 4096, 4096): ((4, 8, 1), 318.0),
    (4, 4096, 1024): ((4, 8, 1), 192.1),
    (4, 4096, 12800): ((4, 8, 1), 674.7),
    (2048, 2048, 2048): ((4, 8, 1), 297.6),
    (8, 1024, 1024): ((4, 8, 1), 160.9),
}


def check(spec, splits, score):
    division = divide_op(spec)
    assert splits_of(division) == splits
    if score is not None:
        assert f"score {score:.1f}," in division.why


@pytest.mark.parametrize("shape", VECTORS)
def test_matmuls(shape):
    check(matmul(*shape), *VECTORS[shape])


def test_batched_matmuls():
    check(bmm(32, 512, 128, 512), (1, 4, 8, 1), 144.7)


def test_the_model_may_not_use_fewer_cores_than_the_default():
    division = divide_op(matmul(1, 4096, 1024))
    assert splits_of(division) == (1, 16, 2)
    assert "n=c1:8, k=c2:2 with score 191.6 refused" in division.why
    assert "uses 16 cores, the default 32" in division.why


def test_spans_are_reduced_before_matmuls_are_scored():
    spec = matmul(8192, 32768, 4096)
    division = divide_op(spec)
    assert division.splits == {M: 16, N: 1, K: 2}
    order = order_of(with_division(spec, division))
    assert order == (K, M, N)
    slices = core_slices(order, division.splits)
    assert slices[K].tolist() == [core % 2 for core in range(32)]
    assert slices[M].tolist() == [core // 2 for core in range(32)]
    assert division.why.splitlines()[0].startswith("span_reduction: c2:2")


def test_the_default_division_of_a_matmul_loses_to_the_score():
    spec = matmul(512, 4096, 4096)
    assert splits_of(divide_op(spec)) == (4, 8, 1)
    iteration = read_iteration(spec)
    assert divide_matmul(iteration, 32, {M: 32})[0] == {M: 4, N: 8, K: 1}
    # what pass 3 alone would do shows for an operation the score has no say in
    alone = divide_op(pointwise(512, 4096))
    assert splits_of(alone) == (32, 1)


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ((2048, 1024), (32, 1)),
        ((64, 128), (32, 1)),
        ((7, 4096), (1, 32)),
        ((512, 1024), (32, 1)),  # a tile of the coarse-tiling document's example
    ],
)
def test_pointwise(sizes, splits):
    assert splits_of(divide_op(pointwise(*sizes))) == splits


def test_slices_beyond_the_span_limit_are_refused():
    with pytest.raises(UnsupportedError, match=r"SPY980: .* argument 0") as caught:
        divide_op(matmul(8192, 32768, 4096), hints={M: 32})
    assert caught.value.finding.found == "512 MiB, divided as c0:32"
