"""Moving parameters to a card and back without creating new ones.

torch 2.13 cannot put memory of a device in Python behind an existing CPU tensor, so ``Module.to``
would replace the parameters, and weights would no longer be tied. Here the tensor's content is
swapped instead, which keeps the object. If an autograd graph holds the tensor and prevents this,
the parameter is replaced, with a warning; tied weights stay tied.
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
from spyre.torch_backend.tensors.layouts import as_factor, new_factors

Function = Callable[[torch.Tensor], torch.Tensor]
Replaced = dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]]
"""By id of a replaced parameter: the parameter and its replacement."""

_local = threading.local()
"""``replaced``: those of the outermost `apply` of a thread."""


def apply(
    original: Callable[..., Any], module: torch.nn.Module, fn: Function, recurse: bool = True
) -> torch.nn.Module:
    """``Module._apply``; ``original`` handles modules that are not moved to or from a card."""
    with _replacements() as replaced:
        if recurse:
            for child in module.children():
                child._apply(fn)
        once, is_moved = _once(fn, module)
        if not is_moved:
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
    """Provide the replacements of the outermost `apply` on this thread."""
    outer: Replaced | None = getattr(_local, "replaced", None)
    replaced: Replaced = {} if outer is None else outer
    _local.replaced = replaced
    try:
        yield replaced
    finally:
        _local.replaced = outer


def _once(fn: Function, module: torch.nn.Module) -> tuple[Function, bool]:
    """Call ``fn`` on a module's first parameter. Returns a function that calls it once per tensor,
    and whether that parameter moves to or from a card, or is on one already.
    """
    parameters = module._parameters.items()
    name, first = next(((n, p) for n, p in parameters if p is not None), ("", None))
    if first is None or is_fake(first):
        return fn, False
    with torch.no_grad():
        result = _suited(module, name, fn, first)
    pending = [first]

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if pending and tensor is pending[0]:
            pending.clear()
            return result
        return fn(tensor)

    # one that is tied to a child's has been moved with it, and the others have not
    is_there = result is first and first.device.type == "spyre"
    is_moved = is_there or crosses(first, result)
    return once, is_moved and not torch.__future__.get_overwrite_module_params_on_conversion()


def _suited(module: torch.nn.Module, name: str, fn: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Apply ``fn`` to a parameter or its gradient; the module's products decide a weight's layout
    on a card.
    """
    if name != "weight" or not _multiplies(module):
        return fn(tensor)
    with new_factors():
        moved = fn(tensor)
    return as_factor(moved) if crosses(tensor, moved) and not moved.is_cpu else moved


def _multiplies(module: torch.nn.Module) -> bool:
    """Return True if a module uses its weight only as a factor of forward products.

    Training also uses the weight of a linear map in the backward pass, and its optimizer uses it
    with tensors in default layout; `as_factor` would cost a conversion there.
    """
    if isinstance(module, _ConvNd):
        return not module.transposed and module.groups == 1
    return isinstance(module, torch.nn.Linear) and not module.training


def crosses(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return True if one is on a card and the other on the CPU. torch moves all others, such as
    meta tensors.
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
        warn_user(
            f"parameter {name!r} is still used elsewhere (by an autograd graph, or a weak "
            "reference), so it was replaced by a new Parameter on its new device; "
            "optimizers made before keep the old one"
        )
        return new
    return parameter


def _swap(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Give ``tensor`` the content of ``new``; RuntimeError if others hold either of them.

    A graph may hold it as a leaf; running that graph backward then raises.
    """
    kind = type(tensor)
    torch.utils.swap_tensors(tensor, new)
    if kind is not type(tensor):
        tensor.__class__ = kind


def set_data(original: Callable[..., None], tensor: torch.Tensor, new: torch.Tensor) -> None:
    """``tensor.data = new``, also between a card and the CPU; a gradient is moved as well.

    RuntimeError if an autograd graph holds ``tensor``.
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
            "autograd graph or a weak reference holds it; delete values computed from it first"
        ) from error
