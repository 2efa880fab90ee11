"""Iteration spaces as offset tables: per dim, a vector of bit offsets for every operand.

Unlike the axes of :mod:`spyre.hw.plans.context`, such a vector needs no constant pitch, so packed
and interleaved sticks (operations reference §5) and windows are vectors too. The address of an
element is the operand's start plus one term per dim (SDSC reference §5.2); offsets count bits,
since elements may have 4 of them. Work slices of cores are vectors that are put before those of
their dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec
import numpy as np

from spyre.dtypes import find_stored_format
from spyre.errors import JsonLocation, SdscError, UnsupportedError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.plans.context import PlanContext, check_shared_output, fold_cores
from spyre.hw.spec_choices import ALTERNATE_GROUP, ALTERNATING_OPERANDS
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import Operation, Tensor, unsplit_input_extent

MOST_STEPS = 1 << 23
"""Steps of one vector: 64 MiB."""
MOST_BYTES = 1 << 40


class OffsetSpace(msgspec.Struct, frozen=True):
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

    def peel(self, dims: Sequence[str]) -> Iterator[OffsetSpace]:
        """A space per work slice of ``dims``."""
        if not dims:
            yield self
            return
        remaining = {dim: line for dim, line in self.slices.items() if dim != dims[0]}
        for start in self.slices[dims[0]].T:
            yield from OffsetSpace(self.bases + start, remaining, self.local).peel(dims[1:])


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
    message = "the operation is too large for offset vectors"
    expected = f"at most {MOST_STEPS} steps, tensors of at most {MOST_BYTES} bytes"
    return context.refuse("SPY550", message, expected, found, "$.dscs_[0].N_")


def line_axis(line: Int64Array) -> Axis | None:
    """The line as an axis of byte pitches, or None if its steps differ or split bytes."""
    count = line.shape[1]
    step = line[:, 1] - line[:, 0] if count > 1 else np.zeros(len(line), np.int64)
    if (line != line[:, :1] + step[:, None] * np.arange(count)).any() or (step % 8).any():
        return None
    return Axis(count, tuple((step // 8).tolist()))


def spaces(
    context: PlanContext, reduced: Sequence[str], counted: Sequence[str] = ()
) -> Iterator[OffsetSpace]:
    """The operation as few regular spaces; the cores of a space share their slices of ``reduced``.

    Windowed dims, then those ``counted``, are pseudo-operands, whose offsets are positions.
    Raises UnsupportedError for irregular starts of cores that reduce together.
    """
    op = context.op
    for dim, extent in op.extents.items():
        if extent < 1:
            message = f"{op.name}: nothing to iterate along {dim!r}"
            location = JsonLocation(op.file, "$.dscs_[0].N_")
            expected = "at least 1 element"
            raise SdscError("SPY294", message, location, expected=expected, found=str(extent))
    for access in context.accesses:
        _check_size(context, access)
        _check_shares(context, access)
    pseudo = (*op.windows, *counted)
    positions = [
        [core.get(dim, 0) * op.core_extent(dim) for core in op.core_slices] for dim in pseudo
    ]
    starts = np.vstack([context.starts, np.array(positions, np.int64).reshape(-1, len(op.cores))])
    scale = np.array([8] * len(context.accesses) + [1] * len(pseudo), np.int64)
    local = {dim: _local_line(context, dim, pseudo) for dim in op.dims}
    together = [dim for dim in reduced if op.slices.get(dim, 1) > 1]
    for group in fold_cores(op, starts, together):
        check_shared_output(context, group, reduced, len(context.accesses) - 1)
        slices = {
            dim: (np.array(axis.pitches, np.int64) * scale)[:, None] * np.arange(axis.extent)
            for dim, axis in group.axes.items()
        }
        yield OffsetSpace(np.array(group.first, np.int64) * scale, slices, local)


def _check_size(context: PlanContext, access: TensorAccess) -> None:
    """Raise unless memory holds every element that is iterated, and offsets fit 64 bits."""
    op, tensor = context.op, access.tensor
    dims = [dim for dim in tensor.dims if tensor.holds(dim)]
    largest = max([access.span_bytes, *access.pitch_bytes.values()])
    most = max(op.extents.values())
    if largest > MOST_BYTES or most > MOST_STEPS:
        raise _too_large(context, f"{tensor.name} of {largest} bytes, a dim of {most}")
    for dim in dims:
        window = op.window_of(tensor, dim)
        if window is None:
            needed = op.core_extent(dim)
        elif tensor.is_local and op.slices.get(dim, 1) > 1:
            needed = op.window_span(tensor, dim)
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


def _check_shares(context: PlanContext, access: TensorAccess) -> None:
    """Raise SdscError if a core's part begins within a stick."""
    op = context.op
    for dim, size in access.sticks.items():
        windowed = op.window_of(access.tensor, dim) is not None
        split = access.tensor.holds(dim) and op.slices.get(dim, 1) > 1 and not windowed
        if split and op.core_extent(dim) % size:
            raise SdscError(
                "SPY282",
                f"{op.name}: one core's share of stick dim {dim!r} is not whole sticks",
                JsonLocation(op.file, "$.numWkSlicesPerDim_"),
                expected=f"a multiple of {size} elements as in {access.tensor.name}",
                found=f"{op.core_extent(dim)} elements",
            )


