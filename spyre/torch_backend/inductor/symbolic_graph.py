"""A graph whose sizes each call brings: compiled once, run at any of them.

AOTAutograd traces it with sizes as symbols and leaves operations whole. What runs is found at the
first call with a set of sizes: the one bundle that takes any number of rows, where there is one
(:mod:`.rows_graph`), else the graph compiled for these sizes. Dynamo has no part in it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre.torch_backend.inductor.compat import OutputCode
from spyre.torch_backend.inductor.rows_graph import RowsGraph
from spyre.torch_backend.inductor.symbolic_parts import (
    Compile,
    Values,
    apart,
    module_at,
    values_of,
)

_log = logging.getLogger("spyre.compile")

MOST_SIZES = 64
"""Compiled graphs that are kept; the one used longest ago goes first."""


class SymbolicGraph(OutputCode):  # type: ignore[misc]
    """What Inductor is given for a graph with symbols. Any thread may call it.

    ``compile_at``: compiles a graph of known sizes for example inputs.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, compile_at: Compile) -> None:
        super().__init__()
        self._boxed_call = True
        self._module = graph_module
        self._compile_at = compile_at
        self._rows = RowsGraph(graph_module, compile_at)
        self._compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run it; ``inputs``: numbers and tensors as the graph's placeholders."""
        given = list(inputs)
        if isinstance(inputs, list):
            inputs.clear()
        with self._lock:
            found = self._rows(given)
        return self._at(given)(given) if found is None else found

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
    compiled = apart(lambda: compile_at(known, tensors))

    def run(values: Sequence[Any]) -> list[Any]:
        found = iter(compiled(*(v for v in values if isinstance(v, torch.Tensor))))
        return [next(found) if number is None else number for number in numbers]

    return run
