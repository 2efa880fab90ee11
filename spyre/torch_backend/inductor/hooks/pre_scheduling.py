"""What is done to ir.Operations before the scheduler sees them: dead code, layouts, restickifies,
then names of dims and coarse tiling.

Names of dims belong to the tensors a compiled function is called with; whoever compiles a graph
says which inputs they are (`named_inputs`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from spyre.torch_backend.inductor.auto_tile import automatic_groups
from spyre.torch_backend.inductor.base import (
    ObservedOperations,
    PassPrinter,
    format_operations,
    is_observed,
    note,
    settings,
)
from spyre.torch_backend.inductor.passes import propagate_layouts, remove_dead_code, restickify
from spyre.torch_backend.inductor.tiling import (
    assign_dim_hints,
    coarse_tile,
    hints_to_coarse_tile_groups,
    propagate_named_dims,
)

LAYOUT_PASSES: tuple[Callable[[Any], None], ...] = (remove_dead_code, propagate_layouts, restickify)
"""Change the graph in place; `restickify` chooses lanes and final layouts and inserts copies."""
GRAPH_PASSES = (
    *(change.__name__ for change in LAYOUT_PASSES),
    "propagate_named_dims",
    "assign_dim_hints",
    "coarse_tile",
)
"""On the ir.Operations of a graph, before it is scheduled (the coarse-tiling document)."""
PASSES_DONE = "spyre_passes_done"
PRINTER = "spyre_printer"
Names = Mapping[str, tuple[str | None, ...]]


_input_names: ContextVar[Names] = ContextVar("input_names", default=MappingProxyType({}))


@contextmanager
def named_inputs(names: Names) -> Iterator[None]:
    """A block in which graphs that this thread lowers have these names of dims, by graph input."""
    token = _input_names.set(names)
    try:
        yield
    finally:
        _input_names.reset(token)


def printer_of(graph: Any) -> PassPrinter | None:
    """Who shows the passes of a graph; None before it has had any."""
    return getattr(graph, PRINTER, None)


def pre_scheduling(graph: Any) -> None:
    """Change the operations of ``graph``, a GraphLowering, in place; once, however often it gets a
    scheduler: tiles would be tiled again.
    """
    if getattr(graph, PASSES_DONE, False):
        return
    setattr(graph, PASSES_DONE, True)
    operations = graph.operations
    names, printer = _input_names.get(), PassPrinter(lambda: format_operations(operations))
    setattr(graph, PRINTER, printer)
    for change in LAYOUT_PASSES:
        printer.run(change.__name__, functools.partial(change, graph))
    printer.run("propagate_named_dims", lambda: propagate_named_dims(operations, names))
    printer.run("assign_dim_hints", lambda: assign_dim_hints(operations))
    printer.run("coarse_tile", lambda: coarse_tile(operations, _groups(graph)))
    note(ObservedOperations(format_operations(operations)) if is_observed() else None)


def _groups(graph: Any) -> list[Any]:
    """What to tile: as ``coarse_tiling_groups_fn`` says where there is one; else as hints do, and
    with ``auto_tile`` what pays of all other operations.
    """
    chosen = settings()
    if not chosen.coarse_tiling:
        return []
    if chosen.coarse_tiling_groups_fn is not None:
        return list(chosen.coarse_tiling_groups_fn(graph.operations))
    groups = hints_to_coarse_tile_groups(graph.operations)
    if chosen.auto_tile:
        first = 1 + max((group.path[0] for group in groups), default=-1)
        groups += automatic_groups(graph, first)
    return groups
