"""`propagate_named_dims`: names of tensor dims, carried from graph inputs over the operations.

Runs before `assign_dim_hints`. Names are a property of places in an operation's iteration space:
``operation.named_dims`` has one entry per range, then one per reduction range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spyre.torch_backend.inductor.compat import compiled_input_index
from spyre.torch_backend.inductor.tiling.accesses import (
    OperationAccesses,
    accesses_of,
    dims_by_variable,
    extents_of,
    is_loop_operation,
    layout_of,
)
from spyre.torch_backend.inductor.tiling.dim_names import DimNames

_Names = dict[str, list[str | None]]


def names_of_graph_inputs(
    graph_module: Any, names: Sequence[DimNames | None]
) -> dict[str, DimNames]:
    """Names by graph input, for the graph that ``inner_compile`` is given.

    ``names``: from `names_of_inputs`. Backward graphs get the names of the inputs they were saved
    from; tangents and saved intermediates have none of their own.
    """
    found = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        place = compiled_input_index(node)
        given = None if place is None or place >= len(names) else names[place]
        if given is not None:
            found[str(node.target)] = given
    return found


def propagate_named_dims(operations: Sequence[Any], input_names: Mapping[str, DimNames]) -> None:
    """Set ``named_dims`` of every Pointwise and Reduction, a tuple of names and Nones.

    A place of the iteration space has the name of a dim it walks from end to end in steps of the
    dim's stride: of the first read that has one, else of a consumer of the result. Transposed,
    broadcast and reduced dims keep names; dims that are cut, merged or split lose them.
    """
    if not input_names:
        for op in filter(is_loop_operation, operations):
            op.named_dims = (None,) * len(extents_of(op))
        return
    names: _Names = {buffer: list(given) for buffer, given in input_names.items()}
    loops = [(op, accesses_of(op)) for op in operations if is_loop_operation(op)]
    places = {id(op): [None] * len(found.variables) for op, found in loops}
    for sweep in (loops, loops[::-1], loops):
        for op, found in sweep:
            _carry(op, found, places[id(op)], names)
    for op, _ in loops:
        op.named_dims = tuple(places[id(op)])


def _carry(operation: Any, accesses: OperationAccesses, places: list[Any], names: _Names) -> None:
    """Names from what is read and from what others know of the result, and back to both."""
    outputs = len(operation.data.ranges)
    known = names.setdefault(operation.get_name(), [None] * outputs)
    links: list[tuple[int, list[str | None], int]] = []
    for read in accesses.reads:
        layout = layout_of(read.buffer)
        if layout is None:
            continue
        buffer = names.setdefault(read.buffer, [None] * len(layout.size))
        links.extend((p, buffer, d) for p, d in dims_by_variable(read, accesses, layout).items())
    links.extend((p, known, p) for p in range(min(outputs, len(known))))
    for place, buffer, dim in links:
        places[place] = places[place] or buffer[dim]
    for place, buffer, dim in links:
        buffer[dim] = buffer[dim] or places[place]
