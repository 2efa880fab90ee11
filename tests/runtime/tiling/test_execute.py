"""Tiled launches on a device: values, copies, sums, memory, and launches that must not start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device import Device, DeviceTensor
from spyre.layout import SpyreTensorLayout
from spyre.mlir.bundle import load_bundle
from spyre.mlir.sdsc_recipes import Operand, matmul, pointwise
from spyre.runtime.arguments import layout_for_largest
from spyre.runtime.bundle_arguments import read_arguments
from spyre.runtime.dma import DmaEngine
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import Kernel, Launch
from spyre.runtime.launch_spec import Role
from spyre.runtime.tiling.execute import TiledLaunch, TilingKernel
from spyre.runtime.tiling.options import TilingOptions
from spyre.runtime.tiling.tile_steps import (
    Accumulate,
    Buffer,
    Compute,
    CopyIn,
    CopyOut,
    tile_steps,
)
from spyre.runtime.twin_check import TwinCheck
from tests.runtime import bundles
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built, Maker
from tests.runtime.tiling.random_cases import check_case, random_case
from tests.runtime.tiling.running import (
    Array,
    launch_of,
    outcome,
    plan_for,
    random_inputs,
    run_tiled,
    run_whole,
)

IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")  # type: ignore[arg-type]
EVERYTHING = TilingOptions(True, "pad", "accumulate")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=1)


def mm(m: int, k: int, n: int, symbolic: bool = True, **splits: int) -> Built:
    return kernels.mm({"m": m, "k": k, "n": n}, splits, symbolic)


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
    """What this package is for: the tile's own pitches lead elsewhere in the larger tensor."""
    whole = mm(32, 128, 128)
    launch = _fresh_launch(device, whole)
    kernel = TilingKernel(Kernel(mm(8, 128, 128).bundle, device), mm(8, 128, 128).arguments)
    plan = kernel.plan(launch)
    assert not plan.tensors[0].map.is_identity
    tiled = TiledLaunch(kernel, launch, plan)
    tiled.run()
    right = outcome(device, whole.args, launch, plan).values[0].copy()
    for iteration in range(plan.iterations):
        kernel.kernel.launch(tiled.launch_of(Compute(iteration)))
    assert (outcome(device, whole.args, launch, plan).values[0] != right).any()


def _fresh_launch(device: Device, whole: Built, seed: int = 0) -> Launch:
    device.reset()
    return launch_of(device, whole, whole.args, random_inputs(whole.args, seed))


def _inputs(built: Built) -> list[Array]:
    return random_inputs(built.args, 0)


# --- sanitizer and twin -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3, 5, 8, 9, 11, 12, 14, 17, 20, 31, 40])
def test_the_sanitizer_finds_nothing(seed: int) -> None:
    sanitized = Device(threads=1, sanitize=True, poison=True)
    case = random_case(seed)
    assert check_case(case, sanitized) == ""
    assert sanitized.sanitizer is not None
    assert [str(finding) for finding in sanitized.sanitizer.take()] == []


def test_the_sanitizer_still_sees_what_is_wrong() -> None:
    """A tile whose input nobody wrote."""
    sanitized = Device(threads=1, sanitize=True)
    whole = kernels.elementwise((8, 128), {}, True, absent=((),))
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    args = [replace(arg, role=OUT) for arg in whole.args]
    launch = launch_of(sanitized, whole, args, [])
    kernel = TilingKernel(Kernel(tile.bundle, sanitized), tile.arguments)
    TiledLaunch(kernel, launch, kernel.plan(launch)).run()
    assert sanitized.sanitizer is not None
    found = sanitized.sanitizer.take()
    assert [(finding.code, finding.sticks) for finding in found] == [("SPY710", 8 * 2)]


@pytest.mark.parametrize("symbolic", [True, False])
def test_the_twin_agrees(device: Device, symbolic: bool) -> None:
    """The reference implementation reads the retargeted operations by the address rule."""
    whole = kernels.chain((16, 256), {}, symbolic)
    tile = kernels.chain((4, 128), {"mb": 2}, symbolic)
    launch = _fresh_launch(device, whole)
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    tiled = TiledLaunch(kernel, launch, kernel.plan(launch))
    for iteration in range(tiled.plan.iterations):
        step = Compute(iteration)
        linked = tiled.kernel_of(step).link(tiled.launch_of(step))
        assert TwinCheck(device).run(linked).verified == 3


