"""Values of a KTIR function while it is traced: arrays over iterations and tiles.

A `Level` is the iterations of the loops around an operation, all at once: its rows. A number is an
array [row, tile] (extents of 1 where it does not vary). A `DataTile` is a place in memory, with the
bytes from one element to the next. Views, constants and broadcasts are tiles whose pitches
are 0 or other than those of their storage; they cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.spec import STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.tiles import Members

BoolArray = npt.NDArray[np.bool_]
ELEMENT_BYTES = {"f16": 2, "!spyreop.df16": 2, "bf16": 2, "f32": 4, "i32": 4, "si32": 4, "index": 4}
FORMATS = {
    "f16": "SEN169_FP16",
    "!spyreop.df16": "SEN169_FP16",
    "f32": "IEEE_FP32",
    "i32": "IEEE_INT32",
    "si32": "IEEE_INT32",
}
"""Device format of each element type that tiles are simulated of."""
PAIR = 64
"""Elements that last dims in scratchpads are padded to: a stick of f16, two of f32."""
ROW_BYTES = 2 * STICK_BYTES
"""Pitch in bytes of elements that are stored one per stick: the same for every element type."""


@dataclass(frozen=True, eq=False)
class Level:
    """The iterations of the loops around an operation.

    ``parent_rows``: row of the outer level that each belongs to. ``active``: tiles that take part,
    [row, tile]. ``indices``: induction variables, [row, depth]. ``key``: places in program order,
    [row, column].
    """

    parent: Level | None
    parent_rows: Int64Array
    active: BoolArray
    indices: Int64Array
    key: Int64Array

    @property
    def rows(self) -> int:
        """Number of iterations."""
        return len(self.active)

    def lift(self, values: npt.NDArray[Any], level: Level) -> npt.NDArray[Any]:
        """``values`` [row, tile] of an outer ``level``, by the rows of this one."""
        if level is self or values.shape[0] == 1:
            return values
        assert self.parent is not None
        lifted: npt.NDArray[Any] = self.parent.lift(values, level)[self.parent_rows]
        return lifted

    def restricted(self, condition: BoolArray) -> Level:
        """The same iterations on the tiles where ``condition`` [row, tile] holds."""
        rows = np.arange(self.rows)
        return Level(self, rows, self.active & condition, self.indices, self.key)


@dataclass(frozen=True, eq=False)
class Number:
    """A scalar. ``origin``: the argument it is an address in, in elements from its start."""

    values: npt.NDArray[Any]
    level: Level
    origin: int | None = None

    def at(self, level: Level) -> npt.NDArray[Any]:
        """Its values by the rows of ``level``."""
        return level.lift(self.values, self.level)


SCRATCHPAD = -1
"""Owner of memory in the tiles' scratchpads."""


@dataclass(frozen=True, eq=False)
class DataTile:
    """A tile of data.

    ``owner``: number of the argument whose memory it is in, or SCRATCHPAD. ``offsets``: bytes from
    there to its first element, [row, tile] by the rows of ``level``. ``pitches``: bytes from
    neighbour to neighbour along each dim, for the dim along lanes (``stick``) from stick to stick;
    0 along dims it does not vary with. ``stick`` None: one element per stick, in its first lane.
    ``value``: of a constant, else None.
    """

    shape: tuple[int, ...]
    element: str
    owner: int
    offsets: Int64Array
    level: Level
    pitches: tuple[int, ...]
    stick: int | None
    value: float | None = None

    @property
    def lanes(self) -> int:
        """Elements per stick."""
        return STICK_BYTES // ELEMENT_BYTES[self.element]

    @property
    def is_local(self) -> bool:
        """True in scratchpads."""
        return self.owner == SCRATCHPAD

    @property
    def varies(self) -> bool:
        """False for one number in all elements."""
        return any(self.pitches)

    def begins_as(self, other: DataTile) -> bool:
        """True if it begins where ``other`` does; of tiles with places of the trace's choice."""
        same = self.offsets.flat[0] == other.offsets.flat[0]
        return self.owner == other.owner and bool(same)

    def reshaped(self, shape: tuple[int, ...]) -> DataTile | None:
        """The same elements in another shape of as many; None if they would have to move."""
        groups = _matching(self.shape, shape)
        pitches: list[int] = []
        stick = None
        for own, other in groups:
            found = _regrouped(self, own, [shape[k] for k in other])
            if found is None:
                return None
            new, along = found
            if along is not None:
                stick = other[along]
            pitches += new
        return replace(self, shape=shape, pitches=tuple(pitches), stick=stick)

    def of_tiles(self, tiles: Int64Array) -> DataTile:
        """As tile t sees the memory of tile ``tiles[t]``."""
        return replace(self, offsets=self.offsets[:, tiles])

    def permuted(self, order: tuple[int, ...]) -> DataTile:
        """Dim k of the result is dim ``order[k]`` of this."""
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            pitches=tuple(self.pitches[d] for d in order),
            stick=None if self.stick is None else order.index(self.stick),
        )

    def broadcast(self, shape: tuple[int, ...], dims: tuple[int, ...]) -> DataTile:
        """A tile of ``shape`` that does not vary along ``dims``; the other dims are this one's."""
        kept = [k for k in range(len(shape)) if k not in dims]
        pitches = [0] * len(shape)
        for own, k in enumerate(kept):
            pitches[k] = self.pitches[own]
        stick = None if self.stick is None else kept[self.stick]
        return replace(self, shape=shape, pitches=tuple(pitches), stick=stick)


