"""Random launches larger than their kernels: shapes, ranks, formats, operations, tiles, splits.

The property tests and ``thousand`` run ``random_case(seed)``; equal seeds give equal cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import msgspec
import numpy as np

from spyre.hw.device.device import Device
from spyre.mlir.builder.recipes import default_dims
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import LANES, Built
from tests.runtime.tiling.running import Outcome, random_inputs, run_tiled, run_whole

Build = Callable[[tuple[int, ...], Mapping[str, int], bool], Built]
MAX_CORES = 8
MAX_ELEMENTS = 1 << 17
_UNARY = ("abs", "exp", "neg", "relufwd")
_BINARY = ("add", "sub", "mul", "maximum")


class TileCase(msgspec.Struct, frozen=True):
    """``build`` makes the kernel of a shape; ``tile`` and ``whole`` are two of them.

    ``is_exact``: the outputs are equal bit for bit; else within ``tolerance`` of the size of the
    sums.
    """

    name: str
    seed: int
    build: Build
    tile: tuple[int, ...]
    whole: tuple[int, ...]
    splits: Mapping[str, int]
    whole_splits: Mapping[str, int]
    symbolic: bool
    options: TilingOptions = msgspec.field(default_factory=TilingOptions)
    is_exact: bool = True

    def __str__(self) -> str:
        mode = "symbolic" if self.symbolic else "baked"
        return (
            f"seed {self.seed}: {self.name} {mode} {list(self.whole)} on tiles {list(self.tile)}, "
            f"splits {dict(self.splits)}, remainder {self.options.remainder}, "
            f"reduction {self.options.reduction}"
        )


def check_case(case: TileCase, device: Device) -> str:
    """Run ``case`` whole and in tiles; return a description of the difference, or ''."""
    whole = case.build(case.whole, case.whole_splits, case.symbolic)
    tile = case.build(case.tile, case.splits, case.symbolic)
    inputs = random_inputs(whole.args, case.seed)
    truth = run_whole(device, whole, inputs)
    found = run_tiled(device, tile, whole.args, inputs, case.options)
    assert found.plan is not None
    if not found.plan.is_tiled:
        return "the launch was not tiled"
    if not any(np.any(values != 0) for values in truth.values):
        return "the untiled result is all zero"
    return _difference(case, truth, found)


def _difference(case: TileCase, truth: Outcome, found: Outcome) -> str:
    assert found.plan is not None
    for k, (want, have) in enumerate(zip(truth.values, found.values, strict=True)):
        if case.is_exact and not np.array_equal(want, have, equal_nan=True):
            return f"output {k}: {int((want != have).sum())} of {want.size} values differ"
        if not case.is_exact:
            scale = max(float(np.abs(want.astype(np.float64)).max()), 1.0)
            error = float(np.abs(want.astype(np.float64) - have.astype(np.float64)).max())
            if error > scale * 2**-8 * found.plan.counts[-1]:
                return f"output {k}: error {error} of sums up to {scale}"
    if case.is_exact and not any(dim.is_partial for dim in found.plan.dims):
        for want, have in zip(truth.raw, found.raw, strict=True):
            if not np.array_equal(want, have):
                return f"{int((want != have).sum())} device bytes differ"
    return ""


def random_case(seed: int) -> TileCase:
    """The case of ``seed``."""
    rng = random.Random(seed)
    name = rng.choice(sorted(_KINDS))
    return _KINDS[name](rng, name, seed)


# --- choices ----------------------------------------------------------------------------------


def _pick(rng: random.Random, *choices: int) -> int:
    return rng.choice(choices)


def _splits(
    rng: random.Random, dims: Sequence[str], shape: Sequence[int], units: Sequence[int]
) -> dict[str, int]:
    """Random work slices of whole units, at most MAX_CORES."""
    splits: dict[str, int] = {}
    for dim, size, unit in zip(dims, shape, units, strict=True):
        fits = [n for n in (1, 2, 3, 4) if size % (n * unit) == 0]
        chosen = rng.choice(fits or [1])
        if chosen > 1 and prod(splits.values()) * chosen <= MAX_CORES:
            splits[dim] = chosen
    return splits


def _grow(
    rng: random.Random,
    tile: Sequence[int],
    free: Sequence[int],
    options: TilingOptions,
    most: int = MAX_ELEMENTS,
) -> tuple[int, ...]:
    """A shape that exceeds ``tile`` along at least one of the axes ``free``."""
    whole = list(tile)
    must = rng.choice(list(free))
    for axis in free:
        count = _pick(rng, 2, 3, 4, 5) if axis == must else _pick(rng, 1, 1, 2, 3)
        room = most // prod(whole)
        count = max(min(count, room), 2 if axis == must else 1)
        rest = 0
        if options.remainder == "pad" and rng.random() < 0.7 and count > 1:
            rest = rng.randrange(tile[axis])
        whole[axis] = tile[axis] * count - rest
    return tuple(whole)


def _options(rng: random.Random, reduction: str = "error") -> TilingOptions:
    return TilingOptions(True, rng.choice(["error", "error", "pad"]), reduction)  # type: ignore[arg-type]


def _shape(rng: random.Random, rank: int, lanes: int, stick_free: bool) -> tuple[int, ...]:
    """A tile's shape; the stick dim is whole sticks where it may be tiled."""
    outer = [_pick(rng, 1, 2, 3, 4, 6, 8) for _ in range(rank - 1)]
    stick = lanes * _pick(rng, 1, 2, 3) if stick_free else _pick(rng, 1, 20, lanes, 3 * lanes, 100)
    return (*outer, stick)


