"""The CPU fallback: operations without a kernel of their own run on copies of their arguments.

Every storage is copied down once, so tensors that share memory share it on the CPU too. What the
operation wrote is copied back. An operation is named in a warning the first time it falls back;
`fallbacks` counts them, and SPYRE_FALLBACK=error makes them errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from spyre import config
from spyre.errors import UnsupportedError
from spyre.layout import contiguous_strides
from spyre.torch_backend.allocation import allocate
from spyre.torch_backend.compat import is_dense, neg_view, schema_of, storage_key
from spyre.torch_backend.device_buffer import DeviceBuffer, buffer_of
from spyre.torch_backend.factories import is_spyre, resize, set_storage
from spyre.torch_backend.host_copies import from_host, host_storage, view_of, write_storage
from spyre.torch_backend.mixed_devices import check_devices
from spyre.torch_backend.random_state import cpu_generator, is_random
from spyre.torch_backend.user_warnings import warn_user

_counts: Counter[str] = Counter()
_warned: set[str] = set()


def fallbacks() -> dict[str, int]:
    """How often each operation ran on the CPU instead of the card, by its full name."""
    return dict(_counts)


def reset_fallbacks() -> None:
    """Count from zero again; warnings already given are not repeated."""
    _counts.clear()


def cpu_fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` on the CPU over copies. UnsupportedError SPY900 with SPYRE_FALLBACK=error."""
    name = str(op)
    _announce(name)
    _counts[name] += 1
    check_devices(op, args, kwargs)
    return _Call(op).run(args, kwargs)


def _announce(name: str) -> None:
    mode = config.FALLBACK.read().lower()
    if mode == "error":
        raise UnsupportedError(
            "SPY900",
            f"{name} has no kernel on the card",
            expected="an operation of docs/torch.md, or SPYRE_FALLBACK=warn",
            hint="move the tensors to the CPU explicitly, or allow the CPU fallback",
        )
    if mode != "silent" and name not in _warned:
        _warned.add(name)
        warn_user(
            f"{name} runs on the CPU: the spyre device has no kernel for it "
            "(SPYRE_FALLBACK=silent hides this, =error forbids it)"
        )


class _Call:
    """One operation on the CPU: copies of its storages, and what it has to give back."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.arguments = schema_of(op).arguments
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.buffers: dict[int, DeviceBuffer] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By id of the CPU tensor: tensor on the card, tensor on the CPU."""
        self.device_index = -1

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        host_args = [self._down(a, s) for a, s in zip(args, self.arguments, strict=False)]
        specs = {s.name: s for s in self.arguments}
        host_kwargs = {k: self._down(v, specs[k]) for k, v in kwargs.items()}
        if self._lacks_generator(len(host_args), host_kwargs):
            host_kwargs["generator"] = cpu_generator(self.device_index)
        result = self.op(*host_args, **host_kwargs)
        self._write_back()
        return tree_map(self._up, result)

    def _lacks_generator(self, count: int, kwargs: Mapping[str, Any]) -> bool:
        """Whether the operation draws random numbers and was given no generator."""
        if not is_random(self.op) or kwargs.get("generator") is not None:
            return False
        names = [spec.name for spec in self.arguments]
        return "generator" in names and count <= names.index("generator")

    def _down(self, value: Any, spec: Any) -> Any:
        if is_spyre(value):
            return self._down_tensor(value, spec)
        if isinstance(value, (list, tuple)):
            return type(value)(self._down(v, spec) for v in value)
        if isinstance(value, torch.device) and value.type == "spyre":
            self.device_index = -1 if value.index is None else value.index
            return torch.device("cpu")
        if isinstance(value, (int, float, complex)) and spec.type.kind() == "TensorType":
            return torch.tensor(value)  # a number in a tensor's place, which not all operators take
        return value

    def _down_tensor(self, tensor: torch.Tensor, spec: Any) -> torch.Tensor:
        self.device_index = tensor.device.index
        key = storage_key(tensor)
        if key not in self.storages:
            self.buffers[key] = buffer_of(tensor)
            self.tensors[key] = tensor
            self.storages[key] = host_storage(self.buffers[key])
        host = view_of(self.storages[key], tensor)
        if tensor.is_conj():
            host = host.conj()
        if tensor.is_neg():
            host = neg_view(host)
        if spec.alias_info is not None and spec.alias_info.is_write:
            self.written[id(host)] = (tensor, host)
        return host

    def _write_back(self) -> None:
        done: set[int] = set()
        for tensor, host in self.written.values():
            if host.size() != tensor.size():
                resize(tensor, host.size())
                from_host(tensor, host)
                continue
            key = storage_key(tensor)
            if key in self.storages and key not in done:
                done.add(key)
                write_storage(self.buffers[key], self.storages[key])

    def _up(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self.written:
            return self.written[id(value)][0]
        alias = self._alias(value)
        return alias if alias is not None else to_card(value, self.device_index)

    def _alias(self, value: torch.Tensor) -> torch.Tensor | None:
        """A view the operation made of an argument stays a view of it."""
        key = value.untyped_storage()._cdata
        for known, storage in self.storages.items():
            if storage._cdata == key:
                return self._view(self.tensors[known], value)
        return None

    @staticmethod
    def _view(parent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        found = allocate((0,), (1,), like.dtype, parent.device.index)
        place = (like.storage_offset(), like.size(), like.stride())
        return set_storage(found, parent.untyped_storage(), *place)


def to_card(host: torch.Tensor, device_index: int) -> torch.Tensor:
    """A new tensor on the card with sizes, strides (where dense) and values of a CPU tensor."""
    host = host.detach()
    size = tuple(host.size())
    dense = is_dense(host)
    stride = tuple(host.stride()) if dense else contiguous_strides(size)
    found = allocate(size, stride, host.dtype, device_index)
    from_host(found, host, non_blocking=True)
    return found
