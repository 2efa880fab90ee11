"""Moves for one operand: by hand, and never more than a move through single elements."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.layouts import strided_view
from spyre.torch_backend.inductor.lowering.device_ir import Load, OperandRead
from spyre.torch_backend.inductor.passes.restickify import (
    HARD,
    OVERHEAD,
    SPARSE,
    Move,
    cost_of,
    laid_out,
    moves_for,
)


def read(sizes, strides, offset=0):
    return OperandRead(Load("x", strides, offset), sizes, tuple(range(len(sizes))))


X = laid_out((10, 128), "float16", 1)


def test_nothing():
    assert moves_for(X, read((10, 128), (128, 1)), (1,)) == ()
    assert moves_for(X, read((128, 10), (1, 128)), (0,)) == ()


def test_a_transpose_moves_the_whole():
    assert moves_for(X, read((128, 10), (1, 128)), (1,)) == (Move(True, 0, 1280),)


def test_a_small_slice_moves_alone():
    assert moves_for(X, read((10, 64), (128, 1), 64), (0,)) == (Move(False, 0, 640),)


def test_within_a_stick_it_takes_two():
    first, second = moves_for(X, read((10, 7), (128, 1), 3), (1,))
    assert first == Move(True, 0, 1280)
    assert second == Move(False, 1, 7 * 64)
    assert moves_for(X, read((10, 7), (128, 1), 3), (0,)) == (first,)


def test_pieces_of_sticks_are_single_elements_first():
    """[10, 16] as [160]: 16 elements of every stick."""
    value = laid_out((10, 16), "float16", 1)
    first, second = moves_for(value, read((160,), (1,)), (0,))
    assert (first.whole, first.lane) == (True, SPARSE)
    assert (second.whole, second.lane) == (False, 0)


def test_costs():
    assert cost_of(()) == 0
    assert cost_of((Move(True, 0, 5), Move(False, 1, 7))) == 12 + 2 * OVERHEAD
    assert cost_of(None) == HARD


@st.composite
def operands(draw):
    sizes = tuple(draw(st.lists(st.sampled_from([1, 3, 16, 64, 100]), min_size=1, max_size=3)))
    lane = draw(st.sampled_from([SPARSE, *(k for k, n in enumerate(sizes) if n > 1)]))
    order = draw(st.permutations(range(len(sizes))))
    strides = contiguous_strides(sizes)
    taken = read(tuple(sizes[k] for k in order), tuple(strides[k] for k in order))
    wanted = draw(st.sampled_from([SPARSE, *(k for k, n in enumerate(taken.sizes) if n > 1)]))
    return laid_out(sizes, "float16", lane), taken, wanted


@given(operands())
def test_permuted_operands_take_one_move_at_most(case):
    value, taken, wanted = case
    moves = moves_for(value, taken, (wanted,))
    assert moves is not None
    straight = strided_view(value, taken.sizes, taken.operand.strides, 0)
    assert len(moves) == (straight.lane_dim != wanted)


@pytest.mark.parametrize("lane", [0, 1, SPARSE])
def test_the_move_leads_to_the_lane(lane):
    taken = read((128, 10), (1, 128))
    for wanted in (0, 1, SPARSE):
        moves = moves_for(laid_out((10, 128), "float16", lane), taken, (wanted,))
        lanes = [move.lane for move in moves if move.whole]
        found = laid_out((10, 128), "float16", lanes[-1] if lanes else lane)
        assert strided_view(found, taken.sizes, (1, 128), 0).lane_dim == wanted
