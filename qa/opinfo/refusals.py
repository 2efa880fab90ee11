"""Recognises refusals of the device, and whether a refused dtype or layout is documented.

The device's formats: Runtime reference §2. Its tensors are strided.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qa.opinfo.trees import leaves
from spyre.errors import SpyreError

DEVICE_DTYPES = frozenset(
    {
        torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
        torch.qint8, torch.quint8, torch.quint4x2, torch.quint2x4,
    }
)  # fmt: skip
"""The torch dtypes that have a device format in the documents; all others must be refused."""

REFUSAL = re.compile(r"Spyre backend does not support dtype (?:torch\.)?(\w+)")


def refused_dtype(error: BaseException) -> torch.dtype | None:
    """Return the dtype that an exception refuses, if the documents have no format for it."""
    match = REFUSAL.search(str(error))
    dtype = getattr(torch, match.group(1), None) if match else None
    return dtype if isinstance(dtype, torch.dtype) and dtype not in DEVICE_DTYPES else None


def refused_layout(error: BaseException) -> bool:
    """Return True if an exception refuses a tensor that is not strided."""
    return refusal_code(error) == "SPY906"


def refusal_code(error: BaseException) -> str:
    """Return the code of a refusal by the package, also within torch.compile's errors, or "".

    Faults of the card and wrong results are no refusals: their exit code is not 2.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SpyreError):
            return seen.code if seen.exit_code == 2 else ""
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    return ""


def formats_met(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> set[torch.dtype | torch.layout]:
    """Run ``function`` on the CPU; return dtypes and layouts of all tensors that occur."""
    recorder = _Recorder()
    recorder.note((args, kwargs))
    with recorder:
        recorder.note(function(*args, **kwargs))
    return recorder.met


class _Recorder(TorchDispatchMode):
    """Records the dtypes and layouts of all tensors that pass the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[torch.dtype | torch.layout] = set()

    def note(self, tree: Any) -> None:
        for leaf in leaves(tree):
            if isinstance(leaf, torch.Tensor):
                self.met |= {leaf.dtype, leaf.layout}
            elif isinstance(leaf, torch.dtype | torch.layout):
                self.met.add(leaf)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note((args, kwargs or {}, result))
        return result