def _matching(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Smallest groups of neighbouring dims with equal products, front to back."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        own, other = [], []
        size, target = 1, 1
        if i < len(old):
            own.append(i)
            size, i = old[i], i + 1
        if j < len(new):
            other.append(j)
            target, j = new[j], j + 1
        while size != target:
            if size < target:
                own.append(i)
                size, i = size * old[i], i + 1
            else:
                other.append(j)
                target, j = target * new[j], j + 1
        while i < len(old) and j >= len(new) and old[i] == 1:
            own.append(i)
            i += 1
        while j < len(new) and i >= len(old) and new[j] == 1:
            other.append(j)
            j += 1
        groups.append((own, other))
    return groups


def _regrouped(
    tile: DataTile, own: list[int], sizes: list[int]
) -> tuple[list[int], int | None] | None:
    """Pitches of dims of ``sizes`` that replace the dims ``own``, and which is along lanes."""
    wide = [d for d in own if tile.shape[d] > 1]
    if not wide:
        return [0] * len(sizes), None
    if [tile.shape[d] for d in wide] == [size for size in sizes if size > 1]:
        pitches, along, rest = [], None, list(wide)
        for k, size in enumerate(sizes):
            dim = rest.pop(0) if size > 1 else None
            pitches.append(0 if dim is None else tile.pitches[dim])
            along = k if dim is not None and dim == tile.stick else along
        return pitches, along
    return _merged_and_split(tile, wide, sizes)


def _merged_and_split(
    tile: DataTile, wide: list[int], sizes: list[int]
) -> tuple[list[int], int | None] | None:
    has_stick = tile.stick in wide
    if has_stick and (tile.stick != wide[-1] or tile.shape[wide[-1]] % tile.lanes):
        return None
    steps = [tile.shape[d] // (tile.lanes if d == tile.stick else 1) for d in wide]
    for k in range(len(wide) - 1):
        if tile.pitches[wide[k]] != tile.pitches[wide[k + 1]] * steps[k + 1]:
            return None
    last = next(k for k in reversed(range(len(sizes))) if sizes[k] > 1)
    if has_stick and sizes[last] % tile.lanes:
        return None
    pitches, pitch = [0] * len(sizes), tile.pitches[wide[-1]]
    for k in reversed(range(len(sizes))):
        if sizes[k] > 1:
            pitches[k] = pitch
            pitch *= sizes[k] // (tile.lanes if has_stick and k == last else 1)
    return pitches, last if has_stick else None


def slot_pitches(shape: tuple[int, ...], element: str, stick: int | None) -> tuple[list[int], int]:
    """Pitches of a tile in a scratchpad, row by row, and its bytes.

    The dim along lanes is padded to `PAIR`; without one, each element has `ROW_BYTES`.
    """
    pitches = [0] * len(shape)
    pitch = STICK_BYTES if stick is not None else ROW_BYTES
    order = [d for d in range(len(shape)) if d != stick]
    if stick is not None:
        pitches[stick] = pitch
        pitch *= -(-shape[stick] // PAIR) * (PAIR * ELEMENT_BYTES[element] // STICK_BYTES)
    for d in reversed(order):
        pitches[d] = pitch
        pitch *= shape[d]
    return pitches, max(pitch, ROW_BYTES)


@dataclass(frozen=True, eq=False)
class View:
    """A memory view. ``base``, ``sizes``, ``strides``: numbers in elements, [row, tile]."""

    base: Number
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    element: str
    is_clipped: bool
    is_local: bool
    position: int


@dataclass(frozen=True, eq=False)
class Access:
    """An access tile of a view: the box from ``corner``, [row, tile] per dim of the view.

    ``extents``: per dim of the view; ``order``: dim k of the tile is dim ``order[k]`` of the view.
    """

    view: View
    corner: tuple[Number, ...]
    extents: tuple[int, ...]
    order: tuple[int, ...]
    position: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tile."""
        return tuple(self.extents[d] for d in self.order)

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.extents)


@dataclass(frozen=True, eq=False)
class Future:
    """What tiles have produced. ``produced``: which tiles have, [row, tile] by the rows of
    ``level``.
    """

    parts: tuple[DataTile, ...]
    producers: Members
    level: Level
    produced: BoolArray


Value = Number | DataTile | View | Access | Future
