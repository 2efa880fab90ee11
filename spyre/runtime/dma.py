"""The DMA engine: every copy between host and device goes through here.

Tensors are converted by data-conversion descriptors on the way (:mod:`spyre.layout.conversion`,
executed by :mod:`spyre.hw.device.transfer`), programs and correction tensors travel as raw bytes.
Rule: runtime reference §3; the engine itself: Program RFC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.hw.device import Device, plan_transfer
from spyre.hw.memory import DeviceTensor, require_range
from spyre.hw.spec import HBM_BYTES
from spyre.layout import DataConversionInfo
from spyre.runtime.arguments import HostTensor


class DmaEngine:
    """Copies between the host and the memory of one device.

    It has no state: several threads may call it at once for different memory, and a device may have
    several engines.
    """

    def __init__(self, device: Device) -> None:
        self.device = device

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> DataConversionInfo:
        """Copy a host tensor of any strides and dtype to a device tensor; padding becomes zero.

        The descriptor returned counts host elements from the first one of the host tensor.
        LaunchError SPY333 unless ``host`` has the sizes that the tensor's layout was made for,
        SPY322 and SPY810 if layout and strides do not fit together, SPY324 if the host storage is
        too small; UnsupportedError SPY528 for a pair of formats that is not converted, SPY323 for
        an element arrangement, SPY529 for too many dims.
        """
        _check_sizes(host, tensor)
        return self.device.upload(tensor, *_storage_of(host))

    def to_host(self, tensor: DeviceTensor, out: HostTensor | None = None) -> HostTensor:
        """Copy a device tensor to ``out``, which may have any strides and convertible dtype.

        Without ``out``, it returns a new tensor with the device tensor's dtype and the strides its
        layout was made for. Errors as of `to_device`, and LaunchError SPY811 if elements of ``out``
        share memory.
        """
        target = host_like(tensor) if out is None else out
        _check_sizes(target, tensor)
        self.device.download(tensor, *_storage_of(target))
        return target

    def write_bytes(
        self, address_bytes: int, content: bytes | NDArray[np.uint8], name: str = ""
    ) -> None:
        """Copy raw bytes, such as a program or a correction tensor, to device memory.

        LaunchError SPY403 if they are not within one memory region.
        """
        data = np.frombuffer(content, np.uint8)
        require_range(address_bytes, data.size, HBM_BYTES)
        self.device.memory.write(address_bytes, data, name)

    def read_bytes(self, address_bytes: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return ``size_bytes`` bytes of device memory (uint8); errors as of `write_bytes`."""
        require_range(address_bytes, size_bytes, HBM_BYTES)
        return self.device.memory.read(address_bytes, size_bytes)

    def check(self, tensor: DeviceTensor) -> None:
        """Raise the errors of `to_device` for the layout and formats of ``tensor``."""
        extents = (tensor.layout, tensor.sizes, tensor.strides, tensor.strides)
        plan_transfer(*extents, tensor.dtype, self.device.numerics, True)


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
        message = f"tensor {tensor.name} has the wrong shape"
        expected = f"sizes {list(tensor.sizes)}, which its layout was made for"
        raise LaunchError("SPY333", message, expected=expected, found=f"sizes {list(host.shape)}")
