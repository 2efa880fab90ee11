"""Addresses of a tensor's elements, and the sticks that a core touches.

The rule is that of :mod:`spyre.mlir.operation` (SDSC reference §5.2). A *pitch* is the
distance in bytes between neighbours along a dim: of sticks for a dim in the tensor's stick, of
elements for any other. Start addresses already hold a core's slice offset. Lengths and addresses
are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import (
    RESTICKIFY,
    Component,
    Indirection,
    Operation,
    Tensor,
    Window,
    footprint,
    implied_front,
    indexed_dims,
    unsplit_input_extent,
)


class TensorAccess(msgspec.Struct, frozen=True):
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
    stick_dim, lanes, word = "", 0, tensor.word_length_bytes
    is_plain = len(tensor.stick_dims) == 1 and word in (2, 4)
    if is_plain and tensor.stick_sizes[0] * word == STICK_BYTES:
        stick_dim, lanes = tensor.stick_dims[0], tensor.stick_sizes[0]
    elif tensor.by_elements:
        stick_dim, lanes = tensor.stick_dims[0], 1
    return TensorAccess(
        tensor, tensor.sticks, stick_dim, lanes, area.pitch_bytes, area.stored, area.span_bytes
    )


def require_plain(op: Operation, access: TensorAccess) -> None:
    """Raise UnsupportedError for sticks of several dims and elements not of 16 or 32 bits."""
    tensor = access.tensor
    location = JsonLocation(op.file, tensor.json_path)
    if len(tensor.stick_dims) != 1:
        message = f"{op.name}: {tensor.name} packs several dims into a stick"
        found = f"{tensor.stick_dims} of sizes {tensor.stick_sizes}"
        raise UnsupportedError("SPY521", message, location, expected="one stick dim", found=found)
    if not access.is_plain:
        raise UnsupportedError(
            "SPY522",
            f"{op.name}: {tensor.name} has elements that are not simulated yet",
            location,
            expected="16-bit elements, 64 per stick, or 32-bit elements, 32 per stick",
            found=f"{tensor.data_format}, {tensor.word_length_bytes} bytes, "
            f"{tensor.stick_sizes[0]} per stick",
        )


class Box(msgspec.Struct, frozen=True):
    """The sticks of a tensor that a core touches, relative to the core's start.

    ``walk`` steps from stick to stick (of ``unit_bytes``: also single elements), in bytes and in
    the coordinate along each dim of ``dims`` (in the core's part, of the stick's first element).
    Its axes are those of the dims by falling pitch, those of one step included; a dim has two for
    windows with gaps between them. It starts before the core's start if windows reach back into the
    input.
    """

    walk: AccessMap
    dims: tuple[str, ...]
    unit_bytes: int = STICK_BYTES

    @property
    def sticks(self) -> int:
        """Number of sticks."""
        return self.walk.count

    @property
    def first_bytes(self) -> int:
        """From the core's start to the first stick; negative where windows reach back."""
        return self.walk.first[0]

    @property
    def end_bytes(self) -> int:
        """From the core's start to the end of the last stick."""
        return self.walk.highest() + self.unit_bytes

    @property
    def span_bytes(self) -> int:
        """From the first stick to the end of the last."""
        return self.end_bytes - self.first_bytes

    def coordinate(self, offset_bytes: int) -> dict[str, int]:
        """Coordinate per dim, in the core's share, of the stick that holds a byte."""
        (steps,), _ = self.walk.steps_of(np.array([offset_bytes], np.int64))
        return dict(zip(self.dims, self.walk.at(steps.tolist())[1:], strict=True))


_Steps = tuple[int, tuple[tuple[int, int], ...]]
"""Steps along a dim, in sticks of a stick dim: the first, and (count, distance), outer first."""


def core_boxes(op: Operation, tensor: Tensor) -> tuple[Box | None, ...]:
    """The box of every core, in the order of ``op.cores``; None for a core that touches nothing.

    The address rule of SDSC reference §5.2, restricted to the iteration: a restickify stops at the
    stored extents, windows read the stored elements they cover (operations reference §7). Indexed
    dims of a value tensor are left out, since their coordinates are known only at run time.
    """
    pitches = footprint(op, tensor).pitch_bytes
    skipped = indexed_dims(op, tensor)
    walked = dict.fromkeys(d for d in tensor.dims if tensor.holds(d) and d not in skipped)
    dims = tuple(sorted(walked, key=lambda d: -pitches[d]))
    # parts have one size; only along these dims the box depends on the slice index
    uneven = [d for d in dims if op.name == RESTICKIFY or op.window_of(tensor, d) is not None]
    if not uneven:
        box = _box(tensor, dims, [_steps(op, tensor, dim, 0) for dim in dims], pitches)
        return (box,) * len(op.core_slices)
    by_slices: dict[tuple[int, ...], Box | None] = {}
    by_steps: dict[tuple[_Steps | None, ...], Box | None] = {}
    boxes = []
    for position, slices in enumerate(op.core_slices):
        key = tuple(slices.get(dim, 0) for dim in uneven)
        if key not in by_slices:
            steps = tuple(_steps(op, tensor, dim, position) for dim in dims)
            if steps not in by_steps:
                by_steps[steps] = _box(tensor, dims, steps, pitches)
            by_slices[key] = by_steps[steps]
        boxes.append(by_slices[key])
    return tuple(boxes)


