"""Moving parameters to a card and back without making new ones.

torch 2.13 cannot put memory of a device in Python behind an existing CPU tensor, so ``Module.to``
would replace the parameters, and tied weights would come apart. Here the tensor's content is
swapped instead, which keeps the object. Where that is impossible, because an autograd graph still
holds it, the parameter is replaced after all, with a warning, and tied weights stay tied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from spyre.torch_backend.compat import is_fake
from spyre.torch_backend.device import warn_user
from spyre.torch_backend.tensors.layouts import as_factor

Function = Callable[[torch.Tensor], torch.Tensor]
Replaced = dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]]
"""By id of the parameter before: it and the one that took its place."""


class _Local(threading.local):
    replaced: Replaced | None = None


_local = _Local()


def apply(
    original: Callable[..., Any], module: torch.nn.Module, fn: Function, recurse: bool = True
) -> torch.nn.Module:
    """``Module._apply``; ``original`` does everything that does not cross to or from a card."""
    with _replacements() as replaced:
        if recurse:
            for child in module.children():
                child._apply(fn)
        once = _Once(fn, module)
        if not once.crosses:
            original(module, once, False)
            return module
        for name, parameter in module._parameters.items():
            if parameter is not None:
                suited = partial(_suited, module, name, once)
                module._parameters[name] = _moved(parameter, suited, replaced, name)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return module


@contextmanager
def _replacements() -> Iterator[Replaced]:
    """The parameters that the outermost call on this thread has replaced so far."""
    outer = _local.replaced
    replaced: Replaced = {} if outer is None else outer
    _local.replaced = replaced
    try:
        yield replaced
    finally:
        _local.replaced = outer


class _Once:
    """``fn``, called once per tensor though the first parameter is tried beforehand.

    ``crosses``: whether that parameter goes to a card or leaves one, or is there already.
    """

    def __init__(self, fn: Function, module: torch.nn.Module) -> None:
        self.fn = fn
        self.first: torch.Tensor | None = None
        self.crosses = False
        first = next((p for p in module._parameters.values() if p is not None), None)
        if first is None or is_fake(first):
            return
        self.first = first
        with torch.no_grad():
            self.result = fn(first)
        # one that is tied to a child's has been moved with it, and the others have not
        is_there = self.result is first and first.device.type == "spyre"
        self.crosses = (is_there or crosses(first, self.result)) and not (
            torch.__future__.get_overwrite_module_params_on_conversion()
        )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor is self.first:
            self.first = None
            return self.result
        return self.fn(tensor)


def _suited(module: torch.nn.Module, name: str, fn: Function, tensor: torch.Tensor) -> torch.Tensor:
    """``fn`` of a parameter or its gradient; on a card in the layout its module computes with."""
    moved = fn(tensor)
    if name == "weight" and _multiplies(module) and crosses(tensor, moved) and not moved.is_cpu:
        return as_factor(moved)
    return moved


def _multiplies(module: torch.nn.Module) -> bool:
    """Whether the matrix units multiply by the weight of a module as it is.

    Training uses that of a linear map in both directions, and its optimizer with tensors in the
    default layout: turning it for the forward pass would be turning it back for all the others.
    """
    if isinstance(module, _ConvNd):
        return not module.transposed and module.groups == 1
    return isinstance(module, torch.nn.Linear) and not module.training


def crosses(before: torch.Tensor, after: torch.Tensor) -> bool:
    """True if one of them is on a card and the other on the CPU; the rest is torch's own to move,
    such as tensors without content (meta).
    """
    return {before.device.type, after.device.type} == {"cpu", "spyre"}


def _moved(
    parameter: torch.nn.Parameter, fn: Function, replaced: Replaced, name: str
) -> torch.nn.Parameter:
    known = replaced.get(id(parameter))
    if known is not None:
        return known[1]
    with torch.no_grad():
        content = fn(parameter)
        if not crosses(parameter, content):
            if content is not parameter:
                parameter.data = content
                if parameter.grad is not None:
                    parameter.grad.data = fn(parameter.grad)
            return parameter
        gradient = None if parameter.grad is None else fn(parameter.grad)
    new = torch.nn.Parameter(content, parameter.requires_grad)
    new.grad = gradient
    new.__dict__.update(parameter.__dict__)
    old_gradient = parameter.grad
    parameter.grad = None
    try:
        _swap(parameter, new)
    except RuntimeError:
        parameter.grad = old_gradient
        replaced[id(parameter)] = (parameter, new)
        _warn(name)
        return new
    return parameter


def _swap(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Give ``tensor`` the content of ``new``; RuntimeError when others hold either.

    Holding it as a leaf of a graph is allowed; running that graph backward then raises.
    """
    kind = type(tensor)
    torch.utils.swap_tensors(tensor, new)
    if kind is not type(tensor):
        tensor.__class__ = kind


def _warn(name: str) -> None:
    warn_user(
        f"parameter {name!r} is still used elsewhere (by an autograd graph, or a weak reference), "
        "so it was replaced by a new Parameter on its new device; "
        "optimizers made before keep the old one"
    )


def set_data(original: Callable[..., None], tensor: torch.Tensor, new: torch.Tensor) -> None:
    """``tensor.data = new``, also from one kind of device to the other.

    A gradient goes along. RuntimeError when an autograd graph still holds ``tensor``.
    """
    if not isinstance(new, torch.Tensor) or not crosses(tensor, new):
        original(tensor, new)
        return
    content = new.detach()
    content = content.view_as(content).requires_grad_(tensor.requires_grad)
    gradient = tensor.grad
    if gradient is not None:
        content.grad = gradient.to(new.device)
        tensor.grad = None
    content.__dict__.update(tensor.__dict__)
    try:
        _swap(tensor, content)
    except RuntimeError as error:
        tensor.grad = gradient
        raise RuntimeError(
            f"cannot move a tensor from {tensor.device} to {new.device} by assigning its data: an "
            "autograd graph or a weak reference holds it; delete what was computed from it first"
        ) from error
