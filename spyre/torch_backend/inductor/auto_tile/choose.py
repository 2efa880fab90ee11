"""`automatic_groups`: the loops that make a graph's modelled time least, for `coarse_tile`.

Runs where `hints_to_coarse_tile_groups` does, and leaves alone what hints have said something of.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.auto_tile.dim_classes import dim_classes, dims_of
from spyre.torch_backend.inductor.auto_tile.modelled import modelled
from spyre.torch_backend.inductor.auto_tile.report import stretch_text
from spyre.torch_backend.inductor.auto_tile.search import (
    UNTILED,
    Levels,
    Outcome,
    best_levels,
    best_of,
)
from spyre.torch_backend.inductor.auto_tile.stretches import Stretch, is_matmul, stretches
from spyre.torch_backend.inductor.auto_tile.trial import Tiles, trial_kernel
from spyre.torch_backend.inductor.passes.runs import Run, runs_of
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation, names_read
from spyre.torch_backend.inductor.tiling.groups import TileGroup
from spyre.torch_backend.program.value import NotExpressible

WORTH = 0.01
"""The share of a stretch's time that loops have to save."""
MOST_TRIALS = 1000
"""Kernels that are compiled for trial per graph; after that stretches stay as they are."""
REPORT = "auto_tile_report"
"""Attribute of the first operation of a stretch: what was chosen and why."""

Classes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The outcomes of a stretch, by the operations it consists of."""

    names: tuple[str, ...]
    stretch: Stretch
    outcomes: Sequence[Outcome]

    @property
    def saved_ns(self) -> float:
        """What the best loops save of the stretch's time."""
        return self.outcomes[0].time_ns - best_of(self.outcomes).time_ns

    @property
    def levels(self) -> Levels:
        """The best loops; none where they save too little."""
        pays = self.saved_ns > WORTH * self.outcomes[0].time_ns
        return best_of(self.outcomes).levels if pays else UNTILED


def automatic_groups(graph: Any) -> list[TileGroup]:
    """Groups for `coarse_tile`; names of dims of the operations in them become those of classes.

    Deterministic: equal graphs and settings get equal groups. Belongs to the thread that compiles
    ``graph``.
    """
    classes = dim_classes(graph.operations)
    trials = _Trials(graph, classes)
    chosen = [choice for run in runs_of(graph) for choice in _choices(run, trials)]
    groups = []
    for number, choice in enumerate(c for c in chosen if c.levels):
        members = {op.get_name(): op for op in graph.operations if op.get_name() in choice.names}
        for name, op in members.items():
            op.named_dims = classes[name]
        tiles = Tiles(choice.names, choice.levels)
        groups.append(tiles.group(number, members))
    for choice in chosen:
        first = graph.name_to_buffer[choice.names[0]]
        setattr(first, REPORT, stretch_text(choice.names, choice.outcomes, choice.levels))
    return groups


class _Trials:
    """Trials of one graph, counted."""

    def __init__(self, graph: Any, classes: Classes) -> None:
        self.graph, self.classes = graph, classes
        self.made = 0

    def dims(self, operation: Any) -> Mapping[str, Any]:
        """Dims of an operation by class; none of what cannot be tiled."""
        return dims_of(operation, self.classes) if is_loop_operation(operation) else {}

    def outcome(
        self, operations: Sequence[Any], results: frozenset[str], levels: Levels
    ) -> Outcome:
        """What these loops around ``operations`` cost."""
        if self.made == MOST_TRIALS:
            return Outcome(levels, float("inf"), why=f"not tried, {MOST_TRIALS} others were")
        self.made += 1
        names = tuple(op.get_name() for op in operations)
        tiles = [Tiles(names, levels)] if levels else []
        try:
            kernel = trial_kernel(self.graph, operations, results, tiles, self.classes)
        except SpyreError as error:
            return Outcome(levels, float("inf"), why=f"{error.code} {error.finding.message}")
        except NotExpressible as error:
            return Outcome(levels, float("inf"), why=str(error))
        cost = modelled(kernel.specs)
        return Outcome(levels, cost.time_ns, cost.hbm_bytes, cost.intermediate_bytes, cost.lx_bytes)


def _choices(run: Run, trials: _Trials) -> Iterator[_Choice]:
    """Stretches of a run, those first that save most; none overlaps one before it."""
    operations = [step.operation for step in run.steps]
    dims = {op.get_name(): trials.dims(op) for op in operations}
    found = []
    for stretch in stretches(operations, dims):
        members = operations[stretch.begin : stretch.end]
        results = _read_elsewhere(members, operations, run.results)
        trial = functools.cache(functools.partial(trials.outcome, members, results))
        if not _may_gain(members, trial(())):
            continue
        outcomes = best_levels(stretch.extents, trial)
        names = tuple(op.get_name() for op in members)
        found.append(_Choice(names, stretch, outcomes))
    taken: set[int] = set()
    for choice in sorted(found, key=lambda c: -c.saved_ns):
        places = set(range(choice.stretch.begin, choice.stretch.end))
        if not places & taken:
            taken |= places
            yield choice


def _may_gain(members: Sequence[Any], whole: Outcome) -> bool:
    """Loops keep results in the scratchpads, and products' accumulators small; else they cost."""
    return whole.is_possible and (
        whole.intermediate_bytes > 0 or any(is_matmul(op) for op in members)
    )


def _read_elsewhere(
    members: Sequence[Any], operations: Sequence[Any], results: frozenset[str]
) -> frozenset[str]:
    inside = {id(op) for op in members}
    read = {name for op in operations if id(op) not in inside for name in names_read(op)}
    return frozenset(op.get_name() for op in members if op.get_name() in read | results)
