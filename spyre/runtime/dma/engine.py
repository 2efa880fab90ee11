"""TEMP"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spyre.hw.device import Device, DeviceTensor
from spyre.hw.transfer import HostView
from spyre.runtime.host_tensor import HostTensor


class DmaEngine:
    def __init__(self, device: Device) -> None:
        self.device = device

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> None:
        view = HostView(
            host.storage,
            host.dtype_name,
            tensor.sizes,
            tensor.strides,
            host.strides,
            host.storage_offset,
        )
        self.device.upload(tensor, view)

    def to_host(self, tensor: DeviceTensor, host: HostTensor) -> None:
        self.device.download(
            tensor,
            HostView(
                host.storage,
                host.dtype_name,
                tensor.sizes,
                tensor.strides,
                host.strides,
                host.storage_offset,
            ),
        )

    def write_bytes(self, address: int, content: npt.NDArray[np.uint8], name: str) -> None:
        self.device.memory.write(address, content, name)
