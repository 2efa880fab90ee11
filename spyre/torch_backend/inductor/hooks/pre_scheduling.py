"""Passes on ir.Operations before scheduling: dead code, layouts, restickifies, dim names, tiling.

Names of dims and layouts belong to the tensors that a compiled function is called with;
`compiled_with` passes them to the compilation of a graph, by graph input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from spyre.torch_backend.compat import is_fake
from spyre.torch_backend.inductor.auto_tile import automatic_groups
from spyre.torch_backend.inductor.base import notes
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout
from spyre.torch_backend.inductor.base.notes import PassPrinter
from spyre.torch_backend.inductor.base.settings import settings
from spyre.torch_backend.inductor.hints import DimNames, names_of_inputs
from spyre.torch_backend.inductor.passes.restickify import restickify
from spyre.torch_backend.inductor.passes.runs import propagate_layouts, remove_dead_code
from spyre.torch_backend.inductor.tiling.accesses import propagate_named_dims
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.groups import assign_dim_hints, hints_to_coarse_tile_groups
from spyre.torch_backend.tensors import factor_layout, is_factor

LAYOUT_PASSES: tuple[Callable[[Any], None], ...] = (remove_dead_code, propagate_layouts, restickify)
"""Change the graph in place; `restickify` chooses lanes and final layouts and inserts copies."""
PASSES_DONE = "spyre_passes_done"
PRINTER = "spyre_printer"
"""Attributes of a graph: whether its passes have run, and their printer."""


class KnownInput(NamedTuple):
    """Properties of an input that its graph lacks: names of its dims, whether it has the layout of
    module weights (`is_factor`), and its parameter name in the function, or "".
    """

    names: DimNames | None
    is_factor: bool
    name: str


def known_inputs(
    example_inputs: Sequence[Any], names: Sequence[str] = ()
) -> tuple[KnownInput | None, ...]:
    """Per argument of ``compile_fx``, None if it has no such properties.

    ``names``: parameter names in the function, if they are known.
    """
    called = names or ("",) * len(example_inputs)
    factors = map(_is_factor, example_inputs)
    known = zip(names_of_inputs(example_inputs), factors, called, strict=True)
    return tuple(KnownInput(*row) if any(row) else None for row in known)


def _is_factor(given: Any) -> bool:
    # a subclass may have no memory: a DTensor uses that of its shard
    is_plain = type(given) in (torch.Tensor, torch.nn.Parameter) and not is_fake(given)
    return is_plain and given.device.type == "spyre" and is_factor(given)


Inputs = Mapping[str, KnownInput]
_inputs: ContextVar[Inputs] = ContextVar("inputs", default=MappingProxyType({}))


@contextmanager
def compiled_with(inputs: Inputs) -> Iterator[None]:
    """Set the properties of inputs, by graph input, for graphs that this thread lowers."""
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


def name_of_input(graph_input: str) -> str:
    """The parameter name of a graph input in the compiled function, or ""."""
    known = _inputs.get().get(graph_input)
    return "" if known is None else known.name


def pre_scheduling(graph: Any) -> None:
    """Run the passes on ``graph``, a GraphLowering, in place; only once, even if Inductor makes
    another scheduler for it, since tiles would be tiled again.
    """
    if getattr(graph, PASSES_DONE, False):
        return
    setattr(graph, PASSES_DONE, True)
    inputs, printer = _inputs.get(), PassPrinter(lambda g: notes.format_operations(g.operations))
    names = {name: known.names for name, known in inputs.items() if known.names is not None}
    _lay_out_inputs(graph, {name for name, known in inputs.items() if known.is_factor})
    setattr(graph, PRINTER, printer)
    for change in LAYOUT_PASSES:
        printer.run(change.__name__, change, graph)
    printer.run("propagate_named_dims", lambda g: propagate_named_dims(g.operations, names), graph)
    printer.run("assign_dim_hints", lambda g: assign_dim_hints(g.operations), graph)
    printer.run("coarse_tile", lambda g: coarse_tile(g.operations, _groups(g)), graph)
    if notes.is_observed():
        notes.note((notes.OPERATIONS, notes.format_operations(graph.operations)))


def _lay_out_inputs(graph: Any, factors: Collection[str]) -> None:
    """Give the inputs ``factors`` their layout, except those that the graph writes: like results,
    these have the default layout.
    """
    for name in sorted(set(factors) - set(graph.mutated_inputs)):
        buffer = graph.graph_inputs[name].data.data
        sizes, strides = (tuple(map(int, row)) for row in (buffer.get_size(), buffer.get_stride()))
        layout = factor_layout(sizes, strides, buffer.get_dtype())
        assert layout is not None, f"{name} is no factor"
        buffer.layout = FixedTiledLayout(
            buffer.get_device(), buffer.get_dtype(), sizes, strides, layout
        )


def _groups(graph: Any) -> list[Any]:
    """The groups to tile, from ``coarse_tiling_groups_fn`` if it is set; otherwise from hints, and
    with ``auto_tile`` also groups of other operations that a loop makes faster.
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
