"""`SpyreTensorLayout`: the shape of a tensor in device memory, and how it follows from the host's.

Made for every device tensor, carried by ``launch_spec.json`` and by torch tensors; transfers
(`geometry`, `reference`) and launches read it. Sizes and strides are in elements. Rules and
worked examples: runtime reference §1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec

from spyre.dtypes import STICK_BYTES, DataFormat, find_format, find_host_dtype, find_stored_format
from spyre.errors import LaunchError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ELEMENT_ARRANGEMENTS = ("STANDARD", "DL16_TO_FP32", "FP32_TO_DL16", "EXX2", "QFP8CH", "QFP8WT")
"""Every element arrangement tag a layout may carry (runtime reference §1)."""


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch gives them (an extent of 0 counts as 1)."""
    strides = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class SpyreTensorLayout(msgspec.Struct, frozen=True):
    """Shape of a tensor on the card; hashable, equal when all four fields are.

    ``device_size``: extents by decreasing device stride, the last one the elements of a stick.
    ``stride_map``: host elements advanced per step of each device dim; −1: no host dim, 0: every
    step reads the same host element. ``device_dtype``: name in `spyre.dtypes.FORMATS`.
    """

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    device_dtype: str
    element_arrangement: str = "STANDARD"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "device_size", tuple(int(n) for n in self.device_size))
        msgspec.structs.force_setattr(self, "stride_map", tuple(int(n) for n in self.stride_map))
        _check_layout(self)

    @classmethod
    def from_host(
        cls, host_size: Sequence[int], dtype: str, *, clamped: bool = True
    ) -> SpyreTensorLayout:
        """Default layout of a contiguous host tensor of torch dtype ``dtype``."""
        strides = contiguous_strides(host_size)
        if not clamped:
            strides = tuple(prod(host_size[k + 1 :]) for k in range(len(host_size)))
        return cls.from_dim_order(host_size, strides, dtype, range(len(host_size)), clamped=clamped)

    @classmethod
    def from_dim_order(
        cls,
        host_size: Sequence[int],
        host_strides: Sequence[int],
        dtype: str,
        dim_order: Sequence[int],
        element_arrangement: str = "STANDARD",
        *,
        clamped: bool = True,
    ) -> SpyreTensorLayout:
        """Return the layout with the host dims in ``dim_order``, the last one along the stick.

        A trailing −1 means sparse: one value per stick. ``clamped``: the host stride of a stick
        count, where a dim fits into one stick, is never beyond the host dim's own extent
        (torch-spyre after 19 August 2026); until then it was stride times device extent, for at
        most 6 dims and a sparse one, and an extent of 0 made the default strides of the dims
        outside of it 0. Errors: SPY311 for the dtype, SPY321 when sizes, strides and order do not
        go together.
        """
        data_format = find_stored_format(find_host_dtype(dtype).device_format)
        _check_dim_order(host_size, host_strides, dim_order, clamped)
        dims, sizes = _device_dims(host_size, dim_order, data_format)
        strides = _stride_map(dims, sizes, host_size, host_strides, clamped)
        return cls(tuple(sizes), tuple(strides), data_format.name, element_arrangement)

    @property
    def data_format(self) -> DataFormat:
        """The row of `device_dtype` in the format table."""
        return find_format(self.device_dtype)

    @property
    def elements_per_stick(self) -> int:
        """Elements of one 128-byte stick of this format."""
        return find_stored_format(self.device_dtype).elements_per_stick

    @property
    def device_strides(self) -> tuple[int, ...]:
        """Device elements advanced per step of each device dim (row-major)."""
        return contiguous_strides(self.device_size)

    @property
    def num_sticks(self) -> int:
        """Number of sticks: the product of all extents but the last."""
        return prod(self.device_size[:-1])

    @property
    def device_bytes(self) -> int:
        """Bytes the tensor takes in device memory."""
        return STICK_BYTES * self.num_sticks

    def __str__(self) -> str:
        text = (
            f"SpyreTensorLayout(device_size={list(self.device_size)}, "
            f"stride_map ={list(self.stride_map)}, device_dtype=DataFormats.{self.device_dtype}"
        )
        if self.element_arrangement != "STANDARD":
            text += f", element_arrangement=ElementArrangement.{self.element_arrangement}"
        return text + ")"


def storage_bytes(layout: SpyreTensorLayout, host_size: Sequence[int], dtype: str) -> int:
    """Bytes to allocate for a new tensor: the larger of its device and its host bytes."""
    return max(layout.device_bytes, prod(host_size) * find_host_dtype(dtype).item_bytes)


def _check_layout(layout: SpyreTensorLayout) -> None:
    sizes, strides = layout.device_size, layout.stride_map
    if not sizes or len(sizes) != len(strides):
        raise LaunchError(
            "SPY320",
            "device_size and stride_map need the same number of dims, at least one",
            found=f"device_size {list(sizes)}, stride_map {list(strides)}",
        )
    if min(sizes) < 0 or min(strides) < -1:
        raise LaunchError(
            "SPY320",
            "device extents cannot be negative, and strides not below -1",
            found=f"device_size {list(sizes)}, stride_map {list(strides)}",
        )
    find_format(layout.device_dtype)
    if layout.element_arrangement not in ELEMENT_ARRANGEMENTS:
        raise LaunchError(
            "SPY320",
            f"unknown element arrangement {layout.element_arrangement!r}",
            expected=f"one of {', '.join(ELEMENT_ARRANGEMENTS)}",
        )


