"""Python numbers with integer tensors: only the kind of a number takes part in promotion."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from spyre.errors import SpyreError

VALUES = {
    torch.uint8: (0, 1, 200),
    torch.int8: (0, 1, -100),
    torch.int16: (0, -7, 3000),
    torch.int32: (0, 1, -70000),
    torch.int64: (0, 1, -70000),
    torch.bool: (False, True, True),
}
NUMBERS = (2, -2, 0, 1, -1, 1.5, -0.75, 300, -300, 1e6, 2**31 - 1, 2**40, 1e30)
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _reversed(function: Callable[..., Any], x: Any, number: Any) -> Any:
    return function(number, x)


def _scaled(name: str, x: torch.Tensor, number: Any) -> torch.Tensor:
    return getattr(torch, name)(x, 3, alpha=number)


FUNCTIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    **{name: getattr(operator, name) for name in (*OPERATORS, *COMPARISONS)},
    **{f"reversed {name}": partial(_reversed, getattr(operator, name)) for name in OPERATORS},
    **{f"{name} alpha": partial(_scaled, name) for name in ("add", "sub", "rsub")},
    **{name: getattr(torch, name) for name in ("fmod", "xlogy", "copysign", "rsub")},
    "reversed xlogy": partial(_reversed, torch.xlogy),
    "div trunc": partial(torch.div, rounding_mode="trunc"),
    "div floor": partial(torch.div, rounding_mode="floor"),
    "clamp_min": lambda x, number: x.clamp(min=number),
    "clamp_max": lambda x, number: x.clamp(max=number),
    "where": lambda x, number: torch.where(x > 0, x, number),
    "masked_fill": lambda x, number: x.masked_fill(x > 0, number),
    "mul_": lambda x, number: x.clone().mul_(number),
}
UNCHECKED = ("sub", "reversed sub", "rsub", "rsub alpha", "sub alpha", "mul_")
"""Functions that torch refuses for bools."""
CASES = [(name, dtype) for name in FUNCTIONS for dtype in VALUES]


def _outcome(function: Callable[..., Any], x: torch.Tensor, number: Any) -> Any:
    """The result on the CPU; None where an error is raised."""
    try:
        return function(x, number).cpu()
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError, OverflowError, SpyreError):
        return None


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: str(value))
def test_results_and_dtypes_are_those_of_the_cpu(name, dtype):
    if dtype is torch.bool and name in UNCHECKED:
        pytest.skip("torch refuses it")
    compared = 0
    for x in (
        torch.tensor(VALUES[dtype], dtype=dtype),
        torch.tensor(VALUES[dtype][2], dtype=dtype),
    ):
        moved = x.to("spyre")
        for number in NUMBERS:
            wanted = _outcome(FUNCTIONS[name], x, number)
            found = _outcome(FUNCTIONS[name], moved, number)
            # the card refuses int64 results that it cannot hold
            if wanted is None or (found is None and wanted.dtype is torch.int64):
                continue
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, equal_nan=True)
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("dtype", [d for d in VALUES if d is not torch.bool], ids=str)
def test_compiled(dtype):
    def function(x):
        reversed_ones = (1.0 - x, 2.5 - x, torch.rsub(x, 2.5, alpha=2), -1 - x)
        return *reversed_ones, x / -2, -2 / (x + 1), x * -1.5, x + 0.5, x - 1.5

    x = torch.tensor(VALUES[dtype], dtype=dtype)
    found = torch.compile(function)(x.to("spyre"))
    for one, other in zip(found, function(x), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=0)
