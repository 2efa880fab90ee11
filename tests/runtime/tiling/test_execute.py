"""Tiled launches on a device, bit for bit, over tensors and operations of many kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.layout import SpyreTensorLayout
from spyre.mlir.bundle import load_bundle
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.arguments.specs import layout_for_largest
from spyre.runtime.dma import DmaEngine
from spyre.runtime.kernel.kernel import Kernel, Launch
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.execute import Compute, Tiler, TileSteps
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime import bundles
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built
from tests.runtime.tiling.running import (
    fresh_launch,
    launch_of,
    mm,
    outcome,
    random_inputs,
    run_steps,
    run_tiled,
    run_whole,
)

IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")
EVERYTHING = TilingOptions(True, "pad", "accumulate")


@pytest.mark.parametrize("symbolic", [True, False])
def test_4096_rows_on_a_tile_of_1024(device: Device, symbolic: bool) -> None:
    """The documents' matmul, bit for bit (runtime reference §6)."""
    whole = mm(4096, 256, 128, symbolic, mb=8)
    inputs = random_inputs(whole.args, 0)
    found = run_tiled(device, mm(1024, 256, 128, symbolic, mb=4), whole.args, inputs)
    assert found.plan is not None
    assert found.plan.counts == (4,)
    np.testing.assert_array_equal(found.raw[0], run_whole(device, whole, inputs).raw[0])


def test_an_address_offset_alone_would_be_wrong(device: Device) -> None:
    """With the pitches of a separate tile, a tile of a larger tensor has wrong addresses."""
    whole = mm(32, 128, 128)
    launch = fresh_launch(device, whole)
    kernel = Tiler(Kernel(mm(8, 128, 128).bundle, device), mm(8, 128, 128).arguments)
    plan = kernel.plan(launch)
    assert not plan.tensors[0].map.is_identity
    tiled = TileSteps(kernel, launch, plan)
    run_steps(tiled)
    right = outcome(device, whole.args, launch, plan).values[0].copy()
    for iteration in range(plan.iterations):
        kernel.kernel.launch(tiled.launch_of(Compute(iteration)))
    assert (outcome(device, whole.args, launch, plan).values[0] != right).any()


def test_one_tensor_bound_twice(device: Device) -> None:
    """x · x, tiled by rows on the left and whole on the right."""
    device.reset()
    args = [Arg(IN, (256, 256)), Arg(IN, (256, 256)), Arg(OUT, (256, 256))]
    whole, tile = mm(256, 256, 256), mm(64, 256, 128)
    x = random_inputs(args, 1)[0]
    truth = run_whole(device, whole, [x, x])
    device.reset()
    launch = launch_of(device, tile, args, [x, x])
    launch = replace(launch, arguments={**launch.arguments, 1: launch.arguments[0]})
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert plan.counts == (4, 2)
    run_steps(TileSteps(kernel, launch, plan))
    np.testing.assert_array_equal(outcome(device, args, launch, plan).raw[0], truth.raw[0])


def test_a_view_of_a_larger_tensor(device: Device) -> None:
    """Rows 0 to 7 of a tensor of 20, in tiles of 4: a view keeps its parent's layout (§3)."""
    device.reset()
    parents = [Arg(IN, (20, 128)), Arg(OUT, (20, 128))]
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    (x,) = random_inputs(parents, 2)
    launch = launch_of(device, tile, parents, [x])
    views = {k: replace(t, sizes=(8, 128)) for k, t in launch.arguments.items()}
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(Launch(views))
    run_steps(TileSteps(kernel, Launch(views), plan))
    values = np.array(DmaEngine(device).to_host(launch.arguments[1]).storage).reshape(20, 128)
    np.testing.assert_array_equal(values[:8], np.abs(x[:8]))
    assert not values[8:].any()


