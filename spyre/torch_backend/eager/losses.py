"""Negative log likelihood and dropout, forward and backward.

They are made of other operations. Losses are added up in float32.
"""

from __future__ import annotations

from typing import Any

import torch

from spyre.torch_backend.device import cpu_generator
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    INTEGERS,
    Conditions,
    EagerKernel,
    copy_into,
)
from spyre.torch_backend.program import LoweringError, current_recorder

NONE, MEAN, SUM = 0, 1, 2
"""Reductions as torch numbers them."""


def nll_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    *,
    output: torch.Tensor,
    total_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::nll_loss_forward.output and nll_loss2d_forward.output: classes are dim 1, or the only
    one.
    """
    dim = min(x.dim() - 1, 1)
    keeps, classes, factors = _classes(target, weight, ignore_index)
    picked = x.gather(dim, classes.unsqueeze(dim)).squeeze(dim).float()
    losses = torch.where(keeps, -picked * factors, 0.0)
    total = factors.sum() if reduction != NONE else torch.zeros_like(factors.sum())
    if reduction != NONE:
        losses = losses.sum()
    if reduction == MEAN:
        losses = losses / total
    return copy_into(output, losses.to(x.dtype)), copy_into(total_weight, total.to(x.dtype))


def _classes(
    target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether a target counts, its class (0 where it does not) and its weight (0 there)."""
    keeps = target != ignore_index
    classes = torch.where(keeps, target, 0)
    if weight is None:
        return keeps, classes, keeps.float()
    chosen = weight.float().index_select(0, classes.reshape(-1)).reshape(target.shape)
    return keeps, classes, torch.where(keeps, chosen, 0.0)


def nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
    *,
    grad_input: torch.Tensor,
) -> torch.Tensor:
    """aten::nll_loss_backward.grad_input and nll_loss2d_backward.grad_input."""
    dim = min(x.dim() - 1, 1)
    _, classes, factors = _classes(target, weight, ignore_index)
    share = grad.float() / total_weight.float() if reduction == MEAN else grad.float()
    values = (-factors * share).to(x.dtype).unsqueeze(dim)
    found = torch.zeros_like(x).scatter(dim, classes.unsqueeze(dim), values)
    return copy_into(grad_input, found)


def nll_loss2d(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, *args: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::nll_loss2d_forward, which makes its results itself."""
    output = x.new_empty(target.shape if reduction == NONE else ())
    given = (x, target, weight, reduction, *args)
    return nll_loss(*given, output=output, total_weight=x.new_empty(()))


def nll_loss2d_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
    """aten::nll_loss2d_backward."""
    return nll_loss_backward(grad, x, *args, grad_input=torch.empty_like(x))


def native_dropout(
    x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::native_dropout: which elements stay is drawn on the host, as all random numbers are."""
    if current_recorder() is not None:
        raise LoweringError("random numbers")
    mask = torch.ones(x.shape, dtype=torch.bool, device="cpu")
    if train is None or train:
        mask.bernoulli_(1 - p, generator=cpu_generator(x.device.index))
    else:
        p = 0.0
    kept = mask.to(x.device)
    return native_dropout_backward(x, kept, 1 / (1 - p) if p < 1 else 0.0), kept


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """aten::native_dropout_backward: what stayed, scaled."""
    return torch.where(mask, grad * scale, 0.0)


_LOSS = Conditions(
    dtypes={"inputs": (*FLOATS, *INTEGERS)}, same_device=("inputs",), nonempty=("inputs",)
)

KERNELS = (
    EagerKernel("nll_loss_forward.output", nll_loss, _LOSS),
    EagerKernel("nll_loss2d_forward.output", nll_loss, _LOSS),
    EagerKernel("nll_loss2d_forward", nll_loss2d, _LOSS),
    EagerKernel("nll_loss2d_backward", nll_loss2d_backward, _LOSS),
    EagerKernel("nll_loss_backward.grad_input", nll_loss_backward, _LOSS),
    EagerKernel("nll_loss2d_backward.grad_input", nll_loss_backward, _LOSS),
    EagerKernel(
        "native_dropout",
        native_dropout,
        Conditions(dtypes={"input": FLOATS}, nonempty=("input",)),
    ),
    EagerKernel(
        "native_dropout_backward",
        native_dropout_backward,
        Conditions(dtypes={"grad_output": FLOATS}, nonempty=("grad_output",)),
    ),
)
