"""From expected and actual tensors to the list of tiles: options, one pure function, its result.

A launch whose tensors are larger than the kernel was compiled for is a nest of loops over tiles,
the lowest dim outermost, dims that are reduced innermost (runtime reference §6). The plan is data:
counts per dim and a byte offset per iteration and tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Literal, get_args

import msgspec
import numpy as np

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.linking import TileMap
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array, logical_columns
from spyre.runtime.program import Role
from spyre.runtime.tiling.device_dims import DeviceDims, dims_of
from spyre.runtime.tiling.kernel_dims import ExpectedTensor, SharedDim

Remainder = Literal["error", "pad"]
"""A dim that is no multiple of its tile: raise, or run the last tile on padded copies."""
Reduction = Literal["error", "accumulate"]
"""A tiled dim that the kernel reduces: raise, or accumulate the results of its tiles."""


class TilingOptions(msgspec.Struct, frozen=True):
    """Options of one launch; ``allow_tiled_launch`` is SPYRE_ALLOW_TILED_LAUNCH by default.

    ValueError for other values than those of `Remainder` and `Reduction`.
    """

    allow_tiled_launch: bool = msgspec.field(
        default_factory=lambda: config.ALLOW_TILED_LAUNCH.is_on
    )
    remainder: Remainder = "error"
    reduction: Reduction = "error"

    def __post_init__(self) -> None:
        for value, known in ((self.remainder, Remainder), (self.reduction, Reduction)):
            if value not in get_args(known):
                raise ValueError(f"{value!r} is not one of {get_args(known)}")


def tile_map(expected: ExpectedTensor, actual: DeviceTensor) -> TileMap:
    """Byte offsets in the memory of a tile of ``expected`` → in that of ``actual``.

    LaunchError SPY855 when the layouts do not go together, SPY859 for a tile of partial sticks.
    """
    tile, larger = expected.device_dims, dims_of(actual)
    mismatch = next(_mismatches(expected, actual, tile, larger), "")
    if mismatch:
        raise LaunchError(
            "SPY855",
            f"the layout of {actual.name} cannot express tiles of {expected.name}: {mismatch}",
            expected=f"like {expected.layout} of {list(expected.shape)}",
            found=f"{actual.layout} of {list(actual.sizes)}",
        )
    return TileMap(tile.extents[:-1], larger.strides_bytes)


def _mismatches(
    expected: ExpectedTensor, actual: DeviceTensor, tile: DeviceDims, larger: DeviceDims
) -> Iterator[str]:
    ours, theirs = expected.layout, actual.layout
    if (ours.device_dtype, ours.element_arrangement) != (
        theirs.device_dtype,
        theirs.element_arrangement,
    ):
        yield "another format or element arrangement"
    if len(tile.extents) != len(larger.extents):
        yield "another number of device dims"
    if tile.stick_host_dim != larger.stick_host_dim:
        own = _host(tile.stick_host_dim)
        yield f"the stick runs along {_host(larger.stick_host_dim)} instead of {own}"
    for k in range(len(tile.extents) - 1):
        yield from _device_dim_mismatches(tile, larger, k)
    for host_dim, (small, large) in enumerate(zip(expected.shape, actual.sizes, strict=True)):
        if large > small:
            if host_dim == tile.stick_host_dim:
                _check_whole_sticks(expected, actual, host_dim)
            yield from _tiled_dim_mismatches(small, tile, larger, host_dim)


def _host(host_dim: int) -> str:
    return "no host dim" if host_dim < 0 else f"dim {host_dim}"


def _device_dim_mismatches(tile: DeviceDims, larger: DeviceDims, k: int) -> Iterator[str]:
    walk = tile.host_dims[k], tile.multipliers[k]
    other = larger.host_dims[k], larger.multipliers[k]
    if max(tile.extents[k], larger.extents[k]) > 1 and walk != other:
        yield (
            f"device dim {k} walks {_host(other[0])} in steps of {other[1]} instead of "
            f"{_host(walk[0])} in steps of {walk[1]}"
        )
    if larger.extents[k] < tile.extents[k]:
        yield f"device dim {k} has {larger.extents[k]} of the {tile.extents[k]} steps of a tile"


def _tiled_dim_mismatches(
    size: int, tile: DeviceDims, larger: DeviceDims, host_dim: int
) -> Iterator[str]:
    """Tiles of ``size`` of ``host_dim`` must be whole steps of every device dim they cross."""
    walked = larger.walked_by(host_dim)
    if not walked:
        yield f"no device dim walks dim {host_dim}"
    for nesting, k in enumerate(walked):
        step, cycle = larger.multipliers[k], larger.multipliers[k] * larger.extents[k]
        aligned = size % step == 0 or step % size == 0
        if nesting > 0:
            aligned = aligned and (size % cycle == 0 or cycle % size == 0)
        if not aligned or tile.extents[k] > max(1, -(-size // step)):
            yield (
                f"tiles of {size} of dim {host_dim} are no whole steps of device dim {k} "
                f"({tile.extents[k]} steps of {step})"
            )


def _check_whole_sticks(expected: ExpectedTensor, actual: DeviceTensor, host_dim: int) -> None:
    layout, size = expected.layout, expected.shape[host_dim]
    unit = layout.elements_per_stick
    if layout.element_arrangement != "STANDARD":
        unit = max(unit, logical_columns(layout.element_arrangement).size)
    if size % unit:
        raise LaunchError(
            "SPY859",
            f"tiles of dim {host_dim} of {actual.name} end within a stick",
            expected=f"tiles of a multiple of {unit} elements",
            found=f"tiles of {size} in {actual.sizes[host_dim]}",
        )


_SHOWN = 4


class TiledDim(msgspec.Struct, frozen=True):
    """A loop over tiles: ``total`` elements in tiles of ``tile``.

    ``where``: the first tensor and dim that exceed the tile. ``order``: place among the loops.
    """

    dim: SharedDim
    tile: int
    total: int
    where: str
    order: tuple[int, int, int]

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.total // self.tile)

    @property
    def valid_last(self) -> int:
        """Elements of the last tile that exist; ``tile`` if it is whole."""
        return (self.total - 1) % self.tile + 1

    @property
    def name(self) -> str:
        """Name of the dim in the operation that has it first."""
        return self.dim.name

    @property
    def is_reduction(self) -> bool:
        return bool(self.dim.reduced_by)

    @property
    def is_partial(self) -> bool:
        return self.valid_last < self.tile


class TiledTensor(msgspec.Struct, frozen=True):
    """A tensor of the launch, cut into tiles.

    ``map``: byte offsets in a tile's memory → in the tensor's, from the tile's corner. ``walks``:
    (place in ``TilePlan.dims``, host dim) of the tiled dims it has.
    """

    expected: ExpectedTensor
    actual: DeviceTensor
    map: TileMap
    walks: tuple[tuple[int, int], ...]

    @property
    def is_tiled(self) -> bool:
        """False for a tensor that every iteration uses whole."""
        return bool(self.walks)


class TilePlan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The loops of a launch and the offset of every tile. Immutable; any thread may use it.

    ``dims``: outermost first. ``indices``: int64 [iteration, dim]. ``offsets_bytes``: int64
    [iteration, tensor], of each tile's corner from the start of its tensor.
    """

    tensors: tuple[TiledTensor, ...]
    dims: tuple[TiledDim, ...]
    indices: Int64Array
    offsets_bytes: Int64Array

    @property
    def is_tiled(self) -> bool:
        """False if the launch is one pass."""
        return bool(self.dims)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(dim.count for dim in self.dims)

    @property
    def iterations(self) -> int:
        return len(self.indices)

    @cached_property
    def needs_steps(self) -> bool:
        """True if a launch also copies partial tiles or accumulates results."""
        return any(dim.is_partial or (dim.is_reduction and dim.count > 1) for dim in self.dims)

    @property
    def accumulation(self) -> str:
        """The operation that combines results of tiles, '' where none does."""
        return next((d.dim.accumulated_by for d in self.dims if d.is_reduction), "")

    @cached_property
    def partial(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """[iteration, dim]: True where the iteration's tile of the dim is not whole."""
        last = np.array([d.count - 1 if d.is_partial else -1 for d in self.dims], np.int64)
        is_last: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = self.indices == last
        return is_last

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def plan_tiles(
    expected: Sequence[ExpectedTensor],
    actual: Sequence[DeviceTensor],
    options: TilingOptions | None = None,
) -> TilePlan:
    """The tiles of a launch of a kernel for ``expected`` on ``actual``, in argument order. Pure.

    LaunchError, naming tensor, dim and mismatch: SPY850 (tiling is not allowed), SPY851 (smaller
    than the tile), SPY852 (no multiple), SPY853 (tensors disagree), SPY854 (number, rank), SPY855
    (layout), SPY856 (dtype), SPY857 (reduction), SPY858 (dim that cannot be tiled), SPY859 (tiles
    that end within a stick), SPY860 (dim that no operation walks). Runtime reference §6.
    """
    options = options if options is not None else TilingOptions()
    _check_shapes(expected, actual)
    found = _tiled_dims(expected, actual, options)
    for tiled in found.values():
        _check_tiled(tiled, expected, actual, options)
    dims = tuple(sorted(found.values(), key=lambda tiled: tiled.order))
    tensors = tuple(
        TiledTensor(e, a, tile_map(e, a), _walks(e, dims))
        for e, a in zip(expected, actual, strict=True)
    )
    indices = _indices([dim.count for dim in dims])
    offsets_bytes = np.zeros((len(indices), len(tensors)), np.int64)
    for k, tensor in enumerate(tensors):
        larger = dims_of(tensor.actual)
        for number, host_dim in tensor.walks:
            starts = indices[:, number] * dims[number].tile
            offsets_bytes[:, k] += larger.offsets_bytes(host_dim, starts)
    # Plans are kept and shared between threads.
    for array in (indices, offsets_bytes):
        array.setflags(write=False)
    return TilePlan(tensors, dims, indices, offsets_bytes)


def _walks(expected: ExpectedTensor, dims: Sequence[TiledDim]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (k, host_dim)
        for k, tiled in enumerate(dims)
        for host_dim, dim in enumerate(expected.dims)
        if dim == tiled.dim
    )


def _indices(counts: Sequence[int]) -> Int64Array:
    """Every combination of tile numbers, the last one fastest: [iteration, dim]."""
    if not counts:
        return np.zeros((1, 0), np.int64)
    grid = np.indices(counts, dtype=np.int64).reshape(len(counts), prod(counts))
    return np.ascontiguousarray(grid.T)


# --- the dims to tile -------------------------------------------------------------------------


def _check_shapes(expected: Sequence[ExpectedTensor], actual: Sequence[DeviceTensor]) -> None:
    """Number, dtype and rank of the tensors; none smaller than its tile."""
    if len(expected) != len(actual):
        raise LaunchError(
            "SPY854",
            "the kernel takes another number of tensors",
            expected=f"{len(expected)}: {', '.join(e.name for e in expected)}",
            found=str(len(actual)),
        )
    for want, have in zip(expected, actual, strict=True):
        if want.dtype_name != have.dtype:
            raise LaunchError(
                "SPY856",
                f"{have.name} ({want.name}) has another dtype than the kernel was compiled for",
                expected=want.dtype_name,
                found=have.dtype,
            )
        if len(want.shape) != len(have.sizes):
            raise LaunchError(
                "SPY854",
                f"{have.name} ({want.name}) has another rank than the kernel was compiled for",
                expected=f"{len(want.shape)} dims: {list(want.shape)}",
                found=f"{len(have.sizes)} dims: {list(have.sizes)}",
            )
        _check_not_smaller(want, have)


def _check_not_smaller(want: ExpectedTensor, have: DeviceTensor) -> None:
    for dim, (tile, size) in enumerate(zip(want.shape, have.sizes, strict=True)):
        if size < tile:
            message = f"dim {dim} of {have.name} ({want.name}) is smaller than the kernel's tile"
            found = f"{size} in {list(have.sizes)}"
            raise LaunchError("SPY851", message, expected=f"at least {tile}", found=found)


def _tiled_dims(
    expected: Sequence[ExpectedTensor], actual: Sequence[DeviceTensor], options: TilingOptions
) -> dict[SharedDim, TiledDim]:
    """The kernel's dims that tensors exceed. LaunchError SPY850, SPY852, SPY860."""
    tiled: dict[SharedDim, TiledDim] = {}
    for want, have in zip(expected, actual, strict=True):
        for h, (tile, size) in enumerate(zip(want.shape, have.sizes, strict=True)):
            if size == tile:
                continue
            where = f"dim {h} of {have.name} ({want.name})"
            _check_allowed(where, tile, size, options)
            dim = want.dims[h]
            if dim is None:
                message = f"{where} exceeds its tile, and no operation of the kernel walks it"
                raise _not_tiled("SPY860", message, tile, size)
            tiled.setdefault(dim, TiledDim(dim, tile, size, where, _order(dim, expected)))
    return tiled


def _not_tiled(code: str, message: str, tile: int, size: int, hint: str = "") -> LaunchError:
    return LaunchError(code, message, expected=str(tile), found=str(size), hint=hint)


def _check_allowed(where: str, tile: int, size: int, options: TilingOptions) -> None:
    if not options.allow_tiled_launch:
        message = f"{where} exceeds the kernel's tile, and tiled launches are not allowed"
        hint = "allow_tiled_launch=True, or SPYRE_ALLOW_TILED_LAUNCH=1"
        raise _not_tiled("SPY850", message, tile, size, hint)
    if size % tile and options.remainder == "error":
        raise LaunchError(
            "SPY852",
            f"{where} is no multiple of the kernel's tile",
            expected=f"a multiple of {tile}",
            found=str(size),
            hint="remainder='pad' runs the last tile on padded copies",
        )


def _order(dim: SharedDim, expected: Sequence[ExpectedTensor]) -> tuple[int, int, int]:
    """Lowest dim outermost, as outputs count dims; dims that outputs lack innermost."""
    outputs = [e for e in expected if e.is_output]
    for among in (outputs, expected):
        places = [e.dims.index(dim) for e in among if dim in e.dims]
        if places:
            return int(bool(dim.reduced_by)), min(places), dim.index
    return 1, 0, dim.index


def _check_tiled(
    tiled: TiledDim,
    expected: Sequence[ExpectedTensor],
    actual: Sequence[DeviceTensor],
    options: TilingOptions,
) -> None:
    """Every tensor agrees on a tiled dim, and the kernel allows it to be tiled."""
    if tiled.dim.fixed:
        message = f"{tiled.where} cannot be tiled: {tiled.dim.fixed}"
        raise _not_tiled("SPY858", message, tiled.tile, tiled.total)
    for want, have in zip(expected, actual, strict=True):
        _check_agreement(want, have, tiled)
    if tiled.is_reduction:
        _check_reduction(tiled, expected, options)
    else:
        _check_untiled_updates(tiled, expected)


def _check_agreement(want: ExpectedTensor, have: DeviceTensor, tiled: TiledDim) -> None:
    for h, own_dim in enumerate(want.dims):
        if own_dim != tiled.dim or (want.shape[h], have.sizes[h]) == (tiled.tile, tiled.total):
            continue
        raise LaunchError(
            "SPY853",
            f"dim {h} of {have.name} ({want.name}) and {tiled.where} are one dim of the kernel "
            f"({tiled.name}), but disagree",
            expected=f"{tiled.total} in tiles of {tiled.tile}",
            found=f"{have.sizes[h]} in tiles of {want.shape[h]}",
        )


def _check_reduction(
    tiled: TiledDim, expected: Sequence[ExpectedTensor], options: TilingOptions
) -> None:
    dim = tiled.dim
    if options.reduction == "error":
        message = f"{tiled.where} exceeds the kernel's tile, and {dim.reduced_by} reduces it"
        hint = "reduction='accumulate' adds up the results of the tiles of a sum or matmul"
        raise _not_tiled("SPY857", message, tiled.tile, tiled.total, hint)
    outputs = [e for e in expected if e.is_output]
    if not dim.accumulated_by or any(e.role is Role.INPUT_OUTPUT for e in outputs):
        raise LaunchError(
            "SPY857",
            f"results of tiles of {tiled.where} cannot be accumulated",
            expected="a kernel of one sum or batchmatmul whose output is not an input",
            found=f"reduced by {dim.reduced_by} "
            + ("in place" if dim.accumulated_by else "in a kernel that is no plain sum"),
        )


def _check_untiled_updates(tiled: TiledDim, expected: Sequence[ExpectedTensor]) -> None:
    """A tensor updated in place must not be updated once per tile."""
    for want in expected:
        if want.role is Role.INPUT_OUTPUT and tiled.dim not in want.dims:
            reason = f"the kernel updates {want.name}, which lacks {tiled.name}, in place"
            message = f"{tiled.where} cannot be tiled: {reason}"
            raise _not_tiled("SPY858", message, tiled.tile, tiled.total)


# --- text -------------------------------------------------------------------------------------


def _lines(plan: TilePlan) -> Iterator[str]:
    passes = "1 iteration" if plan.iterations == 1 else f"{plan.iterations} iterations"
    yield f"tiled launch: {passes}" if plan.is_tiled else "launch: 1 iteration"
    for depth, dim in enumerate(plan.dims):
        yield f"{'  ' * (depth + 1)}for {_of_dim(dim)}"
    for k, tensor in enumerate(plan.tensors):
        yield f"  {_of_tensor(plan, tensor, plan.offsets_bytes[:, k])}"


def _of_dim(dim: TiledDim) -> str:
    text = f"{dim.name} (dim {dim.dim.index}): {dim.count} tiles of {dim.tile} in {dim.total}"
    if dim.is_partial:
        text += f", the last padded from {dim.valid_last}"
    if dim.is_reduction:
        text += f", results of {dim.dim.reduced_by} accumulated by {dim.dim.accumulated_by}"
    return text


def _of_tensor(plan: TilePlan, tensor: TiledTensor, offsets: Int64Array) -> str:
    expected, actual = tensor.expected, tensor.actual
    head = f"{expected.name} {expected.role.value} {list(actual.sizes)}"
    if not tensor.is_tiled:
        return f"{head}: reused"
    steps = []
    for k, _ in tensor.walks:
        after = prod(plan.counts[k + 1 :])
        step = int(offsets[after] - offsets[0]) if plan.counts[k] > 1 else 0
        steps.append(f"{plan.dims[k].name} +{step}")
    first = ", ".join(str(int(offset)) for offset in offsets[:_SHOWN])
    dots = ", …" if len(offsets) > _SHOWN else ""
    return (
        f"{head} in tiles of {list(expected.shape)}: bytes per tile {', '.join(steps)}; "
        f"offsets {first}{dots}"
    )
