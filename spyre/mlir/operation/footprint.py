"""What a tensor occupies in memory: stored extents, pitches and spans of one operand.

The address rule of the SuperDSC reference §5.2 (sdsc.md), on an :class:`Operation`; the checker,
``explain`` and the builder read it. `with_sizes` binds symbolic dims to the sizes of a launch
(§11):
memory stays laid out for the largest size, only the trip count changes. Extents count elements,
pitches and spans count bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spyre.errors import JsonLocation, LaunchError
from spyre.mlir.operation.operation import (
    Component,
    Indirection,
    Operation,
    Padding,
    SymbolicDim,
    Tensor,
    Window,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RESTICKIFY = "ReStickifyOpHBM"

STORED_PADDING = (Padding.STORED_ZEROS, Padding.FULL_SPAN, Padding.FULL_SPAN_UNNEEDED)
"""Kinds of padding that stand in memory; with any other the padding is implied (our reading)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """``stored`` elements per dim, ``pitch_bytes`` per dim (between sticks for a stick dim, between
    elements otherwise), ``allocation_bytes`` of the whole (HBM) or one core's (LX) tensor, and
    ``span_bytes`` from a core's start to the end of the last stick it touches.
    """

    stored: Mapping[str, int]
    pitch_bytes: Mapping[str, int]
    allocation_bytes: int
    span_bytes: int


