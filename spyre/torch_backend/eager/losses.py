"""Negative log likelihood and dropout, forward and backward.

They are made of other operations. Losses are added up in float32.
"""

from __future__ import annotations

import torch

from spyre.torch_backend.device import cpu_generator
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    INTEGERS,
    Arguments,
    Conditions,
    EagerKernel,
    copy_into,
)
from spyre.torch_backend.program import LoweringError, current_recorder

NONE, MEAN, SUM = 0, 1, 2
"""Reductions as torch numbers them."""


def nll_loss(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses by class, which is dim 1 or the only dim; nll_loss2d_forward makes its results."""
    x, target, reduction = args.self, args.target, args.reduction
    dim = min(x.dim() - 1, 1)
    keeps, classes, factors = _classes(target, args.weight, args.ignore_index)
    picked = x.gather(dim, classes.unsqueeze(dim)).squeeze(dim).float()
    losses = torch.where(keeps, -picked * factors, 0.0)
    total = factors.sum() if reduction != NONE else torch.zeros_like(factors.sum())
    if reduction != NONE:
        losses = losses.sum()
    if reduction == MEAN:
        losses = losses / total
    output, total_weight = args.results or (
        x.new_empty(target.shape if reduction == NONE else ()),
        x.new_empty(()),
    )
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


def nll_loss_backward(args: Arguments) -> torch.Tensor:
    """Gradients of the input; nll_loss2d_backward makes its result."""
    x, grad = args.self, args.grad_output.float()
    dim = min(x.dim() - 1, 1)
    _, classes, factors = _classes(args.target, args.weight, args.ignore_index)
    share = grad / args.total_weight.float() if args.reduction == MEAN else grad
    values = (-factors * share).to(x.dtype).unsqueeze(dim)
    found = torch.zeros_like(x).scatter(dim, classes.unsqueeze(dim), values)
    (grad_input,) = args.results or [torch.empty_like(x)]
    return copy_into(grad_input, found)


def native_dropout(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::native_dropout; the mask is drawn on the host, as all random numbers are."""
    if current_recorder() is not None:
        raise LoweringError("random numbers")
    x, p = args.input, args.p
    mask = torch.ones(x.shape, dtype=torch.bool, device="cpu")
    if args.train is None or args.train:
        mask.bernoulli_(1 - p, generator=cpu_generator(x.device.index))
    else:
        p = 0.0
    mask = mask.to(x.device)
    return torch.where(mask, x * (1 / (1 - p) if p < 1 else 0.0), 0.0), mask


def native_dropout_backward(args: Arguments) -> torch.Tensor:
    return torch.where(args.mask, args.grad_output * args.scale, 0.0)


_LOSS = Conditions(
    dtypes={"inputs": (*FLOATS, *INTEGERS)}, same_device=("inputs",), nonempty=("inputs",)
)

KERNELS = (
    EagerKernel("nll_loss_forward.output", nll_loss, _LOSS),
    EagerKernel("nll_loss2d_forward.output", nll_loss, _LOSS),
    EagerKernel("nll_loss2d_forward", nll_loss, _LOSS),
    EagerKernel("nll_loss2d_backward", nll_loss_backward, _LOSS),
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