def test_a_padded_tensor_of_the_tiles_shape_is_one_pass(device: Device) -> None:
    """Equal shapes, other pitches: nothing to tile, but an offset of 0 is not enough."""
    device.reset()
    tile = kernels.elementwise((4, 128), {"mb": 2}, True, absent=((),))
    (x,) = random_inputs(tile.args, 3)
    launch = launch_of(device, tile, tile.args, [x])
    layout = SpyreTensorLayout((2, 7, 64), (64, 128, 1), "SEN169_FP16")
    padded = replace(
        launch.arguments[0], layout=layout, address_bytes=device.allocate(layout.device_bytes)
    )
    DmaEngine(device).to_device(HostTensor.from_array("x", x), padded)
    launch = replace(launch, arguments={**launch.arguments, 0: padded})
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert not plan.is_tiled
    run_steps(TileSteps(kernel, launch, plan))
    np.testing.assert_array_equal(
        outcome(device, tile.args, launch, plan).values[0], np.abs(x).ravel()
    )


def test_rows_gathered_from_a_whole_table(device: Device) -> None:
    device.reset()
    whole = [Arg(IN, (96,), "int32"), Arg(IN, (16, 128)), Arg(OUT, (96, 128))]
    tile = kernels.gather(32, 16)
    rng = np.random.default_rng(0)
    index = rng.integers(0, 16, 96).astype(np.int32)
    table = random_inputs([whole[1]], 4)[0]
    found = run_tiled(device, tile, whole, [index, table])
    assert found.plan is not None
    assert found.plan.counts == (3,)
    np.testing.assert_array_equal(found.values[0].reshape(96, 128), table[index])


def test_batches_and_channels_of_a_pooling(device: Device) -> None:
    whole = kernels.max_pool((6, 8, 8, 128), {}, True)
    inputs = random_inputs(whole.args, 5)
    truth = run_whole(device, whole, inputs)
    found = run_tiled(device, kernels.max_pool((2, 8, 8, 64), {}, True), whole.args, inputs)
    assert found.plan is not None
    assert found.plan.counts == (3, 2)
    np.testing.assert_array_equal(found.raw[0], truth.raw[0])


def test_intermediates_in_memory_of_the_kernels_own(device: Device, tmp_path: Path) -> None:
    """|a + b|, the sum in what device_mem_allocate gives."""
    bundle = load_bundle(bundles.scratch(tmp_path))
    shape = tuple(2 * n for n in bundles.SHAPE)
    args = [Arg(IN, shape), Arg(IN, shape), Arg(OUT, shape)]
    a, b = random_inputs(args, 16)
    device.reset()
    built = Built(bundle, tuple(args), read_arguments(bundle))
    found = run_tiled(device, built, args, [a, b])
    assert found.plan is not None
    assert found.plan.counts == (2, 2)
    np.testing.assert_array_equal(found.values[0], np.abs(a + b).ravel())


def test_elements_staggered_over_two_sticks(device: Device) -> None:
    """Tiles of pairs of sticks move as they are; half a pair is refused."""
    whole = kernels.widen((8, 256))
    inputs = random_inputs(whole.args, 14)
    truth = run_whole(device, whole, inputs)
    found = run_tiled(device, kernels.widen((4, 64)), whole.args, inputs)
    assert found.plan is not None
    assert found.plan.counts == (2, 4)
    np.testing.assert_array_equal(found.raw[0], truth.raw[0])


@pytest.mark.parametrize(("rows", "counts"), [(5, (3,)), (16, (2, 3))])
def test_runtime_sizes(device: Device, rows: int, counts: tuple[int, ...]) -> None:
    """Rows are a runtime size of at most 16, columns are tiled; rows too where tiles are full."""
    device.reset()
    total = (rows * (2 if rows == 16 else 1), 192)
    tile = kernels.sized(16, 64, rows)
    layout = layout_for_largest(total, (max(total[0], 16), 192), "float16")
    (x,) = random_inputs([Arg(IN, total)], 15)
    tensors = {
        k: DeviceTensor(
            f"t{k}", device.allocate(layout.device_bytes), layout, "float16", total, (192, 1)
        )
        for k in range(2)
    }
    DmaEngine(device).to_device(HostTensor.from_array("x", x), tensors[0])
    launch = Launch(tensors, values={"S": rows})
    kernel = Tiler(Kernel(tile.bundle, device), tile.arguments, {"S": rows})
    plan = kernel.plan(launch)
    assert plan.counts == counts
    run_steps(TileSteps(kernel, launch, plan))
    values = np.array(DmaEngine(device).to_host(tensors[1]).storage).reshape(total)
    np.testing.assert_array_equal(values, np.abs(x))
