"""The DMA engine: every copy between host and device goes through here.

Tensors are converted by data-conversion descriptors on the way (:mod:`spyre.layout.conversion`,
executed by :mod:`spyre.hw.device.transfer`), programs and correction tensors travel as raw bytes.
Rule: runtime reference §3; the engine itself: Program RFC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.hw.device import Device, plan_transfer
from spyre.hw.memory import DeviceTensor
from spyre.hw.spec import HBM_BYTES, REGION_BYTES, REGIONS
from spyre.layout import DataConversionInfo
from spyre.runtime.arguments import HostTensor

__all__ = ["DmaCopy", "DmaDirection", "DmaEngine"]


class DmaDirection(StrEnum):
    """Which way a copy goes, in the words of the execution-pipeline RFC."""

    TO_DEVICE = "ToDevice"
    FROM_DEVICE = "FromDevice"


@dataclass(frozen=True, slots=True)
class DmaCopy:
    """A completed copy.

    ``address_bytes``, ``size_bytes``: range in device memory, padding included. ``name``: of the
    tensor, "" for raw bytes. ``descriptor``: None for raw bytes; it counts host elements from the
    first one of the host tensor.
    """

    direction: DmaDirection
    address_bytes: int
    size_bytes: int
    name: str = ""
    descriptor: DataConversionInfo | None = None


class DmaEngine:
    """Copies between the host and the memory of one device.

    It has no state: several threads may call it at once for different memory, and a device may have
    several engines. ``record`` is called after every copy, on the thread that made it, so it must
    be thread-safe.
    """

    def __init__(self, device: Device, record: Callable[[DmaCopy], None] | None = None) -> None:
        self.device = device
        self._record = record

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> DmaCopy:
        """Copy a host tensor of any strides and dtype to a device tensor; padding becomes zero.

        LaunchError SPY333 unless ``host`` has the sizes that the tensor's layout was made for,
        SPY322 and SPY810 if layout and strides do not fit together, SPY324 if the host storage is
        too small; UnsupportedError SPY528 for a pair of formats that is not converted, SPY323 for
        an element arrangement, SPY529 for too many dims.
        """
        _check_sizes(host, tensor)
        info = self.device.upload(tensor, *_storage_of(host))
        return self._made(DmaDirection.TO_DEVICE, tensor, info)

    def to_host(self, tensor: DeviceTensor, out: HostTensor | None = None) -> HostTensor:
        """Copy a device tensor to ``out``, which may have any strides and convertible dtype.

        Without ``out``, it returns a new tensor with the device tensor's dtype and the strides its
        layout was made for. Errors as of `to_device`, and LaunchError SPY811 if elements of ``out``
        share memory.
        """
        target = host_like(tensor) if out is None else out
        _check_sizes(target, tensor)
        info = self.device.download(tensor, *_storage_of(target))
        self._made(DmaDirection.FROM_DEVICE, tensor, info)
        return target

    def write_bytes(
        self, address_bytes: int, content: bytes | NDArray[np.uint8], name: str = ""
    ) -> DmaCopy:
        """Copy raw bytes, such as a program or a correction tensor, to device memory.

        LaunchError SPY403 if they are not within one memory region.
        """
        data = np.frombuffer(content, np.uint8)
        _check_region(address_bytes, data.size)
        self.device.memory.write(address_bytes, data, name)
        return self._finish(DmaCopy(DmaDirection.TO_DEVICE, address_bytes, data.size, name))

    def read_bytes(self, address_bytes: int, size_bytes: int, name: str = "") -> NDArray[np.uint8]:
        """Return ``size_bytes`` bytes of device memory (uint8); errors as of `write_bytes`."""
        _check_region(address_bytes, size_bytes)
        data = self.device.memory.read(address_bytes, size_bytes)
        self._finish(DmaCopy(DmaDirection.FROM_DEVICE, address_bytes, data.size, name))
        return data

    def describe(
        self, direction: DmaDirection, tensor: DeviceTensor, host: HostTensor | None = None
    ) -> DataConversionInfo:
        """Return the descriptor of a copy, with host elements counted from the storage's first.

        ``host`` None: the tensor that `to_host` makes. Errors as of `to_device`, but for SPY324.
        """
        if host is not None:
            _check_sizes(host, tensor)
        dtype = tensor.dtype if host is None else host.dtype_name
        strides = tensor.strides if host is None else host.strides
        to_device = direction is DmaDirection.TO_DEVICE
        extents = (tensor.layout, tensor.sizes, tensor.strides, strides)
        plan = plan_transfer(*extents, dtype, self.device.numerics, to_device)
        return plan.info.moved(0 if host is None else host.storage_offset)

    def _made(
        self, direction: DmaDirection, tensor: DeviceTensor, info: DataConversionInfo
    ) -> DmaCopy:
        memory = (tensor.address_bytes, tensor.size_bytes, tensor.name)
        return self._finish(DmaCopy(direction, *memory, info))

    def _finish(self, copy: DmaCopy) -> DmaCopy:
        if self._record is not None:
            self._record(copy)
        return copy


def _storage_of(host: HostTensor) -> tuple[NDArray[Any], str, tuple[int, ...], int]:
    return host.storage, host.dtype_name, host.strides, host.storage_offset


def host_like(tensor: DeviceTensor) -> HostTensor:
    """Return a host tensor of zeros for ``tensor``, with the strides its layout was made for."""
    dtype = find_host_dtype(tensor.dtype)
    pairs = zip(tensor.sizes, tensor.strides, strict=True)
    elements = 0 if 0 in tensor.sizes else 1 + sum((n - 1) * step for n, step in pairs)
    storage = np.zeros(elements, dtype.storage_dtype)
    return HostTensor(tensor.name, dtype.name, tensor.sizes, tensor.strides, 0, storage)


def _check_sizes(host: HostTensor, tensor: DeviceTensor) -> None:
    if host.shape != tensor.sizes:
        raise LaunchError(
            "SPY333",
            f"tensor {tensor.name} has the wrong shape",
            expected=f"sizes {list(tensor.sizes)}, which its layout was made for",
            found=f"sizes {list(host.shape)}",
        )


def _check_region(address_bytes: int, size_bytes: int) -> None:
    end = address_bytes + size_bytes
    region = address_bytes // REGION_BYTES
    if size_bytes < 0 or not 0 <= region < REGIONS or end > (region + 1) * REGION_BYTES:
        raise LaunchError(
            "SPY403",
            "raw bytes span several memory regions",
            expected=f"addresses below {HBM_BYTES:#x}, in one region of {REGION_BYTES:#x} bytes",
            found=f"addresses {address_bytes:#x} to {end:#x}",
        )
