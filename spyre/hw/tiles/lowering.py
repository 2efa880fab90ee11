"""Statements: an operation of the engine over tiles of data, one core per compute tile.

The tiles of the grid are work slices of further dims, so that cores whose starts are regular
are walked as axes, as in bundles. An operand in HBM that is the same on all tiles along a dim of
the grid does not vary with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.hw.spec import LX_BYTES, STICK_BYTES
from spyre.hw.tiles.program import TileStatement
from spyre.hw.tiles.values import ELEMENT_BYTES, FORMATS, DataTile, Shape
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Indirection, Operation, Tensor

if TYPE_CHECKING:
    from spyre.hw.tiles.trace import Site

PRODUCT = "batchmatmul"
SPARE = "lane"
"""Stick dim of operations none of whose operands has elements along lanes."""


Operand = tuple[DataTile, tuple[str, ...]]
"""A tile in an operation, and the operation's dim of each of the tile's."""


class Intent(msgspec.Struct, frozen=True):
    """An operation to be stated at ``site``: operands, extents per dim, dim along lanes.

    ``operands``: inputs, index tensors, output; ``single``: they are accessed element by element.
    ``key``: places of the iterations in program order. ``title`` names it: its place in the text.
    ``masks``: as of `Operation`. ``indices``: of each index tensor the bytes that an index counts,
    and how many there are; ``gathers``: they move the input, else the output.
    """

    site: Site
    name: str
    operands: tuple[Operand, ...]
    extents: Mapping[str, int]
    stick: str
    key: Int64Array
    title: str
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    masks: Mapping[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)
    single: bool = False
    indices: tuple[tuple[int, int], ...] = ()
    gathers: bool = True

    def statements(self) -> list[TileStatement]:
        """The statements, one per set of active tiles."""
        distinct, which = np.unique(self.site.level.active, axis=0, return_inverse=True)
        patterns = [
            (np.flatnonzero(which.reshape(-1) == k), np.flatnonzero(row))
            for k, row in enumerate(distinct)
            if row.any()
        ]
        return [_statement(self, number, *pattern) for number, pattern in enumerate(patterns)]


def _statement(intent: Intent, number: int, rows: Int64Array, tiles: Int64Array) -> TileStatement:
    """The iterations ``rows`` on ``tiles``."""
    level = intent.site.level
    name = intent.title if not number else f"{intent.title} ({number})"
    slices = _slices(intent.site.tracer.grid, tiles)
    every = [tile for tile, _ in intent.operands]
    lifted = (level.lift(tile.offsets, tile.level) for tile in every)
    starts = [np.broadcast_to(x, level.active.shape)[np.ix_(rows, tiles)] for x in lifted]
    fixed = _fixed_dims(intent, starts, [extent for _, extent, _ in slices])
    columns: list[Int64Array] = []
    owners: list[int] = []
    tensors = []
    for k, tile in enumerate(every):
        if tile.is_local and (starts[k] == starts[k][:1]).all():
            numbers = tuple(starts[k][0].tolist())
        else:
            numbers = tuple(-1 - len(owners) - c for c in range(len(tiles)))
            columns.append(starts[k] + int(tile.is_local) * LX_BYTES * tiles)
            owners += [tile.owner] * len(tiles)
        moving = [dim for d, (dim, _, _) in enumerate(slices) if d not in fixed[k]]
        tensor = _tensor(k, intent, numbers, moving)
        if intent.indices and k == (0 if intent.gathers else len(every) - 1):
            tensor = replace(tensor, indirection=Indirection.VALUE)
        tensors.append(tensor)
    own, n_inputs = {dim: extent for dim, extent, _ in slices}, len(every) - len(intent.indices) - 1
    operation = Operation(
        name=intent.name, file=name, sdsc_name=name, dims=(*own, *intent.extents),
        extents={**own, **intent.extents}, cores=tuple(tiles.tolist()), slices=own,
        core_slices=tuple({dim: int(row[c]) for dim, _, row in slices} for c in range(len(tiles))),
        inputs=tuple(tensors[:n_inputs]), index_tensors=tuple(tensors[n_inputs:-1]),
        outputs=(tensors[-1],), masks=intent.masks, constants=dict(intent.constants),
        constant_formats=dict.fromkeys(intent.constants, FORMATS["f32"]),
        index_steps=intent.indices, data_format=tensors[-1].data_format,
    )  # fmt: skip
    offsets = np.concatenate(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)
    places = intent.key[rows], level.indices[rows]
    return TileStatement(operation, intent.site.place, offsets, tuple(owners), *places)


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
    intent: Intent, starts: Sequence[Int64Array], extents: Sequence[int]
) -> list[set[int]]:
    """Per operand the dims of the grid, of ``extents``, that it does not vary with: of products,
    whose rows and columns the tiles then divide. ``starts``: [row, core] each.
    """
    fixed: list[set[int]] = [set() for _ in starts]
    if intent.name != PRODUCT:
        return fixed
    for k, (tile, _) in enumerate(intent.operands[:-1]):
        box = starts[k].reshape(-1, *extents[::-1])
        for d in range(0 if tile.is_local else len(extents)):
            if (box == box.take([0], axis=len(extents) - d)).all():
                fixed[k].add(d)
    both = set.intersection(*fixed[:-1])
    return [dims - both for dims in fixed]


def _tensor(index: int, intent: Intent, starts: Shape, moving: Sequence[str]) -> Tensor:
    tile, dims = intent.operands[index]
    if intent.single:
        pitches = dict(zip(dims, tile.pitches, strict=True))
        stick, lanes = dims[-1], 1
        scale = dict.fromkeys((*pitches, *moving), 1)
    else:
        pitches, scale, stick = _whole_sticks(tile, dims, intent.stick, moving)
        lanes = tile.lanes
    scale |= {dim: -1 for dim in intent.extents if dim not in scale}
    order = (stick, *(dim for dim in scale if dim != stick))
    return Tensor(
        index=index, name=f"Tensor{index}", role="", json_path=intent.title,
        component=Component.LX if tile.is_local else Component.HBM,
        data_format=FORMATS[tile.element], word_length_bytes=ELEMENT_BYTES[tile.element],
        dims=order, scale={dim: scale[dim] for dim in order},
        stick_dims=(stick,), stick_sizes=(lanes,),
        starts=starts, symbolic=starts[0] < 0,
        pitches={dim: pitches.get(dim, 0) for dim in order},
    )  # fmt: skip


def _whole_sticks(
    tile: DataTile, dims: Sequence[str], spare: str, moving: Sequence[str]
) -> tuple[dict[str, int], dict[str, int], str]:
    """Pitches and scales of the dims of an operand of sticks, and the dim along its lanes:
    ``spare``, if it has no elements there.
    """
    held = {
        dim: STICK_BYTES if k == tile.stick else tile.pitches[k]
        for k, dim in enumerate(dims)
        if (tile.pitches[k] and tile.shape[k] > 1) or (k == tile.stick and tile.shape[k] == 1)
    }
    stick = spare if tile.stick is None else dims[tile.stick]
    scale = dict.fromkeys((*held, *moving), 1)
    if stick not in scale:
        scale[stick] = -2
    return {stick: STICK_BYTES} | held, scale, stick
