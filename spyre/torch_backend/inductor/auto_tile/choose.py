"""`automatic_groups`: the loops that minimise a graph's modelled time, for `coarse_tile`.

It runs where `hints_to_coarse_tile_groups` does, and leaves out operations that hints mention.
Candidates are compiled for trial: their bundle is linked, not run, and counted as executed programs
are (:mod:`spyre.hw.counters`). Tiling changes operations, lists and tables of a graph in place, so
a trial works on shallow copies of the operations in a copy of the graph; bodies are shared, since
they name buffers and are never changed. Time falls with the number of tiles until tiles fit into
the scratchpads, and rises again with the number of runs: the search tries rising counts until the
time has risen for a while. Pairs of loops start from the best count of one loop.
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
from spyre.hw.cost import default_machine, kernel_ns
from spyre.hw.counters import LaunchCounts
from spyre.hw.linking import Allocation, Binding, Linker
from spyre.hw.numerics import Numerics
from spyre.hw.spec import REGION_BITS, REGION_BYTES
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.auto_tile.candidates import (
    CandidateRange,
    candidate_ranges,
    counts_of,
    dim_classes,
    dims_of,
    hoisted,
    is_matmul,
)
from spyre.torch_backend.inductor.base.compat import V, ir
from spyre.torch_backend.inductor.base.notes import TILING_REPORT, logger
from spyre.torch_backend.inductor.bundles.generation import KernelMemory, generate_bundle
from spyre.torch_backend.inductor.bundles.kernel_op import Kernel, operations_in
from spyre.torch_backend.inductor.kernel.builder import SpyreKernel, target_of
from spyre.torch_backend.inductor.kernel.planning import PlannedKernel
from spyre.torch_backend.inductor.passes.runs import OperationRun, host_buffer, runs_of
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation, names_read
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.full_buffers import FullBuffer
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel
from spyre.torch_backend.program import LoweringError

# --- the best loops of one range --------------------------------------------------------------

Levels = tuple[TileLevel, ...]
UNTILED: Levels = ()
COUNT_DOES_NOT_FIT = "SPY973"
"""The error of tiles that cut sticks; other counts of the same dim may be possible."""
RISES = 3
"""The search of a dim ends after this many counts in a row that are worse than the best."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Modelled cost of a range of operations in the loops ``levels``.

    ``time_ns``: infinite if these tiles are not possible, for the reason ``why``. ``hbm_bytes``:
    read and written in device memory. ``spills``: an intermediate result is in device memory.
    ``lx_bytes``: the highest address used in a scratchpad.
    """

    levels: Levels
    time_ns: float
    hbm_bytes: int = 0
    spills: bool = False
    lx_bytes: int = 0
    why: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether other counts along the same dims are not possible either."""
        return bool(self.why) and not self.why.startswith(COUNT_DOES_NOT_FIT)

    @property
    def is_possible(self) -> bool:
        """Whether a kernel with these tiles can be compiled."""
        return not self.why


NESTED_DIMS = 2
"""Number of dims tried in pairs of loops: those with the fastest single loops."""
Trial = Callable[[Levels], Outcome]


