"""Heads put side by side again for a product: sticks are copied, never taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spyre.torch_backend.inductor.design_point import compiled_with, counted_call

HEADS, LENGTH, DEPTH = 4, 64, 64
WIDTH = HEADS * DEPTH


def joined(found: Any, weight: Any) -> Any:
    return found.transpose(1, 2).reshape(2 * LENGTH, WIDTH) @ weight


def joined_in_batches(found: Any, weight: Any) -> Any:
    return (found * 2).transpose(1, 2).reshape(2, LENGTH, WIDTH) @ weight


@pytest.mark.parametrize("function", [joined, joined_in_batches])
def test_compiled_code_moves_no_more_than_eager_code(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    found = torch.randn(2, HEADS, LENGTH, DEPTH, dtype=torch.float16)
    weight = torch.randn(WIDTH, WIDTH, dtype=torch.float16)
    card = [tensor.to("spyre") for tensor in (found, weight)]
    compiled = compiled_with(function, {}, {})
    torch.testing.assert_close(compiled(*card).cpu(), function(*card).cpu(), rtol=0, atol=0)
    eager_bytes = counted_call(function, card).hbm_bytes
    assert counted_call(compiled, card).hbm_bytes <= eager_bytes
