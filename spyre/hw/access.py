"""Where a tensor's elements lie and which of them a core touches, for planners, checks and
sanitizer.

The rule is that of :mod:`spyre.mlir.footprint` (SDSC reference §5.2). A *pitch* is the distance in
bytes between neighbours along a dim: of sticks for a dim in the tensor's stick, of elements for any
other. Start addresses already hold a core's slice offset. Lengths and addresses are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.footprint import (
    RESTICKIFY,
    core_extent,
    footprint,
    implied_front,
    indexed_dims,
    is_local,
    stick_elements,
    stored_extent,
    unsplit_input_extent,
    window_of,
    window_span,
)
from spyre.mlir.operation.operation import Component, Indirection, Operation, Tensor, Window


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """A tensor as the kernels see it.

    ``sticks``: elements of each stick dim in one stick. A *plain* stick has one dim and elements
    of 16 or 32 bits; only then ``stick_dim`` names it and ``lanes`` counts its elements, else they
    are empty and 0. ``pitch_bytes`` per held dim, ``stored`` extents in elements (of the whole
    tensor in HBM, per core in LX), ``span_bytes`` the distance from a core's start to the end of
    the last stick that core touches.
    """

    tensor: Tensor
    sticks: Mapping[str, int]
    stick_dim: str
    lanes: int
    pitch_bytes: Mapping[str, int]
    stored: Mapping[str, int]
    span_bytes: int

    def step_bytes(self, dim: str, elements: int) -> int:
        """Bytes that ``elements`` steps along ``dim`` advance (0 for a dim the tensor lacks).

        ``elements`` must be whole sticks along a stick dim.
        """
        if not self.tensor.holds(dim):
            return 0
        return self.pitch_bytes[dim] * (elements // self.sticks.get(dim, 1))

    @property
    def is_plain(self) -> bool:
        """True if the stick has one dim and elements of 16 or 32 bits."""
        return self.lanes > 0

    @property
    def is_lane(self) -> bool:
        """True if the tensor keeps one value per stick: it does not vary along its stick dim."""
        return not self.tensor.holds(self.stick_dim)


def make_access(op: Operation, tensor: Tensor) -> TensorAccess:
    """Extents, pitches and sticks of ``tensor`` in ``op``."""
    area = footprint(op, tensor)
    stick_dim, lanes = "", 0
    if len(tensor.stick_dims) == 1 and _has_plain_elements(tensor):
        stick_dim, lanes = tensor.stick_dims[0], tensor.stick_sizes[0]
    sticks = stick_elements(tensor)
    return TensorAccess(
        tensor, sticks, stick_dim, lanes, area.pitch_bytes, area.stored, area.span_bytes
    )


def require_plain(op: Operation, access: TensorAccess) -> None:
    """Raise UnsupportedError for sticks of several dims and elements not of 16 or 32 bits."""
    tensor = access.tensor
    location = JsonLocation(op.file, tensor.json_path)
    if len(tensor.stick_dims) != 1:
        raise UnsupportedError(
            "SPY521",
            f"{op.name}: {tensor.name} packs several dims into a stick",
            location,
            expected="one stick dim",
            found=f"{tensor.stick_dims} of sizes {tensor.stick_sizes}",
        )
    if not access.is_plain:
        raise UnsupportedError(
            "SPY522",
            f"{op.name}: {tensor.name} has elements that are not simulated yet",
            location,
            expected="16-bit elements, 64 per stick, or 32-bit elements, 32 per stick",
            found=f"{tensor.data_format}, {tensor.word_length_bytes} bytes, "
            f"{tensor.stick_sizes[0]} per stick",
        )


def _has_plain_elements(tensor: Tensor) -> bool:
    word = tensor.word_length_bytes
    return word in (2, 4) and tensor.stick_sizes[0] * word == STICK_BYTES


def per_core(op: Operation, dim: str) -> int:
    """Elements of ``dim`` one core iterates."""
    return op.extents[dim] // op.slices.get(dim, 1)


@dataclass(frozen=True, slots=True)
class BoxAxis:
    """``steps`` along ``dim``, ``pitch_bytes`` and ``elements`` apart.

    ``first``: element the first step is at, counted from the core's start; negative before it.
    """

    dim: str
    steps: int
    pitch_bytes: int
    elements: int
    first: int = 0

    @property
    def first_bytes(self) -> int:
        """Way from the core's start to the first step."""
        return self.first * self.pitch_bytes // self.elements


