"""Compiled functions of constants, of operations made of others, of unknown sizes: eager values."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.inductor.compiled_code import compiled

X = torch.arange(5 * 66).reshape(5, 66).half() / 8


def on_card(x, *values):
    return torch.tensor(values, device=x.device)


FUNCTIONS = {
    "a constant": lambda x: on_card(x, 1) + x,
    "computed from constants": lambda x: (on_card(x, 1.0, 2.0) * 3).half().sum() + x,
    "a transposed constant": lambda x: (
        (on_card(x, [1, 2], [3, 4]).t().float() + 1).half() + x[0, 0]
    ),
    "isin": lambda x: torch.isin(x, x[1]),
    "not isin of constants": lambda x: torch.isin(x.int(), on_card(x, 1, 2), invert=True),
    "cumsum of a number": lambda x: x[0, 1].cumsum(0),
    "gather of a number": lambda x: x[0, 1].gather(0, on_card(x, 0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_eager_mode(name):
    x = X.to("spyre")
    wanted = FUNCTIONS[name](x)
    found, _ = compiled(FUNCTIONS[name], x)
    assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
    assert torch.equal(found.cpu(), wanted.cpu())


def test_sizes_that_running_tells():
    x = X.to("spyre")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found, _ = compiled(lambda x: x[x > 3] * 2 + 1, x)
    assert torch.equal(found.cpu(), X[X > 3] * 2 + 1)
