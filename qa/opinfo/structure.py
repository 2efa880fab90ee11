"""Compares structure, shapes, dtypes, strides and devices of results."""

from __future__ import annotations

from typing import Any

import torch

from qa.opinfo.trees import leaves


def structure_difference(actual: Any, native: Any, device: str, *, strides: bool) -> str:
    """Describe the first difference between the leaves of two results, or return "".

    ``native``: the CPU's result in the dtype under test. ``device``: required type of device.
    ``strides``: compare strides too.
    """
    found, wanted = leaves(actual), leaves(native)
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        difference = _leaf_difference(one, other, device, strides)
        if difference:
            return f"result {place}: {difference}"
    return ""


def _leaf_difference(found: Any, wanted: Any, device: str, strides: bool) -> str:
    if not isinstance(wanted, torch.Tensor):
        return "" if type(found) is type(wanted) else f"{type(found)} instead of {type(wanted)}"
    if not isinstance(found, torch.Tensor):
        return f"{type(found)} instead of a tensor"
    checks: list[tuple[str, Any, Any]] = [
        ("shape", tuple(found.shape), tuple(wanted.shape)),
        ("dtype", found.dtype, wanted.dtype),
        ("layout", found.layout, wanted.layout),
        ("device", found.device.type, device),
    ]
    if strides and wanted.layout is torch.strided:
        checks.append(("strides", found.stride(), wanted.stride()))
    for name, one, other in checks:
        if one != other:
            return f"{name} {one} instead of {other}"
    return ""
