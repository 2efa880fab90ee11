"""`automatic_groups`: the loops that make a graph's modelled time least, for `coarse_tile`.

Runs where `hints_to_coarse_tile_groups` does, and leaves alone what hints have said something of.
Candidates are compiled for trial; the graph itself stays as it is: tiling changes operations, lists
and tables of a graph in place, so a trial works on shallow copies of the operations, in a copy of
the graph that has lists of its own; bodies are shared, for they name buffers and are never changed
themselves. Costs fall when tiles become small enough for the scratchpads and rise again as runs get
many: the search follows counts upwards until they have risen for a while. Two loops begin with the
best count of one.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf
from typing import Any

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.auto_tile.candidates import (
    CandidateRange,
    candidate_ranges,
    counts_of,
    dim_classes,
    dims_of,
    hoisted,
    is_matmul,
)
from spyre.torch_backend.inductor.auto_tile.cost import modelled_cost
from spyre.torch_backend.inductor.base import TILING_REPORT, V, ir, logger
from spyre.torch_backend.inductor.kernel import PlannedKernel, SpyreKernel, target_of
from spyre.torch_backend.inductor.passes import OperationRun, host_buffer, runs_of
from spyre.torch_backend.inductor.tiling import (
    FullBuffer,
    TileGroup,
    TileLevel,
    coarse_tile,
    is_loop_operation,
    names_read,
)
from spyre.torch_backend.program import LoweringError

# --- the best loops of one range --------------------------------------------------------------

Levels = tuple[TileLevel, ...]
UNTILED: Levels = ()
COUNT_DOES_NOT_FIT = "SPY973"
"""The error of tiles that cut sticks: others may not."""
RISES = 3
"""Counts in a row that are worse than the best one, after which larger counts are not tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tiles of a stretch would cost.

    ``time_ns``: modelled; infinite where these tiles cannot be, ``why`` then says why not.
    ``hbm_bytes``: read and written in device memory, ``intermediate_bytes`` of them for what the
    stretch makes and reads itself. ``lx_bytes``: the most of one scratchpad.
    """

    levels: Levels
    time_ns: float
    hbm_bytes: int = 0
    intermediate_bytes: int = 0
    lx_bytes: int = 0
    why: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether other counts along the same dims cannot be either."""
        return bool(self.why) and not self.why.startswith(COUNT_DOES_NOT_FIT)

    @property
    def is_possible(self) -> bool:
        """Whether there is a kernel with these tiles."""
        return not self.why


NESTED_DIMS = 2
"""Dims that are tried in two loops: those that one loop gains most on."""
Trial = Callable[[Levels], Outcome]


