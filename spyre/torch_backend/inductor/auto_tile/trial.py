"""Compiling a stretch of operations for trial: the graph itself stays as it is.

Tiling changes operations, lists and tables of the graph in place. A trial works on shallow copies
of the operations, in a copy of the graph that has lists of its own; bodies are shared, for they
name buffers and are never changed themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.compat import V, ir
from spyre.torch_backend.inductor.finished_kernel import FinishedKernel
from spyre.torch_backend.inductor.kernel import SpyreKernel, target_of
from spyre.torch_backend.inductor.passes.runs import host_buffer
from spyre.torch_backend.inductor.tiling.accesses import names_read
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.full_buffers import FullBuffer
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel


@dataclass(frozen=True, slots=True)
class Tiles:
    """A stretch of operations, by name, and the loops around it, the outermost first.

    ``levels``: dims by class.
    """

    names: tuple[str, ...]
    levels: tuple[TileLevel, ...]

    def group(self, number: int, operations: Mapping[str, Any]) -> TileGroup:
        """The group for `coarse_tile`, the ``number``-th of its graph."""
        path = (number, *[0] * (len(self.levels) - 1))
        return TileGroup(path, self.levels, tuple(operations[name] for name in self.names))


def trial_kernel(
    graph: Any,
    operations: Sequence[Any],
    results: Collection[str],
    tiles: Sequence[Tiles],
    classes: Mapping[str, tuple[str, ...]],
) -> FinishedKernel:
    """What ``operations``, which follow each other, become as a bundle of their own with ``tiles``.

    ``results``: names of those that something else reads. SpyreError of `coarse_tile` for tiles
    that cannot be, NotExpressible as of `SpyreKernel`.
    """
    copies = [_copied(op) for op in operations]
    trial = _trial_graph(graph, copies, results)
    with V.set_graph_handler(trial):
        by_name = {op.get_name(): op for op in copies}
        for name in (name for row in tiles for name in row.names):
            by_name[name].named_dims = classes[name]
        if tiles:
            groups = [row.group(number, by_name) for number, row in enumerate(tiles)]
            coarse_tile(trial.operations, groups)
        return _kernel(trial)


def _copied(operation: Any) -> Any:
    """What Inductor has derived of the operation holds for the copy too, until it is changed."""
    found = copy.copy(operation)
    found.data = copy.copy(operation.data)
    found.layout = copy.copy(operation.layout)
    return found


def _trial_graph(graph: Any, copies: list[Any], results: Collection[str]) -> Any:
    trial = copy.copy(graph)
    by_name = {op.get_name(): op for op in copies}
    trial.operations = list(copies)
    trial.buffers = list(graph.buffers)
    trial.name_to_buffer = {**graph.name_to_buffer, **by_name}
    trial.name_to_op = dict(graph.name_to_op)
    trial.graph_outputs = [
        ir.TensorBox(ir.StorageBox(op)) for name, op in by_name.items() if name in results
    ]
    return trial


def _kernel(trial: Any) -> FinishedKernel:
    """The bundle of all operations of a trial graph."""
    steps = [op for op in trial.operations if not isinstance(op, FullBuffer)]
    targets = dict.fromkeys(target_of(op) for op in steps)
    results = [name for name in targets if _leaves(name, steps, trial)]
    names = {*targets, *(name for op in steps for name in names_read(op))}
    kernel = SpyreKernel({name: host_buffer(trial, name) for name in names}, results)
    for op in steps:
        kernel.add(op)
    return kernel.finished()


def _leaves(name: str, steps: Sequence[Any], trial: Any) -> bool:
    """Outputs, and what the operations write into although none of them makes it."""
    made = {op.get_name() for op in steps if target_of(op) == op.get_name()}
    return name not in made or name in trial.get_output_names()
