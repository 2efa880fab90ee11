"""``torch_sendnn``, IBM's closed package, by name: the backend "sendnn" of `torch.compile`.

FMS and vLLM-spyre 1.x keep tensors on the CPU and compile with this backend, which runs whole
graphs on the card. Here Inductor compiles a graph for device "spyre", and every call copies its
tensors to the card and its results back. Copies of parameters are kept until the parameters change.
After ``import torch``, ``import torch_sendnn`` finds this package unless the other is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils.weak import WeakIdKeyDictionary

from spyre.errors import UnsupportedError
from spyre.torch_backend import compat

from ._version import __version__

__all__ = ["__version__", "sendnn", "warmup_mode"]


class warmup_mode:
    """Context in which vLLM-spyre calls a model first; graphs are compiled inside and outside."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def sendnn(
    module: fx.GraphModule, examples: Sequence[Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of CPU tensors for the card.

    ``options``: "sendnn.dynamic" has no effect, since Dynamo decides which sizes are symbols.
    Raise UnsupportedError (SPY998) for other options and for graphs that need gradients.
    """
    if unknown := set(options or ()) - {"sendnn.dynamic"}:
        raise _refused(f"has no option {sorted(unknown)[0]!r}", "sendnn.dynamic")
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in examples):
        raise _refused("computes no gradients", "torch.no_grad(), or tensors without requires_grad")
    _move_graph(module)
    traced = [n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder")]
    compiled = compat.compile_graph(module, [_moved(x) for x in traced], examples)

    def run(*arguments: Any) -> list[Any]:
        # Tensors made in inference mode do not count the writes to them.
        with torch.inference_mode(False), torch.no_grad():
            copies = [_on_card(x) for x in arguments]
            versions = [_version(x) for x in copies]
            results = compiled(*copies)
        for argument, copy, before in zip(arguments, copies, versions, strict=True):
            if _version(copy) != before:
                _require_sole(argument, arguments)
                argument.copy_(copy)
        given = {id(copy): argument for copy, argument in zip(copies, arguments, strict=True)}
        return [given[id(x)] if id(x) in given else _on_host(x) for x in results]

    return run


def _require_sole(written: Tensor, arguments: Sequence[Any]) -> None:
    """Raise UnsupportedError (SPY998) if another argument shares memory with a written one."""
    storages = [x.untyped_storage().data_ptr() for x in arguments if isinstance(x, Tensor)]
    if storages.count(written.untyped_storage().data_ptr()) > 1:
        raise _refused("writes no argument that shares memory with another", "separate tensors")


def _move_graph(module: fx.GraphModule) -> None:
    """Put a graph's constants, and the tensors it makes, on the card."""
    for name, constant in [*module.named_parameters(), *module.named_buffers()]:
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, _moved(constant.detach()))
    for node in module.graph.nodes:
        node.args = map_aggregate(node.args, _device)
        node.kwargs = {name: map_aggregate(v, _device) for name, v in node.kwargs.items()}
    module.recompile()


def _device(value: Any) -> Any:
    """The card in place of the CPU."""
    is_cpu = value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu")
    return torch.device("spyre") if is_cpu else value


def _moved(value: Any) -> Any:
    return value.to("spyre") if isinstance(value, Tensor) else value


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _version(value: Any) -> int:
    """The number of writes to a tensor, as torch counts them."""
    return value._version if isinstance(value, Tensor) else 0


_copies = WeakIdKeyDictionary()
"""Version and address of a parameter, and its copy on the card."""


def _on_card(value: Any) -> Any:
    """``value`` on the card; a parameter is copied again only after it has changed."""
    if not isinstance(value, torch.nn.Parameter) or value.is_inference():
        return _moved(value)
    state = value._version, value.data_ptr()
    kept, copy = _copies.get(value, (None, None))
    if kept != state:
        copy = _moved(value.detach())
        _copies[value] = state, copy
    return copy


def _refused(what: str, expected: str) -> UnsupportedError:
    return UnsupportedError("SPY998", f"the backend sendnn {what}", expected=expected)


compat.register_backend(sendnn)
