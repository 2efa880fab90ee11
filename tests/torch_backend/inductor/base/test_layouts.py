"""`FixedTiledLayout` and the layouts of tiles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from spyre.errors import UnsupportedError
from spyre.layout import SpyreTensorLayout
from spyre.layout.tensor_layout import contiguous_strides
from spyre.torch_backend.inductor.base.layouts import (
    FixedTiledLayout,
    dense_stride,
    stick_dim,
    tile_layout,
)

CPU = torch.device("cpu")


def layout(size, order=None, dtype=torch.float16, sparse=False, **options):
    """The default layout with the dims in ``order`` on both sides."""
    order = list(range(len(size))) if order is None else list(order)
    strides = contiguous_strides([size[d] for d in order])
    stride = [strides[order.index(d)] for d in range(len(size))]
    name = str(dtype).removeprefix("torch.")
    dims = [*order, -1] if sparse else order
    device = SpyreTensorLayout.from_dim_order(size, stride, name, dims)
    return FixedTiledLayout(CPU, dtype, list(size), stride, device, **options)


def test_the_tile_of_the_document():
    tile = tile_layout(layout([1024, 4096]), [512, 1024])
    assert list(tile.size) == [512, 1024]
    assert list(tile.stride) == [1024, 1]
    assert tile.device_layout.device_size == (16, 512, 64)
    assert not tile.per_tile_fixed


@given(
    st.permutations(range(3)),
    st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])),
    st.sampled_from([torch.float16, torch.float32]),
    st.booleans(),
)
def test_a_tile_is_laid_out_like_a_tensor_of_its_size(order, counts, dtype, sparse):
    full = layout([256, 512, 1024], order, dtype, sparse)
    size = [n // k for n, k in zip(full.size, counts, strict=True)]
    assert tile_layout(full, size) == layout(size, order, dtype, sparse)


def test_layouts_of_other_backends_are_cut_too():
    from spyre.torch_backend.inductor.base.compat import ir

    full = ir.FixedLayout(CPU, torch.float16, [8, 4], [1, 8])
    tile = tile_layout(full, [4, 4])
    assert (list(tile.size), list(tile.stride)) == ([4, 4], [1, 4])


def test_stick_dims():
    assert stick_dim(layout([128, 256])) == 1
    assert stick_dim(layout([128, 256], [1, 0])) == 0
    assert stick_dim(layout([128, 256], sparse=True)) is None


def test_dense_strides_keep_the_order_of_dims():
    assert dense_stride(layout([4, 6, 8], [2, 0, 1]), [2, 3, 8]) == [3, 1, 6]


def test_a_dim_that_is_not_on_the_card():
    full = layout([128, 256])
    full.device_layout = SpyreTensorLayout((4, 128, 64), (7, 5, 1), "SEN169_FP16")
    with pytest.raises(UnsupportedError, match="SPY976"):
        tile_layout(full, [64, 256])


def test_layouts_differ_by_what_lies_on_the_card():
    assert layout([128, 256]) == layout([128, 256])
    assert layout([128, 256]) != layout([128, 256], per_tile_fixed=True)
    assert layout([128, 256]) != layout([128, 256], [1, 0])
    fixed = layout([128, 256], per_tile_fixed=True)
    assert "device_size=[4, 128, 64], per_tile_fixed=True)" in str(fixed)
