"""Layouts, host extents and host strides for tests of copies: random ones and chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec
import numpy as np
from hypothesis import strategies as st

from spyre.layout import SpyreTensorLayout, contiguous_strides

FLOATS = ("float16", "bfloat16", "float32", "bool")
DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2fnuz")


class Case(msgspec.Struct, frozen=True):
    """A layout, the host extents it was made for, and the strides of the storage given."""

    layout: SpyreTensorLayout
    dtype: str
    sizes: tuple[int, ...]
    layout_strides: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        reach = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True) if n)
        return self.offset + reach + 1 + 3


@st.composite
def cases(draw: st.DrawFn, dtype: str | None = None, most: int = 20000) -> Case:
    """A layout of any order, dense or sparse, and a host tensor that is a view of a storage."""
    name = dtype or draw(st.sampled_from(DTYPES))
    rank = draw(st.integers(0, 4))
    extents = st.sampled_from([1, 1, 2, 3, 5, 7, 31, 33, 64, 65, 128, 130])
    sizes: list[int] = []
    for _ in range(rank):
        room = max(most // max(int(np.prod(sizes)), 1), 1)
        sizes.append(min(draw(extents), room))
    strides = contiguous_strides(sizes)
    order: list[int] = list(draw(st.permutations(range(rank))))
    if rank and draw(st.integers(0, 3)) == 0:
        order.append(-1)
    clamped = draw(st.booleans())
    layout = SpyreTensorLayout.from_dim_order(sizes, strides, name, order, clamped=clamped)
    real = draw(_storage_strides(sizes))
    return Case(layout, name, tuple(sizes), tuple(strides), real, draw(st.integers(0, 5)))


@st.composite
def _storage_strides(draw: st.DrawFn, sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a view: dims permuted in memory, with gaps between their elements."""
    strides = [0] * len(sizes)
    step = draw(st.sampled_from([1, 1, 2, 3]))
    for dim in draw(st.permutations(range(len(sizes)))):
        strides[dim] = step
        step *= sizes[dim] + draw(st.sampled_from([0, 0, 1]))
    return tuple(strides)


RAW = {
    "padded rows": ((2, 6, 64), (64, 100, 1), (4, 100), (100, 1)),
    "padded sticks": ((4, 3, 64), (64, 100, 1), (3, 100), (100, 1)),
    "sparse": ((5, 1, 64), (1, -1, -1), (5,), (1,)),
    "a padded dim without host dim": ((3, 2, 64), (-1, 64, 1), (100,), (1,)),
    "two device dims for one host dim": ((3, 4, 1, 64), (256, 64, -1, 1), (700,), (1,)),
    "expanded": ((5, 2, 64), (0, 64, 1), (5, 100), (0, 1)),
    "folded": ((12, 64), (64, 1), (6, 128), (128, 1)),
    "folded, rows no whole sticks": ((17, 64), (64, 1), (26, 40), (40, 1)),
    "folded, rows shorter than a stick": ((2, 64), (64, 1), (4, 32), (32, 1)),
    "folded into one of three": ((3, 14, 64), (840, 64, 1), (3, 14, 60), (840, 60, 1)),
    "tiles that end early": ((2, 4, 3, 64), (350, 150, 50, 1), (14, 50), (50, 1)),
    "tiles within tiles": ((3, 2, 14, 64), (120, 64, 360, 1), (4800,), (1,)),
    "sticks begun early": ((2, 3, 64), (90, 30, 1), (180,), (1,)),
    "one value per stick, of a host dim": ((1, 60, 64), (64, 1, 1), (60,), (1,)),
    "equal steps": ((3, 2, 64), (64, 64, 1), (128,), (1,)),
}
"""device_size, stride_map, sizes, strides."""


def raw_case(name: str, dtype: str = "float16") -> Case:
    """The layout of that name in `RAW`, in DL16."""
    device_size, stride_map, sizes, strides = RAW[name]
    layout = SpyreTensorLayout(device_size, stride_map, "SEN169_FP16")
    return Case(layout, dtype, sizes, strides, strides)


ARRANGED = (
    ("float32", "IEEE_FP32", "DL16_TO_FP32"),
    ("float16", "SEN169_FP16", "FP32_TO_DL16"),
    ("float8_e4m3fn", "SEN143_FP8", "QFP8CH"),
)
ARRANGED_SIZES = ((128,), (4, 128), (3, 5, 192), (7, 64), (3, 100), (2, 37))


def arranged_case(dtype: str, device: str, arrangement: str, sizes: tuple[int, ...]) -> Case:
    """The default layout of ``sizes`` in an element arrangement, with whole pairs of sticks."""
    pair = {"IEEE_FP32": 64}.get(device, 1)
    whole = (*sizes[:-1], -(-sizes[-1] // pair) * pair)
    plain = SpyreTensorLayout.from_host(whole, dtype)
    strides = contiguous_strides(sizes)
    walks = _walks(plain.stride_map, whole, strides)
    layout = SpyreTensorLayout(plain.device_size, walks, device, arrangement)
    return Case(layout, dtype, sizes, strides, strides)


def _walks(
    stride_map: Sequence[int], whole: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """Strides of the padded extents as those of the unpadded ones."""
    pairs = dict(zip(contiguous_strides(whole), strides, strict=True))
    return tuple(pairs.get(step, step) for step in stride_map)


@st.composite
def tilings(draw: st.DrawFn) -> Case:
    """One host dim on several device axes, each with room to spare or none, and padded rows."""
    extents = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    steps = [64 * prod(extents[k + 1 :]) for k in range(len(extents))]
    columns = draw(st.integers(2, 64 * prod(extents)))
    rows, room = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    order = draw(st.permutations(range(len(extents) + 1)))
    row_stride = 64 * prod(extents) + 1
    dims = [*zip(extents, steps, strict=True), (rows + room, row_stride)]
    device = [dims[k] for k in order] + [(64, 1)]
    layout = SpyreTensorLayout(*zip(*device, strict=True), "SEN169_FP16")
    strides = (row_stride, 1)
    return Case(layout, "float16", (rows, columns), strides, strides)
