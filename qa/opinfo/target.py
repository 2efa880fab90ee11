"""The device under test: tensors go there, operators run there, results come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qa.opinfo.trees import leaves, mapped

CPU_NAMES = ("cpu", "cpu:0")


class Target:
    """A torch device. Tests replace :meth:`run` to make a device that computes something wrong."""

    def __init__(self, name: str) -> None:
        register(name)
        self.name = name
        self.type = torch.device(name).type
        self.stores_dl16 = self.type == "spyre"

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device with the same strides; views become views there too."""
        if tensor.layout is not torch.strided or _fills_storage(tensor):
            return self._copied(tensor)
        return _viewed(self._copied(whole_storage(tensor)), tensor)

    def held(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` on the CPU, with the values the device holds after a copy to it."""
        if tensor.layout is not torch.strided or _fills_storage(tensor):
            return self.fetch(self._copied(tensor))
        return _viewed(self.fetch(self._copied(whole_storage(tensor))), tensor)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` on the CPU, never an alias of it."""
        return tensor.cpu() if tensor.device.type != "cpu" else _cloned(tensor)

    def arguments(self, tree: Any) -> Any:
        """Arguments of an operator on the device: tensors copied, device arguments renamed."""
        return mapped(tree, self._argument)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """What ``function`` returns for arguments on the device.

        Where none of them says which device, it becomes torch's default.
        """
        if any(isinstance(leaf, torch.Tensor | torch.device) for leaf in leaves((args, kwargs))):
            return function(*args, **kwargs)
        with torch.device(self.name):
            return function(*args, **kwargs)

    def fallbacks(self) -> dict[str, int]:
        """How often each operator fell back to the CPU so far; nothing where it is the CPU."""
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
    """Make the device "spyre" known to torch where it is not installed; others are known."""
    if name.partition(":")[0] == "spyre" and not hasattr(torch, "spyre"):
        from spyre.torch_backend import autoload

        autoload()


def _module(target: Target) -> Any:
    return getattr(torch, target.type)


def _fills_storage(tensor: torch.Tensor) -> bool:
    """Whether the elements fill the storage without overlap or rest, in any order of dims.

    A copy to another device keeps the strides of such tensors and loses nothing behind them.
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
    """All elements of the storage of ``tensor``, one-dimensional."""
    return tensor.detach().as_strided((_storage_count(tensor),), (1,), 0)


def _storage_count(tensor: torch.Tensor) -> int:
    """Elements of the tensor's dtype that its storage holds."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _viewed(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return storage.as_strided(like.shape, like.stride(), like.storage_offset())


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()