def best_levels(extents: Mapping[str, int], trial: Trial) -> list[Outcome]:
    """Return all outcomes that were tried, untiled first.

    ``extents``: elements of the dims that may be tiled. ``trial`` is called once per levels.
    """
    outcomes: dict[Levels, Outcome] = {UNTILED: trial(UNTILED)}
    if not outcomes[UNTILED].is_possible:
        return list(outcomes.values())

    def try_once(levels: Levels) -> Outcome:
        if levels not in outcomes:
            outcomes[levels] = trial(levels)
        return outcomes[levels]

    one_loop = [_best_count(name, extent, try_once) for name, extent in extents.items()]
    ordered = sorted(filter(None, one_loop), key=lambda outcome: outcome.time_ns)
    _nest(ordered[:NESTED_DIMS], extents, try_once)
    return list(outcomes.values())


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the fastest outcome; of equal ones the first, which has the fewest iterations."""
    return min(outcomes, key=lambda outcome: outcome.time_ns)


def _best_count(name: str, extent: int, trial: Trial) -> Outcome | None:
    outcomes = list(_climb(((TileLevel(n, name),) for n in counts_of(extent)), trial))
    return best_of(outcomes) if outcomes else None


def _climb(candidates: Iterator[Levels], trial: Trial) -> Iterator[Outcome]:
    """Yield outcomes of candidates with rising counts, until all intermediate results are in the
    scratchpads and `RISES` times in a row were worse than the best.
    """
    best, worse = float("inf"), 0
    for levels in candidates:
        outcome = trial(levels)
        if not outcome.is_possible:
            if outcome.is_hopeless:
                return
            continue
        yield outcome
        is_worse = outcome.time_ns > best and not outcome.spills
        worse = 0 if outcome.time_ns < best else worse + is_worse
        best = min(best, outcome.time_ns)
        if worse == RISES:
            return


def _nest(one_loop: Sequence[Outcome], extents: Mapping[str, int], trial: Trial) -> None:
    """Try pairs of loops in both orders: vary the counts of the two in turn, from the best outcomes
    of ``one_loop`` on.
    """
    for outer, inner in permutations(one_loop, 2):
        level, name = outer.levels[0], inner.levels[0].dim
        for _ in range(2):
            pairs = ((level, TileLevel(n, name)) for n in counts_of(extents[str(name)]))
            second = list(_climb(pairs, trial))
            if not second:
                break
            chosen = best_of(second).levels[1]
            pairs = ((TileLevel(n, level.dim), chosen) for n in counts_of(extents[str(level.dim)]))
            first = list(_climb(pairs, trial))
            if not first or best_of(first).levels[0] == level:
                break
            level = best_of(first).levels[0]


MOST_SHOWN = 8
"""Number of possible tiles in a report, the best first."""


def levels_text(levels: Levels) -> str:
    """Return the loops as text, the outermost first: ``dim0: 8, dim1: 2``."""
    return ", ".join(f"{level.dim}: {level.count}" for level in levels) or "no tiles"


def range_text(names: Sequence[str], outcomes: Sequence[Outcome], chosen: Levels, left: str) -> str:
    """Return a paragraph about a range: the chosen loops, and the outcomes that were tried.

    ``left``: why the range is not tiled although loops would save time.
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
        lines.append(f"    {len(refused) - MOST_SHOWN} more that are not possible")
    return "\n".join(lines) + "\n"


def _outcome_text(outcome: Outcome) -> str:
    return (
        f"{levels_text(outcome.levels)}: {outcome.time_ns / 1e3:,.1f} us, "
        f"{outcome.hbm_bytes:,} bytes in HBM, {outcome.lx_bytes:,} of LX"
    )


# --- the best ranges of a graph ---------------------------------------------------------------


MIN_SAVING = 0.01
"""Share of a range's time that loops have to save."""
MAX_TRIALS = 1000
"""Kernels compiled for trial per graph; ranges tried after that are not tiled."""

Classes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The outcomes of a range of operations. ``left``: why it is not tiled although loops would
    save time within the range.
    """

    names: tuple[str, ...]
    range: CandidateRange
    outcomes: Sequence[Outcome]
    left: str = ""

    @property
    def saved_ns(self) -> float:
        """Time that the best loops save."""
        return self.outcomes[0].time_ns - best_of(self.outcomes).time_ns

    @property
    def levels(self) -> Levels:
        """The best loops, or none if they save too little."""
        pays = self.saved_ns > MIN_SAVING * self.outcomes[0].time_ns and not self.left
        return best_of(self.outcomes).levels if pays else UNTILED

    @property
    def report(self) -> str:
        return range_text(self.names, self.outcomes, self.levels, self.left)


def automatic_groups(graph: Any, first: int = 0) -> list[TileGroup]:
    """Return groups for `coarse_tile`, numbered from ``first``, of operations without hints.

    Sets ``named_dims`` of their operations to class names, and reorders operations of ``graph``
    where a loop needs it. Deterministic: equal graphs and settings give equal groups.
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
    """Reorder a contiguous run of ``operations`` in place, to the order of ``run``."""
    begin = min(map(operations.index, run))
    operations[begin : begin + len(run)] = run


