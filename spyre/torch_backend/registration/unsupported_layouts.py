"""Tensors that are not strided: the card has no form for them, and says so.

Without these kernels torch would answer with a list of all its backends. Compressed sparse tensors
it puts together by itself, asking nobody; what is done with them is refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

from spyre.errors import UnsupportedError

KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse (compressed)",
    "NestedTensorPrivateUse1": "nested",
}
"""What tensors are called whose operations torch dispatches to these keys."""

ACCESSORS = ("values", "crow_indices", "col_indices", "ccol_indices", "row_indices")
"""Operations of compressed sparse tensors that torch answers for every device."""


def fallback_kernels() -> dict[str, Any]:
    """Kernels for all operations of such tensors, by dispatch key."""
    return {key: _refusing(kind) for key, kind in KEYS.items()}


def accessor_kernels() -> dict[str, dict[str, Any]]:
    """Kernels of `ACCESSORS` by dispatch key and aten name."""
    key = "SparseCsrPrivateUse1"
    return {key: {name: _refusing_accessor(name) for name in ACCESSORS}}


def _refusing(kind: str) -> Any:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal(kind, str(op))

    return refuse


def _refusing_accessor(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal("sparse (compressed)", f"aten.{name}")

    return refuse


def refuse_layout(layout: Any) -> NoReturn:
    """UnsupportedError SPY906 naming the layout of a tensor that should go to the card."""
    raise _refusal(str(layout).removeprefix("torch."))


def _refusal(kind: str, operation: str = "") -> UnsupportedError:
    return UnsupportedError(
        "SPY906",
        f"spyre tensors are strided: {kind} tensors are not supported by the device",
        found=operation,
        hint="keep them on the CPU, or convert them there first with to_dense()",
    )