def _elementwise(rng: random.Random, name: str, seed: int) -> TileCase:
    dtype = rng.choice(["float16", "float16", "float32"])
    rank = _pick(rng, 1, 2, 3, 4)
    stick_free = rank == 1 or rng.random() < 0.6
    tile = _shape(rng, rank, LANES[dtype], stick_free)
    free = list(range(rank if stick_free else rank - 1))
    absent: list[tuple[int, ...]] = [()]
    op = rng.choice(_UNARY)
    if name != "unary":
        op = rng.choice(_BINARY)
        axes = [axis for axis in range(rank) if rank > 1 and name == "broadcast"]
        lacking = rng.sample(axes, rng.randint(1, max(1, rank - 1))) if axes else []
        absent.append(tuple(sorted(lacking)))
    options = _options(rng)
    whole = _grow(rng, tile, free, options)
    build = partial(
        kernels.elementwise,
        dtype=dtype,
        absent=tuple(absent),
        name=op,
        in_place=name == "in place",
    )
    return _case(rng, f"{name} {op} {dtype}", seed, build, tile, whole, options, LANES[dtype])


def _case(
    rng: random.Random,
    name: str,
    seed: int,
    build: Build,
    tile: tuple[int, ...],
    whole: tuple[int, ...],
    options: TilingOptions,
    lanes: int = 64,
    split_axes: Sequence[int] | None = None,
    is_exact: bool = True,
) -> TileCase:
    """The case with random splits of the axes of default dims."""
    dims = default_dims(len(tile))
    units = [1] * (len(tile) - 1) + [lanes]
    kept = range(len(tile)) if split_axes is None else split_axes

    def splits(shape: Sequence[int]) -> dict[str, int]:
        rounded = [*shape[:-1], -(-shape[-1] // lanes) * lanes]
        found = _splits(rng, dims, rounded, units)
        return {dim: n for dim, n in found.items() if dims.index(dim) in kept}

    symbolic = rng.random() < 0.5
    return TileCase(
        name, seed, build, tile, whole, splits(tile), splits(whole), symbolic, options, is_exact
    )


def _reduction(rng: random.Random, name: str, seed: int) -> TileCase:
    dtype = rng.choice(["float16", "float32"])
    rank, lanes = _pick(rng, 2, 3, 4), LANES[dtype]
    axes = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank - 1))))
    accumulate = name == "accumulated sum"
    stick_free = rank - 1 not in axes or accumulate
    tile = _shape(rng, rank, lanes, stick_free)
    free = [a for a in range(rank) if accumulate or a not in axes]
    if not stick_free:
        free = [a for a in free if a != rank - 1]
    options = _options(rng, "accumulate" if accumulate else "error")
    op = "sum" if accumulate else rng.choice(["sum", "max"])
    whole = _grow(rng, tile, free, options)
    build = partial(kernels.reduce, axes=axes, name=op, dtype=dtype)
    exact = not any(whole[a] > tile[a] for a in axes)
    unsplit = [a for a in range(rank) if a not in axes]
    return _case(
        rng, f"{op} over {axes} {dtype}", seed, build, tile, whole, options, lanes, unsplit, exact
    )


