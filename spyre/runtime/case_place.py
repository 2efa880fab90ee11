"""The buffers of a case on the device: where they go, what they start with, what they end with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.hw.device import Device, DeviceTensor
from spyre.runtime.case_file import Case, CaseBuffer, CaseLaunch, CaseOutput
from spyre.runtime.flex.blocking_stream import BlockingStream, blocking_stream_of
from spyre.runtime.flex.flex_device import flex_device_of
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import Launch, PoolBuffer
from spyre.runtime.launch_spec import LayoutSpec
from spyre.runtime.verify import Index


@dataclass(frozen=True)
class PlacedBuffer:
    """Where a buffer of the case lies on the device: a tensor, or raw pool memory."""

    tensor: DeviceTensor | None
    pool: PoolBuffer | None


def place_buffers(case: Case, device: Device) -> dict[str, PlacedBuffer]:
    """Allocate every buffer of a case and transfer what it starts with."""
    buffers = case.spec.buffers
    placed = {n: _place(device, n, b) for n, b in buffers.items() if b.alias_of is None}
    for name, buffer in buffers.items():
        if buffer.alias_of is not None:
            placed[name] = _place_alias(name, buffer, placed[buffer.alias_of])
    stream = blocking_stream_of(flex_device_of(device))
    for name, buffer in buffers.items():
        _fill(case, stream, buffer, placed[name].tensor)
    return placed


def _place(device: Device, name: str, buffer: CaseBuffer) -> PlacedBuffer:
    if buffer.layout is None:
        address = device.allocate(buffer.nbytes, buffer.region)
        return PlacedBuffer(None, PoolBuffer(address, buffer.nbytes))
    address = device.allocate(buffer.layout.to_layout().device_bytes, buffer.region)
    return PlacedBuffer(_tensor(name, buffer, buffer.layout, address), None)


def _place_alias(name: str, buffer: CaseBuffer, target: PlacedBuffer) -> PlacedBuffer:
    assert buffer.layout is not None
    assert target.tensor is not None
    return PlacedBuffer(_tensor(name, buffer, buffer.layout, target.tensor.address_bytes), None)


def _tensor(name: str, buffer: CaseBuffer, layout: LayoutSpec, address: int) -> DeviceTensor:
    extents = (buffer.dma_sizes, buffer.dma_strides)
    return DeviceTensor(name, address, layout.to_layout(), buffer.dtype, *extents)


def _fill(
    case: Case, stream: BlockingStream, buffer: CaseBuffer, tensor: DeviceTensor | None
) -> None:
    if tensor is None:
        return
    if buffer.device_image is not None:
        image = case.image(buffer.device_image).view(np.uint8).ravel()
        if image.size > tensor.size_bytes:
            raise LaunchError(
                "SPY371",
                f"the device image of {tensor.name} is larger than the tensor",
                expected=f"at most {tensor.size_bytes} bytes",
                found=f"{image.size} bytes",
            )
        stream.write_bytes(tensor.address_bytes, image, tensor.name)
    if buffer.value is not None:
        storage = _host_storage(buffer, case.value(buffer.value))
        dtype = buffer.host.dtype or buffer.dtype
        extents = (tuple(buffer.dma_sizes), tuple(buffer.dma_strides))
        stream.to_device(HostTensor(tensor.name, dtype, *extents, 0, storage), tensor)


def _host_storage(buffer: CaseBuffer, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1-D host storage in which element (i0, …) sits at Σ i·dma_stride."""
    storage = np.zeros(_extent(buffer.dma_sizes, buffer.dma_strides), array.dtype)
    shape = buffer.shape if buffer.host.shape is None else buffer.host.shape
    stride = buffer.stride if buffer.host.stride is None else buffer.host.stride
    view = _view(storage, shape, stride, buffer.host.storage_offset)
    view[...] = array.reshape(shape)
    return storage


def _extent(sizes: Index, strides: Index) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _view(storage: npt.NDArray[Any], shape: Index, stride: Index, offset: int) -> npt.NDArray[Any]:
    """A strided view that must stay inside ``storage``."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if not 0 <= offset <= last < storage.size:
        raise LaunchError(
            "SPY371",
            "a view in the case does not lie within its buffer",
            expected=f"elements 0 to {storage.size - 1}",
            found=f"elements {offset} to {last}",
        )
    steps = tuple(s * storage.itemsize for s in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def bind_launch(spec: CaseLaunch, placed: Mapping[str, PlacedBuffer]) -> Launch:
    """What a launch of a case is given."""
    tensors: dict[int, DeviceTensor] = {}
    pool = None
    for name, index in zip(spec.args, spec.arg_index, strict=True):
        where = placed[name]
        if where.tensor is None:
            pool = where.pool
        else:
            tensors[index] = where.tensor
    return Launch(tensors, pool, spec.values)


def read_output(
    case: Case, output: CaseOutput, device: Device, placed: dict[str, PlacedBuffer]
) -> HostTensor:
    """The output as the case wants it read, by default floats as float32, integers as they are."""
    buffer, tensor = case.spec.buffers[output.buffer], placed[output.buffer].tensor
    assert tensor is not None
    kind = find_host_dtype(output.dtype)
    is_float = kind.device_format in ("SEN169_FP16", "IEEE_FP32") and kind.name != "bool"
    through = output.read_as or ("float32" if is_float else kind.name)
    dtype = np.dtype(find_host_dtype(through).storage_dtype)
    storage = np.zeros(_extent(buffer.dma_sizes, buffer.dma_strides), dtype)
    extents = (tuple(buffer.dma_sizes), tuple(buffer.dma_strides))
    stream = blocking_stream_of(flex_device_of(device))
    stream.to_host(tensor, HostTensor(tensor.name, through, *extents, 0, storage))
    values = _view(storage, output.shape, output.stride, output.storage_offset)
    return HostTensor.from_array(output.buffer, values.copy(), through)
