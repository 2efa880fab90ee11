"""Loops and branches of torch over tensors: scan, map, cond, while_loop and associative_scan, in
eager mode and compiled, with the values, gradients and errors of the CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, map as mapped, scan, while_loop

X = torch.randint(-16, 16, (5, 3, 70), generator=torch.Generator().manual_seed(1)).half() / 16
STATE = X[2] / 2


def halved_until(state, steps):
    count = torch.zeros((), dtype=torch.int64, device=state.device)
    return while_loop(
        lambda count, _: count < steps, lambda count, y: (count + 1, y * 0.5), (count, state)
    )


FUNCTIONS = {
    "scan": lambda x, state: scan(lambda y, row: (y * 0.5 + row, y * 2), state, x),
    "map": lambda x, state: (mapped(lambda row, y: row * 2 + y, x, state),),
    "cond": lambda x, state: (
        torch.cond(state.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,)),
        torch.cond(state.sum() > 999, lambda y: y * 2, lambda y: y - 1, (x,)),
    ),
    "while_loop": lambda x, state: halved_until(state, 3),
    "associative_scan": lambda x, state: (
        associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
    ),
}


def results(function, device, compiled):
    """Results of a function, and gradients."""
    torch._dynamo.reset()
    x, state = (t.to(device, copy=True).requires_grad_() for t in (X, STATE))
    call = torch.compile(function, fullgraph=True) if compiled else function
    found = call(x, state)
    sum(y.float().sum() for y in found if y.is_floating_point()).backward()
    found = (*found, x.grad, state.grad)
    return [None if y is None else y.detach().cpu() for y in found]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients(name, compiled):
    expected = results(FUNCTIONS[name], "cpu", compiled=False)
    found = results(FUNCTIONS[name], "spyre", compiled)
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=2**-8)


WRONG = {
    "scan of another carry": lambda x, state: scan(lambda y, row: (y[:1], row), state, x),
    "scan of a dim": lambda x, state: scan(lambda y, row: (y, row), state, x, dim=3),
    "map of sizes": lambda x, state: mapped(lambda row, y: row + y[:2], x, state),
    "cond of a number": lambda x, state: torch.cond(state, lambda y: y, lambda y: y * 2, (x,)),
    "cond of sizes": lambda x, state: torch.cond(
        state.sum() > 0, lambda y: y[0] + 1, lambda y: y + state[:, :3], (x,)
    ),
    "while_loop of a condition": lambda x, state: while_loop(
        lambda y: y > 0, lambda y: (y * 2,), (state,)
    ),
    "associative_scan of sizes": lambda x, _: associative_scan(
        lambda a, b: a[..., :3] + b[..., :3], x, 0, combine_mode="generic"
    ),
    "associative_scan of a dim": lambda x, _: associative_scan(
        lambda a, b: a + b, x, 3, combine_mode="generic"
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_errors_are_torchs(name, compiled):
    found = []
    for device in ("cpu", "spyre"):
        torch._dynamo.reset()
        call = torch.compile(WRONG[name], fullgraph=True) if compiled else WRONG[name]
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call(X.to(device), STATE.to(device))
        found.append(raised.type)
    assert found[0] is found[1]
