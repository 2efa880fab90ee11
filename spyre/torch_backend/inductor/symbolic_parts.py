"""Graphs with symbols for sizes, and the same graphs at given sizes.

Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sympy
import torch

from spyre.torch_backend.inductor.observing import is_observed, note, observing

STALE = ("val", "tensor_meta", "eager_input_vals")
"""What nodes know of the sizes they were traced with."""
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
T = TypeVar("T")
Values = Mapping[sympy.Symbol, int]


def apart(compile_it: Callable[[], T], observed: bool = True) -> T:
    """Have another thread compile something: that of a running graph has modes of its own in force.

    Whoever observes the calling thread sees what is compiled, if it is to be ``observed``.
    """
    with ThreadPoolExecutor(1) as pool:
        if not observed or not is_observed():
            return pool.submit(compile_it).result()
        found, seen = pool.submit(_observed, compile_it).result()
    for what in seen:
        note(what)
    return found


def _observed(compile_it: Callable[[], T]) -> tuple[T, list[Any]]:
    with observing() as seen:
        return compile_it(), seen


def is_size(value: Any) -> bool:
    """Whether a value is a number that depends on symbols, or may."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """Symbols of a number, or of the sizes of a tensor."""
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *value.stride(), value.storage_offset()]
        return set().union(*map(symbols_of, sizes))
    return set(value.node.expr.free_symbols) if is_size(value) else set()


def values_of(module: torch.fx.GraphModule, given: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """What the symbols of a graph are for given inputs."""
    found: dict[sympy.Symbol, int] = {}
    places = module.graph.find_nodes(op="placeholder")
    for node, value in zip(places, given, strict=True):
        known = node.meta.get("val")
        pairs = [(known, value)]
        if isinstance(known, torch.Tensor):
            pairs = [*zip(known.shape, value.shape, strict=True)]
            pairs += zip(known.stride(), value.stride(), strict=True)
        for symbol, number in pairs:
            if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_Symbol:
                found.setdefault(symbol.node.expr, int(number))
    return found


def value_at(value: Any, sizes: Values) -> Any:
    """A number that was a symbol's expression, at given sizes."""
    expression = value.node.expr
    found = expression.subs(sizes) if hasattr(expression, "subs") else expression
    if isinstance(value, torch.SymBool):
        return bool(found)
    return float(found) if isinstance(value, torch.SymFloat) else int(found)


def module_at(
    module: torch.fx.GraphModule, sizes: Values
) -> tuple[torch.fx.GraphModule, list[float | None]]:
    """A graph with numbers for all symbols, and per output of the old one its number, if it is one.

    Inputs are the tensors among the old ones, outputs those that are no numbers.
    """
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    numbers: list[float | None] = []
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if is_size(value):
            made[node] = value_at(value, sizes)
        elif node.op == "output":
            outputs = torch.fx.map_arg(node.args[0], made.__getitem__)
            numbers = [v if isinstance(v, (int, float)) else None for v in outputs]
            graph.output(tuple(v for v in outputs if not isinstance(v, (int, float))))
        elif node.op == "placeholder" and not isinstance(value, torch.Tensor):
            made[node] = value
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            for name in STALE:
                made[node].meta.pop(name, None)
    return torch.fx.GraphModule(module, graph), numbers
