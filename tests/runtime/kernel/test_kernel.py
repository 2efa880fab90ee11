"""Kernels on a device: parameters by name, segments, device_mem_allocate, runtime loop bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spyre.dtypes import decode_dl16, encode_dl16
from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.mlir.operation.operation import Component
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer

SHAPE = (4, 64)
STICK = 128
NBYTES = SHAPE[0] * STICK
ROW = (1, 64)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=1)


@pytest.fixture(autouse=True)
def _fresh(device: Device) -> None:
    device.reset()


def _tensor(device: Device, name: str, values: np.ndarray | None = None) -> DeviceTensor:
    """A [4, 64] tensor on the device: one stick per row."""
    layout = SpyreTensorLayout.from_host(SHAPE, "float16")
    tensor = DeviceTensor(name, device.allocate(NBYTES), layout, "float16", SHAPE, (64, 1))
    if values is not None:
        device.bytes_of(tensor)[:] = encode_dl16(values.astype(np.float32)).view(np.uint8).ravel()
    return tensor


def _read(device: Device, tensor: DeviceTensor) -> np.ndarray:
    return decode_dl16(device.bytes_of(tensor).view(np.uint16)).reshape(SHAPE)


def _chain(directory: Path, symbolic: bool) -> Bundle:
    """z = (x + y) · y through a temporary in the pool."""
    builder = BundleBuilder(symbolic)
    x, y, z = (builder.argument(NBYTES) for _ in range(3))
    pool = builder.temporary(NBYTES)
    total = HostOperand(pool.at())
    builder.add(
        pointwise("add", SHAPE, [HostOperand(x.at()), HostOperand(y.at())], total, {"mb": 2})
    )
    builder.add(
        pointwise("mul", SHAPE, [total, HostOperand(y.at())], HostOperand(z.at()), {"mb": 4})
    )
    write_bundle(builder.build(), directory)
    return load_bundle(directory)


def _numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, SHAPE).astype(np.float32)


@pytest.mark.parametrize("symbolic", [True, False])
def test_both_address_modes_anywhere_in_memory(
    device: Device, tmp_path: Path, symbolic: bool
) -> None:
    """Arguments lie where the allocator put them, in neither mode at their own segment."""
    kernel = Kernel(_chain(tmp_path, symbolic), device)
    a, b = _numbers(0), _numbers(1)
    for _ in range(3):
        device.allocate(NBYTES)
    x, y, z = _tensor(device, "x", a), _tensor(device, "y", b), _tensor(device, "z")
    pool = PoolBuffer(device.allocate(NBYTES), NBYTES)
    own = [pool.address_bytes, x.address_bytes, y.address_bytes, z.address_bytes]
    assert all(address // REGION_BYTES != segment for segment, address in enumerate(own))
    kernel.launch(Launch({0: x, 1: y, 2: z}, pool))
    np.testing.assert_array_equal(_read(device, z), (a + b) * b)


def test_one_kernel_many_addresses(device: Device, tmp_path: Path) -> None:
    kernel = Kernel(_chain(tmp_path, True), device)
    pool = PoolBuffer(device.allocate(NBYTES), NBYTES)
    for seed in range(3):
        a, b = _numbers(seed), _numbers(seed + 10)
        x, y, z = _tensor(device, "x", a), _tensor(device, "y", b), _tensor(device, "z")
        kernel.launch(Launch({0: x, 1: y, 2: z}, pool))
        np.testing.assert_array_equal(_read(device, z), (a + b) * b)


def test_missing_arguments_are_named(device: Device, tmp_path: Path) -> None:
    kernel = Kernel(_chain(tmp_path, True), device)
    tensors = {k: _tensor(device, f"t{k}") for k in range(3)}
    with pytest.raises(LaunchError, match="SPY361]: the kernel needs a pool"):
        kernel.launch(Launch(tensors))
    pool = PoolBuffer(device.allocate(NBYTES), NBYTES)
    with pytest.raises(LaunchError, match="SPY363]: the kernel needs argument 1"):
        kernel.launch(Launch({0: tensors[0], 2: tensors[2]}, pool))


def test_a_pool_that_is_too_small_is_a_fault(device: Device, tmp_path: Path) -> None:
    kernel = Kernel(_chain(tmp_path, True), device)
    tensors = {k: _tensor(device, f"t{k}") for k in range(3)}
    with pytest.raises(DeviceFault, match="SPY411]: add touches memory outside of its arguments"):
        kernel.launch(Launch(tensors, PoolBuffer(device.allocate(STICK), STICK)))


def _replace_in_module(directory: Path, *pairs: tuple[str, str]) -> Bundle:
    path = directory / "bundle.mlir"
    text = path.read_text()
    for old, new in pairs:
        assert old in text, text
        text = text.replace(old, new)
    path.write_text(text)
    return load_bundle(directory)


def test_device_mem_allocate_takes_the_place_of_the_pool(device: Device, tmp_path: Path) -> None:
    _chain(tmp_path, True)
    bundle = _replace_in_module(
        tmp_path,
        ("%pool_base_addr: !sdscbundle.input_arg<index>, ", ""),
        (
            "%pool = sdscbundle.input_arg_extract value from %pool_base_addr : "
            "!sdscbundle.input_arg<index> -> index",
            f"%pool = sdscbundle.device_mem_allocate {NBYTES} bytes : index",
        ),
    )
    assert bundle.check() == ()
    a, b = _numbers(2), _numbers(3)
    x, y, z = _tensor(device, "x", a), _tensor(device, "y", b), _tensor(device, "z")
    Kernel(bundle, device).launch(Launch({0: x, 1: y, 2: z}))
    np.testing.assert_array_equal(_read(device, z), (a + b) * b)


def _row_loop(directory: Path) -> Bundle:
    """y[r] = -x[r] for every row, one row per iteration, up to a bound given at launch."""
    builder = BundleBuilder()
    x, y = builder.argument(NBYTES), builder.argument(NBYTES)
    with builder.loop(SHAPE[0]) as row:
        stride = {row: STICK}
        source, target = HostOperand(x.at(0, stride)), HostOperand(y.at(0, stride))
        builder.add(pointwise("neg", ROW, [source], target))
    write_bundle(builder.build(), directory)
    text = (directory / "bundle.mlir").read_text()
    bound = next(
        line.split()[0] for line in text.splitlines() if f"arith.constant {SHAPE[0]} :" in line
    )
    return _replace_in_module(
        directory,
        (f"{bound} = arith.constant {SHAPE[0]} : index\n", ""),
        (f"to {bound} step", "to %rows step"),
        ("@sdsc_bundle(", "@sdsc_bundle(%rows: index, "),
    )


@pytest.mark.parametrize("rows", [0, 1, 3, 4])
def test_a_loop_bound_given_at_launch(device: Device, tmp_path: Path, rows: int) -> None:
    kernel = Kernel(_row_loop(tmp_path), device)
    a = _numbers(4)
    x, y = _tensor(device, "x", a), _tensor(device, "y", np.full(SHAPE, 7))
    kernel.launch(Launch({0: x, 1: y}, values={"rows": rows}))
    expected = np.full(SHAPE, 7.0)
    expected[:rows] = -a[:rows]
    np.testing.assert_array_equal(_read(device, y), expected)


def test_a_loop_past_the_tensor_is_a_fault_before_anything_runs(
    device: Device, tmp_path: Path
) -> None:
    kernel = Kernel(_row_loop(tmp_path), device)
    x, y = _tensor(device, "x", _numbers(5)), _tensor(device, "y")
    with pytest.raises(DeviceFault, match=r"loop indices \(4,\), core 0, tensor Tensor0"):
        kernel.launch(Launch({0: x, 1: y}, values={"rows": 5}))
    assert not _read(device, y).any()


def test_a_parameter_without_value_is_named(device: Device, tmp_path: Path) -> None:
    kernel = Kernel(_row_loop(tmp_path), device)
    x, y = _tensor(device, "x"), _tensor(device, "y")
    with pytest.raises(LaunchError, match="SPY362]: no value for parameter %rows"):
        kernel.launch(Launch({0: x, 1: y}))


def test_lx_contents_survive_between_launches(device: Device, tmp_path: Path) -> None:
    """One kernel leaves a sum in LX, another one reads it."""
    lx = HostOperand(0, component=Component.LX)
    writer, reader = BundleBuilder(), BundleBuilder()
    source, result = writer.argument(NBYTES), reader.argument(NBYTES)
    writer.add(pointwise("identity", SHAPE, [HostOperand(source.at())], lx, {"mb": 4}))
    reader.add(pointwise("neg", SHAPE, [lx], HostOperand(result.at()), {"mb": 4}))
    write_bundle(writer.build(), tmp_path / "writer")
    write_bundle(reader.build(), tmp_path / "reader")
    a = _numbers(6)
    x, y = _tensor(device, "x", a), _tensor(device, "y")
    Kernel(load_bundle(tmp_path / "writer"), device).launch(Launch({0: x}))
    Kernel(load_bundle(tmp_path / "reader"), device).launch(Launch({0: y}))
    np.testing.assert_array_equal(_read(device, y), -a)
