"""Values of a KTIR function while it is traced: arrays over iterations and tiles.

A `Level` is the iterations of the loops around an operation, all at once: its rows. A number is an
array [row, tile] (extents of 1 where it does not vary). A `DataTile` is a place in memory, with the
bytes from one element to the next. Views, constants and broadcasts are tiles whose pitches
are 0 or other than those of their storage; they cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.hw.spec import STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.tiles import Members, TileOp

Shape = tuple[int, ...]
"""Extents, dims or positions: an integer per dim."""
BoolArray = npt.NDArray[np.bool_]
FORMATS = {"f16": "SEN169_FP16", "!spyreop.df16": "SEN169_FP16", "f32": "IEEE_FP32"}
FORMATS |= dict.fromkeys(("i32", "si32", "i64", "index"), "IEEE_INT32")
"""Device format of the elements of tiles; the device has integers of 32 bits."""
ELEMENT_BYTES = {element: 2 if "16" in name else 4 for element, name in FORMATS.items()}
PAIR = 64
"""Elements that last dims in scratchpads are padded to: a stick of f16, two of f32."""
ROW_BYTES = 2 * STICK_BYTES
"""Pitch in bytes of elements that are stored one per stick: the same for every element type."""


class Level(msgspec.Struct, frozen=True, eq=False):
    """The iterations of the loops around an operation.

    ``parent_rows``: rows of the outer level. ``active``: tiles that take part, [row, tile].
    ``indices``: induction variables, [row, depth]. ``key``: places in program order, [row, column].
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

    def lift(self, values: npt.NDArray[Any], level: Level | None) -> npt.NDArray[Any]:
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


class Number(msgspec.Struct, frozen=True, eq=False):
    """A number of type ``kind`` that is known when the function is traced, or a tile of them:
    values [row, tile, …], extents of 1 along dims of ``shape`` that it does not vary with.

    ``origin``: the argument it is an address in, in elements from its start.
    """

    values: npt.NDArray[Any]
    level: Level
    origin: int | None = None
    kind: str = "index"
    shape: Shape = ()

    def at(self, level: Level, rank: int = 0) -> npt.NDArray[Any]:
        """Its values by the rows of ``level``, with at least ``rank`` dims after row and tile."""
        values = level.lift(self.values, self.level)
        return values.reshape(values.shape + (1,) * (rank + 2 - values.ndim))

    def over(self, shape: Shape, dims: Sequence[int]) -> Number:
        """The same over ``shape``: dim k is ``dims[k]`` there, it does not vary along others."""
        extents, order = [1] * len(shape), sorted(range(len(dims)), key=dims.__getitem__)
        for own, dim in enumerate(dims):
            extents[dim] = self.values.shape[2 + own]
        moved = self.values.transpose(0, 1, *(2 + own for own in order))
        return replace(self, values=moved.reshape(*moved.shape[:2], *extents), shape=shape)


SCRATCHPAD = -1
"""Owner of memory in the tiles' scratchpads."""


