"""Launches that must not start, and what is kept between launches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device.device import Device
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise
from spyre.runtime.dma import DmaEngine
from spyre.runtime.flex.loaded_kernel import _matches
from spyre.runtime.kernel.kernel import Kernel, Launch
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.execute import Compute, Tiler, TileSteps
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Maker
from tests.runtime.tiling.running import (
    fresh_launch,
    inputs_of,
    launch_of,
    mm,
    random_inputs,
    run_steps,
    run_tiled,
)

IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")
EVERYTHING = TilingOptions(True, "pad", "accumulate")


def _unchanged(device: Device, launch: Launch) -> Mapping[int, bytes]:
    return {k: device.bytes_of(t).tobytes() for k, t in launch.arguments.items()}


def test_an_output_among_an_inputs_other_tiles(device: Device) -> None:
    """y lies 4 rows into x: the second tile of x would be overwritten by the first of y."""
    device.reset()
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    args = [Arg(IN, (8, 64)), Arg(OUT, (8, 64))]
    launch = launch_of(device, tile, args, random_inputs(args, 10))
    inside = replace(launch.arguments[1], address_bytes=launch.arguments[0].address_bytes + 4 * 128)
    launch = replace(launch, arguments={**launch.arguments, 1: inside})
    before = _unchanged(device, launch)
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    with pytest.raises(LaunchError, match="t0 and t1 share memory, but not their tiles") as caught:
        TileSteps(kernel, launch, kernel.plan(launch))
    assert caught.value.code == "SPY862"
    assert _unchanged(device, launch) == before


def test_in_place_over_the_same_tiles_is_fine(device: Device) -> None:
    device.reset()
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    args = [Arg(IN, (8, 128)), Arg(OUT, (8, 128))]
    (x,) = random_inputs(args, 11)
    launch = launch_of(device, tile, args, [x])
    launch = replace(launch, arguments=dict.fromkeys((0, 1), launch.arguments[0]))
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    run_steps(TileSteps(kernel, launch, kernel.plan(launch)))
    values = np.array(DmaEngine(device).to_host(launch.arguments[0]).storage).reshape(8, 128)
    np.testing.assert_array_equal(values, np.abs(x))


def test_a_missing_argument(device: Device) -> None:
    tile = mm(8, 64, 64)
    with pytest.raises(LaunchError, match="SPY363]: the kernel needs argument 0"):
        Tiler(Kernel(tile.bundle, device), tile.arguments).plan(Launch({}))


def test_errors_of_linking_come_before_the_first_tile(device: Device) -> None:
    """The kernel reads 8 rows behind its argument, which only linking sees."""
    device.reset()
    maker = Maker()
    x, y = maker.arg(Arg(IN, (4, 64))), maker.arg(Arg(OUT, (4, 64)))
    far = replace(x, base=maker.builder.arguments[0].at(8 * 128))
    maker.builder.add(pointwise("abs", (4, 64), [far], far))
    maker.builder.add(pointwise("abs", (4, 64), [x], y))
    tile = maker.done()
    args = [Arg(IN, (4, 128)), Arg(OUT, (4, 128))]
    launch = launch_of(device, tile, args, random_inputs(args, 17))
    before = _unchanged(device, launch)
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    tiled = TileSteps(kernel, launch, kernel.plan(launch))
    with pytest.raises(DeviceFault, match="SPY411"):
        run_steps(tiled)
    assert _unchanged(device, launch) == before


def test_an_operand_that_cannot_move(device: Device) -> None:
    """The kernel walks [2, 64] rows as 128, which [8, 64] does not have in one piece."""
    maker = Maker()
    x = maker.arg(Arg(IN, (64, 2, 64)))
    y = maker.arg(Arg(OUT, (64, 2, 64)))
    flat = [HostOperand(o.base) for o in (x, y)]
    maker.builder.add(pointwise("abs", (128, 64), flat[:1], flat[1]))
    tile = maker.done()
    args = [Arg(IN, (128, 2, 64)), Arg(OUT, (128, 2, 64))]
    launch = launch_of(device, tile, args, random_inputs(args, 12))
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    with pytest.raises(LaunchError, match=r"SPY858.*runs through several dims"):
        kernel.plan(launch)


def test_plans_and_kernels_are_made_once(device: Device) -> None:
    whole = mm(32, 128, 128)
    launch = fresh_launch(device, whole)
    kernel = Tiler(Kernel(mm(8, 128, 128).bundle, device), mm(8, 128, 128).arguments)
    assert not _matches(mm(8, 128, 128).arguments, launch)
    tile = kernel.kernel
    same = launch_of(device, mm(8, 128, 128), mm(8, 128, 128).args, inputs_of(mm(8, 128, 128)))
    assert _matches(mm(8, 128, 128).arguments, same)
    other = {**same.arguments, 1: replace(same.arguments[1], dtype="bfloat16")}
    assert not _matches(mm(8, 128, 128).arguments, Launch(other))
    assert kernel.retargeted({}) is tile
    plan = kernel.plan(launch)
    assert kernel.plan(launch) is plan
    tiled = TileSteps(kernel, launch, plan)
    assert tiled.kernel_of(Compute(0)) is TileSteps(kernel, launch, plan).kernel_of(Compute(3))
    corner = tiled.corners_bytes[3] - tiled.corners_bytes[0]
    assert corner.tolist() == [3 * 8 * 128, 0, 3 * 8 * 128]


def test_a_matmul_of_batches_shares_nothing_by_accident(device: Device) -> None:
    maker = Maker()
    a, b = maker.arg(Arg(IN, (2, 8, 64))), maker.arg(Arg(IN, (2, 64, 64)))
    c = maker.arg(Arg(OUT, (2, 8, 64)))
    maker.builder.add(matmul(8, 64, 64, a, b, c, (2,)))
    args = [Arg(IN, (6, 16, 64)), Arg(IN, (6, 64, 128)), Arg(OUT, (6, 16, 128))]
    left, right = random_inputs(args, 13)
    found = run_tiled(device, maker.done(), args, [left, right])
    assert found.plan is not None
    assert found.plan.counts == (3, 2, 2)
    truth = left.astype(np.float32) @ right.astype(np.float32)
    np.testing.assert_allclose(found.values[0].reshape(truth.shape), truth, rtol=2**-8, atol=0.1)
