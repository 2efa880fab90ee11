"""Small programs with one defect each, and right versions of some, for the golden texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuffer, BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from spyre.mlir.operation.operation import Component
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from tests.runtime.launch_specs import write_launch_spec

Shape = tuple[int, ...]
SHAPE = (32, 128)
ROW = 128
NBYTES = 32 * 128 * 2
SPLIT = {"mb": 4}
READ, WRITTEN, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT


def size_bytes(shape: Shape) -> int:
    return SpyreTensorLayout.from_host(shape, "float16").device_bytes


def lx(offset_bytes: int) -> HostOperand:
    return HostOperand(offset_bytes, component=Component.LX)


def write(
    builder: BundleBuilder, directory: Path, roles: Sequence[Role], shape: Shape = SHAPE
) -> Path:
    """The bundle with a launch_spec.json in which every argument has ``shape``."""
    write_bundle(builder.build(), directory)
    layout = SpyreTensorLayout.from_host(shape, "float16")
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16", layout) for k, role in enumerate(roles)
    )
    spec = LaunchSpec(1, "k", arguments, pool_size=builder.pool_bytes)
    write_launch_spec(directory / LAUNCH_SPEC_FILE, spec)
    return directory


def arguments(builder: BundleBuilder, count: int, shape: Shape = SHAPE) -> list[BundleBuffer]:
    return [builder.argument(size_bytes(shape)) for _ in range(count)]


def change_starts(
    directory: Path, sdsc: int, tensor: int, change: Callable[[dict[str, str]], None]
) -> None:
    """Edit the start addresses of one tensor in a written baked bundle."""
    file = directory / f"sdsc_{sdsc}.json"
    tree: dict[str, Any] = json.loads(file.read_text())
    (outer,) = tree.values()
    (dsc,) = outer["dscs_"][0].values()
    change(dsc["scheduleTree_"][tensor]["startAddressCoreCorelet_"]["data_"])
    file.write_text(json.dumps(tree))


# --- right ------------------------------------------------------------------------------------


def right(directory: Path) -> Path:
    """|a + b| through the pool."""
    builder = BundleBuilder()
    a, b, y = arguments(builder, 3)
    total = builder.temporary(NBYTES)
    inputs = [HostOperand(a.at()), HostOperand(b.at())]
    builder.add(pointwise("add", SHAPE, inputs, HostOperand(total.at()), SPLIT))
    builder.add(pointwise("abs", SHAPE, [HostOperand(total.at())], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, READ, WRITTEN])


# --- memory -----------------------------------------------------------------------------------


def tile_without_gap(directory: Path) -> Path:
    """Tiles of 8 of 32 rows that say nothing of the other 24."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    with builder.loop(4) as tile:
        source, target = (HostOperand(buffer.at(0, {tile: 8 * ROW})) for buffer in (x, y))
        builder.add(pointwise("abs", (8, 128), [source], target, {"mb": 2}))
    return write(builder, directory, [READ, WRITTEN])


def past_the_end(directory: Path) -> Path:
    """The last 16 of 32 rows begin at row 24: half of them are the next column's first."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    for op, first, target in (("abs", 0, 0), ("neg", 24, 16)):
        source = HostOperand(x.at(first * ROW), gap={"mb": 16})
        place = HostOperand(y.at(target * ROW), gap={"mb": 16})
        builder.add(pointwise(op, (16, 128), [source], place, {"mb": 2}))
    return write(builder, directory, [READ, WRITTEN])


# --- init -------------------------------------------------------------------------------------


def unwritten_pool(directory: Path) -> Path:
    """The pool's second half is read, its first half was written."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    first, second = builder.temporary(NBYTES), builder.temporary(NBYTES)
    builder.add(pointwise("abs", SHAPE, [HostOperand(x.at())], HostOperand(first.at()), SPLIT))
    builder.add(pointwise("neg", SHAPE, [HostOperand(second.at())], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, WRITTEN])


