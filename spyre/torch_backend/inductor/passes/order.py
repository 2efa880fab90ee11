"""The passes on ir.Operations that come before names of dims and tiling.

They run when a graph gets its scheduler: ``remove_dead_code``, ``propagate_layouts`` and
``restickify`` (choosing lanes, final layouts and inserting copies in one). The whole order is in
`passes.names`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spyre import config
from spyre.torch_backend.inductor.base.debug import PassPrinter
from spyre.torch_backend.inductor.passes.restickify import restickify
from spyre.torch_backend.inductor.passes.runs import propagate_layouts, remove_dead_code

Pass = Callable[[Any], None]

PRE_SCHEDULING_PASSES: tuple[Pass, ...] = (remove_dead_code, propagate_layouts, restickify)
"""Every one changes the graph in place."""


def run(graph: Any, printer: PassPrinter) -> None:
    """All passes on ``graph``. Belongs to the thread that compiles it."""
    for change in PRE_SCHEDULING_PASSES:
        _run(graph, change, printer)


def _run(graph: Any, change: Pass, printer: PassPrinter) -> None:
    printer.run(change.__name__, lambda: change(graph))


def settings() -> str:
    """What else than sources the passes depend on, for cache keys."""
    return f"stick optimizer {config.GLOBAL_STICK_OPTIMIZER.read()}"


GRAPH_PASSES = (
    "remove_dead_code",
    "propagate_layouts",
    "restickify",
    "propagate_named_dims",
    "assign_dim_hints",
    "coarse_tile",
)
