"""Operations that always run on the CPU, and the names they are counted under.

Two losses would warn of a resized result in the general fallback, which computes into a given
tensor; here they allocate their result. Some composite operations use float64 or complex numbers
internally, for which the card has no format, although their arguments and results have other
dtypes. These run on the CPU as a whole, between differentiable copies, so they have gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the fallback, which is imported at the first use."""
    from spyre.torch_backend.fallback.cpu_fallback import cpu_fallback

    return cpu_fallback(op, *args, **kwargs)


mse_loss = functools.partial(_on_cpu, aten.mse_loss.default)
smooth_l1_loss = functools.partial(_on_cpu, aten.smooth_l1_loss.default)


Kernel = Callable[..., Any]

THROUGH_FLOAT64 = (
    *("linalg_pinv", "linalg_pinv.atol_rtol_float", "linalg_pinv.rcond_tensor", "pinverse"),
    *("linalg_matrix_rank", "linalg_matrix_rank.tol_tensor"),
    *("linalg_matrix_rank.atol_rtol_float", "linalg_matrix_rank.atol_rtol_tensor"),
)
"""Operations with float64 tolerances."""

THROUGH_COMPLEX = (
    *("fft_hfft", "fft_hfft2", "fft_hfftn", "fft_irfft", "fft_irfft2", "fft_irfftn"),
    *("stft", "stft.center"),
)
"""Operations on real numbers with complex intermediate results; stft can also return those."""

OUT_VARIANTS = (
    *("linalg_pinv.atol_rtol_float_out", "linalg_pinv.out", "linalg_pinv.out_rcond_tensor"),
    *("linalg_matrix_rank.out", "linalg_matrix_rank.out_tol_tensor"),
    *("linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"),
    *("fft_hfft.out", "fft_hfft2.out", "fft_hfftn.out"),
    *("fft_irfft.out", "fft_irfft2.out", "fft_irfftn.out"),
)
"""Variants that write to a given tensor, which have no gradients."""

WITH_FORMULA = ("linalg_pinv.atol_rtol_tensor",)
"""Composite operations for which torch has a gradient formula."""

FOR_NAMED_DEVICES = ("mode.values",)
"""Composite operations that torch implements only for a fixed list of devices."""


def composite_kernels() -> dict[str, Kernel]:
    """Return kernels for the dispatch keys at which torch would decompose the operations."""
    copied = {name: _kernel(name, _on_host) for name in (*THROUGH_FLOAT64, *THROUGH_COMPLEX)}
    return copied | {name: _kernel(name, _on_cpu) for name in OUT_VARIANTS}


def formula_kernels() -> dict[str, Kernel]:
    """Return kernels for the device's dispatch key."""
    return {name: _kernel(name, _on_cpu) for name in (*WITH_FORMULA, *FOR_NAMED_DEVICES)}


def _kernel(name: str, run: Kernel) -> Kernel:
    from spyre.torch_backend.compat import operator, skip_in_dynamo

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run(operator(name), *args, **kwargs)

    return functools.wraps(run)(skip_in_dynamo(kernel))


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils._pytree import tree_map

    from spyre.torch_backend.device import is_on_card
    from spyre.torch_backend.fallback.cpu_fallback import check_devices, on_cpu

    def down(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    with on_cpu(str(op)):
        check_devices(op, args, kwargs)
        device = next(value.device for value in (*args, *kwargs.values()) if is_on_card(value))
        return op(*tree_map(down, args), **tree_map(down, kwargs)).to(device)
