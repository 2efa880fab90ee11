"""Divisible dims: units along sticks, roles of dims, dims that stay whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.division import divide_op, product_of, read_iteration
from spyre.torch_backend.program.op_spec import OpKind
from tests.torch_backend.inductor.division.specs import (
    C,
    bmm,
    matmul,
    operation,
    pointwise,
    reduction,
    splits_of,
    tensor,
    with_tensors,
)


def dims_of(spec):
    return [(d.units, d.unit, d.is_output) for d in read_iteration(spec).dims]


def test_sticks_are_the_units_along_them():
    assert dims_of(pointwise(7, 4096)) == [(7, 1, True), (64, 64, True)]
    assert dims_of(pointwise(7, 100)) == [(7, 1, True), (2, 64, True)]
    assert dims_of(matmul(8, 192, 130)) == [(8, 1, True), (3, 64, True), (3, 64, False)]


def test_the_largest_stick_counts_where_formats_meet():
    assert dims_of(pointwise(4, 192, bits=(32, 32), op="fp32todl16"))[1] == (6, 32, True)
    assert dims_of(pointwise(4, 192, bits=(32, 16), op="fp32todl16"))[1] == (3, 64, True)
    assert dims_of(pointwise(4, 192, bits=(16, 32), op="dl16tofp32"))[1] == (3, 64, True)
    assert dims_of(pointwise(4, 192, bits=(8, 32)))[1] == (2, 128, True)


def test_a_core_takes_whole_sticks_of_both_formats():
    division = divide_op(pointwise(1, 96, bits=(32, 16), op="fp32todl16"))
    assert splits_of(division) == (1, 2)  # 64 and 32 elements, not 48 and 48


def test_matmuls_of_other_formats_are_matmuls():
    for name in ("batchmatmul", "batchmatmulfp8", "batchmatmulint8"):
        spec = replace(matmul(1, 1000, 64), name=name)
        assert read_iteration(spec).is_matmul
        assert splits_of(divide_op(spec)) == (1, 1, 16)
    assert not read_iteration(pointwise(4, 64)).is_matmul


def test_only_reductions_have_reduced_dims():
    assert dims_of(reduction((8, 6, 128), [1])) == [(8, 1, True), (2, 64, True), (6, 1, False)]
    single = operation("neg", OpKind.POINTWISE, (4, 64), [tensor(2, (4, 1), (0, None))])
    assert all(is_output for _, _, is_output in dims_of(single))


def test_reduced_dims_get_what_is_left():
    assert splits_of(divide_op(reduction((4, 6, 128), [1], "max"))) == (4, 2, 3)
    assert splits_of(divide_op(reduction((3, 1024), [1]))) == (3, 8)
    assert splits_of(divide_op(reduction((3, 5, 1024), [1, 2]))) == (3, 1, 8)


def test_masked_padding_stays_on_one_core():
    division = divide_op(reduction((4, 1000), [1]))
    assert splits_of(division) == (4, 1)
    assert "c1 whole: its padding is masked" in division.why


def test_only_padding_of_reduced_dims_is_masked():
    """Fewer elements than a stick has: the dim is in the result's stick alone."""
    source, result = tensor(2, (1000, 50), (1, 0)), tensor(2, (1, 50), (None, 0))
    division = divide_op(operation("sum", OpKind.REDUCTION, (50, 1000), [source, result]))
    assert splits_of(division) == (1, 25)
    assert "whole" not in division.why


def test_padding_of_a_matmul_is_divided():
    assert splits_of(divide_op(matmul(1, 1000, 64)))[2] == 16


def test_topk_runs_on_one_core():
    spec = replace(reduction((64, 8, 128), [1]), name="topkvalue", kind=OpKind.TOPK)
    assert divide_op(spec).cores == 1


def restickify(rows, columns):
    tensors = [tensor(2, (rows, columns), (0, 1)), tensor(2, (columns, rows), (1, 0))]
    return operation("ReStickifyOpHBM", OpKind.RESTICKIFY, (rows, columns), tensors)


def test_restickifies_keep_padded_dims_whole():
    assert splits_of(divide_op(restickify(128, 1024))) == (2, 16)
    assert splits_of(divide_op(restickify(96, 1024))) == (1, 16)
    assert divide_op(restickify(96, 100)).cores == 1


def gather(rows, picked, columns):
    """table[index] of [rows, columns]; an index says where the table is read along c0."""
    tensors = [
        tensor(2, (rows, columns), (0, 1)),
        tensor(2, (picked,), (0,), bits=32),
        tensor(2, (picked, columns), (0, 1)),
    ]
    return operation("identity", OpKind.GATHER, (picked, columns), tensors, roles=(1, 0), rows=rows)


def test_tables_are_not_divided():
    division = divide_op(gather(1000, 64, 256))
    assert splits_of(division) == (2, 1)  # the index is in sticks of 32
    assert "c1 whole: all cores read one table" in division.why


def test_tables_count_with_all_their_rows():
    with pytest.raises(UnsupportedError, match=r"SPY980]: .* argument 0 of identity"):
        divide_op(gather(1 << 20, 64, 256))


def test_tensors_in_scratchpads_have_no_span():
    spec = matmul(8192, 32768, 4096)
    assert divide_op(spec).splits[C[2]] == 2
    assert divide_op(with_tensors(spec, memory="lx")).splits[C[2]] == 1


def test_a_tile_spans_what_its_buffer_does():
    """[sticks, rows, lanes]: a core crosses planes of the whole buffer, not of the tile."""
    spec, plane = pointwise(64, 8192), 128 << 16
    large = with_tensors(spec, pitches=(128, plane), size_bytes=128 * plane)
    assert splits_of(divide_op(spec)) == (1, 32)
    division = divide_op(large)
    assert division.splits[C[1]] == 4  # 32 planes of 8 MiB
    assert division.splits[C[0]] == 8


def test_roles_of_the_dims_of_a_product():
    counts, roles = product_of(read_iteration(bmm(4, 128, 256, 500)))
    assert roles == {"batch": [0], "m": [1], "n": [2], "k": [3]}
    shape = counts.product
    assert (shape.batch, shape.m, shape.n, shape.k) == (4, 128, 512, 256)
    assert shape.interleaved == (True, True, True)  # the batch is next to the stick


def test_batches_on_the_outside_do_not_alternate():
    batched = bmm(4, 128, 256, 512)
    pitches = (128 * 128 * 4, 128, 0, 128 * 128)
    left = replace(batched.tensors[0], pitches=pitches)
    counts, _ = product_of(read_iteration(replace(batched, tensors=(left, *batched.tensors[1:]))))
    assert counts.product.interleaved == (False, True, True)


def test_one_of_several_reduced_dims_is_divided():
    split_k = [tensor(4, (4, 8, 64), (3, 0, 2)), tensor(4, (64, 128), (2, 1))]
    product = [*split_k, tensor(4, (8, 128), (0, 1))]
    two = operation("batchmatmul", OpKind.MATMUL, (8, 128, 64, 4), product)
    assert product_of(read_iteration(two))[1]["k"] == [2, 3]
    splits = divide_op(two).splits
    assert sum(splits[symbol] > 1 for symbol in C[2:4]) <= 1
