"""Run one case on a device: transfer, launch in order, read back, compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.transfer import HostView
from spyre.mlir.bundle import load_bundle
from spyre.runtime.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.verify import EXACT, Tolerance, compare, format_comparison
from tests.conformance.case import Buffer, Case, Output


@dataclass(frozen=True)
class Placed:
    """Where a buffer of the case lies on the device."""

    tensor: DeviceTensor | None
    pool: PoolBuffer | None


def run_case(case: Case, device: Device) -> str | None:
    """Run ``case`` on a freshly reset ``device``; the reason of the failure, or None."""
    device.reset()
    placed = {name: place(device, name, buffer) for name, buffer in case.spec.buffers.items()}
    for name, buffer in case.spec.buffers.items():
        fill(case, device, buffer, placed[name])
    for launch in case.spec.launches:
        bundle = load_bundle(case.directory / launch.bundle)
        bundle.check(raise_on_error=True)
        Kernel(bundle, device).launch(bind(launch.args, launch.arg_index, placed))
    reasons = [_check(case, device, output, placed) for output in case.spec.outputs]
    return "\n".join(r for r in reasons if r) or None


def place(device: Device, name: str, buffer: Buffer) -> Placed:
    if buffer.layout is None:
        return Placed(None, PoolBuffer(device.allocate(buffer.nbytes), buffer.nbytes))
    layout = buffer.layout.to_layout()
    address = device.allocate(layout.device_bytes)
    tensor = DeviceTensor(name, address, layout, buffer.dtype, buffer.dma_sizes, buffer.dma_strides)
    return Placed(tensor, None)


def bind(names: tuple[str, ...], indices: tuple[int, ...], placed: dict[str, Placed]) -> Launch:
    tensors: dict[int, DeviceTensor] = {}
    pool = None
    for name, index in zip(names, indices, strict=True):
        where = placed[name]
        if where.tensor is None:
            pool = where.pool
        else:
            tensors[index] = where.tensor
    return Launch(tensors, pool)


def fill(case: Case, device: Device, buffer: Buffer, where: Placed) -> None:
    if where.tensor is None:
        return
    if buffer.device_image is not None:
        image = case.images[buffer.device_image]
        device.memory.write(where.tensor.address_bytes, image.view(np.uint8).ravel())
    if buffer.value is None:
        return
    array = case.values[buffer.value]
    storage = _host_storage(buffer, array)
    dtype = (buffer.host or {}).get("dtype", buffer.dtype)
    device.upload(
        where.tensor, HostView.dense(storage, dtype, buffer.dma_sizes, buffer.dma_strides)
    )


def _host_storage(buffer: Buffer, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1-D host storage in which element (i0, …) sits at Σ i·dma_stride."""
    size = _extent(buffer.dma_sizes, buffer.dma_strides)
    storage = np.zeros(size, array.dtype)
    host = buffer.host or {}
    shape = tuple(host.get("shape", buffer.shape))
    stride = tuple(host.get("stride", buffer.stride))
    _view(storage, shape, stride, int(host.get("storage_offset", 0)))[...] = array.reshape(shape)
    return storage


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _view(
    storage: npt.NDArray[Any], shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> npt.NDArray[Any]:
    steps = tuple(s * storage.itemsize for s in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def _check(case: Case, device: Device, output: Output, placed: dict[str, Placed]) -> str | None:
    buffer = case.spec.buffers[output.buffer]
    tensor = placed[output.buffer].tensor
    assert tensor is not None
    found = _read_output(device, output, buffer, tensor)
    expected = case.values[f"expect_{output.value}"].reshape(output.shape)
    exact = output.dtype in ("bool", "int64", "int32")
    tolerance = (
        EXACT
        if exact
        else Tolerance(case.spec.tolerance.rtol, case.spec.tolerance.atol, equal_nan=True)
    )
    comparison = compare(found, expected, tolerance)
    if comparison.ok:
        return None
    return format_comparison(comparison, output.buffer)


def _read_output(
    device: Device, output: Output, buffer: Buffer, tensor: DeviceTensor
) -> npt.NDArray[Any]:
    """The output as the torch tensor shows it: floats as float32, integers as they are."""
    kind = find_host_dtype(output.dtype)
    through = "float32" if kind.device_format in ("SEN169_FP16", "IEEE_FP32") else output.dtype
    if output.dtype == "bool":
        through = "bool"
    dtype = np.dtype(find_host_dtype(through).storage_dtype)
    storage = np.zeros(_extent(buffer.dma_sizes, buffer.dma_strides), dtype)
    device.download(tensor, HostView.dense(storage, through, buffer.dma_sizes, buffer.dma_strides))
    assert math.prod(output.shape) <= storage.size
    return _view(storage, output.shape, output.stride, output.storage_offset).copy()
