"""Address maps against the layouts' own rule, and windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from spyre.hw.linking.binding import AddressWindow, TileMap, through_windows, window_base
from spyre.layout import SpyreTensorLayout, contiguous_strides, device_coordinate
from tests.examples import examples


@st.composite
def tiles(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A tile of whole sticks and a larger shape."""
    rank = draw(st.integers(1, 4))
    tile = [draw(st.integers(1, 4)) for _ in range(rank)]
    tile[-1] *= 64
    whole = tuple(size * draw(st.integers(1, 3)) for size in tile)
    return tuple(tile), whole


def _byte(layout: SpyreTensorLayout, shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    return device_coordinate(layout, shape, contiguous_strides(shape), index).byte_offset


@examples(80)
@given(tiles(), st.randoms(use_true_random=False))
def test_an_element_of_the_tile_is_that_element_of_the_tensor(shapes, random) -> None:
    """The twin: one element at a time, through host coordinates."""
    tile, whole = shapes
    small = SpyreTensorLayout.from_host(tile, "float16")
    large = SpyreTensorLayout.from_host(whole, "float16")
    strides = tuple(stride * 2 for stride in large.device_strides[:-1])
    map_ = TileMap(small.device_size[:-1], strides)
    indices = [tuple(random.randrange(size) for size in tile) for _ in range(20)]
    offsets = np.array([_byte(small, tile, index) for index in indices])
    expected = [_byte(large, whole, index) for index in indices]
    assert map_.apply(offsets).tolist() == expected
    assert map_.merged.apply(offsets).tolist() == expected
    assert map_.is_identity == (map_.apply(every(map_)) == every(map_)).all()
    assert 128 * map_.walk.count == small.device_bytes
    assert map_.span_bytes == int(map_.apply(every(map_)).max()) + 128 == map_.merged.span_bytes


def every(map_: TileMap) -> np.ndarray:
    return np.arange(0, 128 * map_.walk.count, 128)


def test_merging_keeps_what_memory_separates() -> None:
    whole = TileMap((2, 3, 4), (4096, 512, 128))
    assert whole.merged == TileMap((2, 12), (4096, 128))
    assert TileMap((1, 1), (999, 77)).merged == TileMap((1,), (128,))


def test_windows_leave_real_addresses_alone() -> None:
    rows = TileMap((2, 4), (128 * 16, 128))
    windows = (AddressWindow(rows, 1 << 20, 0), AddressWindow(rows, 1 << 21, 1))
    addresses = np.array([[5, window_base(0) + 128 * 5 + 2, window_base(1) + 128 * 3]])
    expected = [[5, (1 << 20) + 128 * 17 + 2, (1 << 21) + 128 * 3]]
    assert through_windows(addresses, windows).tolist() == expected