def _matmul(rng: random.Random, name: str, seed: int) -> TileCase:
    batch = ("y", "x")[2 - _pick(rng, 0, 0, 1, 2) :]
    tile = (
        *(_pick(rng, 1, 2, 3) for _ in batch),
        _pick(rng, 1, 2, 4, 8, 12),
        64 * _pick(rng, 1, 2),
        64 * _pick(rng, 1, 2, 3),
    )
    b = len(batch)
    accumulate = name == "accumulated matmul"
    free = [*range(b + 1), b + 2, *([b + 1] if accumulate else [])]
    options = _options(rng, "accumulate" if accumulate else "error")
    if accumulate and rng.random() < 0.5:
        whole = list(_grow(rng, tile, free, options))
        whole[b + 1] = max(whole[b + 1], tile[b + 1] * 2)
    else:
        whole = list(_grow(rng, tile, free, options))
    if whole[b + 1] % 64:
        whole[b + 1] += -whole[b + 1] % 64

    def build(shape: tuple[int, ...], splits: Mapping[str, int], symbolic: bool) -> Built:
        names = (*batch, "m", "k", "n")
        sizes = dict(zip(names, shape, strict=True))
        return kernels.mm(sizes, splits, symbolic, batch)

    def splits(shape: Sequence[int]) -> dict[str, int]:
        dims, units = (*batch, "mb", "in", "out"), [1] * (b + 1) + [64, 64]
        found = _splits(rng, dims, [*shape[:-1], -(-shape[-1] // 64) * 64], units)
        found.pop("in", None)
        return found

    exact = whole[b + 1] == tile[b + 1]
    symbolic = rng.random() < 0.5
    return TileCase(
        name, seed, build, tile, tuple(whole), splits(tile), splits(whole), symbolic, options, exact
    )


def _with_lx(rng: random.Random, name: str, seed: int) -> TileCase:
    """softmax: rows only; chain: all dims of a tensor of up to four."""
    middle = [_pick(rng, 1, 2, 3) for _ in range(_pick(rng, 0, 0, 1, 2))]
    tile = (_pick(rng, 2, 4, 8), *(middle if name == "chain" else []), 64 * _pick(rng, 1, 2, 3))
    options = _options(rng)
    whole = _grow(rng, tile, [0] if name == "softmax" else list(range(len(tile))), options)
    build = kernels.softmax if name == "softmax" else kernels.chain
    return _case(rng, name, seed, build, tile, whole, options, split_axes=[0])


def _matmul_chain(rng: random.Random, name: str, seed: int) -> TileCase:
    tile = (_pick(rng, 1, 2, 4, 8), 64 * _pick(rng, 1, 2), 64 * _pick(rng, 1, 2))
    options = _options(rng)
    whole = _grow(rng, tile, [0, 2], options)

    def build(shape: tuple[int, ...], splits: Mapping[str, int], symbolic: bool) -> Built:
        return kernels.mm_chain(dict(zip("mkn", shape, strict=True)), splits, symbolic)

    symbolic = rng.random() < 0.5
    return TileCase(name, seed, build, tile, whole, {}, {}, symbolic, options)


def _looped(rng: random.Random, name: str, seed: int) -> TileCase:
    parts = _pick(rng, 2, 3, 4)
    tile = (parts * _pick(rng, 1, 2, 4), 64 * _pick(rng, 1, 2))
    options = _options(rng)
    whole = _grow(rng, tile, [0, 1], options)
    whole = (whole[0] + -whole[0] % parts, whole[1])
    build = partial(kernels.looped, parts=parts)
    symbolic = rng.random() < 0.5
    return TileCase(name, seed, build, tile, whole, {}, {}, symbolic, options)


def _conversion(rng: random.Random, name: str, seed: int) -> TileCase:
    tile = (_pick(rng, 1, 2, 4, 8), 64 * _pick(rng, 1, 2))
    options = _options(rng)
    rows, columns = _grow(rng, tile, [0, 1], options)
    whole = (rows, -(-columns // 64) * 64)
    return _case(rng, name, seed, kernels.convert, tile, whole, options)


def _transpose(rng: random.Random, name: str, seed: int) -> TileCase:
    outer = [_pick(rng, 1, 2, 3) for _ in range(_pick(rng, 0, 1))]
    tile = (*outer, 64 * _pick(rng, 1, 2), 64 * _pick(rng, 1, 2))
    options = TilingOptions(True)
    whole = _grow(rng, tile, list(range(len(tile))), options)
    build, symbolic = kernels.transpose, rng.random() < 0.5
    return TileCase(name, seed, build, tile, whole, {}, {}, symbolic, options)


def _pooling(rng: random.Random, name: str, seed: int) -> TileCase:
    """Batch and channels may be tiled, the windowed dims not."""
    tile = (_pick(rng, 1, 2), 2 * _pick(rng, 1, 2), 2 * _pick(rng, 1, 3), 64)
    options = TilingOptions(True)
    whole = _grow(rng, tile, [0, 3], options)
    build, symbolic = kernels.max_pool, rng.random() < 0.5
    return TileCase(name, seed, build, tile, whole, {}, {}, symbolic, options)


def _one_row(rng: random.Random, name: str, seed: int) -> TileCase:
    """The row of the tile is no dim of its operations."""
    tile = (1, 64 * _pick(rng, 1, 2, 3))
    options = _options(rng)
    whole = _grow(rng, tile, [0, 1], options)
    build, symbolic = kernels.one_row, rng.random() < 0.5
    splits = {"out": tile[1] // 64} if rng.random() < 0.5 else {}
    return TileCase(name, seed, build, tile, whole, splits, {}, symbolic, options)


def _widening(rng: random.Random, name: str, seed: int) -> TileCase:
    tile = (_pick(rng, 1, 2, 4, 8), 64 * _pick(rng, 1, 2))
    options = TilingOptions(True)
    whole = _grow(rng, tile, [0, 1], options)

    def build(shape: tuple[int, ...], splits: Mapping[str, int], symbolic: bool) -> Built:
        return kernels.widen(shape, symbolic)

    return TileCase(name, seed, build, tile, whole, {}, {}, rng.random() < 0.5, options)


_KINDS: Mapping[str, Callable[[random.Random, str, int], TileCase]] = {
    "unary": _elementwise,
    "binary": _elementwise,
    "broadcast": _elementwise,
    "in place": _elementwise,
    "reduction": _reduction,
    "accumulated sum": _reduction,
    "matmul": _matmul,
    "accumulated matmul": _matmul,
    "softmax": _with_lx,
    "chain": _with_lx,
    "matmul chain": _matmul_chain,
    "loop": _looped,
    "conversion": _conversion,
    "transpose": _transpose,
    "pooling": _pooling,
    "one row": _one_row,
    "widening": _widening,
}
