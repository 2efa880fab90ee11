"""Operands of a device operation: sizes and strides on the host, and the views of memory that they
are on the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyre.layout import (
    DeviceView,
    SpyreTensorLayout,
    contiguous_strides,
    device_view,
    strided_subview,
)
from spyre.torch_backend.inductor.bundles.kernels import HostExtents
from spyre.torch_backend.inductor.lowering.device_ir import Body, ConstantLoad, Load
from spyre.torch_backend.program import Ints, LoweringError, OpKind, Value
from spyre.torch_backend.tensors import argument_base


@dataclass(frozen=True, slots=True)
class HostBuffer:
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


@dataclass(frozen=True, slots=True)
class OperandRead:
    """An operand with the dims that the operation walks: ``extents``, and one stride per dim.

    ``axes``: per dim, the axis of the body's iteration.
    """

    operand: Load | ConstantLoad
    extents: Ints
    axes: Ints = ()

    @property
    def sizes(self) -> Ints:
        """Extents, 1 along dims that repeat one element. ValueError for a number."""
        if isinstance(self.operand, ConstantLoad):
            raise ValueError("a number has no sizes")
        strides = self.operand.strides
        return tuple(n if s else 1 for n, s in zip(self.extents, strides, strict=True))


def reads_of(body: Body) -> tuple[OperandRead, ...]:
    """The operands of a body in order, with reduced dims at their position in the operand."""
    rank, axes = len(body.ranges), list(range(len(body.ranges)))
    if body.operation.program is not None:
        shapes = enumerate(body.operation.program.shapes)
        return tuple(
            _operand_read(body, k, range(rank, rank + len(shape)), tuple(shape))
            for k, shape in shapes
        )
    if body.operation.kind is OpKind.REDUCTION:
        for k, dim in enumerate(body.operation.dims):
            axes[dim] = rank + k
        return (_operand_read(body, 0, axes),)
    if body.operation.kind is OpKind.MATMUL:
        *batch, row, column = axes
        return _operand_read(body, 0, (*batch, row, rank)), _operand_read(
            body, 1, (*batch, rank, column)
        )
    return tuple(_operand_read(body, number, axes) for number in range(len(body.operands)))


def _operand_read(body: Body, number: int, axes: Sequence[int], extents: Ints = ()) -> OperandRead:
    every = (*body.ranges, *body.reduced)
    extents = extents or tuple(every[k] for k in axes)
    operand = body.operands[number]
    if isinstance(operand, Load):
        operand = replace(operand, strides=tuple(operand.strides[k] for k in axes))
    return OperandRead(operand, extents, tuple(axes))


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