@pytest.mark.parametrize("symbolic", [True, False])
def test_the_twin_agrees_where_operands_lack_a_dim(device: Device, symbolic: bool) -> None:
    """A row of the tile is no dim of the kernel; in the tensor, rows lie between its sticks."""
    whole = kernels.one_row((3, 256), {}, symbolic)
    tile = kernels.one_row((1, 128), {"out": 2}, symbolic)
    launch = _fresh_launch(device, whole)
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert [dim.name for dim in plan.dims] == ["dim0", "out"]
    tiled = TiledLaunch(kernel, launch, plan)
    for iteration in range(plan.iterations):
        step = Compute(iteration)
        linked = tiled.kernel_of(step).link(tiled.launch_of(step))
        assert TwinCheck(device).run(linked).verified == 2
    truth = run_whole(device, whole, _inputs(whole)).raw[0]
    np.testing.assert_array_equal(run_tiled(device, tile, whole.args, _inputs(whole)).raw[0], truth)


# --- tensors of other layouts -----------------------------------------------------------------


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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert plan.counts == (4, 2)
    TiledLaunch(kernel, launch, plan).run()
    np.testing.assert_array_equal(outcome(device, args, launch, plan).raw[0], truth.raw[0])


def test_a_view_of_a_larger_tensor(device: Device) -> None:
    """Rows 0 to 7 of a tensor of 20, in tiles of 4: a view keeps its parent's layout (§3)."""
    device.reset()
    parents = [Arg(IN, (20, 128)), Arg(OUT, (20, 128))]
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    (x,) = random_inputs(parents, 2)
    launch = launch_of(device, tile, parents, [x])
    views = {k: replace(t, sizes=(8, 128)) for k, t in launch.arguments.items()}
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(Launch(views))
    TiledLaunch(kernel, Launch(views), plan).run()
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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch)
    assert not plan.is_tiled
    TiledLaunch(kernel, launch, plan).run()
    np.testing.assert_array_equal(
        outcome(device, tile.args, launch, plan).values[0], np.abs(x).ravel()
    )


# --- operations of other families -------------------------------------------------------------


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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments, {"S": rows})
    plan = kernel.plan(launch)
    assert plan.counts == counts
    TiledLaunch(kernel, launch, plan).run()
    values = np.array(DmaEngine(device).to_host(tensors[1]).storage).reshape(total)
    np.testing.assert_array_equal(values, np.abs(x))


# --- remainders and sums ----------------------------------------------------------------------


def test_what_lies_behind_a_padded_tile_stays(device: Device) -> None:
    """The last tile ends within a stick; the bytes behind it are not the kernel's."""
    device.reset()
    tile = kernels.elementwise((4, 64), {}, True, absent=((),), name="exp")
    args = [Arg(IN, (6, 100)), Arg(OUT, (6, 100))]
    (x,) = random_inputs(args, 6)
    launch = launch_of(device, tile, args, [x])
    device.bytes_of(launch.arguments[1])[:] = 0xAB
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch, PAD)
    TiledLaunch(kernel, launch, plan).run()
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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    plan = kernel.plan(launch, EVERYTHING)
    TiledLaunch(kernel, launch, plan).run()
    found = outcome(device, args, launch, plan).values[0]
    np.testing.assert_allclose(found, x.astype(np.float64).sum(axis=1), rtol=2**-8, atol=2**-5)


def test_a_matmul_over_tiles_of_its_inner_dim(device: Device) -> None:
    """Within what rounding to DL16 once per tile costs, against double precision."""
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
    tile, result = Buffer.TILE, Buffer.RESULT
    assert list(tile_steps(plan)) == [
        Compute(0, ((2, tile),)),
        Compute(1, ((2, result),)),
        Accumulate(1, 2, "add"),
        CopyOut(1, 2),
        CopyIn(2, 0),
        Compute(2, ((0, tile), (2, tile))),
        CopyIn(3, 0),
        Compute(3, ((0, tile), (2, result))),
        Accumulate(3, 2, "add"),
        CopyOut(3, 2),
    ]


