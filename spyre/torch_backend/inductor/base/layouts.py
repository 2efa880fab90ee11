"""Layouts of buffers: `FixedTiledLayout`, for Inductor and on the card; `HostBuffer`, of a kernel's
tensor; and the views of memory that operands are on the card.

Inductor indexes by ``size`` and ``stride`` (host elements); ``device_layout`` locates these
elements in device memory. `tile_layout` restricts a layout to one tile of a coarse-tiling loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from spyre.errors import UnsupportedError
from spyre.layout import (
    DeviceView,
    SpyreTensorLayout,
    contiguous_strides,
    device_view,
    strided_subview,
)
from spyre.torch_backend.inductor.base.compat import ir
from spyre.torch_backend.program import Ints, LoweringError, Value
from spyre.torch_backend.tensors import argument_base


class FixedTiledLayout(ir.FixedLayout):  # type: ignore[misc]
    """A FixedLayout with the layout in device memory.

    ``per_tile_fixed``: a loop-internal buffer, the same memory in every iteration. Belongs to one
    graph, so to the thread that compiles it.
    """

    def __init__(
        self,
        device: Any,
        dtype: Any,
        size: Sequence[Any],
        stride: Sequence[Any] | None,
        device_layout: SpyreTensorLayout,
        *,
        offset: Any = 0,
        per_tile_fixed: bool = False,
    ) -> None:
        super().__init__(device, dtype, size, stride, offset)
        self.device_layout = device_layout
        self.per_tile_fixed = per_tile_fixed

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FixedTiledLayout)
            and bool(super().__eq__(other))
            and self.device_layout == other.device_layout
            and self.per_tile_fixed == other.per_tile_fixed
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        sizes = f"size={list(self.size)}, stride={list(self.stride)}"
        text = f"{type(self).__name__}({sizes}, device_size={list(self.device_layout.device_size)}"
        return text + (", per_tile_fixed=True)" if self.per_tile_fixed else ")")

    __repr__ = __str__


def stick_dim(layout: FixedTiledLayout) -> int | None:
    """The host dim along the stick; None where sticks hold one value, or the dim has one element.

    Sizes and strides are concrete.
    """
    step = layout.device_layout.stride_map[-1]
    strides = zip(layout.size, layout.stride, strict=True)
    dims = (d for d, (n, stride) in enumerate(strides) if n != 1 and stride == step)
    return next(dims, None) if step > 0 else None


def lane_of(layout: Any) -> int | None:
    """`stick_dim` as a lane: -1 for sticks of one value; None for layouts of other classes.

    For an operation that writes into another buffer, the lane of that buffer.
    """
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        layout = layout.real_layout()
    if not isinstance(layout, FixedTiledLayout):
        return None
    dim = stick_dim(layout)
    return -1 if dim is None else dim


def with_lane_layout(layout: Any, lane: int) -> FixedTiledLayout:
    """A FixedLayout with sticks along dim ``lane``, the other dims in the default order.

    ``lane`` -1: one element per stick. Sizes and strides are concrete.
    """
    size, stride = (tuple(int(n) for n in row) for row in (layout.size, layout.stride))
    dtype = str(layout.dtype).removeprefix("torch.")
    order = [*(k for k in range(len(size)) if k != lane), lane]
    device = SpyreTensorLayout.from_dim_order(size, stride, dtype, order)
    return FixedTiledLayout(
        layout.device, layout.dtype, list(size), list(stride), device, offset=layout.offset
    )


def tile_layout(full: Any, tile_size: Sequence[Any]) -> Any:
    """The layout of one dense tile of ``tile_size`` of a buffer with layout ``full`` (a
    FixedLayout), the dims in the order of ``full``.

    UnsupportedError SPY976 if no device dim corresponds to a tiled dim.
    """
    stride = dense_stride(full, tile_size)
    if not isinstance(full, FixedTiledLayout):
        return ir.FixedLayout(full.device, full.dtype, list(tile_size), stride)
    device = _tile_device_layout(full, tile_size, stride)
    return FixedTiledLayout(full.device, full.dtype, list(tile_size), stride, device)


def dense_stride(full: Any, size: Sequence[Any]) -> list[Any]:
    """Strides of a dense buffer of ``size`` with the dims in the order of those of ``full``."""
    stride: list[Any] = [1] * len(size)
    step: Any = 1
    for dim in sorted(range(len(size)), key=lambda d: (full.stride[d], -d)):
        stride[dim] = step
        step = step * size[dim]
    return stride


def _tile_device_layout(
    full: FixedTiledLayout, tile_size: Sequence[Any], tile_stride: Sequence[Any]
) -> SpyreTensorLayout:
    """The device layout with every device dim of a tiled host dim cut down like it."""
    device, stick = full.device_layout, stick_dim(full)
    sizes, strides = list(device.device_size), list(device.stride_map)
    cut = {d for d, n in enumerate(tile_size) if n != full.size[d]}
    for place in range(len(sizes)):
        dim, steps = _host_dim(full, stick, place)
        if dim is None:
            continue
        strides[place] = int(steps * tile_stride[dim])
        if dim in cut and place != len(sizes) - 1:
            sizes[place] = -(-int(tile_size[dim]) // steps)
            cut.discard(dim)
    if cut:
        raise UnsupportedError(
            "SPY976",
            f"no device dim is known for dim {min(cut)} of {full}",
            expected=f"a device dim that steps by {full.stride[min(cut)]} host elements",
            found=str(device),
        )
    return SpyreTensorLayout(
        tuple(sizes), tuple(strides), device.device_dtype, device.element_arrangement
    )


def _host_dim(full: FixedTiledLayout, stick: int | None, place: int) -> tuple[int | None, int]:
    """Host dim of a device dim and how many of its elements a step advances: 1, or a stick's."""
    device = full.device_layout
    size, step = device.device_size[place], device.stride_map[place]
    lanes = device.elements_per_stick
    if step <= 0:
        return None, 1
    if place == len(device.device_size) - 1:
        return stick, 1
    for dim, (extent, stride) in enumerate(zip(full.size, full.stride, strict=True)):
        if dim != stick and extent != 1 and stride == step and size >= extent:
            return dim, 1
    if stick is not None and step == lanes * full.stride[stick]:
        return stick, lanes
    return None, 1


