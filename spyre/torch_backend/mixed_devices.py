"""The error for tensors of several devices in one operation, where torch itself does not check.

The CPU fallback could compute with them, but PyTorch users rely on the error: what works there
would fail on any other device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from spyre.torch_backend.compat import schema_of

HOST_ARGUMENTS = {
    "aten::_ctc_loss": ("input_lengths", "target_lengths"),
    "aten::_ctc_loss_backward": ("input_lengths", "target_lengths"),
    "aten::_fused_adam_": ("state_steps",),
    "aten::_fused_adamw_": ("state_steps",),
    "aten::_index_put_impl_": ("indices",),
    "aten::_pack_padded_sequence": ("lengths",),
    "aten::_pad_packed_sequence": ("batch_sizes",),
    "aten::_pin_memory": ("self",),
    "aten::_unsafe_index": ("indices",),
    "aten::_unsafe_index_put": ("indices",),
    "aten::copy": ("src",),
    "aten::copy_": ("src",),
    "aten::index": ("indices",),
    "aten::index_put": ("indices",),
    "aten::index_put_": ("indices",),
    "aten::lstm": ("batch_sizes",),
    "aten::set_data": ("new_data",),
}
"""Arguments that may be on the CPU whatever their sizes, by operator."""


def check_devices(op: Any, args: Any, kwargs: Any) -> None:
    """RuntimeError in torch's words if tensors are on two cards, or on a card and the CPU.

    CPU tensors of one element without dims count as numbers, as everywhere in torch.
    """
    schema = schema_of(op)
    allowed = HOST_ARGUMENTS.get(schema.name, ())
    specs = {spec.name: spec for spec in schema.arguments}
    pairs = [*zip(schema.arguments, args, strict=False)]
    pairs += [(specs[name], value) for name, value in kwargs.items()]
    devices: dict[torch.device, None] = {}
    for spec, value in pairs:
        for tensor in _tensors(value):
            is_number = tensor.device.type == "cpu" and tensor.dim() == 0
            if not is_number and not (tensor.device.type == "cpu" and spec.name in allowed):
                devices[tensor.device] = None
    if len(devices) > 1:
        first, second = [*devices][:2]
        raise RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but found at least two devices, {first} and {second}! (in {schema.name})"
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
