"""Tiles: operands of executes as one array, and where such tiles are in the values of a function.

`read_tile` reads an operand from the memory of all cores; a `Breakpoint` keeps the operands of an
execute. `tile_layouts` and `find_paths` find tiles in reference values: inputs, results of
operations, outputs. A tile is a block of a value. Its dims are some of the value's dims in any
order; each is whole or one of several equal parts, and the remaining dims are fixed at one index.
The *grid* counts parts and fixed indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, permutations, product
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import FORMATS
from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.hw.reference import decoded, element_offsets
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Indirection
from spyre.runtime.compare import ExecuteView, Parts, Tolerance, operand_window

# --- operands ---------------------------------------------------------------------------------

MAX_ELEMENTS = 1 << 22
"""Larger tiles are skipped: searching for them would take longer than the run."""


class OperandTile(msgspec.Struct, frozen=True, eq=False):
    """An operand over its dims of size > 1, in the operation's order of dims.

    ``cores``: position of the core that holds each element, the last one of several.
    """

    dims: tuple[str, ...]
    values: npt.NDArray[Any]
    cores: Int64Array


def read_tile(device: Device, step: ExecuteView, operand: int) -> OperandTile | None:
    """The numbers that an operand has in memory now.

    None where addresses alone do not locate elements (gathers, windows, per-tensor core slices),
    for formats other than 16- and 32-bit floats, and for tiles of more than `MAX_ELEMENTS`.
    """
    op, tensor = step.op, step.op.tensors[operand]
    dims = tuple(d for d in op.dims if tensor.holds(d) and op.extents[d] > 1)
    shape = tuple(op.extents[d] for d in dims)
    plain = FORMATS[tensor.data_format].computed
    odd = tensor.indirection is Indirection.VALUE or tensor.own_core_slices or op.windows
    if not plain or odd or prod(shape) > MAX_ELEMENTS or tensor in op.index_tensors:
        return None
    shares = [op.core_extent(d) for d in dims]
    taken = _elements(device, step, operand, _offsets(step, operand, dims, shares))
    if taken is None:
        return None
    values = np.zeros(shape, np.float32)
    owners = np.zeros(shape, np.int64)
    positions = _positions(step, dims, shares, shape)
    values.flat[positions.ravel()] = taken.ravel()
    count = len(op.cores)
    owners.flat[positions.ravel()] = np.repeat(np.arange(count), prod(shares))
    return OperandTile(dims, values, owners)


def _offsets(
    step: ExecuteView, operand: int, dims: tuple[str, ...], shares: list[int]
) -> Int64Array:
    """Byte offset of each element from the start address of its core."""
    grid = np.indices(shares, dtype=np.int64)
    zero = np.zeros(shares, np.int64)
    local = {d: zero for d in step.op.dims} | dict(zip(dims, grid, strict=True))
    return element_offsets(step.op, step.op.tensors[operand], local).ravel()


def _elements(
    device: Device, step: ExecuteView, operand: int, offsets: Int64Array
) -> npt.NDArray[Any] | None:
    """The elements at ``offsets`` of every core, [core, element].

    None if the memory ends before the operation's extents do (a padded restickify).
    """
    tensor, window = step.op.tensors[operand], operand_window(step, operand)
    content = np.ascontiguousarray(window.view(device.memory)).reshape(-1)
    stored = decoded(content, tensor.data_format, device.numerics.mode)
    addresses = step.starts[operand][:, None] + offsets
    if window.cores is None:
        where = addresses - window.low
    else:
        pad, inside = np.divmod(addresses - LX_BASE, LX_BYTES)
        where = (pad - window.cores[0]) * (window.high - window.low) + inside - window.low
    positions = where // tensor.word_length_bytes
    if positions.max() >= len(stored):
        return None
    found: npt.NDArray[Any] = stored[positions]
    return found


def _positions(
    step: ExecuteView, dims: tuple[str, ...], shares: list[int], shape: tuple[int, ...]
) -> Int64Array:
    """Flat position in the tile of every element of every core, [core, element]."""
    grid = np.indices(shares, dtype=np.int64).reshape(len(dims), prod(shares))
    slices = [[row.get(d, 0) for d in dims] for row in step.op.core_slices]
    first = np.array(slices, np.int64).reshape(len(slices), len(dims)) * np.array(shares, np.int64)
    strides = np.array([prod(shape[k + 1 :]) for k in range(len(shape))], np.int64)
    coordinates = first[:, :, None] + grid[None]
    positions: Int64Array = (coordinates * strides[None, :, None]).sum(axis=1)
    return positions


class Breakpoint(msgspec.Struct):
    """Keeps the operands of an execute right after it ran; an `ExecuteObserver`.

    ``number``: of the execute, as in reports; ``loops``: indices of its outer loops, of which the
    first matching execution counts. ``names``: operands as named in the SDSC, all by default.
    """

    number: int
    loops: tuple[int, ...] = ()
    names: Sequence[str] = ()
    tensors: dict[str, OperandTile | None] = msgspec.field(default_factory=dict)
    is_reached: bool = False

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Do nothing."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Keep the operands. LaunchError SPY624 for a name that the execute does not have."""
        step = parts[0]
        if (
            self.is_reached
            or number != self.number
            or step.loop_indices[: len(self.loops)] != self.loops
        ):
            return
        self.is_reached = True
        operands = {tensor.name: k for k, tensor in enumerate(step.op.tensors)}
        for name in self.names or operands:
            if name not in operands:
                message = f"execute {number} ({step.op.name}) has no tensor {name}"
                location = step.location(0, None, int(step.starts[0].min()))
                expected = f"one of {', '.join(operands)}"
                raise LaunchError("SPY624", message, location, expected=expected, found=name)
            self.tensors[name] = read_tile(device, step, operands[name])

    def require_reached(self) -> None:
        """LaunchError SPY624 if the execute did not run."""
        if not self.is_reached:
            loops = f" at loop indices {self.loops}" if self.loops else ""
            message = f"the run does not reach execute {self.number}{loops}"
            expected = "the number of an execute, as counted in the table of a run"
            raise LaunchError("SPY624", message, expected=expected, found=str(self.number))


