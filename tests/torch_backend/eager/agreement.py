"""Runs a function on the CPU and on the card, where nothing may fall back, and compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MOVED = (torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
PLAIN_FLOATS = (torch.float16, torch.float32)


def numbers(*sizes: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Small numbers that every format holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-8, 8, sizes, generator=generator)
    return (found / 4 if dtype.is_floating_point else found).to(dtype)


def agrees(
    function: Callable[..., Any], *given: Any, exact: bool = True, fallbacks: bool = False
) -> None:
    """Results on the card are those on the CPU: sizes, dtypes, and values."""
    wanted = _results(function(*given))
    moved = [g.to("spyre") if isinstance(g, torch.Tensor) else g for g in given]
    before = torch.spyre.fallbacks()
    found = _results(function(*moved))
    assert fallbacks or torch.spyre.fallbacks() == before
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.device.type == "spyre"
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if exact:
            assert torch.equal(one.cpu(), other), f"{one.cpu()} instead of {other}"
        else:
            torch.testing.assert_close(one.cpu(), other, rtol=2e-3, atol=2e-3)


def _results(found: Any) -> tuple[torch.Tensor, ...]:
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)
