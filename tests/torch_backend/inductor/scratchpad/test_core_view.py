"""Per-core views: a core's part of a tensor, and accesses without such a view."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.torch_backend.inductor.scratchpad import CoreView, core_view
from tests.torch_backend.inductor.scratchpad.kernels import (
    COLUMNS,
    FULL,
    LANE,
    ROWS,
    C,
    pointwise,
    reduction,
)


def view(spec, number=0):
    return core_view(spec, number)


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
    assert spec.core_order == (C[2], C[0], C[1])
    assert spec.split_reductions == (C[2],)
    assert view(spec, 0) == CoreView((4, 128), (4, 4), (1, 4), 32)
    assert view(spec, 1) == CoreView((2, 256), (2, 4), (16, 1), 32)
    whole = matmul((4, 2, 1))
    assert whole.core_order == C[:3]
    assert whole.split_reductions == ()
    assert view(whole, 2) == CoreView((2, 128), (2, 4), (4, 1), 8)
    summed = reduction("sum", (512, 1024), [FULL, LANE], (4, 8))
    assert summed.core_order == (ROWS, COLUMNS)


def test_a_split_k_comes_last_without_k_fast_numbering():
    spec = replace(matmul((4, 2, 4)), k_fast=False)
    assert spec.core_order == C[:3]
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
    assert view(spec).size_bytes == spec.tensors[0].size_bytes // 32


PLANE = 600 * 128


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"offset_bytes": 128}, r"coordinate c0 \+ 1"),
        ({"pitches": (128, 128)}, "not one symbol"),
        ({"pitches": (0, 512 * 128)}, "one of 512 steps"),
        ({"pitches": (128, PLANE), "size_bytes": 16 * PLANE}, "512 of 600 steps along c0"),
        ({"pitches": (128, 512 * 128), "size_bytes": 32 * 512 * 128}, "16 of 32 steps along c1"),
    ],
)
def test_accesses_without_a_view(change, why):
    spec = pointwise("exp", (512, 1024), [FULL, FULL], (32, 1))
    part = replace(spec.tensors[0], **change)
    found = view(replace(spec, tensors=(part, spec.output)))
    assert isinstance(found, str)
    assert re.search(why, found), found


def test_uneven_cuts_have_none():
    uneven = pointwise("exp", (7, 1024), [FULL, FULL], (4, 1))
    assert "unevenly along c0: 7 steps over 4" in view(uneven)


def test_lanes_of_a_stick_are_not_shared_out():
    assert "within a stick" in view(pointwise("exp", (512, 64), [FULL, FULL], (1, 2)))
    whole = pointwise("exp", (512, 64), [FULL, FULL], (2, 1))
    assert view(whole) == CoreView((256,), (2,), (1,), 2)


@given(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_views_hold_what_cores_touch(a, b, c):
    """Against every core's slices, found by numbering the slices one by one."""
    spec = pointwise("exp", (12, 8, 256), [C[:3], C[:3]], (a, b, c))
    found = view(spec)
    numbered = product(range(c), range(b), range(a))
    whole = np.arange(4 * 12 * 8)
    for core, (stick, middle, outer) in enumerate(numbered):
        slices = [core // max(k, 1) % n for n, k in zip(found.splits, found.strides, strict=True)]
        sizes = [n * split for n, split in zip(found.extents, found.splits, strict=True)]
        held = whole.reshape(sizes)[box(slices, found.extents)]
        expected = whole.reshape(4, 12, 8)[box((stick, outer, middle), (4 // c, 12 // a, 8 // b))]
        assert held.ravel().tolist() == expected.ravel().tolist()
    assert found.cores == a * b * c
    assert found.size_bytes == 4 * 12 * 8 // (a * b * c) * 128


def box(slices, extents):
    return tuple(slice(k * n, (k + 1) * n) for k, n in zip(slices, extents, strict=True))
