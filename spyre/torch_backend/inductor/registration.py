"""Puts the backend into Inductor, on the first use of Inductor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre.torch_backend.inductor.cache_key import mark_graph
from spyre.torch_backend.inductor.compat import (
    asks_for_symbols,
    compile_fx_module,
    dynamo_config,
    inductor_config,
    register_backend_for_device,
    register_device_op_overrides,
    register_interface_for_device,
    select_decomp_table,
)
from spyre.torch_backend.inductor.context import spyre_context
from spyre.torch_backend.inductor.decompositions import decompositions, eager_operators
from spyre.torch_backend.inductor.device_interface import SpyreInterface, SpyreOpOverrides
from spyre.torch_backend.inductor.lowerings import install_lowerings
from spyre.torch_backend.inductor.pre_scheduling import named_inputs
from spyre.torch_backend.inductor.scheduling import SpyreScheduling
from spyre.torch_backend.inductor.settings import chosen_settings, settings
from spyre.torch_backend.inductor.symbolic_graph import SymbolicGraph
from spyre.torch_backend.inductor.tiling.dim_names import names_of_inputs
from spyre.torch_backend.inductor.tiling.named_dims import names_of_graph_inputs
from spyre.torch_backend.inductor.wrapper import SpyreWrapper

_installed = False


def install() -> None:
    """Register everything, once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    register_interface_for_device("spyre", SpyreInterface)
    register_device_op_overrides("spyre", SpyreOpOverrides())
    register_backend_for_device("spyre", SpyreScheduling, SpyreWrapper)
    install_lowerings()
    entry = compile_fx_module()
    entry.compile_fx = _compiling(entry)


def _compiling(entry: Any) -> Callable[..., Any]:
    """``compile_fx`` for spyre too; it calls itself anew with its ``config_patches`` in force."""
    original: Callable[..., Any] = entry.compile_fx

    @functools.wraps(original)
    def compile_fx(model: Any, example_inputs: Any, *args: Any, **named: Any) -> Any:
        if named.get("config_patches") or not uses_spyre(model, example_inputs):
            return original(model, example_inputs, *args, **named)
        inner = named.pop("inner_compile", entry.compile_fx_inner)
        asked = settings().symbolic_sizes
        symbolic = asks_for_symbols(example_inputs) if asked is None else asked
        symbolic = symbolic and any(isinstance(v, torch.SymInt) for v in example_inputs)
        table = whole_operations() if symbolic else spyre_decompositions()
        table = named.pop("decompositions", None) or table
        names = names_of_inputs(example_inputs)
        mark_graph(model, dict(enumerate(names)), symbolic)
        in_context = _symbolic if symbolic else _in_context
        with spyre_context():
            return original(
                model,
                example_inputs,
                *args,
                inner_compile=in_context(inner, names),
                decompositions=table,
                **named,
            )

    return compile_fx


def _in_context(inner: Callable[..., Any], names: Any) -> Callable[..., Any]:
    """Backward graphs are compiled when they are first needed, outside of `compile_fx`, maybe by
    another thread; with the same settings.

    ``names``: of the dims of the function's arguments.
    """
    chosen = chosen_settings()

    @functools.wraps(inner)
    def compiled(model: Any, *args: Any, **named: Any) -> Any:
        found = names_of_graph_inputs(model, names)
        mark_graph(model, found)
        with inductor_config.patch(chosen), spyre_context(), named_inputs(found):
            return inner(model, *args, **named)

    return compiled


def _symbolic(inner: Callable[..., Any], names: Any) -> Callable[..., Any]:
    """As `_in_context` of a graph with symbols, which is compiled when its sizes are known."""
    chosen = chosen_settings() | {"spyre.symbolic_sizes": False}
    plain = _in_context(inner, names)

    def compile_at(module: torch.fx.GraphModule, tensors: Sequence[Any]) -> Any:
        static = dynamo_config.patch(assume_static_by_default=True)
        with inductor_config.patch(chosen), static, torch.no_grad():
            return compile_fx_module().compile_fx(module, tensors)

    @functools.wraps(inner)
    def compiled(model: Any, example_inputs: Any, *args: Any, **named: Any) -> Any:
        if not uses_spyre(model, example_inputs):
            return plain(model, example_inputs, *args, **named)
        return SymbolicGraph(model, compile_at)

    return compiled


class _Decompositions(dict[Any, Callable[..., Any]]):
    """A table that caches know by the name of the function ``source`` it comes from."""

    def __init__(self, table: Any, source: Callable[[], Any]) -> None:
        super().__init__(table)
        self.source = source

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return self.source, ()


@functools.cache
def spyre_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's, but for operations eager mode has kernels for, which become ``spyre::run``.

    Random operations are left whole: they draw what eager mode draws.
    """
    return _Decompositions(whole_operations() | decompositions(), spyre_decompositions)


@functools.cache
def whole_operations() -> dict[Any, Callable[..., Any]]:
    """Inductor's, without those of operations eager mode has kernels for."""
    known = eager_operators() | set(decompositions())
    with inductor_config.patch(fallback_random=True):
        table = {op: fn for op, fn in select_decomp_table().items() if op not in known}
    return _Decompositions(table, whole_operations)


def uses_spyre(model: Any, example_inputs: Any) -> bool:
    """Whether a graph has tensors on spyre."""
    values = [*example_inputs]
    if isinstance(model, torch.fx.GraphModule):
        values += [n.meta.get("val", n.meta.get("example_value")) for n in model.graph.nodes]
    return any(isinstance(v, torch.Tensor) and v.device.type == "spyre" for v in values)
