"""What Dynamo and Inductor ask about the device."""

from __future__ import annotations

from typing import Any

import torch

from spyre.torch_backend.inductor.base import DeviceInterface, DeviceOpOverrides


class SpyreInterface(DeviceInterface):  # type: ignore[misc]
    """``torch.spyre`` as Dynamo knows devices."""

    class Worker(DeviceInterface.Worker):  # type: ignore[misc]
        """Compile workers make no use of the device."""

        @staticmethod
        def set_device(device: int) -> None:
            pass

        @staticmethod
        def current_device() -> int:
            return 0

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return torch.spyre.get_device_properties(device)

    @staticmethod
    def is_available() -> bool:
        return bool(torch.spyre.is_available())

    @staticmethod
    def device_count() -> int:
        return int(torch.spyre.device_count())

    @staticmethod
    def current_device() -> int:
        return int(torch.spyre.current_device())

    @staticmethod
    def set_device(device: Any) -> None:
        torch.spyre.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Makes ``device`` current; returns the one that was."""
        before = int(torch.spyre.current_device())
        torch.spyre.set_device(device)
        return before

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """As `exchange_device`; -1 changes nothing."""
        return -1 if device < 0 else SpyreInterface.exchange_device(device)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.spyre.synchronize(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        return torch.spyre.get_device_properties(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """There is one generation."""
        return "spyre"

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        """Kernels go to the current stream by themselves."""
        return 0

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """bfloat16 is held as DL16."""
        return True


class SpyreOpOverrides(DeviceOpOverrides):  # type: ignore[misc]
    """Device code in wrappers: there is none, kernels find card and stream by themselves."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """A function that gives a stream nobody uses."""
        return f"def {name}(_):\n    return 0\n"

    def set_device(self, device_idx: int) -> str:
        return "pass"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Makes a card current."""
        return f"torch.spyre.device({device_idx})"
