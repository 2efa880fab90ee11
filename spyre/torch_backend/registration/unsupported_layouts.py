"""Errors for tensors that are not strided, which the card does not support.

Without these kernels torch would raise an error that lists all its backends. torch creates
compressed sparse tensors without a kernel of the device; their operations raise the error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from spyre.errors import UnsupportedError

KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse (compressed)",
    "NestedTensorPrivateUse1": "nested",
}
"""By dispatch key, the name of the layout."""

ACCESSORS = ("values", "crow_indices", "col_indices", "ccol_indices", "row_indices")
"""Operations of compressed sparse tensors that torch implements for every device."""


def fallback_kernels() -> dict[str, Any]:
    """Return kernels for all operations of such tensors, by dispatch key."""
    return {key: _refusing(kind) for key, kind in KEYS.items()}


def accessor_kernels() -> dict[str, dict[str, Any]]:
    """Return kernels of `ACCESSORS` by dispatch key and aten name."""
    key = "SparseCsrPrivateUse1"
    return {key: {name: _refusing(KEYS[key], f"aten.{name}") for name in ACCESSORS}}


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
