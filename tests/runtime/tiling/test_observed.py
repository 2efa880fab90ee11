"""Tiled launches under the sanitizer and beside the reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.hw.device.device import Device
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.execute import Compute, Tiler, TileSteps
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime.compare.verified import verify_program
from tests.runtime.tiling import kernels
from tests.runtime.tiling.random_cases import check_case, random_case
from tests.runtime.tiling.running import (
    fresh_launch,
    inputs_of,
    launch_of,
    run_steps,
    run_tiled,
    run_whole,
)

IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")
EVERYTHING = TilingOptions(True, "pad", "accumulate")


@pytest.mark.parametrize("seed", [0, 3, 5, 8, 9, 11, 12, 14, 17, 20, 31, 40])
def test_the_sanitizer_finds_nothing(seed: int) -> None:
    sanitized = Device(threads=1, sanitize=True, poison=True)
    case = random_case(seed)
    assert check_case(case, sanitized) == ""
    assert sanitized.sanitizer is not None
    assert [str(finding) for finding in sanitized.sanitizer.take()] == []


def test_the_sanitizer_still_sees_what_is_wrong() -> None:
    """A tile whose input was never written."""
    sanitized = Device(threads=1, sanitize=True)
    whole = kernels.elementwise((8, 128), {}, True, absent=((),))
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    args = [replace(arg, role=OUT) for arg in whole.args]
    launch = launch_of(sanitized, whole, args, [])
    kernel = Tiler(Kernel(tile.bundle, sanitized), tile.arguments)
    run_steps(TileSteps(kernel, launch, kernel.plan(launch)))
    assert sanitized.sanitizer is not None
    found = sanitized.sanitizer.take()
    assert [(finding.code, finding.sticks) for finding in found] == [("SPY710", 8 * 2)]


@pytest.mark.parametrize("symbolic", [True, False])
def test_the_twin_agrees(device: Device, symbolic: bool) -> None:
    """The reference implementation reads the retargeted operations by the address rule."""
    whole = kernels.chain((16, 256), {}, symbolic)
    tile = kernels.chain((4, 128), {"mb": 2}, symbolic)
    launch = fresh_launch(device, whole)
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    tiled = TileSteps(kernel, launch, kernel.plan(launch))
    for iteration in range(tiled.plan.iterations):
        step = Compute(iteration)
        linked = tiled.kernel_of(step).link(tiled.launch_of(step))
        assert verify_program(device, linked).verified == 3


@pytest.mark.parametrize("symbolic", [True, False])
def test_the_twin_agrees_where_operands_lack_a_dim(device: Device, symbolic: bool) -> None:
    """A row of the tile is no dim of the kernel; in the tensor, rows lie between its sticks."""
    whole = kernels.one_row((3, 256), {}, symbolic)
    tile = kernels.one_row((1, 128), {"out": 2}, symbolic)
    launch = fresh_launch(device, whole)
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert [dim.name for dim in plan.dims] == ["dim0", "out"]
    tiled = TileSteps(kernel, launch, plan)
    for iteration in range(plan.iterations):
        step = Compute(iteration)
        linked = tiled.kernel_of(step).link(tiled.launch_of(step))
        assert verify_program(device, linked).verified == 2
    truth = run_whole(device, whole, inputs_of(whole)).raw[0]
    np.testing.assert_array_equal(
        run_tiled(device, tile, whole.args, inputs_of(whole)).raw[0], truth
    )