def _box(
    tensor: Tensor,
    dims: tuple[str, ...],
    steps: Sequence[_Steps | None],
    pitches: Mapping[str, int],
) -> Box | None:
    """``steps``: of each dim, None if nothing is touched along it."""
    first, axes = [0] * (1 + len(dims)), []
    for place, (dim, visited) in enumerate(zip(dims, steps, strict=True), 1):
        if visited is None:  # past the stored extent, or all windows are padding
            return None
        start, levels = visited
        size = tensor.sticks.get(dim, 1)
        first[0] += start * pitches[dim]
        first[place] = start * size
        for extent, distance in levels:
            moves = [0] * len(first)
            moves[0], moves[place] = distance * pitches[dim], distance * size
            axes.append(Axis(extent, tuple(moves)))
    unit_bytes = tensor.unit_bytes if tensor.pitches else STICK_BYTES
    return Box(AccessMap(tuple(first), tuple(axes)), dims, unit_bytes)


def _steps(op: Operation, tensor: Tensor, dim: str, position: int) -> _Steps | None:
    """Steps of the core at ``position`` along ``dim``; None for none."""
    size = tensor.sticks.get(dim, 1)
    if (window := op.window_of(tensor, dim)) is not None:
        return _windowed(op, tensor, dim, window, position, size)
    visited = _visited(op, tensor, dim, position)
    return (0, ((-(-visited // size), 1),)) if visited > 0 else None


def _windowed(
    op: Operation, tensor: Tensor, dim: str, window: Window, position: int, size: int
) -> _Steps | None:
    """Steps over the stored input under a core's windows (operations reference §7)."""
    positions = op.tensor_extent(tensor, dim)
    places = np.arange(op.extents.get(window.window_dim, 1), dtype=np.int64) * window.dilation
    slides = np.arange(positions, dtype=np.int64) * window.stride
    covered = (slides[:, None] + places).ravel() - implied_front(tensor, dim, window)
    in_tensor = covered + op.core_slices[position].get(dim, 0) * positions * window.stride
    stored = (in_tensor >= 0) & (in_tensor < unsplit_input_extent(tensor, dim, window))
    return _regular(np.unique(covered[stored] // size)) if stored.any() else None


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
    share = op.tensor_extent(tensor, dim)
    if op.name != RESTICKIFY:
        return share
    limits = [_stored_from(op, tensor, dim, position)]
    if tensor in op.inputs and dim in tensor.stick_dims:
        limits.append(_stored_from(op, op.outputs[0], dim, position))
    return max(0, min(share, *limits))


def _stored_from(op: Operation, tensor: Tensor, dim: str, position: int) -> int:
    """Stored elements of ``dim`` from the core's slice on."""
    stored = footprint(op, tensor).stored[dim]
    if tensor.component is Component.LX or tensor.per_core_in_hbm:
        return stored
    return stored - op.core_slices[position].get(dim, 0) * op.tensor_extent(tensor, dim)


def _cores_by_box(boxes: Sequence[Box | None]) -> Iterator[tuple[Box, Any]]:
    """Each box there is, with the positions of its cores (an index of arrays)."""
    distinct = {id(box): box for box in boxes if box is not None}.values()
    for box in distinct:
        alone = len(distinct) == 1 and None not in boxes
        yield box, slice(None) if alone else np.flatnonzero([b is box for b in boxes])


def covers(op: Operation, tensor: Tensor, offset_bytes: Int64Array) -> npt.NDArray[np.bool_]:
    """True where a byte at an offset from a core's start is one the core touches, [n, core]."""
    hits = np.zeros(offset_bytes.shape, np.bool_)
    for box, cores in _cores_by_box(core_boxes(op, tensor)):
        hits[:, cores] = box.walk.contains(offset_bytes[:, cores], box.unit_bytes)
    return hits


def touched_bytes(op: Operation, tensor: Tensor, starts: Int64Array) -> tuple[int, int]:
    """First byte and end of the range that all cores touch; ``starts``: a start per core, in bytes.

    A core's part of an index tensor may start within a stick, and then ends with it.
    """
    in_sticks = tensor in op.index_tensors and not tensor.by_elements
    last_starts = starts - starts % STICK_BYTES if in_sticks else starts
    is_moved = tensor.indirection is Indirection.VALUE
    reach = sum(step * (count - 1) for step, count in op.index_steps) if is_moved else 0
    ranges = [
        (
            int(starts[cores].min()) + box.first_bytes,
            int(last_starts[cores].max()) + box.end_bytes + reach,
        )
        for box, cores in _cores_by_box(core_boxes(op, tensor))
    ]
    if not ranges:
        return int(starts.min()), int(starts.min())
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def is_indirect(tensor: Tensor) -> bool:
    """True if no known sticks are accessed: an index tensor moves them, or elements are."""
    return tensor.indirection is Indirection.VALUE or tensor.by_elements


def canonical_cores(op: Operation) -> tuple[int, ...]:
    """Per position the first position that counts as the same core for an output.

    Cores that combine partial results of a split reduction, and replicas of a work slice, share
    their slice indices along the dims the output holds.
    """
    output = op.outputs[0]
    split = [d for d in op.dims if op.slices.get(d, 1) > 1 and output.holds(d)]
    first: dict[tuple[int, ...], int] = {}
    return tuple(
        first.setdefault(tuple(slices.get(d, 0) for d in split), position)
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

    def origin(dim: str) -> int:
        window = op.window_of(tensor, dim)
        step = op.tensor_extent(tensor, dim) * (1 if window is None else window.stride)
        return slices[position].get(dim, 0) * step

    return tuple((dim, local[dim] + origin(dim)) for dim in op.dims if dim in local)
