"""Operations with kernels outside of the cores and the general fallback.

Some composite operations use float64 or complex numbers internally, for which the card has no
format, although their arguments and results have other dtypes. These run on the CPU as a whole,
between differentiable copies, so they have gradients.

Operations of tensors that are not strided are refused; torch would raise an error that lists all
its backends. torch creates compressed sparse tensors without a kernel of the device; their
operations raise the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from spyre.errors import UnsupportedError
from spyre.torch_backend.compat import operator
from spyre.torch_backend.registration.library import (
    pass_autocast,
    register_composites,
    register_fallbacks,
    register_under,
)

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


LAYOUTS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse (compressed)",
    "NestedTensorPrivateUse1": "nested",
}
"""By dispatch key, the name of the layout."""

ACCESSORS = ("values", "crow_indices", "col_indices", "ccol_indices", "row_indices")
"""Operations of compressed sparse tensors that torch implements for every device."""


def register_exceptions(cpu_fallback: Kernel) -> None:
    """Register all of them; ``cpu_fallback``: runs an operation, its first argument, on the CPU."""
    pass_autocast()
    kept = (*WITH_FORMULA, *FOR_NAMED_DEVICES)
    register_under("PrivateUse1", {name: _kernel(name, cpu_fallback) for name in kept})
    copied = {name: _kernel(name, _on_host) for name in (*THROUGH_FLOAT64, *THROUGH_COMPLEX)}
    register_composites(copied | {name: _kernel(name, cpu_fallback) for name in OUT_VARIANTS})
    register_fallbacks({key: _refusing(kind) for key, kind in LAYOUTS.items()})
    key = "SparseCsrPrivateUse1"
    register_under(key, {name: _refusing(LAYOUTS[key], f"aten.{name}") for name in ACCESSORS})


def _kernel(name: str, run: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run(operator(name), *args, **kwargs)

    return kernel


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils._pytree import tree_map

    from spyre.torch_backend.device import is_on_card
    from spyre.torch_backend.fallback import check_devices, on_cpu

    def down(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    with on_cpu(str(op)):
        check_devices(op, args, kwargs)
        device = next(value.device for value in (*args, *kwargs.values()) if is_on_card(value))
        return op(*tree_map(down, args), **tree_map(down, kwargs)).to(device)


def _refusing(kind: str, name: str = "") -> Any:
    """Return a kernel that raises; ``name``: its operation, else its first argument is."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal(kind, name or str(args[0]))

    return refuse


def refuse_layout(layout: Any) -> NoReturn:
    """Raise UnsupportedError SPY906 for a tensor in ``layout`` that is moved to the card."""
    raise _refusal(str(layout).removeprefix("torch."))


def _refusal(kind: str, operation: str = "") -> UnsupportedError:
    return UnsupportedError(
        "SPY906",
        f"spyre tensors are strided: {kind} tensors are not supported by the device",
        found=operation,
        hint="keep them on the CPU, or convert them there first with to_dense()",
    )
