"""Common operations on host shapes, as descriptions for the SDSC builder.

A recipe names the dims as the frontends do (first n-1 of mb, x, y, … then out; matmul: the last
of y, x, mb, out, in), gives tensors the default layout (the last host dim is the stick, the first
is next to it: runtime reference §1.1) and rounds stick dims up. Rules: SuperDSC reference §1,
§6.3, §7 (sdsc.md), operations reference §4 (ops.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spyre.dtypes import FORMATS
from spyre.errors import BundleError
from spyre.mlir.builder.operations import Base, OperandSpec, OperationSpec
from spyre.mlir.operation import MASK_CONSTANT, Component

OUTER_DIMS = ("mb", "x", "y", "i", "j", "ki", "kj")
MATMUL_DIMS = ("ki", "kj", "y", "x", "mb", "out", "in")
DL16 = "SEN169_FP16"
MASK_BITS: Mapping[tuple[str, str], int] = {
    ("max", DL16): 0xFFFE,
    ("min", DL16): 0x7FFE,
    ("max", "IEEE_FP32"): 0xFF7FFFFF,
    ("min", "IEEE_FP32"): 0x7F7FFFFF,
}
"""Bits that never win: the lowest and highest finite number; every other reduction masks with 0."""


class HostOperand(msgspec.Struct, frozen=True):
    """A tensor of a recipe: where it is, its format, and which axes of the host shape it lacks."""

    base: Base
    absent_axes: tuple[int, ...] = ()
    data_format: str = DL16
    component: Component = Component.HBM
    gap: Mapping[str, int] = msgspec.field(default_factory=dict)


def default_dims(rank: int) -> tuple[str, ...]:
    """Dim names of a host shape of ``rank`` axes, in host order."""
    if not 1 <= rank <= len(OUTER_DIMS) + 1:
        expected = f"1 to {len(OUTER_DIMS) + 1} axes"
        raise BundleError("SPY290", f"no dim names for {rank} axes", expected=expected)
    return (*OUTER_DIMS[: rank - 1], "out")


def default_layout(dims: Sequence[str]) -> tuple[str, ...]:
    """layoutDimOrder_ (innermost first) of host dims ``dims``: first, stick, then from the back."""
    if len(dims) == 1:
        return (dims[0],)
    return (dims[0], dims[-1], *reversed(dims[1:-1]))


def elements_per_stick(data_format: str) -> int:
    """Elements of a format in a 128-byte stick; BundleError for formats without storage."""
    row = FORMATS.get(data_format)
    if row is None or not row.stored:
        raise BundleError("SPY290", f"data format {data_format} has no defined storage")
    return row.elements_per_stick


def round_up(size: int, multiple: int) -> int:
    """``size`` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def _tensor(operand: HostOperand, dims: Sequence[str], absent: Sequence[str]) -> OperandSpec:
    """Default layout of the present dims; absent dims go outermost, an absent stick dim stays."""
    stick_dim = dims[-1]
    present = [dim for dim in dims if dim not in absent or dim == stick_dim]
    missing = [dim for dim in dims if dim not in present]
    scale = {dim: -2 if dim == stick_dim else -1 for dim in absent}
    return OperandSpec(
        dims=(*default_layout(present), *missing),
        stick=((stick_dim, elements_per_stick(operand.data_format)),),
        base=operand.base,
        scale=scale,
        data_format=operand.data_format,
        component=operand.component,
        gap=operand.gap,
    )


def host_tensor(operand: HostOperand, dims: Sequence[str]) -> OperandSpec:
    """``operand`` over host dims ``dims`` in their default layout."""
    return _tensor(operand, dims, [dims[axis] for axis in operand.absent_axes])


def _padded_extents(
    dims: Sequence[str], shape: Sequence[int], operands: Sequence[HostOperand]
) -> dict[str, int]:
    """N_: the stick dim rounded up to the longest stick, the others as they are."""
    extents = dict(zip(dims, shape, strict=True))
    stick = max(elements_per_stick(operand.data_format) for operand in operands)
    extents[dims[-1]] = round_up(extents[dims[-1]], stick)
    return extents


def pointwise(
    name: str,
    shape: Sequence[int],
    inputs: Sequence[HostOperand],
    output: HostOperand,
    splits: Mapping[str, int] | None = None,
    constants: Mapping[str, int] | None = None,
) -> OperationSpec:
    """An elementwise operation (also ``identity`` and conversions) on a host shape.

    Inputs may lack axes (broadcast). ``splits`` by dim name, see `default_dims`.
    """
    dims = default_dims(len(shape))
    return OperationSpec(
        name=name,
        extents=_padded_extents(dims, shape, [*inputs, output]),
        inputs=[host_tensor(operand, dims) for operand in inputs],
        outputs=[host_tensor(output, dims)],
        splits=splits or {},
        constants=constants or {},
        data_format=inputs[0].data_format,
    )


