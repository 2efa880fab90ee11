"""Operations that always run on the CPU, and under which name.

Two losses warn of resizing when they
are computed into a given tensor, as the fallback would have it, but not when they make their own.
They are counted under the names users know. Some composite operations go through float64 or complex
numbers, which the card has no format for; what goes in and comes out are dtypes it has. These run
on the CPU as a whole: their tensors come down and the result goes up by differentiable copies, so
gradients flow as through any other operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fallback, loaded when an operation needs it."""
    from spyre.torch_backend.fallback import cpu_fallback

    return cpu_fallback(op, *args, **kwargs)


mse_loss = functools.partial(_on_cpu, aten.mse_loss.default)
smooth_l1_loss = functools.partial(_on_cpu, aten.smooth_l1_loss.default)


Kernel = Callable[..., Any]

THROUGH_FLOAT64 = (
    *("linalg_pinv", "linalg_pinv.atol_rtol_float", "linalg_pinv.rcond_tensor", "pinverse"),
    *("linalg_matrix_rank", "linalg_matrix_rank.tol_tensor"),
    *("linalg_matrix_rank.atol_rtol_float", "linalg_matrix_rank.atol_rtol_tensor"),
)
"""Their tolerances are float64."""

THROUGH_COMPLEX = (
    *("fft_hfft", "fft_hfft2", "fft_hfftn", "fft_irfft", "fft_irfft2", "fft_irfftn"),
    *("stft", "stft.center"),
)
"""Real numbers in, complex ones in between, real ones out (of stft: where that is asked for)."""

OUT_VARIANTS = (
    *("linalg_pinv.atol_rtol_float_out", "linalg_pinv.out", "linalg_pinv.out_rcond_tensor"),
    *("linalg_matrix_rank.out", "linalg_matrix_rank.out_tol_tensor"),
    *("linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"),
    *("fft_hfft.out", "fft_hfft2.out", "fft_hfftn.out"),
    *("fft_irfft.out", "fft_irfft2.out", "fft_irfftn.out"),
)
"""The variants that write to a tensor they are given; those have no gradients."""

WITH_FORMULA = ("linalg_pinv.atol_rtol_tensor",)
"""Torch has a gradient for the whole, and makes only the result of other operations."""

FOR_NAMED_DEVICES = ("mode.values",)
"""Torch makes the result of other operations, but for the devices it names only."""


def composite_kernels() -> dict[str, Kernel]:
    """For the dispatch keys that come before torch takes the operation apart."""
    copied = {name: _kernel(name, _on_host) for name in (*THROUGH_FLOAT64, *THROUGH_COMPLEX)}
    return copied | {name: _kernel(name, _on_cpu) for name in OUT_VARIANTS}


def formula_kernels() -> dict[str, Kernel]:
    """For the device's own dispatch key."""
    return {name: _kernel(name, _on_cpu) for name in (*WITH_FORMULA, *FOR_NAMED_DEVICES)}


def _kernel(name: str, run: Kernel) -> Kernel:
    from spyre.torch_backend.compat import operator, skip_in_dynamo

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run(operator(name), *args, **kwargs)

    return functools.wraps(run)(skip_in_dynamo(kernel))


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    from spyre.torch_backend.device import is_on_card
    from spyre.torch_backend.fallback import check_devices, on_cpu

    def down(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    with on_cpu(str(op)):
        check_devices(op, args, kwargs)
        device = next(value.device for value in (*args, *kwargs.values()) if is_on_card(value))
        return op(*tree_map(down, args), **tree_map(down, kwargs)).to(device)
