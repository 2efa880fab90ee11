"""Tensors that are not strided: the card has no form for them, and says so.

Without these kernels torch would answer with a list of all its backends.
"""

from __future__ import annotations

from typing import Any, NoReturn

KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse (compressed)",
    "NestedTensorPrivateUse1": "nested",
}
"""What tensors are called whose operations torch dispatches to these keys."""


def kernels() -> dict[str, Any]:
    """Fallback kernels by dispatch key."""
    return {key: refusing(kind) for key, kind in KEYS.items()}


def refusing(kind: str) -> Any:
    """A fallback kernel that raises NotImplementedError for tensors of this kind."""

    def refuse(op: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_text(kind, f" ({op})"))

    return refuse


def refuse_layout(layout: Any) -> NoReturn:
    """NotImplementedError naming the layout of a tensor that should go to the card."""
    raise NotImplementedError(_text(str(layout).removeprefix("torch.")))


def _text(kind: str, place: str = "") -> str:
    return (
        f"spyre tensors are strided: {kind} tensors are not supported by the device{place}. "
        "Keep them on the CPU, or convert them there first with to_dense()"
    )
