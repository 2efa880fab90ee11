"""Access maps against a walk that steps through every loop."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import given, strategies as st

from spyre.layout import access_map
from spyre.layout.access_map import AccessMap, Axis, canonical_axes, pad_axes


def walk(nest: AccessMap) -> list[tuple[int, ...]]:
    """Positions in all spaces, step by step."""
    found = []
    for steps in product(*(range(axis.extent) for axis in nest.axes)):
        moves = zip(steps, nest.axes, strict=True)
        ways = [[step * pitch for pitch in axis.pitches] for step, axis in moves]
        found.append(tuple(map(sum, zip(nest.first, *ways, strict=True))))
    return found


@st.composite
def any_maps(draw: st.DrawFn) -> AccessMap:
    """Any extents and pitches, two spaces; often such that neighbours go on."""
    numbers = st.integers(-40, 40)
    first = (draw(numbers), draw(numbers))
    axes: list[Axis] = []
    for _ in range(draw(st.integers(0, 4))):
        extent = draw(st.integers(1, 4))
        if axes and draw(st.booleans()):
            pitches = tuple(axes[0].extent * pitch for pitch in axes[0].pitches)
        else:
            pitches = (draw(numbers), draw(numbers))
        axes.insert(0, Axis(extent, pitches))
    return AccessMap(first, tuple(axes))


@st.composite
def nested_maps(draw: st.DrawFn) -> tuple[AccessMap, int]:
    """Pitches of space 0 nest around pieces of a size; those of space 1 are any."""
    size = draw(st.integers(1, 5))
    room = size
    axes: list[Axis] = []
    for _ in range(draw(st.integers(0, 4))):
        extent = draw(st.integers(1, 4))
        pitch = room + draw(st.integers(0, 3))
        axes.insert(0, Axis(extent, (pitch, draw(st.integers(-50, 50)))))
        room = pitch * (extent - 1) + room
    first = (draw(st.integers(-40, 40)), draw(st.integers(-40, 40)))
    return AccessMap(first, tuple(axes)), size


@given(any_maps())
def test_offsets_and_range_are_those_of_the_walk(nest: AccessMap):
    positions = walk(nest)
    assert nest.count == len(positions)
    for space in (0, 1):
        column = [position[space] for position in positions]
        assert nest.offsets(space).tolist() == column
        assert (nest.lowest(space), nest.highest(space)) == (min(column), max(column))


@given(any_maps())
def test_joining_changes_no_position(nest: AccessMap):
    joined = nest.joined()
    assert walk(joined) == walk(nest)
    assert len(joined.axes) == 1 or all(axis.extent > 1 for axis in joined.axes)


@given(any_maps(), st.data())
def test_expanding_changes_no_position(nest: AccessMap, data: st.DataObject):
    if not nest.axes:
        return
    place = data.draw(st.integers(0, len(nest.axes) - 1))
    extent = nest.axes[place].extent
    inner = data.draw(st.sampled_from([n for n in range(1, extent + 1) if extent % n == 0]))
    expanded = nest.expanded(place, inner)
    assert walk(expanded) == walk(nest)
    assert [axis.extent for axis in expanded.axes[place : place + 2]] == [extent // inner, inner]


@given(any_maps(), st.integers(0, 4))
def test_unrolling_changes_no_position(nest: AccessMap, rank: int):
    parts = list(nest.unrolled(rank))
    assert [position for part in parts for position in walk(part)] == walk(nest)
    assert all(len(part.axes) <= rank for part in parts)


@given(any_maps())
def test_canonical_axes_visit_the_same_positions(nest: AccessMap):
    canonical = nest.canonical(1)
    assert sorted(walk(canonical)) == sorted(walk(nest))
    pitches = [abs(axis.pitches[1]) for axis in canonical.axes]
    assert pitches == sorted(pitches, reverse=True)
    assert len(canonical.axes) == max(len(canonical_axes(nest.axes, 1)), 1)


@given(nested_maps())
def test_contains_the_pieces_and_nothing_else(case: tuple[AccessMap, int]):
    nest, size = case
    held = {start + byte for start, _ in walk(nest) for byte in range(size)}
    offsets = np.arange(nest.lowest() - 7, nest.highest() + size + 7)
    assert nest.contains(offsets, size).tolist() == [int(o) in held for o in offsets]


@given(nested_maps())
def test_what_lies_in_one_space_is_located_in_the_other(case: tuple[AccessMap, int]):
    nest, size = case
    for start, there in walk(nest):
        pieces = start + np.arange(size)
        assert nest.locate(pieces, 0, 1).tolist() == (there + np.arange(size)).tolist()


def test_beyond_the_outermost_axis_the_walk_goes_on():
    nest = AccessMap((0, 1000), (Axis(2, (12, 100)), Axis(3, (4, 7))))
    offsets = np.array([-12, -8, 0, 23, 24, 36 + 5])
    found = nest.locate(offsets, 0, 1, beyond=True)
    assert found.tolist() == [900, 907, 1000, 1117, 1200, 1308]


def test_a_product_of_axes_is_padded_in_front():
    axes = pad_axes([Axis(3, (1, 2))], 3, 2)
    assert [axis.extent for axis in axes] == [1, 1, 3]
    assert prod(axis.extent for axis in axes) == 3
    assert access_map.join_axes(access_map.drop_unit_axes(axes)) == [Axis(3, (1, 2))]
