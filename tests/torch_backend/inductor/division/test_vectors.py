"""Divisions of known shapes: the fastest measured ones, and those of hardware reference §4.1."""

from __future__ import annotations

import pytest

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.division import (
    core_slices,
    divide_op,
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

MEASURED = {
    (512, 4096, 4096): (4, 8, 1),
    (512, 4096, 1024): (4, 8, 1),
    (512, 4096, 12800): (4, 8, 1),
    (512, 12800, 4096): (4, 8, 1),
    (64, 4096, 4096): (4, 8, 1),
    (64, 4096, 12800): (4, 8, 1),
    (1, 4096, 4096): (1, 32, 1),
    (1, 4096, 1024): (1, 16, 2),
}
"""Rows, K and columns of matmuls, and the fastest division that was measured."""


@pytest.mark.parametrize("shape", MEASURED)
def test_matmuls(shape):
    assert splits_of(divide_op(matmul(*shape))) == MEASURED[shape]


def test_a_larger_part_of_lx_for_the_backend_changes_the_division():
    found = {
        part: splits_of(divide_op(bmm(32, 64, 576, 128), lx_fraction=part)) for part in (0.2, 0.8)
    }
    assert found[0.2] != found[0.8]
    assert found[0.8] == (1, 4, 2, 3)  # the fastest of those measured at 0.8


def test_candidates_are_listed_with_their_times():
    lines = divide_op(matmul(512, 4096, 1024)).why.splitlines()
    assert lines[1].startswith("cost_model_matmul_division: c0:4, c1:8 in ")
    assert lines[1].endswith(" us (±9%), of 35")
    assert lines[2].startswith("    c0:8, c1:4 in ")
    assert lines[2].endswith(" us, too close to call")
    assert lines[3].endswith(" us")


def test_the_model_does_not_use_few_cores_where_it_knows_no_difference():
    assert divide_op(matmul(64, 64, 64)).cores == 16


def test_every_candidate_lets_a_core_reach_its_slices():
    spec = matmul(8192, 32768, 4096)
    division = divide_op(spec)
    assert division.splits == {M: 1, N: 16, K: 2}
    order = order_of(with_division(spec, division))
    assert order == (K, M, N)
    slices = core_slices(order, division.splits)
    assert slices[K].tolist() == [core % 2 for core in range(32)]
    assert slices[N].tolist() == [core // 2 for core in range(32)]
    assert division.why.splitlines()[0].startswith("span_reduction: c2:2")


def test_other_operations_are_distributed_without_the_model():
    assert splits_of(divide_op(pointwise(512, 4096))) == (32, 1)


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
    with pytest.raises(UnsupportedError, match=r"SPY980]: .* argument 0") as caught:
        divide_op(matmul(8192, 32768, 4096), hints={M: 32})
    assert caught.value.finding.found == "512 MiB, divided as c0:32"