class DataTile(msgspec.Struct, frozen=True, eq=False):
    """A tile of data.

    ``owner``: number of the argument whose memory it is in, or SCRATCHPAD. ``offsets``: bytes from
    there to its first element, [row, tile] by the rows of ``level``. ``pitches``: bytes from
    neighbour to neighbour along each dim, 0 along dims it does not vary with. ``stick``: the dim
    along lanes, whose sticks are neighbours; None: one element per stick, in its first lane.
    ``value``: of a constant, else None. ``is_empty``: it has no values (tensor.empty).
    """

    shape: Shape
    element: str
    owner: int
    offsets: Int64Array
    level: Level
    pitches: Shape
    stick: int | None
    value: float | None = None
    is_empty: bool = False

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

    @property
    def lane_dim(self) -> int | None:
        """The dim along lanes of a copy: the last for one number in all elements."""
        return self.stick if self.varies or not self.shape else len(self.shape) - 1

    def viewed(
        self,
        shape: Shape,
        first: Sequence[Any],
        slopes: Sequence[Sequence[int]],
        level: Level | None = None,
    ) -> DataTile:
        """Over ``shape``: dim k is at position ``first[k]``, which may be [row, tile] of ``level``,
        and moves by ``slopes[k][d]`` along dim d. Without a stick, elements are where they are.
        """
        level, lanes, stick = level or self.level, self.lanes, None
        pitches = tuple(
            sum(slope[d] * pitch for slope, pitch in zip(slopes, self.pitches, strict=True))
            for d in range(len(shape))
        )
        if (old := self.stick) is not None and not np.any(first[old] % lanes):
            lane = [d for d, slope in enumerate(slopes[old]) if slope % lanes]
            if len(lane) == 1 and pitches[lane[0]] == ELEMENT_BYTES[self.element]:
                size = shape[lane[0]]
                stick = lane[0] if size % lanes == 0 or size == self.shape[old] else None
        moves = sum(place * pitch for place, pitch in zip(first, self.pitches, strict=True))
        offsets = np.atleast_2d(level.lift(self.offsets, self.level) + moves)
        return replace(
            self, shape=shape, offsets=offsets, level=level, pitches=pitches, stick=stick
        )

    def part(
        self,
        at: Sequence[npt.NDArray[Any]],
        shape: Shape,
        level: Level,
        strides: Sequence[int] = (),
    ) -> DataTile:
        """Elements of it: ``shape`` from the position ``at`` on, [row, tile] per dim."""
        steps = strides or (1,) * len(at)
        slopes = [[step * (d == k) for d in range(len(shape))] for k, step in enumerate(steps)]
        return self.viewed(shape, at, slopes, level)

    def in_rows(self, shape: Shape) -> DataTile:
        """A row of elements in another shape, in whole sticks where its last dim is."""
        word = ELEMENT_BYTES[self.element]
        steps = tuple(prod(shape[k + 1 :]) * word for k in range(len(shape)))
        stick = len(shape) - 1 if shape and shape[-1] % self.lanes == 0 else None
        return replace(self, shape=shape, pitches=steps, stick=stick)

    def in_sticks(self, active: BoolArray) -> DataTile:
        """In whole sticks along a dim of neighbours, if its elements are on ``active`` tiles."""
        wide = [d for d, extent in enumerate(self.shape) if extent > 1]
        pitches, word = self.pitches, ELEMENT_BYTES[self.element]
        sticks = [d for d in wide if pitches[d] == word and self.shape[d] % self.lanes == 0]
        others = [pitches[d] for d in wide if d not in sticks]
        whole = len(sticks) == 1 and not any(pitch % STICK_BYTES for pitch in others)
        whole = whole and not np.any(np.where(active, self.offsets, 0) % STICK_BYTES)
        steps = tuple(pitch if d in wide else 0 for d, pitch in enumerate(pitches))
        offsets = self.offsets[:1] if (self.offsets == self.offsets[:1]).all() else self.offsets
        return replace(self, offsets=offsets, pitches=steps, stick=sticks[0] if whole else None)

    def differs(self, other: DataTile) -> bool:
        """True if its elements are at other distances than those of ``other``."""
        return (self.pitches, self.stick) != (other.pitches, other.stick)

    def begins_as(self, other: DataTile) -> bool:
        """True if it begins where ``other`` does; of tiles with places of the trace's choice."""
        first, second = self.offsets.flat[:1], other.offsets.flat[:1]  # none in no iterations
        return self.owner == other.owner and np.array_equal(first, second)

    def reshaped(self, shape: Shape) -> DataTile | None:
        """The same elements in another shape of as many; None if they would have to move."""
        runs: list[list[int]] = []  # extent and pitch of neighbours in memory, outermost first
        for extent, pitch in zip(self.shape, self.pitches, strict=True):
            if extent > 1 and runs and runs[-1][1] == extent * pitch:
                runs[-1] = [runs[-1][0] * extent, pitch]
            elif extent > 1:
                runs.append([extent, pitch])
        pitches, word, last = [0] * len(shape), ELEMENT_BYTES[self.element], None
        for k in reversed(range(len(shape))):
            if shape[k] == 1:
                continue
            if runs[-1][0] % shape[k]:
                return None
            pitches[k] = runs[-1][1]
            last = k if last is None and pitches[k] == word and self.stick is not None else last
            runs[-1] = [runs[-1][0] // shape[k], runs[-1][1] * shape[k]]
            if runs[-1][0] == 1:
                runs.pop()
        own = self.shape[self.stick or 0] if self.shape else 1
        if last is not None and shape[last] % self.lanes and shape[last] != own:
            return None
        return replace(self, shape=shape, pitches=tuple(pitches), stick=last)

    def permuted(self, order: Sequence[int]) -> DataTile:
        """Dim k of the result is dim ``order[k]`` of this, which varies with no other."""
        slopes = [[int(d == k) for d in order] for k in range(len(self.shape))]
        return self.viewed(tuple(self.shape[d] for d in order), [0] * len(slopes), slopes)

    def over(self, shape: Shape, dims: Sequence[int]) -> DataTile:
        """The same over ``shape``: dim k is ``dims[k]`` there, it does not vary along others."""
        slopes = [[int(d == dim) for d in range(len(shape))] for dim in dims]
        return self.viewed(shape, [0] * len(dims), slopes)


Tiles = Sequence[DataTile]


def slot_pitches(shape: Shape, element: str, stick: int | None) -> tuple[Shape, int]:
    """Pitches of a tile in a scratchpad, row by row, and its bytes.

    The dim along lanes is padded to `PAIR`; without one, each element has `ROW_BYTES`.
    """
    pitches, pitch = [ELEMENT_BYTES[element]] * len(shape), ROW_BYTES
    if stick is not None:
        pitch = -(-shape[stick] // PAIR) * PAIR * ELEMENT_BYTES[element]
    for d in reversed([d for d in range(len(shape)) if d != stick]):
        pitches[d] = pitch
        pitch *= shape[d]
    return tuple(pitches), max(pitch, ROW_BYTES)


class Part(msgspec.Struct, frozen=True, eq=False):
    """Memory of a view: all of it, or a part of a distributed one.

    ``tile``: its elements, of any number; ``corner``: the coordinates of the first; ``sizes``: how
    many there are along each dim.
    """

    tile: DataTile
    corner: tuple[Number, ...]
    sizes: tuple[Number, ...]


class View(msgspec.Struct, frozen=True, eq=False):
    """A memory view. ``sizes``: of all parts together; ``is_clipped``: elements outside are 0."""

    parts: tuple[Part, ...]
    sizes: tuple[Number, ...]
    is_clipped: bool
    op: TileOp

    @property
    def element(self) -> str:
        """Element type."""
        return self.parts[0].tile.element


class Access(msgspec.Struct, frozen=True, eq=False):
    """An access tile of a view: ``extents`` of the dims of the view, or of the variables of an
    indirect one; dim k of the tile is dim ``order[k]`` of these, which begin at ``corner``.

    ``op``: of an indirect one, with its subscripts.
    """

    view: View
    extents: Shape
    order: Shape
    corner: tuple[Number, ...]
    op: TileOp | None = None

    @property
    def shape(self) -> Shape:
        """Shape of the tile."""
        return tuple(self.extents[d] for d in self.order)


class Future(msgspec.Struct, frozen=True, eq=False):
    """Parts of ``producers``. ``level``: the iterations and tiles that have produced them."""

    parts: tuple[DataTile, ...]
    producers: Members
    level: Level


Value = Number | DataTile | View | Access | Future
