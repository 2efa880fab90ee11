"""What is done to ir.Operations before the scheduler sees them: coarse tiling, by hints.

Names of dims belong to the tensors a compiled function is called with; whoever compiles a graph
says which inputs they are (`named_inputs`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.dim_hints import (
    assign_dim_hints,
    hints_to_coarse_tile_groups,
)
from spyre.torch_backend.inductor.tiling.named_dims import propagate_named_dims

Names = Mapping[str, tuple[str | None, ...]]


class _Current(threading.local):
    def __init__(self) -> None:
        self.names: Names = {}


_current = _Current()


@contextmanager
def named_inputs(names: Names) -> Iterator[None]:
    """Graphs that this thread lowers have these names of dims, by graph input."""
    before, _current.names = _current.names, names
    try:
        yield
    finally:
        _current.names = before


def pre_scheduling(graph: Any) -> None:
    """Change the operations of ``graph``, a GraphLowering, in place."""
    operations = graph.operations
    propagate_named_dims(operations, _current.names)
    assign_dim_hints(operations)
    coarse_tile(operations, hints_to_coarse_tile_groups(operations))
