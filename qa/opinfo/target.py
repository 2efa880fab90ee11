"""The device under test: copies tensors to it and back, and runs operators on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qa.opinfo.trees import leaves, mapped

CPU_NAMES = ("cpu", "cpu:0")


class Target:
    """A torch device. Tests replace :meth:`run` to make a device with wrong results."""

    def __init__(self, name: str) -> None:
        register(name)
        self.name = name
        self.type = torch.device(name).type
        self.stores_dl16 = self.type == "spyre"

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device with the same strides; a view stays a view."""
        if tensor.layout is not torch.strided or _fills_storage(tensor):
            return self._copied(tensor)
        return _viewed(self._copied(whole_storage(tensor)), tensor)

    def held(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a CPU tensor with the values of ``tensor`` after a copy to the device."""
        if tensor.layout is not torch.strided or _fills_storage(tensor):
            return self.fetch(self._copied(tensor))
        return _viewed(self.fetch(self._copied(whole_storage(tensor))), tensor)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``tensor`` on the CPU."""
        return tensor.cpu() if tensor.device.type != "cpu" else _cloned(tensor)

    def arguments(self, tree: Any) -> Any:
        """Return arguments of an operator with tensors copied to this device, devices replaced."""
        return mapped(tree, self._argument)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Return ``function(*args, **kwargs)`` on the device.

        If no argument is a tensor or a device, the device becomes torch's default.
        """
        if any(isinstance(leaf, torch.Tensor | torch.device) for leaf in leaves((args, kwargs))):
            return function(*args, **kwargs)
        with torch.device(self.name):
            return function(*args, **kwargs)

    def fallbacks(self) -> dict[str, int]:
        """Return the number of fallbacks to the CPU by operator so far; empty for the CPU."""
        if self.type == "cpu":
            return {}
        return {str(name): int(count) for name, count in dict(_module(self).fallbacks()).items()}

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.put(leaf)
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in CPU_NAMES):
            return torch.device(self.name) if str(leaf) in CPU_NAMES else leaf
        return leaf

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return _cloned(tensor) if self.type == "cpu" else tensor.to(self.name)


def register(name: str) -> None:
    """Register the device "spyre" with torch if that has not been done; ignore others."""
    if name.partition(":")[0] == "spyre" and not hasattr(torch, "spyre"):
        from spyre.torch_backend import autoload

        autoload()


def _module(target: Target) -> Any:
    return getattr(torch, target.type)


def _fills_storage(tensor: torch.Tensor) -> bool:
    """Return True if the elements fill the storage without overlaps or gaps, dims in any order.

    A copy to another device keeps the strides of such tensors and loses no elements.
    """
    if tensor.numel() != _storage_count(tensor):
        return tensor.numel() == 0
    dims = sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size != 1
    )
    expected = 1
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return True


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of the storage of ``tensor`` as a one-dimensional view."""
    return tensor.detach().as_strided((_storage_count(tensor),), (1,), 0)


def _storage_count(tensor: torch.Tensor) -> int:
    """Return the size of the tensor's storage in elements of its dtype."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _viewed(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return storage.as_strided(like.shape, like.stride(), like.storage_offset())


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()
