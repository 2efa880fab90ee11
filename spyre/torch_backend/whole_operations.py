"""Composite operations that run on the CPU as a whole.

Torch makes them of other operations, in between in float64 or complex numbers, which the card has
no format for; what goes in and comes out are dtypes it has. Their tensors come down and the result
goes up by differentiable copies, so gradients flow as through any other operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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

INTO_GIVEN = (
    *("linalg_pinv.atol_rtol_float_out", "linalg_pinv.out", "linalg_pinv.out_rcond_tensor"),
    *("linalg_matrix_rank.out", "linalg_matrix_rank.out_tol_tensor"),
    *("linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"),
    *("fft_hfft.out", "fft_hfft2.out", "fft_hfftn.out"),
    *("fft_irfft.out", "fft_irfft2.out", "fft_irfftn.out"),
)
"""The variants that write to a tensor they are given; those have no gradients."""

WITH_FORMULA = ("linalg_pinv.atol_rtol_tensor",)
"""Torch has a gradient for the whole, and makes only the result of other operations."""


def composite_kernels() -> dict[str, Kernel]:
    """By aten name, for the keys that come before torch takes the operation apart."""
    found = {name: _kernel(name, _on_host) for name in (*THROUGH_FLOAT64, *THROUGH_COMPLEX)}
    return found | {name: _kernel(name, _falling_back) for name in INTO_GIVEN}


def formula_kernels() -> dict[str, Kernel]:
    """By aten name, for the device's own key."""
    return {name: _kernel(name, _falling_back) for name in WITH_FORMULA}


def _kernel(name: str, run: Kernel) -> Kernel:
    from spyre.torch_backend.compat import operator, skip_in_dynamo

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run(operator(name), *args, **kwargs)

    return functools.wraps(run)(skip_in_dynamo(kernel))


def _falling_back(op: Any, *args: Any, **kwargs: Any) -> Any:
    from spyre.torch_backend.fallback import cpu_fallback

    return cpu_fallback(op, *args, **kwargs)


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    from spyre.torch_backend.fallback import announce
    from spyre.torch_backend.mixed_devices import check_devices
    from spyre.torch_backend.resizing import is_spyre

    announce(str(op))
    check_devices(op, args, kwargs)
    device = next(value.device for value in (*args, *kwargs.values()) if is_spyre(value))

    def down(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    return op(*tree_map(down, args), **tree_map(down, kwargs)).to(device)
