"""Operations whose results nobody reads are left out."""

from __future__ import annotations

from typing import Any

from spyre.torch_backend.inductor.compat import ir
from spyre.torch_backend.inductor.passes.runs import is_computed


def remove_dead_code(graph: Any) -> None:
    """Take out computed buffers on spyre that neither an output nor another operation reads.

    What writes into a buffer that is there already stays.
    """
    live = set(graph.get_output_names())
    kept = []
    for operation in reversed(graph.operations):
        dead = is_computed(operation) and operation.get_name() not in live
        if dead and not isinstance(operation.layout, ir.MutationLayoutSHOULDREMOVE):
            graph.removed_buffers.add(operation.get_name())
            continue
        kept.append(operation)
        live |= {dep.name for dep in operation.get_read_writes().reads}
    graph.operations[:] = reversed(kept)
