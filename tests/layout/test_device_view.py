"""Views of device tensors against the place of every single element."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.dtypes import STICK_BYTES
from spyre.layout import SpyreTensorLayout, contiguous_strides, transfer_geometry
from spyre.layout.device_view import DeviceView, Factor, device_view, row_major_view
from tests.examples import examples
from tests.layout.copies_reference import host_positions


def places_of_elements(layout, sizes):
    """Byte offset on the card of every host element, by its offset in the host tensor."""
    strides = contiguous_strides(sizes)
    coordinates, valid = host_positions(transfer_geometry(layout, sizes, strides))
    hosts = np.tensordot(np.array(strides, np.int64), coordinates, 1)[valid]
    places = np.flatnonzero(valid) * (STICK_BYTES // layout.elements_per_stick)
    known = dict(zip(hosts.tolist(), places.tolist(), strict=True))
    assert len(known) == math.prod(sizes)
    return known


def places_of_view(view: DeviceView):
    """Byte offset of every element of a view, in row-major order."""
    lanes = view.elements_per_stick
    item_bytes = 128 // lanes
    for index in itertools.product(*map(range, view.sizes)):
        place = view.offset_bytes
        for coordinate, factors in zip(index, view.dims, strict=True):
            for factor in reversed(factors):
                coordinate, step = divmod(coordinate, factor.extent)
                if factor.lane:
                    place += step // lanes * factor.pitch_bytes + step % lanes * item_bytes
                else:
                    place += step * factor.pitch_bytes
        yield place


@st.composite
def views(draw):
    """A base of small extents, and sizes, strides and offset of a view as torch makes them."""
    rank = draw(st.integers(0, 4))
    outer = st.sampled_from([1, 2, 3, 4])
    inner = st.sampled_from([1, 2, 3, 33, 64, 96, 128])
    base = tuple(draw(inner if k == rank - 1 else outer) for k in range(rank))
    sizes, strides, offset = list(base), list(contiguous_strides(base)), 0
    for _ in range(draw(st.integers(0, 3))):
        if not sizes:
            break
        dim = draw(st.integers(0, len(sizes) - 1))
        kind = draw(st.sampled_from(["permute", "narrow", "step", "split", "merge"]))
        if kind == "permute":
            order = draw(st.permutations(range(len(sizes))))
            sizes, strides = [sizes[k] for k in order], [strides[k] for k in order]
        elif kind == "narrow":
            start = draw(st.integers(0, sizes[dim] - 1))
            offset += start * strides[dim]
            sizes[dim] = draw(st.integers(1, sizes[dim] - start))
        elif kind == "step":
            sizes[dim], strides[dim] = -(-sizes[dim] // 2), strides[dim] * 2
        elif kind == "split":
            inner_size = draw(st.sampled_from([2, 3, 64]))
            if sizes[dim] % inner_size == 0:
                sizes[dim : dim + 1] = [sizes[dim] // inner_size, inner_size]
                strides[dim : dim + 1] = [strides[dim] * inner_size, strides[dim]]
        elif dim and strides[dim - 1] == strides[dim] * sizes[dim]:
            sizes[dim - 1 : dim + 1] = [sizes[dim - 1] * sizes[dim]]
            strides[dim - 1 : dim + 1] = [strides[dim]]
    return base, tuple(sizes), tuple(strides), offset


@examples(300)
@given(views(), st.sampled_from(["float16", "float32"]))
def test_places_are_those_of_the_elements(case, dtype):
    base, sizes, strides, offset = case
    layout = SpyreTensorLayout.from_host(base, dtype)
    view = device_view(layout, base, contiguous_strides(base), sizes, strides, offset)
    if view is None:
        return
    known = places_of_elements(layout, base)
    indices = itertools.product(*map(range, sizes))
    hosts = [offset + sum(i * s for i, s in zip(ix, strides, strict=True)) for ix in indices]
    assert [known[h] for h in hosts] == list(places_of_view(view))
    sticks = {known[h] // 128 for h in hosts}
    others = {h for h, place in known.items() if place // 128 in sticks} - set(hosts)
    assert view.writable is not bool(others)
    assert view.span_bytes >= max(known[h] for h in hosts) % (1 << 62) - view.offset_bytes


@examples(100)
@given(views(), st.sampled_from([(-1,), (2, -1), (-1, 64)]))
def test_reshaped_views_have_the_same_elements(case, shape):
    base, sizes, strides, offset = case
    layout = SpyreTensorLayout.from_host(base, "float16")
    view = device_view(layout, base, contiguous_strides(base), sizes, strides, offset)
    count = 1
    for n in sizes:
        count *= n
    fixed = -1
    for n in shape:
        fixed *= n
    if view is None or count % abs(fixed):
        return
    reshaped = view.reshaped([count // abs(fixed) if n == -1 else n for n in shape])
    if reshaped is not None:
        assert list(places_of_view(reshaped)) == list(places_of_view(view))


def test_what_pitches_can_say():
    layout = SpyreTensorLayout.from_host((4, 6, 128), "float16")
    base = ((4, 6, 128), (768, 128, 1))

    def view(sizes, strides, offset=0):
        return device_view(layout, *base, sizes, strides, offset)

    assert view((6, 4, 128), (128, 768, 1)) is not None  # transposed
    assert view((24, 128), (128, 1)).dims[0][0].extent == 4  # rows of two dims in two factors
    assert view((4, 6, 64), (768, 128, 1), 64) is not None  # second half of every row
    assert view((4, 6, 2, 64), (768, 128, 64, 1)) is not None  # rows cut at whole sticks


def test_what_pitches_cannot_say():
    layout = SpyreTensorLayout.from_host((4, 128), "float16")
    base = ((4, 128), (128, 1))
    assert device_view(layout, *base, (4, 8), (128, 1), 3) is None  # begins within a stick
    assert device_view(layout, *base, (4, 64), (128, 2), 0) is None  # every second lane
    assert device_view(layout, *base, (4, 4, 32), (128, 32, 1), 0) is None  # parts of sticks
    assert device_view(layout, *base, (100,), (1,), 64) is None  # over the end of a row
    assert device_view(layout, *base, (4,), (256,), 0) is None  # outside


def test_expanded_views_repeat():
    view = row_major_view((1, 5), "SEN169_FP16", (0, 1), 1).expanded((3, 5))
    assert view.sizes == (3, 5)
    assert list(places_of_view(view)) == [0, 2, 4, 6, 8] * 3
    assert not view.writable


@pytest.mark.parametrize("sizes", [(5,), (4, 100), (2, 3, 65), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_fresh_memory_is_in_default_layout(sizes, dtype):
    layout = SpyreTensorLayout.from_host(sizes, dtype)
    rank = len(sizes)
    order = [0, *reversed(range(1, rank))] if rank > 1 else [0]
    view = row_major_view(sizes, layout.device_dtype, order, rank - 1)
    strides = contiguous_strides(sizes)
    assert list(places_of_view(view)) == list(
        places_of_view(device_view(layout, sizes, strides, sizes, strides, 0))
    )


def test_whole_sticks_at_even_distances_are_one_factor():
    heads = row_major_view((2, 256, 8, 64), "SEN169_FP16", (1, 2, 3, 0), 3)
    joined = heads.reshaped((2, 256, 512))
    assert joined is not None
    (_, _, dim) = joined.dims
    assert dim == (Factor(512, 256 * 128, lane=True),)
    assert joined.lane_dim == 2
    assert list(places_of_view(joined)) == list(places_of_view(heads))


def test_sticks_with_room_are_not_joined():
    narrow = row_major_view((4, 8, 32), "SEN169_FP16", (1, 2, 0), 2).reshaped((4, 256))
    assert narrow is not None
    assert len(narrow.dims[1]) == 2