class _Trials:
    """Compiles candidates of one graph for trial, at most `MAX_TRIALS`."""

    def __init__(self, graph: Any, classes: Classes) -> None:
        self.graph, self.classes = graph, classes
        self.made = 0

    def dims(self, operation: Any) -> Mapping[str, Any]:
        """Return the dims of an operation by class; none if it cannot be tiled."""
        return dims_of(operation, self.classes) if is_loop_operation(operation) else {}

    def outcome(
        self, operations: Sequence[Any], results: frozenset[str], levels: Levels
    ) -> Outcome:
        """Return the cost of loops ``levels`` around all ``operations``."""
        names = tuple(op.get_name() for op in operations)
        return self.tiled(operations, results, [TiledRange(names, levels)] if levels else [])

    def tiled(
        self, operations: Sequence[Any], results: frozenset[str], tiles: Sequence[TiledRange]
    ) -> Outcome:
        """Return the cost of ``operations`` with the loops ``tiles`` around some of them."""
        levels = tiles[0].levels if tiles else UNTILED
        if self.made == MAX_TRIALS:
            return Outcome(levels, inf, why=f"not tried, {MAX_TRIALS} others were")
        self.made += 1
        try:
            planned = trial_kernel(self.graph, operations, results, tiles, self.classes)
            return outcome_of(planned.kernel, levels)
        except SpyreError as error:
            return Outcome(levels, inf, why=f"{error.code} {error.finding.message}")
        except LoweringError as error:
            return Outcome(levels, inf, why=str(error))


def outcome_of(kernel: Kernel, levels: Levels = UNTILED) -> Outcome:
    """Return the modelled cost of one launch of ``kernel`` on the default machine."""
    counts = launch_counts(kernel)
    time_ns = kernel_ns(counts.operations, default_machine()).total_ns
    tensors = (tensor for op in operations_in(kernel) for tensor in op.tensors)
    spills = any(tensor.memory == POOL for tensor in tensors)
    return Outcome(levels, time_ns, counts.hbm_bytes, spills, counts.lx_high_water_bytes)