def _check_dim_order(
    host_size: Sequence[int], host_strides: Sequence[int], dim_order: Sequence[int], clamped: bool
) -> None:
    rank = len(host_size)
    order = list(dim_order)
    dense = order[:-1] if len(order) == rank + 1 and order[-1] == -1 else order
    found = f"host_size {list(host_size)}, host_strides {list(host_strides)}, dim_order {order}"
    if not clamped and len(dense) > 6:
        rank_error = f"Unsupported tensor rank: {len(order)}"
        raise UnsupportedError("SPY321", rank_error, expected="<= 6", found=found)
    if sorted(dense) != list(range(rank)):
        raise LaunchError("SPY321", "Incompatible host_size and dim_order", found=found)
    if len(host_strides) != rank:
        raise LaunchError("SPY321", "Incompatible host_size and host_strides", found=found)


def _device_dims(
    host_size: Sequence[int], dim_order: Sequence[int], data_format: DataFormat
) -> tuple[list[int], list[int]]:
    """Host dim (−1: none) and extent of every device dim: stick count, …, stick."""
    order = list(dim_order) or [-1]
    lanes = data_format.elements_per_stick
    stick_dim = order[-1]
    dims = [*order[1:], order[0], stick_dim]
    stick_count = -(-host_size[stick_dim] // lanes) if stick_dim >= 0 else 1
    sizes = [stick_count if d == stick_dim else host_size[d] for d in dims[:-1]]
    return dims, [*sizes, lanes]


def _stride_map(
    dims: Sequence[int],
    sizes: Sequence[int],
    host_size: Sequence[int],
    host_strides: Sequence[int],
    clamped: bool,
) -> list[int]:
    """Host stride per device dim, found from the innermost dim outwards."""
    strides: list[int] = []
    running: dict[int, int] = {}
    for dim, size in zip(reversed(dims), reversed(sizes), strict=True):
        if dim < 0 or host_size[dim] == 1:
            strides.append(-1)
            continue
        stride = running.get(dim, host_strides[dim])
        strides.append(stride)
        running[dim] = stride * size
        if clamped:
            running[dim] = min(running[dim], host_strides[dim] * host_size[dim])
    return strides[::-1]


Digit = tuple[int, int]
"""Extent, and logical columns per step."""

ARRANGEMENT_DIGITS: dict[str, tuple[Digit, ...]] = {
    "STANDARD": ((64, 1),),
    "DL16_TO_FP32": ((4, 1), (8, 8), (2, 4)),
    "FP32_TO_DL16": ((4, 1), (2, 32), (8, 4)),
    "QFP8CH": ((8, 1), (2, 64), (8, 8)),
}
"""A physical position as mixed-radix digits, innermost first.

DL16_TO_FP32: column 8·g + 4·s + e lies in lane 4·g + e of stick s of a pair. FP32_TO_DL16: column
32·h + 4·g + e lies in lane 8·g + 4·h + e. QFP8CH: column 64·h + 8·g + e, of a pair of DL16 sticks,
lies in lane 16·g + 8·h + e of one fp8 stick.
"""

_FORMAT_OF = {"DL16_TO_FP32": "IEEE_FP32", "FP32_TO_DL16": "SEN169_FP16", "QFP8CH": "SEN143_FP8"}


def arrangement_digits(arrangement: str) -> tuple[Digit, ...]:
    """Row of `ARRANGEMENT_DIGITS`; UnsupportedError SPY323 for EXX2 and QFP8WT."""
    if arrangement not in ARRANGEMENT_DIGITS:
        raise UnsupportedError(
            "SPY323", f"host transfer of a tensor with element arrangement {arrangement}"
        )
    return ARRANGEMENT_DIGITS[arrangement]


def logical_columns(arrangement: str) -> NDArray[np.int64]:
    """Logical column at each physical position of one group (int64, 64 or 128 positions).

    A group is the columns that one permutation covers: a stick, or a pair of fp32 sticks.
    UnsupportedError SPY323 as in `arrangement_digits`.
    """
    import numpy as np  # not at the top: reading a launch spec does without

    columns = np.zeros(1, dtype=np.int64)
    for extent, step in arrangement_digits(arrangement):
        columns = (np.arange(extent, dtype=np.int64)[:, None] * step + columns).reshape(-1)
    return columns


def arrangement_positions(arrangement: str) -> NDArray[np.int64]:
    """Physical position of each logical column: the inverse of `logical_columns`.

    DL16_TO_FP32 counts positions through both sticks of a pair. The permutations of DL16_TO_FP32
    and FP32_TO_DL16 are inverse.
    """
    return logical_columns(arrangement).argsort()


def check_arrangement(arrangement: str, device_dtype: str) -> None:
    """UnsupportedError SPY323 unless a tensor of this format can be moved in this arrangement."""
    arrangement_digits(arrangement)
    expected = _FORMAT_OF.get(arrangement, device_dtype)
    if device_dtype != expected:
        raise UnsupportedError(
            "SPY323",
            f"element arrangement {arrangement} of a {device_dtype} tensor",
            expected=expected,
            found=device_dtype,
        )
