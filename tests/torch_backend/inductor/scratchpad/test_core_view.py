"""Per-core views: what a core holds of a tensor, and the accesses that have none."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import prod

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from spyre.torch_backend.inductor.division.plan import core_order, split_reductions
from spyre.torch_backend.inductor.scratchpad.accesses import CoreView, NoCoreView, core_view
from tests.torch_backend.inductor.scratchpad.kernels import (
    COLUMNS,
    FULL,
    LANE,
    ROWS,
    C,
    pointwise,
    reduction,
    tensor,
)


def view(spec, number=0):
    return core_view(spec, spec.args[number])


def test_rows_over_32_cores():
    found = view(pointwise("exp", (512, 1024), [FULL, FULL], (32, 1)))
    assert found == CoreView((16, 16), (1, 32), (0, 1), 32)
    assert found.size_bytes == 16 * 16 * 128
    assert str(found) == "[16×1, 16×32/1] on 32 cores"


def test_the_first_symbol_is_the_fastest():
    found = view(pointwise("exp", (512, 1024), [FULL, FULL], (4, 8)))
    assert found == CoreView((2, 128), (8, 4), (4, 1), 32)


def matmul(splits):
    """[512, 256] = [512, 1024] · [1024, 256] over c0, c1 and the summed c2."""
    a, b, c = (C[0], C[2]), (C[2], C[1]), (C[0], C[1])
    return reduction("batchmatmul", (512, 256, 1024), [a, b, c], splits)


def test_a_split_k_is_the_fastest():
    spec = matmul((4, 2, 4))
    assert core_order(spec) == (C[2], C[0], C[1])
    assert split_reductions(spec) == [C[2]]
    assert view(spec, 0) == CoreView((4, 128), (4, 4), (1, 4), 32)
    assert view(spec, 1) == CoreView((2, 256), (2, 4), (16, 1), 32)
    whole = matmul((4, 2, 1))
    assert core_order(whole) == C[:3]
    assert split_reductions(whole) == []
    assert view(whole, 2) == CoreView((2, 128), (2, 4), (4, 1), 8)
    summed = reduction("sum", (512, 1024), [FULL, LANE], (4, 8))
    assert core_order(summed) == (ROWS, COLUMNS)


def test_a_split_k_comes_last_without_k_fast_numbering():
    spec = replace(matmul((4, 2, 4)), op_info={"k_fast": False})
    assert core_order(spec) == C[:3]
    assert view(spec, 0) == CoreView((4, 128), (4, 4), (8, 1), 32)
    assert view(spec, 1) == CoreView((2, 256), (2, 4), (4, 8), 32)


def test_a_stick_per_row():
    spec = reduction("sum", (512, 1024), [FULL, LANE], (32, 1))
    assert view(spec, 1) == CoreView((16,), (32,), (1,), 32)


def test_dims_of_one_step_do_not_count():
    flat = pointwise("exp", (512, 64), [FULL, FULL], (8, 1))
    assert view(flat) == CoreView((64,), (8,), (1,), 8)


def test_the_size_is_that_of_the_reference():
    """Π(device_size[:-1])·128 // cores used, where all cores hold another slice."""
    spec = pointwise("exp", (512, 1024), [FULL, FULL], (4, 8))
    assert view(spec).size_bytes == prod(spec.args[0].device_size[:-1]) * 128 // 32


def test_forms_of_torch():
    spec = pointwise("exp", (512, 1024), [FULL, FULL], (32, 1))
    column = sympy.Symbol("c1", integer=True, nonnegative=True)
    row = sympy.Symbol("c0", integer=True, nonnegative=True)
    other = replace(
        spec,
        iteration_space={row: (sympy.Integer(512), 32), column: (sympy.Integer(1024), 1)},
        args=[
            replace(
                spec.args[0],
                device_coordinates=[
                    FloorDiv(column, sympy.Integer(64)),
                    row,
                    ModularIndexing(column, sympy.Integer(1), sympy.Integer(64)),
                ],
            )
        ],
    )
    assert view(other) == view(spec)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"within": [64, 1024, 64]}, "a tile of a larger buffer"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 64), ROWS + 1, sympy.Mod(COLUMNS, 64)]},
         r"coordinate c0 \+ 1"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 32), ROWS, sympy.Mod(COLUMNS, 64)]},
         "not one symbol"),
        ({"device_coordinates": [COLUMNS, ROWS, sympy.Mod(COLUMNS, 64)]}, "not one symbol"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 64), ROWS, sympy.Mod(COLUMNS + 3, 64)]},
         "lanes"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 64), 0, sympy.Mod(COLUMNS, 64)]},
         "one of 512 steps"),
        ({"device_size": [16, 600, 64]}, "512 of 600 steps along c0"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 64), C[3], sympy.Mod(COLUMNS, 64)]},
         "c3, which the iteration does not walk"),
        ({"device_coordinates": [sympy.floor(COLUMNS / 64), ROWS, C[3]]},
         "c3, which the iteration does not walk"),
        ({"device_coordinates": [ROWS, ROWS, 0], "device_size": [512, 512, 64]}, "along two dims"),
    ],
)  # fmt: skip
def test_accesses_without_a_view(change, why):
    spec = pointwise("exp", (512, 1024), [FULL, FULL], (32, 1))
    found = core_view(spec, replace(spec.args[0], **change))
    assert isinstance(found, NoCoreView)
    assert re.search(why, found.why), found.why


def test_uneven_cuts_and_sizes_of_run_time_have_none():
    uneven = pointwise("exp", (7, 1024), [FULL, FULL], (4, 1))
    assert "unevenly along c0: 7 steps over 4" in view(uneven).why
    open_size = replace(
        uneven, iteration_space={ROWS: (sympy.Symbol("s0"), 1), COLUMNS: (sympy.Integer(1024), 1)}
    )
    assert "s0, known at run time only" in view(open_size).why
    lanes = replace(
        uneven, iteration_space={ROWS: (sympy.Integer(7), 1), COLUMNS: (sympy.Symbol("s0"), 1)}
    )
    assert "s0, known at run time only" in view(lanes).why
    single = replace(uneven.args[0], device_coordinates=[0, ROWS, COLUMNS], device_size=[1, 7, 64])
    assert "s0, known at run time only" in core_view(lanes, single).why


def test_lanes_of_a_stick_are_not_shared_out():
    spec = pointwise("exp", (512, 64), [FULL, FULL], (1, 2))
    arg = replace(
        tensor(True, (512, 64), FULL), device_size=[512, 64], device_coordinates=[ROWS, COLUMNS]
    )
    assert "within a stick" in core_view(spec, arg).why
    whole = pointwise("exp", (512, 64), [FULL, FULL], (2, 1))
    assert core_view(whole, arg) == CoreView((256,), (2,), (1,), 2)


@given(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_views_hold_what_cores_touch(a, b, c):
    """Against every core's slices, found by numbering the slices one by one."""
    spec = pointwise("exp", (12, 8, 256), [C[:3], C[:3]], (a, b, c))
    found = view(spec)
    numbered = product(range(c), range(b), range(a))
    for core, (stick, middle, outer) in enumerate(numbered):
        held = [
            core // stride % split if split > 1 else 0
            for split, stride in zip(found.splits, found.strides, strict=True)
        ]
        assert held == [stick, outer, middle]
    assert found.cores == a * b * c
    assert found.extents == (4 // c, 12 // a, 8 // b)