def best_levels(extents: Mapping[str, int], trial: Trial) -> list[Outcome]:
    """All outcomes that were looked at, untiled first; `best_of` names the best.

    ``extents``: elements of the dims that may be tiled. ``trial`` is called once per levels.
    """
    outcomes: dict[Levels, Outcome] = {UNTILED: trial(UNTILED)}
    if not outcomes[UNTILED].is_possible:
        return list(outcomes.values())

    def look(levels: Levels) -> Outcome:
        if levels not in outcomes:
            outcomes[levels] = trial(levels)
        return outcomes[levels]

    singles = [_best_count(name, extent, look) for name, extent in extents.items()]
    ordered = sorted(filter(None, singles), key=lambda outcome: outcome.time_ns)
    _nest(ordered[:NESTED_DIMS], extents, look)
    return list(outcomes.values())


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The one with the least time; of equal ones the first, which has the fewest iterations."""
    return min(outcomes, key=lambda outcome: outcome.time_ns)


def _best_count(name: str, extent: int, look: Trial) -> Outcome | None:
    outcomes = list(_climb(((TileLevel(n, name),) for n in counts_of(extent)), look))
    return best_of(outcomes) if outcomes else None


def _climb(candidates: Iterator[Levels], look: Trial) -> Iterator[Outcome]:
    """Outcomes of candidates with rising counts, until all results are in the scratchpads and
    times have risen for a while.
    """
    best, worse = float("inf"), 0
    for levels in candidates:
        outcome = look(levels)
        if not outcome.is_possible:
            if outcome.is_hopeless:
                return
            continue
        yield outcome
        is_worse = outcome.time_ns > best and not outcome.intermediate_bytes
        worse = 0 if outcome.time_ns < best else worse + is_worse
        best = min(best, outcome.time_ns)
        if worse == RISES:
            return


def _nest(singles: Sequence[Outcome], extents: Mapping[str, int], look: Trial) -> None:
    """Two loops: around each other, the counts of both in turn, from the best of one loop on."""
    for outer, inner in permutations(singles, 2):
        level, name = outer.levels[0], inner.levels[0].dim
        for _ in range(2):
            pairs = ((level, TileLevel(n, name)) for n in counts_of(extents[str(name)]))
            second = list(_climb(pairs, look))
            if not second:
                break
            chosen = best_of(second).levels[1]
            pairs = ((TileLevel(n, level.dim), chosen) for n in counts_of(extents[str(level.dim)]))
            first = list(_climb(pairs, look))
            if not first or best_of(first).levels[0] == level:
                break
            level = best_of(first).levels[0]


MOST_SHOWN = 8
"""Rows of possible tiles that are shown, the best first."""


def levels_text(levels: Levels) -> str:
    """``dim0: 8, dim1: 2``, the outermost loop first."""
    return ", ".join(f"{level.dim}: {level.count}" for level in levels) or "no tiles"


def range_text(names: Sequence[str], outcomes: Sequence[Outcome], chosen: Levels, left: str) -> str:
    """A paragraph per stretch: what was chosen, and what else was looked at.

    ``left``: why the stretch stays whole in spite of what loops would save.
    """
    best, whole = best_of(outcomes), outcomes[0]
    saved = 1.0 - best.time_ns / whole.time_ns
    why = f"saves {saved:.1%} of the modelled time" if chosen else f"loops save {saved:.1%} at most"
    lines = [f"{', '.join(names)}: {levels_text(chosen)}, {why}{left}"]
    possible = sorted((o for o in outcomes if o.is_possible), key=lambda o: o.time_ns)
    shown = possible[:MOST_SHOWN]
    if whole.is_possible and whole not in shown:
        shown.append(whole)
    lines += [f"    {_outcome_text(outcome)}" for outcome in shown]
    if len(possible) > len(shown):
        lines.append(f"    {len(possible) - len(shown)} more, slower ones")
    refused = [outcome for outcome in outcomes if not outcome.is_possible]
    lines += [f"    {levels_text(o.levels)}: {o.why}" for o in refused[:MOST_SHOWN]]
    if len(refused) > MOST_SHOWN:
        lines.append(f"    {len(refused) - MOST_SHOWN} more that cannot be")
    return "\n".join(lines) + "\n"


def _outcome_text(outcome: Outcome) -> str:
    return (
        f"{levels_text(outcome.levels)}: {outcome.time_ns / 1e3:,.1f} us, "
        f"{outcome.hbm_bytes:,} bytes in HBM, {outcome.lx_bytes:,} of LX"
    )


# --- the best ranges of a graph ---------------------------------------------------------------


WORTH = 0.01
"""The share of a stretch's time that loops have to save."""
MOST_TRIALS = 1000
"""Kernels that are compiled for trial per graph; after that stretches stay as they are."""

Classes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The outcomes of a stretch, by the operations it consists of. ``left``: why it stays whole,
    though loops would save time of its own."""

    names: tuple[str, ...]
    stretch: CandidateRange
    outcomes: Sequence[Outcome]
    left: str = ""

    @property
    def saved_ns(self) -> float:
        """What the best loops save of the stretch's time."""
        return self.outcomes[0].time_ns - best_of(self.outcomes).time_ns

    @property
    def levels(self) -> Levels:
        """The best loops; none where they save too little."""
        pays = self.saved_ns > WORTH * self.outcomes[0].time_ns and not self.left
        return best_of(self.outcomes).levels if pays else UNTILED

    @property
    def report(self) -> str:
        return range_text(self.names, self.outcomes, self.levels, self.left)


def automatic_groups(graph: Any, first: int = 0) -> list[TileGroup]:
    """Groups for `coarse_tile`, numbered from ``first``, of operations that no hint speaks of.

    Their dims get the names of classes, and operations of ``graph`` change places where a loop
    needs it. Deterministic: equal graphs and settings get equal groups. Belongs to the thread that
    compiles ``graph``.
    """
    trials = _Trials(graph, dim_classes(graph.operations))
    groups: list[TileGroup] = []
    for run in runs_of(graph):
        plan = _planned(run, trials)
        if plan.tiles:
            _reorder(graph.operations, plan.operations)
        for choice in plan.choices:
            setattr(graph.name_to_buffer[choice.names[0]], TILING_REPORT, choice.report)
            logger.info("automatic tiling: %s", choice.report)
        for tiles in plan.tiles:
            groups.append(_group(graph, tiles, first + len(groups), trials))
    return groups


