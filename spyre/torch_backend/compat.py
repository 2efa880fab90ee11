"""Everything private of torch 2.13 that this package touches, each symbol once.

``tests/torch_backend/test_compat.py`` has a canary per symbol: what a new release of torch takes
away is named there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PRIVATE_USE_1 = 20
"""c10::DeviceType::PrivateUse1."""

DispatchKey = torch._C.DispatchKey
CPU_KEYS = torch._C.DispatchKeySet(DispatchKey.CPU)
"""Redispatching to it runs ATen's CPU kernel, which for metadata operations keeps storage and
keys of the tensor it is given."""

from_dlpack: Callable[[Any], torch.Tensor] = torch._C._from_dlpack


def register_device(name: str, module: Any) -> None:
    """Rename PrivateUse1 to ``name``, with guard, hooks, device module and generated methods."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(name, backend_module=module)


def private_use_name() -> str:
    """What PrivateUse1 is called in this process."""
    found: str = torch._C._get_privateuse1_backend_name()
    return found


def without_autocast() -> Any:
    """A guard within which autocast of the device does not apply."""
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastPrivateUse1)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the C++ storage."""
    found: int = tensor.untyped_storage()._cdata
    return found


def schema_of(op: Any) -> Any:
    """The schema of an operator overload."""
    return op._schema


def wrap_tensor_text(around: Callable[..., str]) -> None:
    """``around(original, tensor, …)`` makes the text of a tensor's elements."""
    from torch import _tensor_str

    original = _tensor_str._tensor_str
    _tensor_str._tensor_str = lambda *args: around(original, *args)


def wrap_storage_new(around: Callable[..., Any]) -> None:
    """``around(original, cls, …)`` makes untyped storages."""
    storage = torch.UntypedStorage
    original = storage.__new__
    storage.__new__ = lambda cls, *args, **kwargs: around(original, cls, *args, **kwargs)