def footprint(op: Operation, tensor: Tensor) -> Footprint:
    """Footprint of ``tensor``; its dims must be dims of ``op`` with slices that divide them."""
    known = op.footprints.get(tensor.index)
    if known is not None and known[0] is tensor:
        return known[1]
    stored: dict[str, int] = {}
    pitches: dict[str, int] = {}
    pitch, span = tensor.first_pitch_bytes, tensor.unit_bytes
    for dim in tensor.dims:
        size = tensor.sticks.get(dim, 1)
        extent = stored[dim] = _stored_extent(op, tensor, dim)
        pitch = tensor.pitches.get(dim, pitch)
        pitches[dim] = pitch
        span += pitch * (_steps(op, tensor, dim, extent, size) - 1)
        pitch *= -(-extent // size)
    area = Footprint(stored, pitches, pitch, span)
    op.footprints[tensor.index] = tensor, area
    return area


def _stored_extent(op: Operation, tensor: Tensor, dim: str) -> int:
    """Elements that memory keeps along ``dim``."""
    scale = tensor.scale[dim]
    if scale != 1:
        return tensor.sticks.get(dim, 1) if scale == -2 else 1
    if dim in tensor.device_dim_sizes:
        return tensor.device_dim_sizes[dim]
    if tensor.indirection is Indirection.VALUE and tensor.max_dim_sizes.get(dim, -1) > 0:
        return tensor.max_dim_sizes[dim]
    gap = tensor.gap_elements.get(dim, 0)
    if (window := op.window_of(tensor, dim)) is not None:
        divided = tensor.is_local and op.slices.get(dim, 1) > 1
        whole = unsplit_input_extent(tensor, dim, window)
        return (op.window_span(tensor, dim) if divided else whole) + gap
    extent = op.tensor_extent(tensor, dim) if tensor.is_local else op.extents[dim]
    return extent - gap if gap and _gap_is_padding(op, tensor, dim, gap) else extent + gap


def implied_front(tensor: Tensor, dim: str, window: Window) -> int:
    """Elements of front padding along ``dim`` that memory does not hold."""
    return 0 if tensor.padding.get(dim) in STORED_PADDING else window.pad_front


def unsplit_input_extent(tensor: Tensor, dim: str, window: Window) -> int:
    """Input elements along a windowed ``dim`` that memory holds for all cores together."""
    if tensor.padding.get(dim) in STORED_PADDING:
        return window.total
    return window.total - window.pad_front - window.pad_back


def indexed_dims(op: Operation, tensor: Tensor) -> tuple[str, ...]:
    """Return the dims of a value tensor that its index tensor selects (§6.4), in tensor order.

    These are the shared dims with a bounded size or, if none is bounded, all shared dims.
    """
    if tensor.indirection is not Indirection.VALUE or op.index_steps:
        return ()
    shared = [d for d in tensor.dims if any(index.holds(d) for index in op.index_tensors)]
    bounded = [d for d in shared if tensor.max_dim_sizes.get(d, -1) > 0]
    return tuple(bounded or shared)


@dataclass(frozen=True, slots=True)
class IndexStep:
    """What one step of an index moves in a value tensor: ``page`` elements of ``dim`` (§6.4).

    ``inside``: the iteration runs within the page along ``dim``; otherwise the index takes the
    place of the dim's coordinate.
    """

    dim: str
    page: int
    inside: bool


def index_step(op: Operation, tensor: Tensor) -> IndexStep | None:
    """Return the dim and step that an index into ``tensor`` counts; None if the file has neither.

    The dim is the first that the value tensor shares with its index tensor or, without shared
    dims, its only paged dim.
    """
    if indexed := indexed_dims(op, tensor):
        return IndexStep(indexed[0], max(tensor.max_dim_sizes.get(indexed[0], 1), 1), False)
    paged = [d for d in tensor.dims if tensor.holds(d) and tensor.max_dim_sizes.get(d, -1) > 0]
    if tensor.indirection is not Indirection.VALUE or len(paged) != 1:
        return None
    return IndexStep(paged[0], tensor.max_dim_sizes[paged[0]], True)


def index_step_fault(op: Operation, tensor: Tensor) -> str:
    """Return the reason why indexed addresses of ``tensor`` are undefined; "" if they are not."""
    step = index_step(op, tensor)
    if step is None:
        return f"no dim of {tensor.name} is indexed"
    own_dims = [dim for dim in tensor.dims if tensor.holds(dim)]
    if step.dim not in own_dims:
        return f"an index counts along {step.dim}, which {tensor.name} does not have"
    beyond = own_dims[own_dims.index(step.dim) + 1 :]
    moving = [dim for dim in beyond if op.extents[dim] > tensor.sticks.get(dim, 1)]
    outer = [dim for dim in moving if dim not in indexed_dims(op, tensor)]
    if outer and step.dim not in tensor.device_dim_sizes:
        return f"pitch of {outer[0]} of {tensor.name}: the extent of {step.dim} is not given"
    for dim, page in tensor.max_dim_sizes.items():
        if tensor.holds(dim) and dim not in indexed_dims(op, tensor) and 0 < page < op.extents[dim]:
            return f"{dim} runs beyond the pages of {page} of {tensor.name}"
    return ""


def _gap_is_padding(op: Operation, tensor: Tensor, dim: str, gap: int) -> bool:
    """§7: a padded restickify rounds N up to the other tensor's stick, the excess is the gap."""
    if op.name != RESTICKIFY or dim in tensor.stick_dims:
        return False
    sticks = [
        size
        for other in (*op.inputs, *op.outputs)
        for stick_dim, size in zip(other.stick_dims, other.stick_sizes, strict=True)
        if stick_dim == dim
    ]
    return any(0 < gap < size and op.extents[dim] % size == 0 for size in sticks)


def _steps(op: Operation, tensor: Tensor, dim: str, stored: int, stick: int) -> int:
    """Sticks (of a stick dim) or elements that one core visits along ``dim``."""
    if tensor.scale[dim] != 1 or dim in indexed_dims(op, tensor):
        return 1
    window = op.window_of(tensor, dim)
    if window is None:
        extent = min(op.tensor_extent(tensor, dim), stored)
    else:
        extent = _visited(op, tensor, dim, window, stored)
    return max(1, -(-extent // stick))


def _visited(op: Operation, tensor: Tensor, dim: str, window: Window, stored: int) -> int:
    """Input elements of a windowed ``dim`` from the last core's start to the last it reads."""
    reach = op.window_span(tensor, dim) - implied_front(tensor, dim, window)
    slices = 1 if tensor.is_local else op.slices.get(dim, 1)
    origin = (slices - 1) * (op.extents[dim] // slices) * window.stride
    room = min(stored, unsplit_input_extent(tensor, dim, window)) - origin
    return min(reach, room)


Sizes = Mapping[str, int]
"""Extent in elements per symbolic dim."""


def with_sizes(op: Operation, sizes: Sizes) -> Operation:
    """``op`` over ``sizes``, its tensors still stored as for the maxima. LaunchError SPY372."""
    if not op.symbolic_dims:
        return op
    for dim, size in op.symbolic_dims.items():
        _check_size(op, dim, size, sizes[dim])
    return replace(
        op,
        extents={**op.extents, **{dim: sizes[dim] for dim in op.symbolic_dims}},
        symbolic_dims={},
        inputs=tuple(pinned(op, t, op.symbolic_dims) for t in op.inputs),
        index_tensors=tuple(pinned(op, t, op.symbolic_dims) for t in op.index_tensors),
        outputs=tuple(pinned(op, t, op.symbolic_dims) for t in op.outputs),
    )


def pinned(op: Operation, tensor: Tensor, dims: Mapping[str, object]) -> Tensor:
    """``tensor`` whose stored extents along ``dims`` no longer follow from those of ``op``."""
    stored = {
        dim: _stored_extent(op, tensor, dim)
        for dim in tensor.dims
        if dim in dims and tensor.holds(dim)
    }
    return replace(tensor, device_dim_sizes={**tensor.device_dim_sizes, **stored})


def group_by_sizes(
    op: Operation, symbol_ids: tuple[int, ...], symbols: npt.NDArray[np.int64]
) -> Iterator[tuple[Sizes, npt.NDArray[np.int64]]]:
    """Sizes, and the instances (rows of ``symbols``, one column per id) that have them.

    The ids hold those of ``op``'s symbolic dims: see `unbound_symbols`.
    """
    import numpy as np  # not at the top: checking a bundle does without

    dims = op.symbolic_dims
    columns = [symbol_ids.index(size.symbol) for size in dims.values()]
    if not dims or not len(symbols):
        yield {}, np.arange(len(symbols))
        return
    values, which = np.unique(symbols[:, columns], axis=0, return_inverse=True)
    for k, row in enumerate(values):
        sizes = dict(zip(dims, (int(value) for value in row), strict=True))
        yield sizes, np.flatnonzero(which.reshape(-1) == k)


def _check_size(op: Operation, dim: str, size: SymbolicDim, value: int) -> None:
    if 0 < value <= size.maximum and value % max(size.granularity, 1) == 0:
        return
    name = f" {size.tag}" if size.tag else ""
    raise LaunchError(
        "SPY372",
        f"{op.name}: runtime size{name} of dim {dim} contradicts the SDSC",
        JsonLocation(op.file, "$.dscs_[0].N_.symbolicDimInfo_"),
        expected=f"a positive multiple of {size.granularity} up to {size.maximum}",
        found=str(value),
    )


# --- work slices -----------------------------------------------------------------------------


def slice_offsets(op: Operation, tensor: Tensor) -> tuple[int, ...]:
    """Bytes from the tensor's start to every core's slice; 0 where each core has its own tensor.

    A table's indexed dims move no start (§6.4: it is shared); a share of less than a stick starts
    within the stick.
    """
    moving = [dim for dim in moving_dims(op, tensor) if dim not in op.symbolic_dims]
    if not moving:
        return (0,) * len(op.core_slices)
    pitches = footprint(op, tensor).pitch_bytes
    offsets = {dim: _slice_origins(op, tensor, dim, pitches[dim]) for dim in moving}
    return tuple(sum(offsets[dim][row[dim]] for dim in moving) for row in op.core_slices)


def moving_dims(op: Operation, tensor: Tensor) -> list[str]:
    """Dims along which the cores' starts differ."""
    if tensor.component is Component.LX or tensor.per_core_in_hbm:
        return []
    indexed = indexed_dims(op, tensor)
    return [d for d in tensor.dims if tensor.holds(d) and d in op.slices and d not in indexed]


def _slice_origins(op: Operation, tensor: Tensor, dim: str, pitch: int) -> dict[int, int]:
    """Bytes from the tensor's first element to the first one of a slice of ``dim``, by its index.

    Under a window, the element its first output position starts at, padding counted as stored.
    """
    window, stick = op.window_of(tensor, dim), tensor.sticks.get(dim, 1)
    step = op.core_extent(dim) * (window.stride if window else 1)
    inside = tensor.word_length_bytes if len(tensor.stick_dims) == 1 else 0
    return {
        index: index * step // stick * pitch + index * step % stick * inside
        for index in {row[dim] for row in op.core_slices}
    }