def _group(graph: Any, tiles: TiledRange, number: int, trials: _Trials) -> TileGroup:
    members = {name: graph.name_to_buffer[name] for name in tiles.names}
    for name, op in members.items():
        op.named_dims = trials.classes[name]
    return tiles.group(number, members)


def _reorder(operations: list[Any], run: Sequence[Any]) -> None:
    """The operations of a run, which stand together, in the order of ``run``."""
    begin = min(map(operations.index, run))
    operations[begin : begin + len(run)] = run


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
        """What these loops around all ``operations`` cost."""
        names = tuple(op.get_name() for op in operations)
        return self.tiled(operations, results, [TiledRange(names, levels)] if levels else [])

    def tiled(
        self, operations: Sequence[Any], results: frozenset[str], tiles: Sequence[TiledRange]
    ) -> Outcome:
        """What ``operations`` cost, some of them in loops."""
        levels = tiles[0].levels if tiles else UNTILED
        if self.made == MOST_TRIALS:
            return Outcome(levels, inf, why=f"not tried, {MOST_TRIALS} others were")
        self.made += 1
        try:
            kernel = trial_kernel(self.graph, operations, results, tiles, self.classes)
        except SpyreError as error:
            return Outcome(levels, inf, why=f"{error.code} {error.finding.message}")
        except LoweringError as error:
            return Outcome(levels, inf, why=str(error))
        cost = modelled_cost(kernel.kernel)
        return Outcome(levels, cost.time_ns, cost.hbm_bytes, cost.intermediate_bytes, cost.lx_bytes)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A run: its operations in the order they are to have, and what its stretches become."""

    operations: Sequence[Any]
    choices: Sequence[_Choice]

    @property
    def tiles(self) -> list[TiledRange]:
        """The loops, in the order of the operations."""
        chosen = sorted((c for c in self.choices if c.levels), key=lambda c: c.stretch.begin)
        return [TiledRange(choice.names, choice.levels) for choice in chosen]


def _planned(run: OperationRun, trials: _Trials) -> _Plan:
    """The loops of a run that make the run as a whole faster."""
    operations = [step.operation for step in run.steps]
    dims = {op.get_name(): trials.dims(op) for op in operations}
    plan = _Plan(operations := hoisted(operations, dims), list(_choices(operations, run, trials)))
    if not plan.tiles:
        return plan
    results = frozenset(run.results)
    whole = trials.tiled([step.operation for step in run.steps], results, [])
    tiled = trials.tiled(operations, results, plan.tiles)
    if tiled.time_ns < whole.time_ns:
        return plan
    times = f"{tiled.time_ns / 1e3:,.1f} us, not {whole.time_ns / 1e3:,.1f}"
    why = f"; left, the whole bundle would take {times}"
    return _Plan(operations, [replace(c, left=why) for c in plan.choices])


def _choices(operations: Sequence[Any], run: OperationRun, trials: _Trials) -> Iterator[_Choice]:
    """Stretches of a run, those first that save most; none overlaps one before it."""
    dims = {op.get_name(): trials.dims(op) for op in operations}
    choices = []
    for stretch in candidate_ranges(operations, dims):
        members = operations[stretch.begin : stretch.end]
        results = _read_elsewhere(members, operations, run.results)
        trial = functools.cache(functools.partial(trials.outcome, members, results))
        if not _may_gain(members, trial(UNTILED)):
            continue
        names = tuple(op.get_name() for op in members)
        choices.append(_Choice(names, stretch, best_levels(stretch.extents, trial)))
    taken: set[int] = set()
    for choice in sorted(choices, key=lambda c: -c.saved_ns):
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


@dataclass(frozen=True, slots=True)
class TiledRange:
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
    tiles: Sequence[TiledRange],
    classes: Mapping[str, tuple[str, ...]],
) -> PlannedKernel:
    """What ``operations``, which follow each other, become as a bundle of their own with ``tiles``.

    ``results``: names of those that something else reads. SpyreError of `coarse_tile` for tiles
    that cannot be, LoweringError as of `SpyreKernel`.
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
    copied = copy.copy(operation)
    copied.data = copy.copy(operation.data)
    copied.layout = copy.copy(operation.layout)
    return copied


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


def _kernel(trial: Any) -> PlannedKernel:
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
