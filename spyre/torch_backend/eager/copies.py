"""Copies within a card: of bits, between dtypes, and filling with a number."""

from __future__ import annotations

from typing import Any

import torch

from spyre.torch_backend.card_copies import assemble, moves_bits, upload
from spyre.torch_backend.device_buffer import buffer_of
from spyre.torch_backend.dtypes import name_of
from spyre.torch_backend.eager.kernels import COMPUTED, Kernel
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.eager.operands import Number, ready_buffer, view_on_card
from spyre.torch_backend.eager.run import run
from spyre.torch_backend.host_copies import to_host
from spyre.torch_backend.program.value import Ints, Value

CONVERTED = (*COMPUTED, torch.int32, torch.int64)
"""dtypes that the card converts into each other."""


def converted(low: Lowering, x: Value, sizes: Ints, dtype: str) -> Value:
    """``x`` as ``dtype``, broadcast to ``sizes``."""
    x = low.convert(x, dtype)
    return low.broadcast(x, sizes) if x.sizes != sizes else x


def filled(low: Lowering, x: Value, number: Value) -> Value:
    """``number`` in the sizes of ``x``."""
    return low.broadcast(number, x.sizes)


def copy_on_card(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of ``source``, broadcast and converted, onto ``target``; both on one card."""
    if target.numel() == 0:
        return
    same_card = buffer_of(source).card is buffer_of(target).card
    dtypes = {source.dtype, target.dtype}
    if not same_card or (len(dtypes) > 1 and not dtypes <= set(CONVERTED)):
        upload(target, to_host(source))
        return
    if not dtypes <= set(CONVERTED):
        _copy_bits(target, source)
        return
    parameters = (tuple(target.shape), name_of(target.dtype))
    found = run("copy", converted, [source], parameters, target)
    if found:
        _copy_bits(target, found[0])


def _copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of one dtype, by DMA; over the host where the target's storage has another dtype."""
    ready_buffer(target)
    ready_buffer(source)
    if moves_bits(target):
        assemble(target, [(target, source.expand(target.shape))])
    else:
        upload(target, to_host(source))


def fill_scalar(x: torch.Tensor, value: Any) -> torch.Tensor:
    """aten::fill_.Scalar."""
    if x.numel() == 0:
        return x
    if x.dtype in CONVERTED and not isinstance(value, complex) and _is_writable(x):
        number = torch.tensor(value, dtype=x.dtype).item()
        if x.dtype not in (torch.int32, torch.int64) or abs(number) < 1 << 31:
            run("fill", filled, [x, Number(float(number), name_of(x.dtype))], (), x)
            return x
    upload(x, torch.tensor(value, dtype=x.dtype))
    return x


def _is_writable(x: torch.Tensor) -> bool:
    """True if the cores can write its elements without touching others."""
    view = view_on_card(x, ready_buffer(x))
    return view is not None and view.writable


def zero(x: torch.Tensor) -> torch.Tensor:
    """aten::zero_."""
    return fill_scalar(x, 0)


def copy_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {"fill_.Scalar": fill_scalar, "zero_": zero}