def launch_counts(kernel: Kernel) -> LaunchCounts:
    """Return the counts of one launch of ``kernel``, whose bundle is linked at made-up addresses.

    SpyreError for a kernel that no bundle can express.
    """
    bundle, memory = generate_bundle("trial", kernel, pool_argument=True), KernelMemory.of(kernel)
    sizes = [argument.size_bytes for argument in memory.arguments]
    if memory.pool_bytes:
        sizes.append(memory.pool_bytes)
    allocations, free = [], 0
    for parameter, size_bytes in zip(bundle.program.parameters, sizes, strict=True):
        if free >> REGION_BITS != (free + size_bytes - 1) >> REGION_BITS:
            free = -(-free // REGION_BYTES) * REGION_BYTES
        allocations.append(Allocation(parameter.name, free, size_bytes))
        free += size_bytes
    addresses = {allocation.name: allocation.address_bytes for allocation in allocations}
    linker = Linker(bundle.program, bundle.operations, Numerics().half_format, threads=1)
    linked = linker.link(Binding(addresses, allocations=tuple(allocations)))
    return LaunchCounts([linked.view])


@dataclass(frozen=True, slots=True)
class _Plan:
    """A run: its operations in their new order, and the choices for its ranges."""

    operations: Sequence[Any]
    choices: Sequence[_Choice]

    @property
    def tiles(self) -> list[TiledRange]:
        """The loops, in the order of the operations."""
        chosen = sorted((c for c in self.choices if c.levels), key=lambda c: c.range.begin)
        return [TiledRange(choice.names, choice.levels) for choice in chosen]


def _planned(run: OperationRun, trials: _Trials) -> _Plan:
    """Return the loops of a run, or none if they do not make the whole run faster."""
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
    why = f"; not tiled, the whole bundle would take {times}"
    return _Plan(operations, [replace(c, left=why) for c in plan.choices])


def _choices(operations: Sequence[Any], run: OperationRun, trials: _Trials) -> Iterator[_Choice]:
    """Yield choices for disjoint ranges of a run, the largest saving first."""
    dims = {op.get_name(): trials.dims(op) for op in operations}
    choices = []
    for candidate in candidate_ranges(operations, dims):
        members = operations[candidate.begin : candidate.end]
        results = _read_elsewhere(members, operations, run.results)
        trial = functools.cache(functools.partial(trials.outcome, members, results))
        if not _may_gain(members, trial(UNTILED)):
            continue
        names = tuple(op.get_name() for op in members)
        choices.append(_Choice(names, candidate, best_levels(candidate.extents, trial)))
    taken: set[int] = set()
    for choice in sorted(choices, key=lambda c: -c.saved_ns):
        positions = set(range(choice.range.begin, choice.range.end))
        if not positions & taken:
            taken |= positions
            yield choice


def _may_gain(members: Sequence[Any], whole: Outcome) -> bool:
    """Return False if loops can only cost time: they pay where they keep intermediate results in
    the scratchpads, or accumulators of matmuls small.
    """
    return whole.is_possible and (whole.spills or any(is_matmul(op) for op in members))


def _read_elsewhere(
    members: Sequence[Any], operations: Sequence[Any], results: frozenset[str]
) -> frozenset[str]:
    inside = {id(op) for op in members}
    read = {name for op in operations if id(op) not in inside for name in names_read(op)}
    return frozenset(op.get_name() for op in members if op.get_name() in read | results)


@dataclass(frozen=True, slots=True)
class TiledRange:
    """A range of operations, by name, and the loops around it over classes of dims, the outermost
    first.
    """

    names: tuple[str, ...]
    levels: tuple[TileLevel, ...]

    def group(self, number: int, operations: Mapping[str, Any]) -> TileGroup:
        """Return the group for `coarse_tile`, number ``number`` of its graph."""
        path = (number, *[0] * (len(self.levels) - 1))
        return TileGroup(path, self.levels, tuple(operations[name] for name in self.names))


def trial_kernel(
    graph: Any,
    operations: Sequence[Any],
    results: Collection[str],
    tiles: Sequence[TiledRange],
    classes: Mapping[str, tuple[str, ...]],
) -> PlannedKernel:
    """Return the kernel of the contiguous ``operations`` alone, with the loops ``tiles``.

    ``results``: names of the operations that others read. Raises the SpyreErrors of `coarse_tile`
    and the LoweringErrors of `SpyreKernel`.
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
    """Return a copy of an operation; attributes that Inductor has derived stay valid for it."""
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
    """Return the kernel of all operations of a trial graph."""
    steps = [op for op in trial.operations if not isinstance(op, FullBuffer)]
    targets = dict.fromkeys(target_of(op) for op in steps)
    made = {op.get_name() for op in steps if target_of(op) == op.get_name()}
    outputs = trial.get_output_names()
    # a buffer that no operation makes is one that they mutate
    results = [name for name in targets if name not in made or name in outputs]
    names = {*targets, *(name for op in steps for name in names_read(op))}
    kernel = SpyreKernel({name: host_buffer(trial, name) for name in names}, results)
    for op in steps:
        kernel.add(op)
    return kernel.finished()
