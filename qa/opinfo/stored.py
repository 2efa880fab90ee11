"""Rounds the results of CPU operators to the device's formats, as the device stores them.

PyTorch computes many operators as several smaller ones. On the device each intermediate result is
stored in the device's format before the next one reads it: float16 and bfloat16 as DL16, int64 as
int32 (Runtime reference §2). :class:`StoredResults` does the same to every result on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qa.opinfo.target import whole_storage
from qa.opinfo.trees import leaves
from spyre.dtypes.codecs import decode_device, encode_device, encode_host

FORMATS = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a CPU tensor with its values after a copy to the device and back."""
    if tensor.dtype is torch.int64:
        return tensor.to(torch.int32).to(torch.int64)
    name = FORMATS.get(tensor.dtype)
    if name is None:
        return tensor.clone()
    codes = encode_device(tensor.float().numpy(), "SEN169_FP16")
    bits = encode_host(decode_device(codes, "SEN169_FP16"), name)
    stored = torch.from_numpy(np.asarray(bits).view(np.int16).reshape(tensor.shape))
    return stored.view(tensor.dtype)


class StoredResults(TorchDispatchMode):
    """While active, results of CPU operators are rounded to the device's formats."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                _store(leaf)
        return result


def _store(tensor: torch.Tensor) -> None:
    """Round the storage of ``tensor`` if one of its elements must be rounded.

    Views of rounded elements need no rounding; the elements of an expanded tensor share memory.
    Autograd's zero tensors have no storage.
    """
    if tensor.dtype not in FORMATS and tensor.dtype is not torch.int64:
        return
    if tensor._is_zerotensor():
        return
    if not torch.equal(as_stored(tensor.detach()), tensor):
        storage = whole_storage(tensor)
        storage.copy_(as_stored(storage))
