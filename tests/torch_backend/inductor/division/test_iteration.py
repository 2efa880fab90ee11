"""What can be divided: units along sticks, roles of dims, dims that stay whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.bundles.op_spec import OpSpec
from spyre.torch_backend.inductor.division import divide_op
from spyre.torch_backend.inductor.division.iteration import read_iteration
from spyre.torch_backend.inductor.division.matmul import matmul_dims
from spyre.torch_backend.inductor.division.span import coordinate_extent
from tests.torch_backend.inductor.division.specs import (
    C,
    bmm,
    matmul,
    pointwise,
    reduction,
    space,
    splits_of,
    tensor,
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


def test_two_symbols_in_a_stick():
    """A [40, 32] view of one row of sticks: two of its rows make a stick."""
    row, lane = C[:2]
    args = [
        tensor((1280,), (32 * row + lane,), is_input=True),
        tensor((1280,), (32 * row + lane,), is_input=False),
    ]
    spec = OpSpec("neg", False, space((40, 32)), args)
    assert dims_of(spec) == [(20, 2, True), (1, 64, True)]
    assert splits_of(divide_op(spec)) == (20, 1)


def test_a_lane_that_is_no_multiple_of_a_symbol_stays_whole():
    row = C[0]
    source = tensor((256,), (sympy.floor(row / 2),))
    spec = OpSpec(
        "identity", False, space((512,)), [source, tensor((512,), (row,), is_input=False)]
    )
    assert dims_of(spec) == [(1, 512, True)]


def test_sticks_as_inductor_writes_them():
    spec = pointwise(7, 4096)
    for step, expected in ((1, (64, 64, True)), (2, (1, 4096, True))):
        lane = ModularIndexing(C[1], step, 64)
        args = [
            replace(arg, device_coordinates=[*arg.device_coordinates[:-1], lane])
            for arg in spec.args
        ]
        assert dims_of(replace(spec, args=args))[1] == expected


def test_matmuls_of_other_formats_are_matmuls():
    for name in ("batchmatmul", "batchmatmulfp8", "batchmatmulint8"):
        spec = replace(matmul(1, 1000, 64), op=name)
        assert read_iteration(spec).is_matmul
        assert splits_of(divide_op(spec)) == (1, 1, 16)
    assert not read_iteration(pointwise(4, 64)).is_matmul


def test_only_reductions_have_reduced_dims():
    assert dims_of(reduction((8, 6, 128), [1])) == [(8, 1, True), (2, 64, True), (6, 1, False)]
    single = OpSpec("neg", False, space((4, 64)), [tensor((4, 1), (C[0], 0), is_input=False)])
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
    """Fewer elements than a stick has: the dim is in the result's stick coordinate alone."""
    lane, row = C[:2]
    source = tensor((1000, 50), (row, lane))
    result = tensor((1, 50), (0, lane), is_input=False)
    one_stick = replace(result, device_coordinates=[sympy.Integer(0), sympy.Integer(0), lane])
    division = divide_op(OpSpec("sum", True, space((50, 1000)), [source, one_stick]))
    assert splits_of(division) == (1, 25)
    assert "whole" not in division.why


def test_padding_of_a_matmul_is_divided():
    assert splits_of(divide_op(matmul(1, 1000, 64)))[2] == 16


def test_topk_runs_on_one_core():
    spec = replace(reduction((64, 8, 128), [1]), op="topkvalue")
    assert divide_op(spec).cores == 1


def restickify(rows, columns):
    a, b = C[:2]
    args = [
        tensor((rows, columns), (a, b)),
        tensor((columns, rows), (b, a), is_input=False),
    ]
    return OpSpec("ReStickifyOpHBM", False, space((rows, columns)), args)


def test_restickifies_keep_padded_dims_whole():
    assert splits_of(divide_op(restickify(128, 1024))) == (2, 16)
    assert splits_of(divide_op(restickify(96, 1024))) == (1, 16)
    assert divide_op(restickify(96, 100)).cores == 1


def gather(rows, picked, columns):
    """table[index] of [rows, columns]; the index comes from a symbol that is no dim."""
    at, lane, index = C[0], C[1], sympy.Symbol("indirect0")
    args = [
        tensor((picked,), (at,), bits=32),
        tensor((rows, columns), (index, lane)),
        tensor((picked, columns), (at, lane), is_input=False),
    ]
    return OpSpec("identity", False, space((picked, columns)), args)


def test_tables_are_not_divided():
    division = divide_op(gather(1000, 64, 256))
    assert splits_of(division) == (2, 1)  # the index is in sticks of 32
    assert "c1 whole: all cores read one table" in division.why


def test_tables_count_with_all_their_rows():
    with pytest.raises(UnsupportedError, match="SPY980: argument 1 of identity"):
        divide_op(gather(1 << 20, 64, 256))


