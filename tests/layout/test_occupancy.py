"""Sticks that hold host elements, against the positions of the reference copy."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, strategies as st

from spyre.layout import (
    SpyreTensorLayout,
    contiguous_strides,
    host_coordinates_of_stick,
    occupied_sticks,
    transfer_geometry,
    viewed_sticks,
)
from tests.examples import examples
from tests.layout.copies_reference import host_positions

shapes = st.lists(st.sampled_from([1, 2, 3, 5, 64, 70, 130]), min_size=1, max_size=4).filter(
    lambda shape: prod(shape) <= 40_000
)


@examples(80)
@given(shape=shapes, dtype=st.sampled_from(["float16", "float32"]), data=st.data())
def test_against_the_positions(shape: list[int], dtype: str, data: st.DataObject):
    order = data.draw(st.permutations(range(len(shape))))
    strides = contiguous_strides(shape)
    layout = SpyreTensorLayout.from_dim_order(shape, strides, dtype, order)
    host, valid = host_positions(transfer_geometry(layout, shape, strides))
    occupied = occupied_sticks(layout, shape, strides)
    assert np.array_equal(occupied, valid.any(axis=-1))
    for stick in np.argwhere(occupied)[:: max(1, occupied.size // 7)]:
        first = tuple(host[(slice(None), *stick, 0)])
        assert host_coordinates_of_stick(layout, shape, strides, stick.tolist()) == first


def test_element_arrangements():
    for columns in (4, 40, 64, 100, 128):
        layout = SpyreTensorLayout((4, 3, 32), (32, 128, 1), "IEEE_FP32", "DL16_TO_FP32")
        extents = (layout, (3, columns), (128, 1))
        _, valid = host_positions(transfer_geometry(*extents))
        assert np.array_equal(occupied_sticks(*extents), valid.any(axis=-1))


def test_a_view():
    layout = SpyreTensorLayout.from_host((4, 128), "float16")
    extents = (layout, (4, 128), (128, 1))
    rows = viewed_sticks(*extents, ((2, 128), (128, 1), 128))
    assert np.argwhere(rows).tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    columns = viewed_sticks(*extents, ((4, 3), (128, 1), 64))
    assert columns.tolist() == [[False] * 4, [True] * 4]