def identity(
    shape: Sequence[int],
    source: HostOperand,
    target: HostOperand,
    splits: Mapping[str, int] | None = None,
) -> OperationSpec:
    """A copy of bits, also a broadcast when ``source`` lacks axes."""
    return pointwise("identity", shape, [source], target, splits)


def reduction(
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    source: HostOperand,
    target: HostOperand,
    splits: Mapping[str, int] | None = None,
    constants: Mapping[str, int] | None = None,
) -> OperationSpec:
    """A reduction over host ``axes``; ``name`` without the suffix nonstick, which is added.

    Reducing the last axis leaves one stick per kept element and masks the padding of the stick.
    """
    dims = default_dims(len(shape))
    reduced = [dims[axis] for axis in axes]
    whole, reduces_stick = host_tensor(source, dims), dims[-1] in reduced
    scale = {dim: -2 if dim == dims[-1] else -1 for dim in reduced}
    extents = _padded_extents(dims, shape, [source, target])
    kept = replace(host_tensor(target, dims), dims=whole.dims, scale=scale)
    padding = extents[dims[-1]] - shape[-1] if reduces_stick else 0
    bits = MASK_BITS.get((name, source.data_format), 0)
    return OperationSpec(
        name=name if reduces_stick else f"{name}nonstick",
        extents=extents,
        inputs=[whole],
        outputs=[kept],
        splits=splits or {},
        constants={**(constants or {}), **({MASK_CONSTANT: bits} if padding else {})},
        masks={dims[-1]: [(shape[-1], padding)]} if padding else {},
        data_format=source.data_format,
    )


def matmul(
    rows: int,
    inner: int,
    columns: int,
    left: HostOperand,
    right: HostOperand,
    target: HostOperand,
    batch: Sequence[int] = (),
    splits: Mapping[str, int] | None = None,
) -> OperationSpec:
    """``target[.., rows, columns] = left[.., rows, inner] · right[.., inner, columns]``.

    Dims: batch (y, x), mb, out, in. Memory of ``right`` has ``inner`` rounded up to the stick, and
    those rows or the padding of ``left`` hold zero: the producer's duty (§6.3).
    """
    dims = MATMUL_DIMS[len(MATMUL_DIMS) - 3 - len(batch) :]
    outer, (mb, out, k) = dims[: len(batch)], dims[len(batch) :]
    stick = elements_per_stick(left.data_format)
    extents = dict(zip(outer, batch, strict=True))
    extents |= {mb: rows, out: round_up(columns, stick), k: round_up(inner, stick)}
    splits = splits or {}
    return OperationSpec(
        name="batchmatmul",
        extents=extents,
        inputs=[
            replace(host_tensor(left, (*outer, mb, k)), role="INPUT"),
            replace(host_tensor(right, (*outer, k, out)), role="KERNEL"),
        ],
        outputs=[replace(host_tensor(target, (*outer, mb, out)), role="OUTPUT")],
        splits=splits,
        core_order=(k,) if splits.get(k, 1) > 1 else (),
        unit="pt",
    )


def restickify(
    shape: Sequence[int],
    source: HostOperand,
    target: HostOperand,
    splits: Mapping[str, int] | None = None,
) -> OperationSpec:
    """Copies a host shape whose last axis is the stick to a layout whose second last axis is.

    Both stick dims are rounded up in N_; each tensor's true extents are written as
    ``deviceDimSizes_``, so that no sign of a gap has to be guessed (§7).
    """
    if len(shape) < 2:
        raise BundleError("SPY290", "a restickify needs two axes", expected="a shape of rank 2 up")
    dims = default_dims(len(shape))
    swapped = (*dims[:-2], dims[-1], dims[-2])
    stick = elements_per_stick(source.data_format)
    extents = dict(zip(dims, shape, strict=True))
    for dim in dims[-2:]:
        extents[dim] = round_up(extents[dim], stick)
    return OperationSpec(
        name="ReStickifyOpHBM",
        extents=extents,
        inputs=[_exact(host_tensor(source, dims), dims, shape, stick)],
        outputs=[_exact(host_tensor(target, swapped), dims, shape, stick)],
        splits=splits or {},
        data_format=source.data_format,
    )


def _exact(
    tensor: OperandSpec, dims: Sequence[str], shape: Sequence[int], stick: int
) -> OperandSpec:
    """``tensor`` with the extents its memory really has."""
    sizes = dict(zip(dims, shape, strict=True))
    stick_dim = tensor.stick[0][0]
    sizes[stick_dim] = round_up(sizes[stick_dim], stick)
    return replace(tensor, device_dim_sizes={dim: sizes[dim] for dim in tensor.dims})
