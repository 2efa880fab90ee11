"""Dims that all operands walk by one pitch each."""

from __future__ import annotations

from math import prod

import pytest

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.layout.device_view import device_view
from spyre.torch_backend.program.emitter import common_iteration
from spyre.torch_backend.program.op_spec import LoweringError


def view(base, sizes=None, strides=None):
    layout = SpyreTensorLayout.from_host(base, "float16")
    own = contiguous_strides(base)
    found = device_view(layout, base, own, sizes or base, strides or own, 0)
    assert found is not None
    return found


def test_equal_layouts_join():
    dims = common_iteration([view((4, 8, 128)), view((4, 8, 128))])
    assert prod(d.extent for d in dims) == 4 * 8 * 128
    assert len(dims) == 3  # sticks stand between the first dim and the second


def test_a_single_row_of_sticks_joins_to_one():
    dims = common_iteration([view((4, 8, 64)), view((4, 8, 64))])
    assert sorted(d.extent for d in dims) == [32, 64]


def test_dims_are_cut_where_one_operand_changes():
    rows = view((4, 6, 64), (24, 64), (64, 1))
    dims = common_iteration([rows, view((24, 64))])
    assert sorted(d.extent for d in dims) == [4, 6, 64]


def test_broadcast_dims_are_held_by_the_others():
    dims = common_iteration([view((5, 64)), view((1, 64)).expanded((5, 64))])
    outer = next(d for d in dims if d.extent == 5)
    assert outer.holds(0)
    assert not outer.holds(1)


def test_roles_keep_dims_apart():
    dims = common_iteration([view((4, 8, 64))] * 2, [0, 1, 1])
    assert sorted(d.extent for d in dims) == [4, 8, 64]


def test_cuts_within_sticks_are_refused():
    with pytest.raises(LoweringError):
        common_iteration([view((100,)), view((25, 4), (100,), (1,))])
