"""Rewriting of irregular operations as plain ones, which the planners take.

A *part* is an operation whose cores have equal boxes and read every tensor by the operation's work
slices, with a start address per core and operand. An operation with a shorter last work slice
becomes a part per box shape; one that reads another core's slice of a tensor becomes a part of
cells: boxes within one slice of every tensor, each with its owner's address. Rules:
SuperDSC reference §3, §5.4, §9 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import lcm, prod

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.errors import JsonLocation, SdscError, UnsupportedError
from spyre.hw.ops import Family, find_op
from spyre.layout import Int64Array
from spyre.mlir.operation import (
    RESTICKIFY,
    Operation,
    Tensor,
    TensorDivision,
    computed_division,
    division_of,
    footprint,
    held_dims,
    is_looked_up,
    own_slice_faults,
    pinned,
    without_equal_divisions,
)

_REFINED = (Family.COPY, Family.ELEMENTWISE, Family.SHUFFLE)
"""Families whose work on a core may be cut into cells with separate addresses."""
_LOOKED_UP = (*_REFINED, Family.CONVERT, Family.REDUCTION, Family.MATMUL)
"""Families whose operations may read another core's slice of a tensor, as a whole."""

UniformPart = tuple[Operation, Int64Array]
"""An operation and its start addresses: bytes, int64 [instance, operand, core]."""


def uniform_operations(
    op: Operation, starts: Int64Array
) -> Iterator[tuple[UniformPart, UniformPart | None]]:
    """Parts of ``op``, to be run one after another; ``starts``: as in `UniformPart`.

    A part in cells comes with the same part with its tensors' own work slices. SdscError SPY261 for
    own work slices that contradict the operation, UnsupportedError SPY517, SPY534.
    """
    if any(tensor.own_core_slices for tensor in op.tensors):
        plain = without_equal_divisions(op)
        if any(tensor.own_core_slices for tensor in plain.tensors):
            _check_own_slices(plain)
            yield _cells(plain, starts), (plain, starts)
            return
        op = plain
    for even, cores in _even_parts(op):
        yield (even, starts[:, :, cores]), None


def check_slices(op: Operation) -> None:
    """Raise SPY210, SPY211 and SPY214 of the checker, for programs that were not checked."""
    for dim, count in op.slices.items():
        divides = dim in op.last_extents or (count > 0 and op.extents[dim] % count == 0)
        if not divides:
            raise SdscError(
                "SPY214" if count > 0 else "SPY211",
                f"{op.name}: dim {dim!r} cannot be divided by its work slices",
                JsonLocation(op.file, "$.numWkSlicesPerDim_"),
                expected=f"a divisor of {op.extents[dim]}",
                found=str(count),
            )
    for core, row in zip(op.cores, op.core_slices, strict=True):
        outside = {d: i for d, i in row.items() if not 0 <= i < op.slices.get(d, 1)}
        if outside:
            message = f"{op.name}: core {core} has a work slice out of range"
            location = JsonLocation(op.file, "$.coreIdToWkSlice_")
            expected = f"slices {dict(op.slices)}"
            raise SdscError("SPY210", message, location, expected=expected, found=str(outside))


# --- shorter last work slices -----------------------------------------------------------------


def _even_parts(op: Operation) -> Iterator[tuple[Operation, Int64Array]]:
    """Operations with equal boxes, and the positions of their cores in ``op``."""
    if not op.last_extents:
        yield op, np.arange(len(op.cores))
        return
    _check_uneven(op)
    dims = list(op.last_extents)
    index = np.array([[row[dim] for dim in dims] for row in op.core_slices], np.int64)
    last = index == np.array([op.slices[dim] - 1 for dim in dims])
    for last_dims in product((False, True), repeat=len(dims)):
        cores = np.flatnonzero((last == np.array(last_dims)).all(axis=1))
        if cores.size:
            yield _even_part(op, dict(zip(dims, last_dims, strict=True)), cores), cores


