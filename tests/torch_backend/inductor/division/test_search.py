"""The searches against loops over every way to divide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import UnsupportedError
from spyre.hw.cost import divisors, splits_within
from spyre.torch_backend.inductor.division import (
    core_split,
    distribute,
    divide_matmul,
    divide_op,
    product_of,
    read_iteration,
    reduce_spans,
    spans_bytes,
    with_division,
)
from tests.examples import examples
from tests.torch_backend.inductor.division import reference
from tests.torch_backend.inductor.division.specs import bmm, matmul, pointwise, reduction, splits_of

CORES = st.integers(1, 32)
EXTENT = st.sampled_from([1, 2, 3, 6, 7, 16, 30, 60, 64, 96, 100, 128, 130, 192])


@given(st.integers(1, 5000), CORES)
def test_divisors(number, cores):
    assert list(divisors(number)) == reference.divisors(number)
    assert core_split(number, cores) == max(n for n in reference.divisors(number) if n <= cores)


@given(st.lists(st.integers(1, 60).map(reference.divisors), max_size=4), CORES)
def test_splits_within(candidates, cores):
    rows = splits_within(candidates, cores)
    assert [tuple(row) for row in rows.tolist()] == reference.choices(candidates, cores)


SIZE = st.sampled_from([1, 2, 4, 7, 12, 64, 100, 128, 512, 1000, 1024, 2048, 4096, 12800])


@examples(30)
@given(SIZE, SIZE, SIZE, st.sampled_from([1, 2, 6, 32]), CORES)
def test_matmul_divisions_are_the_fastest_ones(m, k, n, b, cores):
    spec = bmm(b, m, k, n) if b > 1 else matmul(m, k, n)
    iteration = read_iteration(spec)
    default = distribute(iteration, cores, {})
    candidates, why = divide_matmul(iteration, cores, default)
    *_, columns, inner = iteration.dims
    sizes = {"m": m, "k": inner.units * 64, "n": columns.units * columns.unit, "batch": b}
    # in the default layout the batch is next to the stick
    sizes["interleaved"] = (b > 1,) * 3
    best = reference.best_matmul(iteration.dims, sizes, math.prod(default.values()), cores)
    assert candidates[0] == best
    assert len(set(candidates)) == len(candidates)
    assert " us (±" in why


def test_a_shared_factor_has_no_batches():
    """Rows of all batches are rows of one product: dividing them is dividing rows."""
    counts, roles = product_of(read_iteration(bmm(6, 64, 128, 256, shared=True)))
    assert roles == {"m": [0, 1], "n": [2], "k": [3], "batch": []}
    assert (counts.product.batch, counts.product.m) == (1, 384)


@examples(60)
@given(EXTENT, EXTENT, EXTENT, st.data())
def test_spans_of_slices(a, b, c, data):
    spec = data.draw(st.sampled_from([pointwise(a, b, c), reduction((a, b, c), [1])]))
    iteration = read_iteration(spec)
    row = [data.draw(st.sampled_from(dim.splits(32))) for dim in iteration.dims]
    splits = dict(zip(iteration.symbols, row, strict=True))
    for number in range(len(spec.tensors)):
        found = int(spans_bytes(iteration, number, np.array([row]))[0])
        assert found == reference.span_bytes(iteration, number, splits)


@examples(60)
@given(EXTENT, EXTENT, st.sampled_from([1, 2, 6, 12]), CORES, st.integers(7, 18), st.booleans())
def test_span_reduction(a, b, c, cores, bits, reduces):
    spec = reduction((c, a, b), [1]) if reduces else pointwise(c, a, b)
    iteration = read_iteration(spec)
    found = reduce_spans(iteration, cores, limit_bytes=1 << bits)
    assert found == reference.spans_reduced(iteration, cores, 1 << bits)


@given(EXTENT, EXTENT, EXTENT, CORES)
def test_distribution_uses_whole_units_and_no_core_twice(a, b, c, cores):
    iteration = read_iteration(reduction((a, b, c), [0, 1]))
    found = distribute(iteration, cores, {})
    assert math.prod(found.values()) <= cores
    assert all(dim.units % found[dim.symbol] == 0 for dim in iteration.dims)
    assert sum(found[symbol] > 1 for symbol in iteration.reduced) <= 1
    left = cores // math.prod(found.values())
    first = max((d for d in iteration.dims if d.is_output), key=lambda d: d.units, default=None)
    if first is not None:
        assert found[first.symbol] == core_split(first.units, cores)
    if all(found[symbol] == 1 for symbol in iteration.reduced):
        rest = [d for d in iteration.dims if not d.is_output and not d.undivided_reason]
        assert all(core_split(d.units, left) == 1 for d in rest)


@given(EXTENT, EXTENT, EXTENT, CORES)
def test_divisions_can_be_emitted(a, b, c, cores):
    for spec in (pointwise(a, b, c, bits=(16, 32, 16)), reduction((a, b, c), [2]), matmul(a, b, c)):
        division = divide_op(spec, cores)
        assert tuple(division.splits) == spec.symbols
        assert division.cores <= cores
        for dim in read_iteration(spec).dims:
            assert dim.units % division.splits[dim.symbol] == 0
        divided = with_division(spec, division)
        assert divided.splits == splits_of(division)
        assert sorted(divided.core_order) == list(range(len(spec.symbols)))
        assert divided.tensors == spec.tensors


def test_many_divisors_do_not_make_many_rows():
    rows = splits_within([[n for n in divisors(27720) if n <= 32]] * 6, 32)
    assert len(rows) < 20_000


def test_spans_that_need_two_reduced_dims_are_refused():
    spec = reduction((64, 2, 64), [0, 1])
    with pytest.raises(UnsupportedError, match=r"SPY981.*several reduced dims") as caught:
        reduce_spans(read_iteration(spec), 32, limit_bytes=4096)
    assert caught.value.finding.found == "c1:2, c2:2"
