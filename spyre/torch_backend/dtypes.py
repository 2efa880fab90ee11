"""torch dtypes the card has a format for, and the error for all others (runtime reference §2)."""

from __future__ import annotations

import torch

NAMES: dict[torch.dtype, str] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.bool: "bool",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
}
"""Name in `spyre.dtypes.HOST_DTYPES` by torch dtype."""
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name in `spyre.dtypes`; UnsupportedDtype SPY311 when the card has no format."""
    name = NAMES.get(dtype)
    if name is None:
        from spyre.torch_backend.errors import UnsupportedDtype

        raise UnsupportedDtype(dtype, ", ".join(NAMES.values()))
    return name
