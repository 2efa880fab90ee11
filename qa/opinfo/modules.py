"""Torch's databases of modules and of optimizers, in the form of the operator database.

A module is called with its parameters and buffers as arguments, so that they go to the device and
their gradients come back; an optimizer makes three steps with given gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.common_utils import noncontiguous_like

from qa.opinfo.trees import mapped

STEPS = 3
SHAPES = ((3, 5), (5, 4))
"""Sizes of the parameters that optimizers change."""


@dataclass(frozen=True)
class Input:
    """A sample input with the attributes that the runner reads of torch's."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    broadcasts_input: bool = False

    @staticmethod
    def output_process_fn_grad(result: Any) -> Any:
        return result

    def noncontiguous(self) -> Input:
        args, kwargs = mapped((self.args, self.kwargs), _noncontiguous)
        return replace(self, args=args, kwargs=kwargs)


def _noncontiguous(leaf: Any) -> Any:
    return noncontiguous_like(leaf) if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class Subject:
    """Common attributes that the runner reads of modules and optimizers."""

    info: Any
    supports_out: bool = False
    inplace_variant: None = None
    inplace_operator_variant: None = None
    variant_test_name: str = ""

    @property
    def name(self) -> str:
        return str(self.info.name)

    @property
    def backward_dtypes(self) -> tuple[torch.dtype, ...]:
        return self.dtypes

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float32, torch.float16)


class Module(Subject):
    """``op(module, state, *args)`` calls the module with ``state``: its parameters and buffers."""

    supports_autograd = True

    @staticmethod
    def op(module: torch.nn.Module, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    def sample_inputs(
        self, device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[Input]:
        for training in (True, False) if self.info.train_and_eval_differ else (True,):
            options = {"device": device, "dtype": dtype, "requires_grad": requires_grad}
            for given in self.info.module_inputs_func(self.info, **options, training=training):
                made, called = given.constructor_input, given.forward_input
                module = self.info.module_cls(*made.args, **made.kwargs).to(dtype)
                module.train(training)
                state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
                yield Input(module, (copy.deepcopy(state), *called.args), dict(called.kwargs))


class Optimizer(Subject):
    """``op(class, parameters, gradients, **options)`` returns the parameters after a few steps."""

    supports_autograd = False

    @staticmethod
    def op(kind: Any, parameters: list[Any], gradients: list[Any], **options: Any) -> list[Any]:
        own = [parameter.clone().requires_grad_() for parameter in parameters]
        optimizer = kind(own, **options)
        for step in range(STEPS):
            for parameter, gradient in zip(own, gradients, strict=True):
                parameter.grad = gradient * (step + 1)
            optimizer.step(*_closure(optimizer, own))
        return [parameter.detach() for parameter in own]

    def sample_inputs(
        self, device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[Input]:
        parameters, gradients = (
            [torch.randn(shape, device=device).to(dtype) for shape in SHAPES] for _ in range(2)
        )
        for given in self.info.optim_inputs_func(device=device):
            for ways in (
                ({}, {"foreach": True}) if "foreach" in self.info.supported_impls else ({},)
            ):
                options = {**given.kwargs, **ways}
                yield Input(self.info.optim_cls, (parameters, gradients), options)


def _closure(optimizer: Any, parameters: list[Any]) -> list[Any]:
    """Return the closure that LBFGS needs: a loss whose gradients are the parameters' own."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return []
    gradients = [parameter.grad.clone() for parameter in parameters]

    def loss() -> torch.Tensor:
        pairs = zip(parameters, gradients, strict=True)
        value = sum(((own - behind) ** 2).sum() for own, behind in pairs)
        optimizer.zero_grad()
        value.backward()
        return value

    return [loss]


MODULES = [Module(info) for info in module_db if not info.is_lazy]
"""Modules of the database without lazy ones, whose class changes at the first call."""
OPTIMIZERS = [Optimizer(info) for info in optim_db if not info.only_supports_sparse_grads]