def _check_uneven(op: Operation) -> None:
    reason = ""
    for dim in op.last_extents:
        in_output = any(t.holds(dim) for t in op.outputs)
        if not in_output and any(t.holds(dim) for t in op.inputs):
            reason = f"cores that reduce {dim} together have different extents"
        if dim in op.windows:
            reason = f"windows slide along {dim}"
    if op.name == RESTICKIFY:
        reason = f"{op.name} drops elements beyond its tensors"
    if reason:
        raise UnsupportedError(
            "SPY534",
            f"{op.name}: a shorter last work slice where {reason} is not simulated",
            JsonLocation(op.file, "$.dscs_[0].dataStageParam_"),
            expected="work slices of one length",
            found=", ".join(
                f"slices of {op.core_extent(dim)}, the last of {last}, along {dim}"
                for dim, last in op.last_extents.items()
            ),
        )


def _even_part(op: Operation, is_last: Mapping[str, bool], cores: Int64Array) -> Operation:
    """The cores of ``op`` whose slice is the last one along the dims where ``is_last``."""
    extents, slices, origin = dict(op.extents), dict(op.slices), dict.fromkeys(op.dims, 0)
    for dim, last in is_last.items():
        before = op.core_extent(dim) * (op.slices[dim] - 1)
        extents[dim] = op.last_extents[dim] if last else before
        slices[dim] = 1 if last else op.slices[dim] - 1
        origin[dim] = before if last else 0
    rows = [op.core_slices[core] for core in cores]

    def changed(tensor: Tensor) -> Tensor:
        shared = tensor if tensor.is_local else pinned(op, tensor, is_last)
        return replace(shared, starts=tuple(tensor.starts[core] for core in cores))

    return op.with_tensors(
        changed,
        extents=extents,
        slices=slices,
        last_extents={},
        cores=tuple(op.cores[core] for core in cores),
        core_slices=tuple(
            {dim: 0 if is_last.get(dim) else index for dim, index in row.items()} for row in rows
        ),
        masks={dim: _moved(op.masks[dim], origin[dim], extents[dim]) for dim in op.masks},
    )


def _moved(
    ranges: tuple[tuple[int, int], ...], origin: int, extent: int
) -> tuple[tuple[int, int], ...]:
    """Masked ranges in coordinates from ``origin``, within ``extent``."""
    inside = []
    for start, count in ranges:
        low, high = max(start - origin, 0), min(start + count - origin, extent)
        if low < high:
            inside.append((low, high - low))
    return tuple(inside)


# --- tensors with own work slices -------------------------------------------------------------


def _check_own_slices(op: Operation) -> None:
    """Raise SPY261 of the checker, for programs that were not checked, or SPY517."""
    for fault in own_slice_faults(op):
        named = replace(fault, message=f"{op.name}: {fault.message}")
        raise named.error(SdscError, JsonLocation(op.file, fault.place.json_path))
    spec = find_op(op.name)
    family = None if spec is None else spec.family
    refined = any(
        _slices_of_cells(op)[d] != computed_division(op).slices.get(d, 1) for d in op.dims
    )
    if op.index_tensors or family not in (_REFINED if refined else _LOOKED_UP):
        owner = next(tensor for tensor in op.tensors if tensor.own_core_slices)
        raise UnsupportedError(
            "SPY517",
            f"{op.name}: own work slices of {owner.name} are not simulated",
            JsonLocation(op.file, owner.json_path),
            expected="slices of which each core needs parts of one only, or a copy or elementwise "
            "operation",
            found=f"{dict(owner.own_slices)} against {dict(op.slices)}",
        )
    if family is not Family.SHUFFLE and op.outputs[0].own_core_slices:
        message = f"{op.name}: own work slices of the output are not simulated"
        location = JsonLocation(op.file, op.outputs[0].json_path)
        expected = "the operation's work slices, or shuffle"
        raise UnsupportedError("SPY517", message, location, expected=expected)


def _cells(op: Operation, starts: Int64Array) -> UniformPart:
    """The part over the cells of all tensors' slices, a core's cells next to each other.

    The start addresses in its tensors are those of the cores that hold the cells, without the
    offset of the cell; those returned include it.
    """
    grid = _Grid.of(op)
    owners = [_owners(op, tensor, grid) for tensor in op.tensors]
    of_cells = [
        starts[:, k, owners[k]] + _cell_offsets(op, tensor, grid)
        for k, tensor in enumerate(op.tensors)
    ]
    owner_of = {
        tensor.index: positions for tensor, positions in zip(op.tensors, owners, strict=True)
    }
    dims = dict.fromkeys(op.dims)

    def changed(tensor: Tensor) -> Tensor:
        files = tuple(tensor.starts[core] for core in owner_of[tensor.index])
        return replace(pinned(op, tensor, dims), starts=files, own_slices={}, own_core_slices=())

    cells = [dict(zip(op.dims, row, strict=True)) for row in grid.index.tolist()]
    plain = op.with_tensors(
        changed,
        slices=grid.slices,
        cores=tuple(op.cores[core] for core in grid.cores),
        core_slices=tuple(cells),
    )
    return plain, np.stack(of_cells, axis=1)


