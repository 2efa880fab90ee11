"""Tiles that are not whole, and sums over tiles."""

from __future__ import annotations

import numpy as np

from spyre.hw.device.device import Device
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.execute import (
    Accumulate,
    Compute,
    Copy,
    Tiler,
    TileSteps,
    tile_steps,
)
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg
from tests.runtime.tiling.running import (
    launch_of,
    mm,
    outcome,
    plan_for,
    random_inputs,
    run_steps,
    run_tiled,
)

IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")
EVERYTHING = TilingOptions(True, "pad", "accumulate")


def test_what_lies_behind_a_padded_tile_stays(device: Device) -> None:
    """The last tile ends within a stick; the bytes behind it are not the kernel's."""
    device.reset()
    tile = kernels.elementwise((4, 64), {}, True, absent=((),), name="exp")
    args = [Arg(IN, (6, 100)), Arg(OUT, (6, 100))]
    (x,) = random_inputs(args, 6)
    launch = launch_of(device, tile, args, [x])
    device.bytes_of(launch.arguments[1])[:] = 0xAB
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch, PAD)
    run_steps(TileSteps(kernel, launch, plan))
    raw = device.bytes_of(launch.arguments[1]).reshape(2, 6, 128)
    assert (raw[1, :, 36 * 2 :] == 0xAB).all()
    assert not (raw[1, :, : 36 * 2] == 0xAB).all(axis=1).any()


def test_garbage_behind_a_reduced_remainder_does_not_count(device: Device) -> None:
    """Padding of the input holds 0xAB; the copy is padded with zeros, which add nothing."""
    device.reset()
    tile = kernels.reduce((4, 128), {}, True, (1,))
    args = [Arg(IN, (4, 200)), Arg(OUT, (4,), sparse=True)]
    (x,) = random_inputs(args, 7)
    launch = launch_of(device, tile, args, [x])
    raw = device.bytes_of(launch.arguments[0]).reshape(4, 4, 128)
    raw[3, :, 8 * 2 :] = 0x3C
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch, EVERYTHING)
    run_steps(TileSteps(kernel, launch, plan))
    found = outcome(device, args, launch, plan).values[0]
    np.testing.assert_allclose(found, x.astype(np.float64).sum(axis=1), rtol=2**-8, atol=2**-5)


def test_a_matmul_over_tiles_of_its_inner_dim(device: Device) -> None:
    """Within the error of rounding to DL16 once per tile, against double precision."""
    args = [Arg(IN, (12, 320)), Arg(IN, (320, 128)), Arg(OUT, (12, 128))]
    a, b = random_inputs(args, 8)
    found = run_tiled(device, mm(4, 64, 64), args, [a, b], EVERYTHING)
    truth = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(found.values[0].reshape(12, 128) - truth).max()
    assert error <= 5 * 2**-9 * np.abs(truth).max()


def test_the_steps_of_padded_and_accumulated_tiles() -> None:
    """Two tiles of rows, the last padded, times two of the inner dim."""
    plan = plan_for(mm(4, 64, 64), [Arg(IN, (6, 128)), Arg(IN, (128, 64)), Arg(OUT, (6, 64))],
                    EVERYTHING)  # fmt: skip
    assert plan.accumulation == "add"
    assert list(tile_steps(plan)) == [
        Compute(0, ((2, "tile"),)),
        Compute(1, ((2, "result"),)),
        Accumulate(1, 2),
        Copy(1, 2, is_input=False),
        Copy(2, 0, is_input=True),
        Compute(2, ((0, "tile"), (2, "tile"))),
        Copy(3, 0, is_input=True),
        Compute(3, ((0, "tile"), (2, "result"))),
        Accumulate(3, 2),
        Copy(3, 2, is_input=False),
    ]