@dataclass(frozen=True, slots=True)
class Box:
    """Sticks relative to a core's start; ``axes`` by falling pitch, those of one step included.

    A dim may have two axes, whose steps add up: windows with gaps between them.
    """

    axes: tuple[BoxAxis, ...]

    @property
    def sticks(self) -> int:
        """Number of sticks."""
        count = 1
        for axis in self.axes:
            count *= axis.steps
        return count

    @property
    def first_bytes(self) -> int:
        """From the core's start to the first stick; negative where windows reach back."""
        return sum(axis.first_bytes for axis in self.axes)

    @property
    def span_bytes(self) -> int:
        """From the first stick to the end of the last."""
        return STICK_BYTES + sum((axis.steps - 1) * axis.pitch_bytes for axis in self.axes)

    @property
    def end_bytes(self) -> int:
        """From the core's start to the end of the last stick."""
        return self.first_bytes + self.span_bytes

    def offsets(self) -> Int64Array:
        """Byte offset of every stick from the core's start, ascending where pitches nest."""
        total = np.full(1, self.first_bytes, np.int64)
        for axis in self.axes:
            steps = np.arange(axis.steps, dtype=np.int64) * axis.pitch_bytes
            total = (total[:, None] + steps).ravel()
        return total

    def holds(self, offset_bytes: Int64Array) -> npt.NDArray[np.bool_]:
        """True where the byte at an offset from the core's start lies in one of the sticks.

        Pitches nest, so the offset is taken apart from the largest pitch down.
        """
        rest = offset_bytes - self.first_bytes
        inside = rest >= 0
        for axis in self.axes:
            rest -= np.clip(rest // axis.pitch_bytes, 0, axis.steps - 1) * axis.pitch_bytes
        return inside & (rest >= 0) & (rest < STICK_BYTES)

    def coordinate(self, offset_bytes: int) -> dict[str, int]:
        """Element coordinate per dim, in the core's share, of the stick at ``offset_bytes``."""
        found: dict[str, int] = {}
        rest = offset_bytes - self.first_bytes
        for axis in self.axes:
            step = min(rest // axis.pitch_bytes, axis.steps - 1)
            rest -= step * axis.pitch_bytes
            found[axis.dim] = found.get(axis.dim, 0) + axis.first + step * axis.elements
        return found


_Steps = tuple[int, tuple[tuple[int, int], ...]]
"""Steps along a dim, in sticks of a stick dim: the first, and (count, distance), outer first."""


def core_boxes(op: Operation, tensor: Tensor) -> tuple[Box | None, ...]:
    """The box of every core, in the order of ``op.cores``; None where a core touches nothing."""
    pitches = footprint(op, tensor).pitch_bytes
    sticks = stick_elements(tensor)
    skipped = indexed_dims(op, tensor)
    dims = [d for d in tensor.dims if tensor.holds(d) and d not in skipped]
    dims = sorted(dict.fromkeys(dims), key=lambda d: -pitches[d])
    shared: dict[tuple[_Steps | None, ...], Box | None] = {}
    boxes = []
    for position in range(len(op.cores)):
        steps = tuple(_steps(op, tensor, d, position, sticks.get(d, 1)) for d in dims)
        if steps not in shared:
            axes = [
                axis
                for dim, found in zip(dims, steps, strict=True)
                for axis in _axes(dim, found, pitches[dim], sticks.get(dim, 1))
            ]
            shared[steps] = None if None in steps else Box(tuple(axes))
        boxes.append(shared[steps])
    return tuple(boxes)


def _axes(dim: str, steps: _Steps | None, pitch: int, size: int) -> list[BoxAxis]:
    """The axes of ``steps`` of ``size`` elements and ``pitch`` bytes."""
    if steps is None:
        return []
    first, levels = steps
    firsts = [first * size] + [0] * (len(levels) - 1)
    return [
        BoxAxis(dim, count, distance * pitch, distance * size, start)
        for (count, distance), start in zip(levels, firsts, strict=True)
    ]


def _steps(op: Operation, tensor: Tensor, dim: str, position: int, size: int) -> _Steps | None:
    """What the core at ``position`` visits along ``dim``, ``size`` elements to a step."""
    if (window := window_of(op, tensor, dim)) is not None:
        return _windowed(op, tensor, dim, window, position, size)
    visited = _visited(op, tensor, dim, position)
    return (0, ((-(-visited // size), 1),)) if visited > 0 else None


def _windowed(
    op: Operation, tensor: Tensor, dim: str, window: Window, position: int, size: int
) -> _Steps | None:
    """Stored input under a core's windows, counted from its start (operations reference §7)."""
    positions = core_extent(op, tensor, dim)
    places = np.arange(op.extents.get(window.window_dim, 1), dtype=np.int64) * window.dilation
    slides = np.arange(positions, dtype=np.int64) * window.stride
    covered = (slides[:, None] + places).ravel() - implied_front(tensor, dim, window)
    whole = covered + op.core_slices[position].get(dim, 0) * positions * window.stride
    held = (whole >= 0) & (whole < unsplit_input_extent(tensor, dim, window))
    return _regular(np.unique(covered[held] // size)) if held.any() else None


def _regular(numbers: Int64Array) -> _Steps:
    """Ascending ``numbers`` as steps of one or two levels; others as all from first to last."""
    first, gaps = int(numbers[0]), np.diff(numbers)
    if not gaps.size:
        return first, ((1, 1),)
    inner = int(gaps[0])
    changes = np.flatnonzero(gaps != inner)
    if not changes.size:
        return first, ((len(numbers), inner),)
    run = int(changes[0]) + 1
    if len(numbers) % run == 0:
        rows = numbers.reshape(-1, run)
        outer = int(rows[1, 0] - rows[0, 0])
        grid = np.arange(len(rows))[:, None] * outer + np.arange(run) * inner
        if (rows - first == grid).all():
            return first, ((len(rows), outer), (run, inner))
    return first, ((int(numbers[-1]) - first + 1, 1),)


def _visited(op: Operation, tensor: Tensor, dim: str, position: int) -> int:
    """Elements of ``dim`` the core at ``position`` visits."""
    share = core_extent(op, tensor, dim)
    if op.name != RESTICKIFY:
        return share
    limits = [_stored_from(op, tensor, dim, position)]
    if tensor in op.inputs and dim in tensor.stick_dims:
        limits.append(_stored_from(op, op.outputs[0], dim, position))
    return max(0, min(share, *limits))


def _stored_from(op: Operation, tensor: Tensor, dim: str, position: int) -> int:
    """Stored elements of ``dim`` from the core's slice on."""
    stored = stored_extent(op, tensor, dim, stick_elements(tensor).get(dim, 1))
    if tensor.component is Component.LX or tensor.per_core_in_hbm:
        return stored
    return stored - op.core_slices[position].get(dim, 0) * core_extent(op, tensor, dim)


def covers(op: Operation, tensor: Tensor, offset_bytes: Int64Array) -> npt.NDArray[np.bool_]:
    """True where a byte at an offset from a core's start is one the core touches, [n, core]."""
    boxes = core_boxes(op, tensor)
    hits = np.zeros(offset_bytes.shape, np.bool_)
    for box in {id(b): b for b in boxes if b is not None}.values():
        columns = np.flatnonzero([b is box for b in boxes])
        hits[:, columns] = box.holds(offset_bytes[:, columns])
    return hits


def is_indirect(tensor: Tensor) -> bool:
    """True if an index tensor moves every access: its sticks are known only while it runs."""
    return tensor.indirection is Indirection.VALUE


def canonical_cores(op: Operation) -> tuple[int, ...]:
    """Per position the first position that counts as the same core for an output.

    Cores that combine partial results of a split reduction, and replicas of a work slice, share
    their slice indices along the dims the output holds.
    """
    output = op.outputs[0]
    held = [d for d in op.dims if op.slices.get(d, 1) > 1 and output.holds(d)]
    first: dict[tuple[int, ...], int] = {}
    return tuple(
        first.setdefault(tuple(slices.get(d, 0) for d in held), position)
        for position, slices in enumerate(op.core_slices)
    )


def global_coordinate(
    op: Operation, tensor: Tensor, box: Box, position: int, offset_bytes: int
) -> tuple[tuple[str, int], ...]:
    """Coordinate in the execute's iteration space of a stick of a core's box, in dim order.

    Along a windowed dim of the first input: its stored coordinate, without implied padding.
    """
    local = box.coordinate(offset_bytes)
    slices: Sequence[dict[str, int]] = [dict(s) for s in tensor.own_core_slices or op.core_slices]
    return tuple(
        (dim, local[dim] + slices[position].get(dim, 0) * _slice_step(op, tensor, dim))
        for dim in op.dims
        if dim in local
    )


def _slice_step(op: Operation, tensor: Tensor, dim: str) -> int:
    """Elements of ``tensor`` from one work slice to the next."""
    window = window_of(op, tensor, dim)
    return core_extent(op, tensor, dim) * (1 if window is None else window.stride)


def touched_bytes(op: Operation, access: TensorAccess, starts: Int64Array) -> tuple[int, int]:
    """First byte and end of what all cores touch; ``starts``: a start per core.

    A core's share of an index tensor may start inside a stick, at whose end it ends. Where memory
    is shorter than the iteration (ReStickifyOpHBM), the last cores touch less than their share.
    Along the dims an index stands for, one step counts, whatever memory holds.
    """
    windowed = [d for d in access.tensor.dims if window_of(op, access.tensor, d) is not None]
    short = [d for d in _divided(op, access) if access.stored[d] < op.extents[d]]
    if not windowed and not short:
        inside = starts % STICK_BYTES if access.tensor in op.index_tensors else 0
        return int(starts.min()), int((starts - inside).max()) + access.span_bytes
    low, high = starts.copy(), starts + STICK_BYTES
    reached = np.ones(len(starts), np.bool_)
    for dim in access.tensor.dims:
        if not access.tensor.holds(dim) or dim in indexed_dims(op, access.tensor):
            continue
        size, pitch = access.sticks.get(dim, 1), access.pitch_bytes[dim]
        if dim in windowed:
            first, end = _window_range(op, access, dim)
        else:
            first, end = np.zeros(1, np.int64), _stored_share(op, access, dim, dim in short)
            reached &= end > 0
        low += first // size * pitch
        high += (np.maximum(-(-end // size), 1) - 1) * pitch
    if not reached.any():
        return int(starts.min()), int(starts.min())
    return int(low[reached].min()), int(high[reached].max())


def _divided(op: Operation, access: TensorAccess) -> list[str]:
    """Dims along which the cores have slices of one tensor in HBM; no core has one of a table."""
    if is_local(access.tensor):
        return []
    indexed = indexed_dims(op, access.tensor)
    held = [d for d in access.tensor.dims if access.tensor.holds(d) and d not in indexed]
    return [d for d in held if op.slices.get(d, 1) > 1]


def _stored_share(op: Operation, access: TensorAccess, dim: str, is_short: bool) -> Int64Array:
    """Elements of ``dim`` that each core has in memory."""
    share = np.full(len(op.core_slices), per_core(op, dim), np.int64)
    if not is_short:
        return np.minimum(share, access.stored[dim])
    origins = np.array([core.get(dim, 0) for core in op.core_slices], np.int64) * share
    found: Int64Array = np.clip(access.stored[dim] - origins, 0, share)
    return found


def _window_range(op: Operation, access: TensorAccess, dim: str) -> tuple[Int64Array, Int64Array]:
    """Per core: stored coordinates along a windowed ``dim``, counted from the core's start."""
    window = op.windows[dim]
    origins = [core.get(dim, 0) * per_core(op, dim) * window.stride for core in op.core_slices]
    origin = np.array(origins, np.int64)
    front = implied_front(access.tensor, dim, window)
    limit = unsplit_input_extent(access.tensor, dim, window)
    end = np.minimum(window_span(op, dim, window) - front, limit - origin)
    return np.maximum(-front, -origin), end