class _Grid(msgspec.Struct, frozen=True):
    """Cells: ``slices`` of each dim; ``cores`` [cell]: position of the core that works on a cell;
    ``index`` [cell, dim]: the cell's place.
    """

    slices: dict[str, int]
    cores: Int64Array
    index: Int64Array

    @classmethod
    def of(cls, op: Operation) -> _Grid:
        """The coarsest cells within one slice of every tensor."""
        computed = computed_division(op)
        slices = _slices_of_cells(op)
        factors = [slices[dim] // computed.slices.get(dim, 1) for dim in op.dims]
        working = np.array([k for k, row in enumerate(computed.rows) if row], np.int64)
        first = _indices(op, computed)[working]
        within = np.indices(factors).reshape(len(factors), -1).T
        index = first[:, None, :] * np.array(factors) + within[None, :, :]
        return cls(slices, np.repeat(working, prod(factors)), index.reshape(-1, len(op.dims)))


def _slices_of_cells(op: Operation) -> dict[str, int]:
    tables = [division_of(op, tensor).slices for tensor in op.tensors]
    return {dim: lcm(*(table.get(dim, 1) for table in tables)) for dim in op.dims}


def _indices(op: Operation, division: TensorDivision) -> Int64Array:
    """Slice index of every core and dim, [core, dim]; -1 for a core that holds nothing."""
    rows = [[row.get(dim, 0) if row else -1 for dim in op.dims] for row in division.rows]
    return np.array(rows, np.int64)


def _cell_offsets(op: Operation, tensor: Tensor, grid: _Grid) -> Int64Array:
    """Bytes, [cell]: from the start of the core that holds a cell to the cell."""
    within = grid.index % _cells_per_slice(op, tensor, grid)
    return within @ _cell_steps(op, tensor, grid)


def _cells_per_slice(op: Operation, tensor: Tensor, grid: _Grid) -> Int64Array:
    """Cells along every dim in one slice of ``tensor``."""
    slices = division_of(op, tensor).slices
    return np.array([grid.slices[dim] // slices.get(dim, 1) for dim in op.dims], np.int64)


def _owners(op: Operation, tensor: Tensor, grid: _Grid) -> Int64Array:
    """Position of the core that holds each cell of ``tensor``.

    The working core if it holds the cell, else the first that does: all hold the same values (our
    reading of §9).
    """
    if not is_looked_up(op, tensor):
        return grid.cores
    wanted = grid.index // _cells_per_slice(op, tensor, grid)
    columns = [op.dims.index(dim) for dim in held_dims(op, tensor)]
    slices_held = _indices(op, division_of(op, tensor))[:, columns]
    matches = (slices_held[None, :, :] == wanted[:, None, columns]).all(axis=2)
    holds_itself = matches[np.arange(len(wanted)), grid.cores]
    return np.where(holds_itself, grid.cores, matches.argmax(axis=1))


def _cell_steps(op: Operation, tensor: Tensor, grid: _Grid) -> Int64Array:
    """Bytes from one cell to the next within a slice of ``tensor``, per dim of ``op``."""
    pitches, sticks = footprint(op, tensor).pitch_bytes, tensor.sticks
    steps = np.zeros(len(op.dims), np.int64)
    for column, dim in enumerate(op.dims):
        if not tensor.holds(dim):
            continue
        extent, size = op.extents[dim] // grid.slices[dim], sticks.get(dim, 1)
        if extent % size and grid.slices[dim] > 1:
            raise UnsupportedError(
                "SPY517",
                f"{op.name}: slices of {tensor.name} that meet within a stick are not simulated",
                JsonLocation(op.file, tensor.json_path),
                expected=f"slices of {dim} that overlap in multiples of {size}",
                found=f"{extent} elements",
            )
        steps[column] = pitches[dim] * (extent // size)
    return steps