def test_tensors_in_scratchpads_have_no_span():
    spec = matmul(8192, 32768, 4096)
    inside = [replace(arg, allocation={"lx": 0}) for arg in spec.args]
    assert splits_of(divide_op(replace(spec, args=inside))) == (4, 8, 1)


def test_a_tile_spans_what_its_buffer_does():
    """[sticks, rows, lanes]: a core crosses planes of the whole buffer, not of the tile."""
    spec = pointwise(64, 8192)
    large = [replace(arg, within=[128, 1 << 16, 64]) for arg in spec.args]
    assert splits_of(divide_op(spec)) == (1, 32)
    division = divide_op(replace(spec, args=large))
    assert division.splits[C[1]] == 4  # 32 planes of 8 MiB
    assert division.splits[C[0]] == 8


def test_symbolic_sizes_are_refused():
    spec = replace(pointwise(4, 64), iteration_space={C[0]: (sympy.Symbol("s0"), 1)})
    with pytest.raises(UnsupportedError, match="SPY983: the extent of c0 is not known"):
        divide_op(spec)


@pytest.mark.parametrize("text", ["c0**2", "floor(c0/c1)", "Mod(c0, -3)", "Max(c0, c1)"])
def test_other_coordinates_are_refused(text):
    last = {C[0]: np.array([3]), C[1]: np.array([4])}
    with pytest.raises(UnsupportedError, match="SPY983: a coordinate cannot be divided"):
        coordinate_extent(sympy.sympify(text), last)


class ModularIndexing(sympy.Function):
    """Stands for Inductor's function of this name."""

    nargs = 3


class FloorDiv(sympy.Function):
    nargs = 2


INDUCTOR = {
    "ModularIndexing": lambda x, step, size: x // step % size,
    "FloorDiv": lambda x, step: x // step,
    "floor": lambda x: int(x // 1),
    "Mod": lambda x, n: x % n,
}
COORDINATES = [
    "c0",
    "3*c0 + 5",
    "7",
    "2*c0 - 3*c1",
    "floor(c0/4)",
    "floor((c0 + 9)/4)",
    "floor(c0/4 + c1/6)",
    "Mod(c0, 5)",
    "Mod(c0 + 3, 64)",
    "Mod(-c0, 7) + c1",
    "ModularIndexing(c0, 3, 4)",
    "FloorDiv(c0 + c1, 3)",
    "floor(Mod(c0, 8)/2)",
]


@settings(max_examples=200)
@given(st.sampled_from(COORDINATES), st.integers(0, 12), st.integers(0, 12))
def test_extents_of_coordinates(text, first, second):
    names = {"ModularIndexing": ModularIndexing, "FloorDiv": FloorDiv}
    expr = sympy.sympify(text, locals=names)
    found = coordinate_extent(expr, {C[0]: np.array([first]), C[1]: np.array([second])})
    code = text.replace("c0/4 + c1/6", "(3*c0 + 2*c1)//12").replace("floor(c0/4)", "(c0//4)")
    all_values = [
        eval(code, {**INDUCTOR, "c0": a, "c1": b})
        for a in range(first + 1)
        for b in range(second + 1)
    ]
    exact = max(all_values) - min(all_values) + 1
    wraps = "Mod" in text
    assert (exact <= found).all() if wraps else (exact == found).all()


def test_roles_of_a_shared_weight():
    """Left is [B, M, K], right [K, N]: June has no answer, August takes the innermost row."""
    iteration = read_iteration(bmm(4, 128, 256, 512, shared=True))
    assert matmul_dims(iteration, several_rows=False) == "2 row dims belong to one input alone"
    dims = matmul_dims(iteration, several_rows=True)
    assert [d.symbol for d in dims.dims] == list(C[:4])
    assert dims.sizes == (4, 128, 512, 256)
    assert dims.shared_weight
    assert not matmul_dims(read_iteration(bmm(4, 8, 64, 64)), several_rows=True).shared_weight
    assert matmul_dims(read_iteration(matmul(8, 64, 64)), several_rows=True).shared_weight


def test_what_the_cost_model_has_no_answer_for():
    assert matmul_dims(read_iteration(pointwise(4, 64)), several_rows=True) == "add is no matmul"
    outer = matmul(8, 64, 64)
    row, column, inner = C[:3]
    no_sticks = replace(outer, args=[tensor((8, 64), (row, inner)), *outer.args[:1]])
    assert "along sticks" in matmul_dims(read_iteration(no_sticks), several_rows=True)
    both = tensor((8, 64), (row, column))
    twice = replace(outer, args=[both, both, outer.args[2]])
    assert "no row dim" in matmul_dims(read_iteration(twice), several_rows=True)
    split_k = [tensor((4, 8, 64), (C[3], row, inner)), *outer.args[1:]]
    two = replace(outer, iteration_space=space((8, 64, 64, 4)), args=split_k)
    assert matmul_dims(read_iteration(two), several_rows=True) == "2 dims are reduced"