def overlapping_pool(directory: Path) -> Path:
    """A copy that is read last shares half its memory with a tensor made and read meanwhile, as if
    two names of one buffer got one address after separate places were chosen for them.
    """
    builder = BundleBuilder()
    x, y, z, w = (HostOperand(buffer.at()) for buffer in arguments(builder, 4))
    pool = builder.temporary(3 * NBYTES // 2)
    copy, other = HostOperand(pool.at()), HostOperand(pool.at(NBYTES // 2))
    builder.add(pointwise("abs", SHAPE, [x], copy, SPLIT))
    builder.add(pointwise("neg", SHAPE, [y], other, SPLIT))
    builder.add(pointwise("abs", SHAPE, [other], z, SPLIT))
    builder.add(pointwise("neg", SHAPE, [copy], w, SPLIT))
    return write(builder, directory, [READ, READ, WRITTEN, WRITTEN])


def unwritten_lx(directory: Path) -> Path:
    """16 sticks per core are written to LX, the 16 behind them are read."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    builder.add(pointwise("abs", SHAPE, [HostOperand(x.at())], lx(0), SPLIT))
    builder.add(pointwise("neg", SHAPE, [lx(2 * 8 * ROW)], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, WRITTEN])


# --- race -------------------------------------------------------------------------------------


def two_writers(directory: Path) -> Path:
    """Core 2 writes where core 1 does."""
    builder = BundleBuilder(symbolic=False)
    x, y = arguments(builder, 2)
    builder.add(pointwise("abs", SHAPE, [HostOperand(x.at())], HostOperand(y.at()), SPLIT))
    write(builder, directory, [READ, WRITTEN])

    def move(starts: dict[str, str]) -> None:
        starts["[2, 0, 0]"] = starts["[1, 0, 0]"]

    change_starts(directory, 0, 1, move)
    return directory


def shifted_in_place(directory: Path) -> Path:
    """y[8:] = |y[:-8]| over 32 rows of a taller tensor: every core reads its neighbour's output."""
    shape = (40, 128)
    builder = BundleBuilder()
    (y,) = arguments(builder, 1, shape)
    source = HostOperand(y.at(), gap={"mb": 8})
    target = HostOperand(y.at(8 * ROW), gap={"mb": 8})
    builder.add(pointwise("abs", SHAPE, [source], target, SPLIT))
    return write(builder, directory, [BOTH], shape)


# --- cover ------------------------------------------------------------------------------------


def short_loop(directory: Path) -> Path:
    """Three of four tiles."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    with builder.loop(3) as tile:
        source, target = (
            HostOperand(buffer.at(0, {tile: 8 * ROW}), gap={"mb": 24}) for buffer in (x, y)
        )
        builder.add(pointwise("abs", (8, 128), [source], target, {"mb": 2}))
    return write(builder, directory, [READ, WRITTEN])


def other_output(directory: Path) -> Path:
    """The second of two outputs is forgotten."""
    builder = BundleBuilder()
    x, y, _ = arguments(builder, 3)
    builder.add(pointwise("abs", SHAPE, [HostOperand(x.at())], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, WRITTEN, WRITTEN])


# --- lx ---------------------------------------------------------------------------------------


def above_boundary(directory: Path) -> Path:
    """An intermediate at 1.75 MB."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    place = lx(1_750_016)
    builder.add(pointwise("abs", SHAPE, [HostOperand(x.at())], place, SPLIT))
    builder.add(pointwise("neg", SHAPE, [place], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, WRITTEN])


def overlapping_lx(directory: Path) -> Path:
    """A second tensor begins in the middle of the first, which is read afterwards."""
    builder = BundleBuilder()
    a, b, y = arguments(builder, 3)
    half = 8 * ROW
    builder.add(pointwise("abs", SHAPE, [HostOperand(a.at())], lx(0), SPLIT))
    builder.add(pointwise("neg", SHAPE, [HostOperand(b.at())], lx(half), SPLIT))
    builder.add(pointwise("add", SHAPE, [lx(0), lx(half)], HostOperand(y.at()), SPLIT))
    return write(builder, directory, [READ, READ, WRITTEN])


def stale_lx(directory: Path) -> Path:
    """Tiles are computed into LX in a loop and used after it."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    with builder.loop(4) as tile:
        source = HostOperand(x.at(0, {tile: 8 * ROW}), gap={"mb": 24})
        builder.add(pointwise("abs", (8, 128), [source], lx(0), {"mb": 2}))
    with builder.loop(4) as tile:
        target = HostOperand(y.at(0, {tile: 8 * ROW}), gap={"mb": 24})
        builder.add(pointwise("neg", (8, 128), [lx(0)], target, {"mb": 2}))
    return write(builder, directory, [READ, WRITTEN])


def accumulated_lx(directory: Path) -> Path:
    """Right: a sum over tiles in LX, used after the loop."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2, (8, 128))
    source = HostOperand(x.at())
    builder.add(pointwise("abs", (8, 128), [source], lx(0), {"mb": 2}))
    with builder.loop(4):
        builder.add(pointwise("add", (8, 128), [lx(0), source], lx(0), {"mb": 2}))
    builder.add(pointwise("neg", (8, 128), [lx(0)], HostOperand(y.at()), {"mb": 2}))
    return write(builder, directory, [READ, WRITTEN], (8, 128))


# --- align ------------------------------------------------------------------------------------


def unaligned(directory: Path) -> Path:
    """Reads begin in the middle of a stick."""
    builder = BundleBuilder()
    x, y = arguments(builder, 2)
    source = HostOperand(x.at(64), gap={"mb": 4})
    target = HostOperand(y.at(), gap={"mb": 4})
    builder.add(pointwise("abs", (28, 128), [source], target, {"mb": 4}))
    return write(builder, directory, [READ, BOTH])


# --- coarse tiling ----------------------------------------------------------------------------

TILED = (1024, 4096)
TILE = (512, 1024)
TILE_CORES = {"mb": 32}


def coarse_tiling(directory: Path, outer_bytes: int, inner_bytes: int) -> Path:
    """z = (a + b)·c in 2 × 4 tiles of 512 × 1024 with the sum in LX, addresses moving by bytes."""
    builder = BundleBuilder()
    buffers = arguments(builder, 4, TILED)
    with builder.loop(2) as outer, builder.loop(4) as inner:
        moves = {outer: outer_bytes, inner: inner_bytes}
        gap = {"mb": TILED[0] - TILE[0]}
        a, b, c, z = (HostOperand(buffer.at(0, moves), gap=gap) for buffer in buffers)
        builder.add(pointwise("add", TILE, [a, b], lx(0), TILE_CORES))
        builder.add(pointwise("mul", TILE, [lx(0), c], z, TILE_CORES))
    return write(builder, directory, [READ, READ, READ, WRITTEN], TILED)


def tiling_by_host_strides(directory: Path) -> Path:
    """512 rows × 64 sticks × 128 bytes outside, 16 sticks × 128 bytes inside: host order."""
    return coarse_tiling(directory, 512 * 64 * 128, 16 * 128)


def tiling_by_device_strides(directory: Path) -> Path:
    """Right: rows are neighbours on the device, a column of sticks is 1024 rows long."""
    return coarse_tiling(directory, 512 * 128, 16 * TILED[0] * 128)


WRONG = {
    program.__name__: program
    for program in (
        tile_without_gap,
        unwritten_pool,
        overlapping_pool,
        unwritten_lx,
        two_writers,
        shifted_in_place,
        short_loop,
        other_output,
        above_boundary,
        overlapping_lx,
        stale_lx,
        unaligned,
        tiling_by_host_strides,
    )
}
RIGHT = {program.__name__: program for program in (right, accumulated_lx, tiling_by_device_strides)}
