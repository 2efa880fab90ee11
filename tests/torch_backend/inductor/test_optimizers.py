"""Compiled steps of torch's optimizers, over lists of parameters and one by one."""

from __future__ import annotations

import os

import pytest
import torch
from torch import optim

torch.manual_seed(0)
PARAMETERS = [torch.randn(7, 70), torch.randn(70), torch.randn(3, 2, 5)]
GRADIENTS = [[torch.randn_like(p) for p in PARAMETERS] for _ in range(3)]

OPTIMIZERS = {
    "Adadelta": (optim.Adadelta, {"weight_decay": 0.1}),
    "Adafactor": (optim.Adafactor, {}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.01}),
    "Adam": (optim.Adam, {}),
    "Adam, amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "AdamW": (optim.AdamW, {}),
    "Adamax": (optim.Adamax, {}),
    "ASGD": (optim.ASGD, {}),
    "NAdam": (optim.NAdam, {"decoupled_weight_decay": True}),
    "RAdam": (optim.RAdam, {}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Rprop": (optim.Rprop, {}),
    "SGD": (optim.SGD, {}),
    "SGD with momentum": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}
CAPTURABLE = {"Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}
FUSED = {"Adagrad", "Adam", "AdamW", "SGD with momentum"}
ALL_CASES = [
    *((name, {"foreach": value}) for name in OPTIMIZERS for value in (True, False)),
    *((name, {"foreach": True, "capturable": True}) for name in sorted(CAPTURABLE)),
    *((name, {"fused": True}) for name in sorted(FUSED)),
]
USUAL = [("AdamW", {"foreach": True}), ("SGD with momentum", {"foreach": True})]
CASES = ALL_CASES if "SPYRE_TEST_EXAMPLES" in os.environ else [*ALL_CASES[::3], *USUAL]
"""Most optimizers in one form; in the long form of the tests all in all forms."""


def parameters_after(name, options, wrap, steps=3):
    make, own = OPTIMIZERS[name]
    parameters = [p.to("spyre").requires_grad_() for p in PARAMETERS]
    optimizer = make(parameters, lr=0.05, **own, **options)
    step = wrap(optimizer.step)
    for gradients in GRADIENTS[:steps]:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to("spyre")
        step()
    return [p.detach().cpu() for p in parameters]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_steps_are_those_of_eager_mode(name, options):
    torch._dynamo.reset()
    eager = parameters_after(name, options, lambda step: step)
    compiled = parameters_after(name, options, torch.compile)
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_lists_of_tensors():
    def function(xs, ys):
        torch._foreach_add_(xs, ys, alpha=2)
        torch._foreach_copy_(ys, torch._foreach_mul(xs, [1.0, 2.0, 3.0]))
        norms = torch._foreach_norm(xs)
        last = torch._foreach_lerp(xs, ys, 0.5)
        torch._foreach_zero_(xs)
        return [*norms, *last]

    found = []
    torch._dynamo.reset()
    for call in (function, torch.compile(function, fullgraph=True)):
        xs, ys = ([t.to("spyre") for t in row] for row in (PARAMETERS, GRADIENTS[0]))
        found.append([*call(xs, ys), *xs, *ys])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one.cpu(), rtol=1e-6, atol=1e-6)