# --- reference values -------------------------------------------------------------------------

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Coords = tuple[int, ...]

TOLERANCE = 2.0**-6
"""Relative to the value and to the root mean square of all: several successive DL16 roundings."""
LANES = 64
"""Stick dims are padded to a multiple of this (or less); the padding may hold any number."""
_SAMPLES = 24
"""Elements compared first, which rules out most positions."""


def is_constant(values: Array) -> bool:
    """True if all numbers are equal. Such a tile matches too many others to be located."""
    return bool(values.size) and bool((values == values.flat[0]).all())


class ReferenceValue(msgspec.Struct, eq=False, dict=True):
    """Numbers that the function computes; ``name``: of the input, operation or output.

    ``base``: the value that this is a view of. ``makers``: operations with this result, each with
    the values among its operands. ``is_inner``: only the decomposition of an operation has it.
    """

    name: str
    values: Array
    base: ReferenceValue | None = None
    makers: list[tuple[str, tuple[ReferenceValue, ...]]] = msgspec.field(default_factory=list)
    is_inner: bool = False

    @property
    def whole(self) -> ReferenceValue:
        """The value itself, or the one that it is a view of."""
        return self.base or self

    @property
    def names(self) -> set[str]:
        """Names of the operations."""
        return {name for name, _ in self.makers}

    @cached_property
    def squeezed(self) -> Array:
        """The numbers as float32, without dims of size 1."""
        return self.values.squeeze().astype(np.float32)

    @cached_property
    def atol(self) -> float:
        """Absolute part of the tolerance."""
        finite = self.squeezed[np.isfinite(self.squeezed)]
        size = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
        return TOLERANCE * size + 1e-6

    @property
    def tolerance(self) -> Tolerance:
        """Tolerance for several successive roundings."""
        return Tolerance(TOLERANCE, self.atol, merged_nan=True)

    def differs(self, found: Array, expected: Array) -> BoolArray:
        """True for elements of ``found`` beyond the tolerance of ``expected`` (integers: none)."""
        if found.dtype.kind in "iu":
            return np.not_equal(found, expected)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(found - expected) <= self.atol + TOLERANCE * np.abs(expected)
        # DL16 has no NaN, and stores numbers beyond its range as infinity.
        finite = np.isfinite(expected)
        return np.where(finite, ~near, np.isfinite(found))


def match_outputs(found: Sequence[Array], expected: Sequence[Array]) -> dict[int, Array]:
    """The expected array of each output of a run, by number of the output.

    A kernel lists its outputs in the order in which it writes them, which may differ from the order
    of the function's results, and may have further ones for a backward pass. Each array is assigned
    to the output of its shape that agrees best (if several do, at its place), others in order.
    """
    costs = sorted(
        (int(ReferenceValue("", e).differs(f.astype(np.float64), e).sum()), k != number, k, number)
        for number, e in enumerate(expected)
        for k, f in enumerate(found)
        if f.shape == e.shape
    )
    matches: dict[int, int] = {}
    for _, _, k, number in costs:
        if k not in matches and number not in matches.values():
            matches[k] = number
    rest = [number for number in range(len(expected)) if number not in matches.values()]
    free = [k for k in range(len(found)) if k not in matches]
    matches |= dict(zip(free, rest, strict=False))
    return {k: expected[matches[k]] for k in sorted(matches)}


