"""Statements: an operation of the engine over tiles of data, one core per compute tile.

The tiles of the grid are work slices of further dims, so that cores whose starts are regular
are walked as axes, as in bundles. An operand in HBM that is the same on all tiles along a dim of
the grid does not vary with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.errors import SourceLocation
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles.program import TileStatement
from spyre.hw.tiles.values import ELEMENT_BYTES, FORMATS, BoolArray, DataTile, Level
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, Tensor

PRODUCT = "batchmatmul"
SPARE = "lane"
"""Stick dim of operations none of whose operands has elements along lanes."""


@dataclass(frozen=True)
class Operand:
    """A tile in an operation. ``dims``: the operation's dim of each of the tile's."""

    tile: DataTile
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Intent:
    """An operation to be stated: name, operands, extents per dim, dim along lanes, constants."""

    name: str
    inputs: tuple[Operand, ...]
    output: Operand
    extents: Mapping[str, int]
    stick: str
    constants: Mapping[str, int]
    constant_format: str = "IEEE_FP32"


def state(
    intent: Intent,
    level: Level,
    key: Int64Array,
    grid: Sequence[int],
    title: str,
    location: SourceLocation | None,
) -> list[TileStatement]:
    """The statements of ``intent`` over the rows of ``level``, one per set of active tiles.

    ``title`` names the operation: its place in the text.
    """
    statements = []
    for number, (rows, active) in enumerate(_patterns(level.active)):
        name = title if not number else f"{title} ({number})"
        statements.append(_statement(intent, level, key, rows, active, grid, name, location))
    return statements


def _patterns(active: BoolArray) -> list[tuple[Int64Array, Int64Array]]:
    """Rows by equal sets of active tiles, and those tiles; rows without any are left out."""
    if active.all():
        return [(np.arange(len(active)), np.arange(active.shape[1]))]
    distinct, which = np.unique(active, axis=0, return_inverse=True)
    return [
        (np.flatnonzero(which.reshape(-1) == k), np.flatnonzero(row))
        for k, row in enumerate(distinct)
        if row.any()
    ]


def _statement(
    intent: Intent,
    level: Level,
    key: Int64Array,
    rows: Int64Array,
    tiles: Int64Array,
    grid: Sequence[int],
    name: str,
    location: SourceLocation | None,
) -> TileStatement:
    slices = _slices(grid, tiles)
    indices = np.stack([row for _, _, row in slices])  # [grid dim, core]
    operands = (*intent.inputs, intent.output)
    starts = [
        np.broadcast_to(level.lift(o.tile.offsets, o.tile.level), level.active.shape)[
            np.ix_(rows, tiles)
        ]
        for o in operands
    ]
    fixed = _fixed_dims(intent, starts, indices)
    columns: list[Int64Array] = []
    owners: list[int] = []
    tensors = []
    for k, operand in enumerate(operands):
        if operand.tile.is_local:
            numbers = tuple(starts[k][0].tolist())
        else:
            numbers = tuple(-1 - len(owners) - c for c in range(len(tiles)))
            columns.append(starts[k])
            owners += [operand.tile.owner] * len(tiles)
        moving = [dim for d, (dim, _, _) in enumerate(slices) if d not in fixed[k]]
        tensors.append(_tensor(k, operand, intent, numbers, moving, name))
    extents = {**{dim: extent for dim, extent, _ in slices}, **intent.extents}
    operation = Operation(
        name=intent.name,
        file=name,
        sdsc_name=name,
        dims=tuple(extents),
        extents=extents,
        cores=tuple(tiles.tolist()),
        slices={dim: extent for dim, extent, _ in slices},
        core_slices=tuple({dim: int(row[c]) for dim, _, row in slices} for c in range(len(tiles))),
        inputs=tuple(tensors[:-1]),
        outputs=(tensors[-1],),
        constants=dict(intent.constants),
        constant_formats=dict.fromkeys(intent.constants, intent.constant_format),
        data_format=tensors[-1].data_format,
    )
    offsets = np.concatenate(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)
    return TileStatement(
        operation, location, offsets, tuple(owners), key[rows], level.indices[rows]
    )


def _slices(grid: Sequence[int], tiles: Int64Array) -> list[tuple[str, int, Int64Array]]:
    """Work-slice dims: name, number of slices, index of each core. Those of the grid where all its
    tiles take part, else one.
    """
    if len(tiles) != prod(grid):
        return [("tile", len(tiles), np.arange(len(tiles)))]
    found, rest = [], np.arange(len(tiles))
    for d, extent in enumerate(grid):
        if extent > 1:
            found.append((f"tile{d}", extent, rest % extent))
        rest = rest // extent
    return found or [("tile", 1, np.zeros(1, np.int64))]


def _fixed_dims(
    intent: Intent, starts: Sequence[Int64Array], indices: Int64Array
) -> list[set[int]]:
    """Per operand the dims of the grid that it does not vary with: of products, whose rows and
    columns the tiles then divide. ``starts``: [row, core] each.
    """
    none: list[set[int]] = [set() for _ in starts]
    if intent.name != PRODUCT:
        return none
    fixed = [
        set() if operand.tile.is_local else _constant_dims(start, indices)
        for operand, start in zip(intent.inputs, starts, strict=False)
    ]
    both = set.intersection(*fixed)
    return [*(dims - both for dims in fixed), set()]


def _constant_dims(starts: Int64Array, indices: Int64Array) -> set[int]:
    """Dims of the grid along which no start differs."""
    fixed: set[int] = set()
    for d in range(len(indices)):
        others = [indices[k] for k in range(len(indices)) if k != d and k not in fixed]
        _, first, group = np.unique(
            np.stack(others or [np.zeros_like(indices[d])]),
            axis=1, return_index=True, return_inverse=True,
        )  # fmt: skip
        if (starts == starts[:, first[group.reshape(-1)]]).all():
            fixed.add(d)
    return fixed


def _tensor(
    index: int,
    operand: Operand,
    intent: Intent,
    starts: tuple[int, ...],
    moving: Sequence[str],
    file: str,
) -> Tensor:
    tile = operand.tile
    lanes, bytes_ = tile.lanes, ELEMENT_BYTES[tile.element]
    held = {
        dim: tile.pitches[k]
        for k, dim in enumerate(operand.dims)
        if tile.pitches[k] and (tile.shape[k] > 1 or k == tile.stick)
    }
    stick = intent.stick if tile.stick is None else operand.dims[tile.stick]
    scale = dict.fromkeys((*held, *moving), 1)
    if stick not in scale:
        scale[stick] = -2
    scale |= {dim: -1 for dim in intent.extents if dim not in scale}
    order = (stick, *(dim for dim in scale if dim != stick))
    pitches = {dim: held.get(dim, STICK_BYTES if dim == stick else 0) for dim in order}
    return Tensor(
        index=index,
        name=f"Tensor{index}",
        role="",
        component=Component.LX if tile.is_local else Component.HBM,
        data_format=FORMATS[tile.element],
        word_length_bytes=bytes_,
        dims=order,
        scale={dim: scale[dim] for dim in order},
        stick_dims=(stick,),
        stick_sizes=(lanes,),
        starts=starts,
        symbolic=not tile.is_local,
        json_path=file,
        pitches=pitches,
    )