def _local_line(context: PlanContext, dim: str, pseudo: Sequence[str]) -> Int64Array:
    op = context.op
    steps = np.arange(op.core_extent(dim), dtype=np.int64)
    rows = [_operand_row(op, access, dim, steps) for access in context.accesses]
    rows += [steps if dim == counted else np.zeros_like(steps) for counted in pseudo]
    return np.stack(rows)


def _operand_row(op: Operation, access: TensorAccess, dim: str, steps: Int64Array) -> Int64Array:
    """Offsets along ``dim``; under a window those of the whole sticks before each position."""
    window = op.window_of(access.tensor, dim)
    if window is None:
        return local_offsets(op, access, dim)
    size = access.sticks.get(dim, 1)
    return coordinate_offsets(op, access, dim, steps * window.stride // size * size)


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


_BLOCK = 2 * 8 * ALTERNATE_GROUP
_INTERLEAVED = AccessMap(
    (0, 0),
    (
        Axis(1, (_BLOCK, _BLOCK)),
        Axis(2, (8 * ALTERNATE_GROUP, ALTERNATE_GROUP)),
        Axis(8, (ALTERNATE_GROUP, 2 * ALTERNATE_GROUP)),
        Axis(ALTERNATE_GROUP, (1, 1)),
    ),
)
"""From elements of an interleaved dim to their order in the stick: 64·h + 8·g + e is at
16·g + 8·h + e (operations reference §5)."""


def element_bits(tensor: Tensor) -> int:
    """Bits of one element; raises UnsupportedError for formats without storage."""
    return find_stored_format(tensor.data_format).bits


def local_offsets(op: Operation, access: TensorAccess, dim: str) -> Int64Array:
    """Bits from a core's start to each of the elements it iterates along ``dim`` (0 where absent).

    Windowed dims of an input have no such vector; see :func:`coordinate_offsets`.
    """
    steps = np.arange(op.core_extent(dim), dtype=np.int64)
    if not access.tensor.holds(dim):
        return np.zeros_like(steps)
    return coordinate_offsets(op, access, dim, steps)


def coordinate_offsets(
    op: Operation, access: TensorAccess, dim: str, coordinates: Int64Array
) -> Int64Array:
    """Bit offsets of stored ``coordinates`` along ``dim``, counted from a core's start.

    They continue periodically, also below zero: coordinate + elements per stick is one pitch more.
    """
    if is_alternating(op, access.tensor, dim):
        coordinates = _INTERLEAVED.locate(coordinates, 0, 1, beyond=True)
    return _bits_of_elements(access, dim).locate(coordinates, 0, 1, beyond=True)


def _bits_of_elements(access: TensorAccess, dim: str) -> AccessMap:
    """From elements along ``dim`` to bits: its digits in the stick by their weights, then sticks.

    A packed stick lists a dim several times, the lowest digit first (SDSC reference §5.2 step 5).
    """
    tensor = access.tensor
    digits: list[Axis] = []
    elements, weight = 1, element_bits(tensor)
    for name, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        if name == dim:
            digits.insert(0, Axis(size, (elements, weight)))
            elements *= size
        weight *= size
    sticks = Axis(1, (elements, 8 * access.pitch_bytes[dim]))
    return AccessMap((0, 0), (sticks, *digits))


def is_alternating(op: Operation, tensor: Tensor, dim: str) -> bool:
    """True if ``dim`` of this operand is interleaved by groups of 8 (operations reference §5)."""
    operand = next((k for k, t in enumerate(op.tensors) if t.index == tensor.index), -1)
    if (op.name, operand) not in ALTERNATING_OPERANDS or dim != tensor.stick_dims[0]:
        return False
    sizes = [n for d, n in zip(tensor.stick_dims, tensor.stick_sizes, strict=True) if d == dim]
    return element_bits(tensor) <= 8 and int(np.prod(sizes)) == _BLOCK