class TileLayout(msgspec.Struct, frozen=True, eq=False):
    """One way to cut a value into tiles of a shape: ``tiles[grid coordinates]`` is one tile.

    ``order``: dims of the value that the tile's dims are; ``grid``: its extents; ``tile_shape``:
    elements of a tile without padding.
    """

    value: ReferenceValue
    order: tuple[int, ...]
    grid: tuple[int, ...]
    tiles: Array
    tile_shape: tuple[int, ...]

    def wrong(self, tile: Array, coords: Coords) -> BoolArray:
        """Elements of ``tile``, without padding, that differ from the tile at ``coords``."""
        return self.value.differs(self._cut(tile), self.tiles[coords])

    def positions(self, tile: Array) -> Iterator[Coords]:
        """Grid coordinates of all tiles that ``tile`` agrees with."""
        cut = self._cut(tile).ravel()
        chosen = np.linspace(0, cut.size - 1, min(_SAMPLES, cut.size)).astype(np.int64)
        inside = np.unravel_index(chosen, self.tile_shape)
        samples: tuple[Any, ...] = (..., *inside)
        likely = ~self.value.differs(cut[chosen], self.tiles[samples]).any(axis=-1)
        for indices in np.argwhere(likely):
            coords = tuple(int(i) for i in indices)
            if not self.wrong(tile, coords).any():
                yield coords

    def _cut(self, tile: Array) -> Array:
        return tile[tuple(slice(n) for n in self.tile_shape)]


def tile_layouts(value: ReferenceValue, shape: Sequence[int]) -> Iterator[TileLayout]:
    """All ways to cut ``value`` into tiles of ``shape``, which has no dim of size 1."""
    whole = value.squeezed
    for order in permutations(range(whole.ndim), len(shape)):
        pairs = [(whole.shape[k], n) for k, n in zip(order, shape, strict=True)]
        if not all(_fits(have, need) for have, need in pairs):
            continue
        rest = [k for k in range(whole.ndim) if k not in order]
        moved = whole.transpose(*rest, *order)
        tile_shape = tuple(min(pair) for pair in pairs)
        counts = [have // min(have, need) for have, need in pairs]
        split: list[int] = []
        for count, n in zip(counts, tile_shape, strict=True):
            split += [count, n]
        outer = [whole.shape[k] for k in rest]
        parts = moved.reshape(*outer, *split)
        first = len(outer)
        grid_axes = [*range(first), *range(first, parts.ndim, 2)]
        tiles = parts.transpose(*grid_axes, *range(first + 1, parts.ndim, 2))
        yield TileLayout(value, order, (*outer, *counts), tiles, tile_shape)


def _fits(have: int, need: int) -> bool:
    return have % need == 0 if have >= need else need == -(-have // LANES) * LANES


# --- tiles of a loop --------------------------------------------------------------------------


class TilePath(msgspec.Struct, frozen=True, eq=False):
    """The tiles that a loop nest visits: per dim of the grid a fixed coordinate, or the loops
    (indices into the nest) that count it.
    """

    layout: TileLayout
    steps: tuple[int | tuple[int, ...], ...]

    def coords(self, nest: Sequence[int], row: int) -> Coords:
        """Grid coordinates in execution number ``row`` of a nest with these trip counts."""
        at = np.unravel_index(row, nest) if nest else ()
        return tuple(
            step if isinstance(step, int) else _count(step, at, nest) for step in self.steps
        )

    @property
    def moving(self) -> int:
        """Number of grid dims that loops count."""
        return sum(not isinstance(step, int) for step in self.steps)


def _count(loops: tuple[int, ...], at: Sequence[Any], nest: Sequence[int]) -> int:
    total = 0
    for loop in loops:
        total = total * nest[loop] + int(at[loop])
    return total


def find_paths(
    starts: Sequence[tuple[TileLayout, Coords]], nest: Sequence[int]
) -> tuple[TilePath, ...]:
    """Paths that begin at the given tiles.

    A grid dim with as many coordinates as loops have trips is counted by them, if possible.
    """
    levels = [k for k, trips in enumerate(nest) if trips > 1]
    groups = [g for n in range(1, len(levels) + 1) for g in combinations(levels, n)]
    by_layout: dict[tuple[int, tuple[int, ...]], list[TilePath]] = {}
    for layout, coords in starts:
        choices: list[list[int | tuple[int, ...]]] = []
        for size, index in zip(layout.grid, coords, strict=True):
            moving = [g for g in groups if size > 1 and prod(nest[k] for k in g) == size]
            choices.append([index, *(moving if index == 0 else [])])
        for steps in product(*choices):
            used = [loop for step in steps if not isinstance(step, int) for loop in step]
            if len(used) == len(set(used)):
                key = id(layout.value), layout.order
                by_layout.setdefault(key, []).append(TilePath(layout, steps))
    return tuple(
        path
        for paths in by_layout.values()
        for path in paths
        if path.moving == max(each.moving for each in paths)
    )
