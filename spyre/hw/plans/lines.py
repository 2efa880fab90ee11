"""Iteration spaces as *lines*: per dim, a vector of bit offsets for every operand.

Unlike the axes of :mod:`spyre.hw.nest`, a line needs no constant pitch, so packed sticks and
windows are lines too. Work slices of cores are lines that are put before those of their dims.
Rows of a line are the operands, then pseudo-operands that count output positions of windowed dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.errors import JsonLocation, SdscError, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.access import Access, per_core
from spyre.hw.nest import Axis, CoreGroup, Int64Array, fold_cores
from spyre.hw.offsets import coordinate_offsets, local_offsets
from spyre.hw.plans.context import PlanContext, check_shared_output
from spyre.mlir.footprint import is_local, unsplit_input_extent, window_of, window_span

MOST_STEPS = 1 << 23
"""Steps of one vector: 64 MiB."""
MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Space:
    """Cores whose starts are affine.

    ``bases``: per operand bits from its base address, per pseudo-operand the first position.
    ``slices``: a line per split dim; ``local``: a line per dim, over one core's share.
    """

    bases: Int64Array
    slices: dict[str, Int64Array]
    local: dict[str, Int64Array]

    def line(self, dim: str) -> Int64Array:
        """The line of ``dim`` over all slices."""
        if dim not in self.slices:
            return self.local[dim]
        outer, inner = self.slices[dim], self.local[dim]
        return (outer[:, :, None] + inner[:, None, :]).reshape(len(outer), -1)

    def peel(self, dims: Sequence[str]) -> Iterator[Space]:
        """A space per work slice of ``dims``."""
        if not dims:
            yield self
            return
        rest = {dim: line for dim, line in self.slices.items() if dim != dims[0]}
        for start in self.slices[dims[0]].T:
            yield from Space(self.bases + start, rest, self.local).peel(dims[1:])


def combine(
    context: PlanContext, lines: Sequence[Int64Array], rows: int | None = None
) -> Int64Array:
    """The product of lines, the first outermost; one step of zeros if there are none.

    ``rows``: rows of the lines, by default the operands. Raises UnsupportedError if there are too
    many steps for a vector.
    """
    total = np.zeros((rows or len(context.accesses), 1), np.int64) if not lines else lines[0]
    steps = prod(line.shape[1] for line in lines)
    if steps > MOST_STEPS:
        raise _too_large(context, f"{steps} steps")
    for line in lines[1:]:
        total = (total[:, :, None] + line[:, None, :]).reshape(len(total), -1)
    return total


def _too_large(context: PlanContext, found: str) -> UnsupportedError:
    return context.refuse(
        "SPY550",
        "the operation is too large for offset vectors",
        f"at most {MOST_STEPS} steps, tensors of at most {MOST_BYTES} bytes",
        found,
        "$.dscs_[0].N_",
    )


def line_axis(line: Int64Array) -> Axis | None:
    """The line as an axis of byte pitches, or None if its steps differ or split bytes."""
    count = line.shape[1]
    step = line[:, 1] - line[:, 0] if count > 1 else np.zeros(len(line), np.int64)
    if (line != line[:, :1] + step[:, None] * np.arange(count)).any() or (step % 8).any():
        return None
    return Axis(count, tuple((step // 8).tolist()))


def spaces(context: PlanContext, reduced: Sequence[str]) -> Iterator[Space]:
    """The operation as few regular spaces; cores of one space share dims of ``reduced``.

    Raises UnsupportedError for irregular starts of cores that reduce together.
    """
    op = context.op
    _check_positive(context)
    for access in context.accesses:
        _check_size(context, access)
        _check_shares(context, access)
    windowed = tuple(op.windows)
    positions = [
        [core.get(dim, 0) * per_core(op, dim) for core in op.core_slices] for dim in windowed
    ]
    starts = np.vstack([context.starts, np.array(positions, np.int64).reshape(-1, len(op.cores))])
    scale = np.array([8] * len(context.accesses) + [1] * len(windowed), np.int64)
    local = {dim: _local_line(context, dim) for dim in op.dims}
    together = [dim for dim in reduced if op.slices.get(dim, 1) > 1]
    for group in fold_cores(op, starts, together):
        check_shared_output(context, group, reduced, len(context.accesses) - 1)
        yield Space(np.array(group.bases, np.int64) * scale, _slice_lines(group, scale), local)


def _check_positive(context: PlanContext) -> None:
    for dim, extent in context.op.extents.items():
        if extent < 1:
            raise SdscError(
                "SPY294",
                f"{context.op.name}: nothing to iterate along {dim!r}",
                JsonLocation(context.op.file, "$.dscs_[0].N_"),
                expected="at least 1 element",
                found=str(extent),
            )


def _check_size(context: PlanContext, access: Access) -> None:
    """Memory must hold every element that is iterated, and offsets must fit 64 bits."""
    op, tensor = context.op, access.tensor
    held = [dim for dim in tensor.dims if tensor.holds(dim)]
    largest = max([access.span_bytes, *access.pitch_bytes.values()])
    most = max(op.extents.values())
    if largest > MOST_BYTES or most > MOST_STEPS:
        raise _too_large(context, f"{tensor.name} of {largest} bytes, a dim of {most}")
    for dim in held:
        window = window_of(op, tensor, dim)
        if window is None:
            needed = per_core(op, dim)
        elif is_local(tensor) and op.slices.get(dim, 1) > 1:
            needed = window_span(op, dim, window)
        else:
            needed = unsplit_input_extent(tensor, dim, window)
        if access.stored[dim] < needed:
            raise SdscError(
                "SPY294",
                f"{op.name}: {tensor.name} is smaller than the operation along {dim!r}",
                JsonLocation(op.file, tensor.json_path),
                expected=f"at least {needed} elements",
                found=f"{access.stored[dim]} elements",
            )


def _check_shares(context: PlanContext, access: Access) -> None:
    """Cores may not begin inside of a stick."""
    op = context.op
    for dim, size in access.sticks.items():
        windowed = window_of(op, access.tensor, dim) is not None
        split = access.tensor.holds(dim) and op.slices.get(dim, 1) > 1 and not windowed
        if split and per_core(op, dim) % size:
            raise SdscError(
                "SPY282",
                f"{op.name}: one core's share of stick dim {dim!r} is not whole sticks",
                JsonLocation(op.file, "$.numWkSlicesPerDim_"),
                expected=f"a multiple of {size} elements as in {access.tensor.name}",
                found=f"{per_core(op, dim)} elements",
            )


def _slice_lines(group: CoreGroup, scale: Int64Array) -> dict[str, Int64Array]:
    return {
        dim: (np.array(axis.pitches, np.int64) * scale)[:, None] * np.arange(axis.extent)
        for dim, axis in group.axes.items()
    }


def _local_line(context: PlanContext, dim: str) -> Int64Array:
    op = context.op
    steps = np.arange(per_core(op, dim), dtype=np.int64)
    rows = [_operand_row(context, k, dim, steps) for k in range(len(context.accesses))]
    rows += [steps if dim == windowed else np.zeros_like(steps) for windowed in op.windows]
    return np.stack(rows)


def _operand_row(context: PlanContext, operand: int, dim: str, steps: Int64Array) -> Int64Array:
    """Offsets along ``dim``; under a window those of the whole sticks before each position."""
    op, access = context.op, context.accesses[operand]
    window = window_of(op, access.tensor, dim)
    if window is None:
        return local_offsets(op, access, dim)
    size = access.sticks.get(dim, 1)
    whole = steps * window.stride // size * size
    return coordinate_offsets(op, access, dim, whole)


def attach(head: Int64Array, vectors: Sequence[Int64Array]) -> Int64Array:
    """A table with vectors, int64 [rows, WORDS]: the head row, then rows of KIND EXTRA that hold
    the vectors one after another, each row all of its words but the first.
    """
    flat = np.concatenate([np.ravel(vector) for vector in vectors])
    width = tb.WORDS - 1
    rows = np.zeros((1 - (-flat.size // width), tb.WORDS), np.int64)
    rows[0] = head
    rows[1:, tb.KIND] = tb.EXTRA
    body = np.zeros((len(rows) - 1) * width, np.int64)
    body[: flat.size] = flat
    rows[1:, 1:] = body.reshape(-1, width)
    return rows
