"""A graph whose sizes each call brings: compiled once, run at any of them.

AOTAutograd traces it with sizes as symbols and leaves operations whole. What runs is found at the
first call with a set of sizes: the one bundle that takes any size, where there is one
(:mod:`.rows`), else the graph compiled for these sizes. Dynamo and its guards have no part in it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sympy
import torch

from spyre.torch_backend.inductor.compat import OutputCode
from spyre.torch_backend.inductor.observing import is_observed, note, observing

_log = logging.getLogger("spyre.compile")

MOST_SIZES = 64
"""Compiled graphs that are kept; the one used longest ago goes first."""
STALE = ("val", "tensor_meta", "eager_input_vals")
"""What nodes know of the sizes they were traced with."""
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
T = TypeVar("T")
Values = Mapping[sympy.Symbol, int]


class SymbolicGraph(OutputCode):  # type: ignore[misc]
    """What Inductor is given for a graph with symbols. Any thread may call it.

    ``compile_at``: compiles a graph of known sizes for example inputs. ``any_rows``: makes what
    runs at any size, or None, and says why not in the log.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        compile_at: Compile,
        any_rows: Callable[[torch.fx.GraphModule], Callable[..., Any] | None],
    ) -> None:
        super().__init__()
        self._boxed_call = True
        self._module = graph_module
        self._compile_at = compile_at
        self._any_rows = any_rows
        self._sized: Callable[..., Any] | None = None
        self._asked = False
        self._compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run it; ``inputs``: numbers and tensors as the graph's placeholders."""
        given = list(inputs)
        if isinstance(inputs, list):
            inputs.clear()
        with self._lock:
            if not self._asked:
                self._asked = True
                self._sized = self._any_rows(self._module)
        if self._sized is not None:
            found = self._sized(given)
            if found is not None:
                return found
        return self._at(given)(given)

    def post_compile(self, *_: Any) -> None:
        """There is nothing left to do."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""

    def _at(self, given: Sequence[Any]) -> Callable[..., Any]:
        key = tuple(
            (tuple(v.shape), v.stride(), v.device) if isinstance(v, torch.Tensor) else v
            for v in given
        )
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                sizes = values_of(self._module, given)
                _log.info("compiled for sizes %s", _text(sizes))
                found = self._compiled[key] = compiled_at(
                    self._module, sizes, given, self._compile_at
                )
                while len(self._compiled) > MOST_SIZES:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
        return found


def apart(compile_it: Callable[[], T]) -> T:
    """Have another thread compile something: that of a running graph has modes of its own in force.

    Whoever observes the calling thread sees what is compiled.
    """
    with ThreadPoolExecutor(1) as pool:
        if not is_observed():
            return pool.submit(compile_it).result()
        found, seen = pool.submit(_observed, compile_it).result()
    for what in seen:
        note(what)
    return found


def _observed(compile_it: Callable[[], T]) -> tuple[T, list[Any]]:
    with observing() as seen:
        return compile_it(), seen


def _text(sizes: Values) -> str:
    return ", ".join(f"{symbol}={number}" for symbol, number in sizes.items())


def compiled_at(
    module: torch.fx.GraphModule, sizes: Values, given: Sequence[Any], compile_at: Compile
) -> Callable[..., Any]:
    """``module`` for known sizes; takes what the module takes, and gives its outputs.

    ``given``: tensors of these sizes, to compile with; numbers among them are left out.
    """
    known, numbers = module_at(module, sizes)
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    compiled = compile_at(known, tensors)

    def run(values: Sequence[Any]) -> list[Any]:
        found = iter(compiled(*(v for v in values if isinstance(v, torch.Tensor))))
        return [next(found) if number is None else number for number in numbers]

    return run


def is_symbolic(module: torch.fx.GraphModule) -> bool:
    """Whether anything in a graph depends on a size that is a symbol."""
    return any(_symbols_of(n.meta.get("val")) for n in module.graph.find_nodes(op="placeholder"))


def _symbols_of(value: Any) -> set[sympy.Symbol]:
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *value.stride(), value.storage_offset()]
        return set().union(*map(_symbols_of, sizes))
    return set(value.node.expr.free_symbols) if isinstance(value, torch.SymInt) else set()


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
) -> tuple[torch.fx.GraphModule, list[int | None]]:
    """A graph with numbers for all symbols, and per output of the old one its number, if it is one.

    Inputs are the tensors among the old ones, outputs those that are no numbers.
    """
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    numbers: list[int | None] = []
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
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