def test_temporaries_are_freed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the kernel fails."""
    args = [Arg(IN, (6, 128)), Arg(IN, (128, 64)), Arg(OUT, (6, 64))]
    tile = mm(4, 64, 64)
    device.reset()
    launch = launch_of(device, tile, args, random_inputs(args, 9))
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    tiled = TiledLaunch(kernel, launch, kernel.plan(launch, EVERYTHING))
    taken: list[int] = []
    freed: list[int] = []
    allocate, free = device.allocate, device.free
    monkeypatch.setattr(device, "allocate", lambda n: taken.append(allocate(n)) or taken[-1])
    monkeypatch.setattr(device, "free", lambda address: freed.append(address) or free(address))
    tiled.run()
    assert len(taken) == 3
    assert sorted(freed) == sorted(taken)
    monkeypatch.setattr(Kernel, "launch", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        tiled.run()
    assert sorted(freed) == sorted(taken)
    assert len(taken) == 6


# --- launches that do not start ---------------------------------------------------------------


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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    with pytest.raises(LaunchError, match="t0 and t1 share memory, but not their tiles") as caught:
        TiledLaunch(kernel, launch, kernel.plan(launch))
    assert caught.value.code == "SPY862"
    assert _unchanged(device, launch) == before


def test_in_place_over_the_same_tiles_is_fine(device: Device) -> None:
    device.reset()
    tile = kernels.elementwise((4, 64), {}, True, absent=((),))
    args = [Arg(IN, (8, 128)), Arg(OUT, (8, 128))]
    (x,) = random_inputs(args, 11)
    launch = launch_of(device, tile, args, [x])
    launch = replace(launch, arguments=dict.fromkeys((0, 1), launch.arguments[0]))
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    TiledLaunch(kernel, launch, kernel.plan(launch)).run()
    values = np.array(DmaEngine(device).to_host(launch.arguments[0]).storage).reshape(8, 128)
    np.testing.assert_array_equal(values, np.abs(x))


def test_a_missing_argument(device: Device) -> None:
    tile = mm(8, 64, 64)
    with pytest.raises(LaunchError, match="SPY363: the kernel needs argument 0"):
        TilingKernel(Kernel(tile.bundle, device), tile.arguments).plan(Launch({}))


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
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    tiled = TiledLaunch(kernel, launch, kernel.plan(launch))
    with pytest.raises(DeviceFault, match="SPY411"):
        tiled.run()
    assert _unchanged(device, launch) == before


def test_an_operand_that_cannot_move(device: Device) -> None:
    """The kernel walks [2, 64] rows as 128, which [8, 64] does not have in one piece."""
    maker = Maker()
    x = maker.arg(Arg(IN, (64, 2, 64)))
    y = maker.arg(Arg(OUT, (64, 2, 64)))
    flat = [Operand(o.base) for o in (x, y)]
    maker.builder.add(pointwise("abs", (128, 64), flat[:1], flat[1]))
    tile = maker.done()
    args = [Arg(IN, (128, 2, 64)), Arg(OUT, (128, 2, 64))]
    launch = launch_of(device, tile, args, random_inputs(args, 12))
    kernel = TilingKernel(Kernel(tile.bundle, device), tile.arguments)
    with pytest.raises(LaunchError, match=r"SPY858.*runs through several dims"):
        kernel.plan(launch)


def test_plans_and_kernels_are_made_once(device: Device) -> None:
    whole = mm(32, 128, 128)
    launch = _fresh_launch(device, whole)
    kernel = TilingKernel(Kernel(mm(8, 128, 128).bundle, device), mm(8, 128, 128).arguments)
    assert not kernel.matches(launch)
    tile = kernel.kernel
    same = launch_of(device, mm(8, 128, 128), mm(8, 128, 128).args, _inputs(mm(8, 128, 128)))
    assert kernel.matches(same)
    other = {**same.arguments, 1: replace(same.arguments[1], dtype="bfloat16")}
    assert not kernel.matches(Launch(other))
    assert kernel.retargeted({}) is tile
    plan = kernel.plan(launch)
    assert kernel.plan(launch) is plan
    tiled = TiledLaunch(kernel, launch, plan)
    assert tiled.kernel_of(Compute(0)) is TiledLaunch(kernel, launch, plan).kernel_of(Compute(3))
    corner = tiled.addresses_bytes[3] - tiled.addresses_bytes[0]
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
