"""A graph's operations as text: what each reads, and the layout of what it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spyre.torch_backend.inductor.graph_to_ir import ATTRIBUTE
from spyre.torch_backend.inductor.layouts import lane_of


def printed(graph: Any) -> str:
    """A line per operation: ``buf1 = add(buf0, arg0_1): FixedTiledLayout(...), lane 1``."""
    return "\n".join(_lines(graph))


def _lines(graph: Any) -> Iterator[str]:
    for operation in graph.operations:
        known = getattr(operation, ATTRIBUTE, None)
        name = type(operation).__name__ if known is None else known.name
        reads = ", ".join(sorted(dep.name for dep in operation.get_read_writes().reads))
        layout = getattr(operation, "layout", None)
        lane = lane_of(layout)
        more = "" if lane is None else f", lane {lane}" if lane >= 0 else ", single elements"
        yield f"{operation.get_name()} = {name}({reads}): {layout}{more}"
