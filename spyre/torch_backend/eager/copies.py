"""Copies within a card: of bits, between dtypes, and filling with a number."""

from __future__ import annotations

from typing import Any

import torch

from spyre.torch_backend.card_copies import relaid
from spyre.torch_backend.device_buffer import buffer_of
from spyre.torch_backend.eager.kernels import COMPUTED, Kernel, falling_back, operand
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.eager.run import run
from spyre.torch_backend.host_copies import from_host, to_host
from spyre.torch_backend.program.value import Ints, Value

CONVERTED = (*COMPUTED, torch.int32, torch.int64)
"""dtypes that the card converts into each other."""


def converted(low: Lowering, x: Value, sizes: Ints, dtype: str) -> Value:
    """``x`` as ``dtype``, broadcast to ``sizes``."""
    x = low.convert(x, dtype)
    return low.broadcast(x, sizes) if x.sizes != sizes else x


def copy_on_card(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of ``source``, broadcast and converted, onto ``target``; both on one card."""
    if target.numel() == 0:
        return
    same_card = buffer_of(source).card is buffer_of(target).card
    if not same_card or not {source.dtype, target.dtype} <= set(CONVERTED):
        from_host(target, to_host(source))
        return
    parameters = (tuple(target.shape), str(target.dtype).removeprefix("torch."))
    found = run("copy", converted, [source], parameters, target)
    if found:
        from_host(target, to_host(found[0]))


def fill_scalar(x: torch.Tensor, value: Any) -> torch.Tensor:
    """aten::fill_.Scalar."""
    if x.numel():
        _fill(x, value)
    return x


def _fill(x: torch.Tensor, value: Any) -> None:
    number = operand(value, x.dtype)
    _ = number
    from_host(x, torch.tensor(value, dtype=x.dtype))


def zero(x: torch.Tensor) -> torch.Tensor:
    """aten::zero_."""
    return fill_scalar(x, 0)


def copy_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {"fill_.Scalar": fill_scalar, "zero_": zero}


__all__ = ["copy_kernels", "copy_on_card", "falling_back", "relaid"]
