"""Registers the device's kernels with torch's dispatcher, once per process.

With TORCH_SPYRE_DEBUG=1, which is read once, they log operations, copies and compiled programs to
``spyre.torch``.

Some composite operations use float64 or complex numbers internally, for which the card has no
format, although their arguments and results have other dtypes. These run on the CPU as a whole,
between differentiable copies, so they have gradients.

Operations of tensors that are not strided are refused; torch would raise an error that lists all
its backends. torch creates compressed sparse tensors without a kernel of the device; their
operations raise the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from spyre import config
from spyre.errors import UnsupportedError
from spyre.interrupts import interrupts
from spyre.torch_backend.compat import CPU_KEYS, NESTED_KEYS, operator, redispatched, skip_in_dynamo

logger = logging.getLogger("spyre.torch")

Kernel = Callable[..., Any]

_libraries: list[torch.library.Library] = []
"""Kept alive, since registrations end with their library."""

VIEWS = (
    *("view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex"),
    *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"),
)
"""Operations that only change sizes and strides; ATen's CPU kernels work on any device."""


def register_kernels(kernels: Mapping[str, Kernel], namespace: str = "aten") -> None:
    """Register ``kernels``, by name and overload, for the device."""
    logged = _logged(kernels)
    uninterrupted = {name: _uninterrupted(logged[name]) for name in logged}
    register_under("PrivateUse1", uninterrupted, namespace)


def _uninterrupted(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with Ctrl-C deferred to its end, except while it waits or compiles."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with interrupts:
            return kernel(*args, **kwargs)

    return run


def _logged(kernels: Mapping[str, Kernel]) -> Mapping[str, Kernel]:
    """Return the kernels, wrapped to log their calls if TORCH_SPYRE_DEBUG is set."""
    if not config.TORCH_DEBUG.is_on:
        return kernels
    logger.setLevel(logging.DEBUG)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    return {name: _logging(kernel, name) for name, kernel in kernels.items()}


def _logging(kernel: Kernel, name: str = "") -> Kernel:
    """Return ``kernel`` with a log line per call: the operation and its arguments.

    ``name``: "" for kernels that get the operator as their first argument.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        shown, arguments = (name, args) if name else (f"{args[0]} on the CPU", args[1:])
        parts = [*map(_describe, arguments), *(f"{k}={_describe(v)}" for k, v in kwargs.items())]
        logger.debug("%s(%s)", shown, ", ".join(parts))
        return kernel(*args, **kwargs)

    return call


def _describe(value: Any) -> str:
    """Return dtype, sizes and device of a tensor as text, and the repr of other values."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return f"{name}{list(value.size())}@{value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_describe, value)) + "]"
    return repr(value)


def log_program(name: str, listing: str) -> None:
    """Log a line per operation of a compiled program."""
    lines = "".join(f"\n  {line}" for line in listing.splitlines())
    logger.debug("compiled %s:%s", name, lines)


def register_fallback(kernel: Kernel) -> None:
    """Register the kernel for operations without a kernel on the device."""
    logged = _logging(kernel) if config.TORCH_DEBUG.is_on else kernel
    register_fallbacks({"PrivateUse1": _uninterrupted(logged)})


def register_composites(kernels: Mapping[str, Kernel]) -> None:
    """Register ``kernels`` of composite operations, by aten name, which replace the decompositions.

    They run before autograd, and in inference mode under the device's key.
    """
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        register_under(key, kernels)


def register_under(key: str, kernels: Mapping[str, Kernel], namespace: str = "aten") -> None:
    """Register ``kernels``, by name and overload, under a dispatch key."""
    library = torch.library.Library(namespace, "IMPL", key)
    _libraries.append(library)
    for name, kernel in kernels.items():
        library.impl(name, skip_in_dynamo(kernel))


def register_fallbacks(kernels: Mapping[str, Kernel]) -> None:
    """Register kernels for all operations without one, by dispatch key."""
    library = torch.library.Library("_", "IMPL")
    _libraries.append(library)
    for key, kernel in kernels.items():
        library.fallback(kernel, key)


def pass_autocast() -> None:
    """Let autocast pass operations without a kernel through."""
    register_fallbacks({"AutocastPrivateUse1": torch.library.fallthrough_kernel})


def register_views() -> None:
    """Register `VIEWS`. They need not defer Ctrl-C: each is one call of C++.

    Copies get conjugate and negative tensors as they are: torch resolves others by a copy.
    """
    for key in ("Conjugate", "Negative"):
        library = torch.library.Library("aten", "IMPL", key)
        library.impl("_copy_from", torch.library.fallthrough_kernel)
        _libraries.append(library)
    views = {name: redispatched(operator(name), CPU_KEYS) for name in VIEWS}
    register_under("PrivateUse1", _logged(views))


# --- operations with kernels outside of the cores and the general fallback -----------------------

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

SIZES_OF_NESTED = (
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
)
"""Metadata of nested tensors, which autograd reads in C++ code that an exception would abort."""

NESTED_MAKERS = ("_nested_view_from_buffer", "_nested_tensor_from_mask", "_nested_from_padded")
"""Operations that make nested tensors of a strided one."""


def register_exceptions(cpu_fallback: Kernel) -> None:
    """Register all of them; ``cpu_fallback``: runs an operation, its first argument, on the CPU."""
    pass_autocast()
    kept = (*WITH_FORMULA, *FOR_NAMED_DEVICES)
    register_under("PrivateUse1", {n: partial(cpu_fallback, operator(n)) for n in kept})
    copied = {n: partial(_on_host, operator(n)) for n in (*THROUGH_FLOAT64, *THROUGH_COMPLEX)}
    register_composites(copied | {n: partial(cpu_fallback, operator(n)) for n in OUT_VARIANTS})
    register_fallbacks({key: _refusing(kind) for key, kind in LAYOUTS.items()})
    key = "SparseCsrPrivateUse1"
    register_under(key, {name: _refusing(LAYOUTS[key], f"aten.{name}") for name in ACCESSORS})
    register_under("PrivateUse1", {n: _refusing("nested", f"aten.{n}") for n in NESTED_MAKERS})
    # torch.nn.TransformerEncoder asks this before it makes a nested tensor of its input
    register_under("PrivateUse1", {"_nested_tensor_from_mask_left_aligned": lambda *_: False})
    metadata = {name: redispatched(operator(name), NESTED_KEYS) for name in SIZES_OF_NESTED}
    register_under("NestedTensorPrivateUse1", metadata)


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
    dense = "to_padded_tensor(), or use layout=torch.jagged" if kind == "nested" else "to_dense()"
    return UnsupportedError(
        "SPY906",
        f"spyre tensors are strided: {kind} tensors are not supported by the device",
        found=operation,
        hint=f"keep them on the CPU, or convert them there first with {dense}",
    )