# --- tensors of kernels ---------------------------------------------------------------------------

DeviceDims = tuple[tuple[int, ...], tuple[int, ...]]
"""Device size, and per device dim the host elements a step goes along."""
HostExtents = (
    tuple[tuple[Any, ...], tuple[Any, ...], str]
    | tuple[tuple[Any, ...], tuple[Any, ...], str, DeviceDims]
)
"""Host sizes, strides (elements) and torch dtype name; its layout if it is not the default one."""


class HostBuffer(msgspec.Struct, frozen=True):
    """A tensor argument of a kernel: host extents and strides (elements), torch dtype name.

    ``layout``: on the card, None for the default one.
    """

    sizes: Ints
    strides: Ints
    dtype: str
    layout: SpyreTensorLayout | None = None

    @property
    def extents(self) -> HostExtents:
        """The form that generated code contains."""
        known = (self.sizes, self.strides, self.dtype)
        if self.layout is None:
            return known
        return *known, (self.layout.device_size, self.layout.stride_map)


def argument_view(name: str, buffer: HostBuffer) -> DeviceView:
    """The whole storage of a tensor argument, in the order of its host elements.

    LoweringError if pitches cannot describe it.
    """
    base = argument_base(*buffer.extents)
    whole = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
    if whole is None:
        raise LoweringError(f"the layout of {name}")
    return whole


def strided_view(value: Value, sizes: Ints, strides: Ints, offset: int) -> Value | None:
    """A tensor of ``sizes`` and ``strides`` over the elements of ``value`` in row-major order."""
    if offset == 0 and sizes == value.sizes and strides == contiguous_strides(sizes):
        return value
    view = strided_subview(value.view, sizes, strides, offset)
    return None if view is None else replace(value, view=view, order=None)


def storage_order(strides: Sequence[int]) -> Ints:
    """The dims of a dense buffer with ``strides``, the outermost in memory first."""
    return tuple(sorted(range(len(strides)), key=lambda k: (-strides[k], k)))


def other_lanes(value: Value) -> list[int]:
    """Lane dims to try: the last dims first, finally -1 for one element per stick."""
    lanes = [k for k, n in enumerate(value.sizes) if n > 1 and k != value.lane_dim]
    return [*reversed(lanes), -1]
