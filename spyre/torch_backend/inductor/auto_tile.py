"""Automatic tiling: `automatic_groups` returns the loops that minimise a graph's modelled time.

It runs where `hints_to_coarse_tile_groups` does, and leaves out operations that hints mention.
Candidates are ranges of operations that all have a dim. A range ends before an operation that lacks
the dim, which would do the same in every iteration, and before or behind one that reduces it, whose
result is complete only after the loop. Sums are not split, because adding up tiles rounds
differently. Equal dims of several operations are found from the indices that their bodies read:
`propagate_named_dims` carries names that users gave, `dim_classes` names every dim. Operations that
interrupt a range, and do not depend on it, are moved before it (`hoisted`).

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
from itertools import pairwise, permutations
from math import inf
from typing import Any

import msgspec
import sympy
from msgspec.structs import replace

from spyre.disjoint_sets import DisjointSets
from spyre.errors import SpyreError
from spyre.hw.cost import default_machine, divisors, kernel_ns, machine_with
from spyre.hw.counters import LaunchCounts
from spyre.hw.linking import Allocation, Binding, Linker
from spyre.hw.numerics import Numerics
from spyre.hw.spec import REGION_BITS, REGION_BYTES
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.base.compat import V, ir
from spyre.torch_backend.inductor.base.notes import TILING_REPORT, logger
from spyre.torch_backend.inductor.base.settings import settings
from spyre.torch_backend.inductor.bundles.generation import KernelMemory, generate_bundle
from spyre.torch_backend.inductor.bundles.kernel_op import Kernel, operations_in
from spyre.torch_backend.inductor.kernel.builder import SpyreKernel, target_of
from spyre.torch_backend.inductor.kernel.passes import PlannedKernel
from spyre.torch_backend.inductor.passes.runs import OperationRun, host_buffer, runs_of
from spyre.torch_backend.inductor.tiling.accesses import (
    accesses_of,
    dims_by_variable,
    is_loop_operation,
    layout_of,
    names_read,
)
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.full_buffers import FullBuffer
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel, is_hinted
from spyre.torch_backend.program import LoweringError

# --- candidates -----------------------------------------------------------------------------------

Classes = Mapping[str, tuple[str, ...]]
"""Class of each dim of an operation, by the operation's name."""
_DimNode = tuple[str, str, int]
ITERATION, BUFFER = "iteration", "buffer"


def dim_classes(operations: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """Return, by name of each Pointwise and Reduction, the class of each range and then of each
    reduction range.

    A class has the name a user gave to one of its dims, else ``dim0``, ``dim1``, … in the order of
    the operations. Dims that are cut, merged or split start new classes. Two dims of one operation
    may be in one class, as those of ``x @ x.T``.
    """
    loops = [op for op in operations if is_loop_operation(op)]
    classes: DisjointSets[_DimNode] = DisjointSets()
    for op in loops:
        _join_dims(op, classes)
    names: dict[_DimNode, str] = {}
    for op in loops:
        for position, name in enumerate(getattr(op, "named_dims", ())):
            if name is not None:
                names.setdefault(classes.find((ITERATION, op.get_name(), position)), name)
    return {op.get_name(): _named(op, classes, names) for op in loops}


def _join_dims(operation: Any, classes: DisjointSets[_DimNode]) -> None:
    name, accesses = operation.get_name(), accesses_of(operation)
    for position in range(len(operation.data.get_pointwise_size())):
        classes.join((ITERATION, name, position), (BUFFER, name, position))
    for read in accesses.reads:
        layout = layout_of(read.name)
        if layout is None:
            continue
        for position, dim in dims_by_variable(read, accesses, layout).items():
            classes.join((ITERATION, name, position), (BUFFER, read.name, dim))


def _named(
    operation: Any, classes: DisjointSets[_DimNode], names: dict[_DimNode, str]
) -> tuple[str, ...]:
    rank = len(accesses_of(operation).variables)
    roots = [classes.find((ITERATION, operation.get_name(), k)) for k in range(rank)]
    return tuple(names.setdefault(root, f"dim{len(names)}") for root in roots)


Dims = Mapping[str, tuple[int, bool]]
"""The dims of one operation, by class: elements, and whether the operation reduces the dim."""


def dims_of(operation: Any, classes: Classes) -> Dims:
    """Return the dims of an operation by class, without dims of symbolic size and classes that it
    has twice; none if it cannot be tiled.
    """
    if not is_loop_operation(operation):
        return {}
    data = operation.data
    sizes = [(n, False) for n in data.get_pointwise_size()]
    sizes += [(n, True) for n in data.get_reduction_size()]
    names = classes[operation.get_name()]
    return {
        name: (int(n), is_reduced)
        for name, (n, is_reduced) in zip(names, sizes, strict=True)
        if names.count(name) == 1 and sympy.sympify(n).is_number
    }


Range = tuple[int, int]
"""Operations from one position in a run to another (exclusive)."""


def candidate_ranges(
    operations: Sequence[Any], dims: Mapping[str, Dims]
) -> list[tuple[Range, dict[str, int]]]:
    """Return all candidate ranges of a run, the longest first, each with the elements of the
    tileable dims that all its operations have, by class.

    For each class these are the longest ranges, and their parts between matmuls and from one matmul
    to the next: a matmul in tiles of rows reads its weights once per tile. ``dims``: by name of the
    operation.
    """
    names = dict.fromkeys(name for row in dims.values() for name in row)
    longest = (part for name in names for part in _longest(operations, dims, name))
    parts = dict.fromkeys(part for ends in longest for part in _parts(operations, *ends))
    full = (part for part in parts if part[0] < part[1])
    found = ((part, _tileable(operations[slice(*part)], dims)) for part in full)
    ranges = [(part, extents) for part, extents in found if extents]
    return sorted(ranges, key=lambda row: (row[0][0] - row[0][1], row[0][0]))


def _longest(operations: Sequence[Any], dims: Mapping[str, Dims], name: str) -> Iterator[Range]:
    """Yield the longest ranges of a class of dims; some are empty."""
    begin = 0
    for position, op in enumerate(operations):
        dim = dims.get(op.get_name(), {}).get(name)
        if dim is None or not is_loop_operation(op) or is_hinted(op):
            yield begin, position
            begin = position + 1
        elif dim[1]:
            yield begin, position
            if reduces_exactly(op):
                yield begin, position + 1
            begin = position + 1
    yield begin, len(operations)


def _parts(operations: Sequence[Any], begin: int, end: int) -> Iterator[Range]:
    """Yield the range and its parts between matmuls, with and without their first matmul."""
    yield begin, end
    matmuls = [k for k in range(begin, end) if is_matmul(operations[k])]
    borders = [begin, *matmuls, end]
    for first, last in pairwise(borders):
        yield first, last
        if first in matmuls:
            yield first + 1, last


def _tileable(operations: Sequence[Any], dims: Mapping[str, Dims]) -> dict[str, int]:
    """Return the elements of the dims, by class, that all ``operations`` may be tiled along."""
    members = [dims[op.get_name()] for op in operations]
    common = (name for name in members[0] if all(name in row for row in members))
    tileable = (name for name in common if _is_tileable(operations, members, name))
    return {name: members[0][name][0] for name in tileable if members[0][name][0] > 1}


def _is_tileable(operations: Sequence[Any], members: Sequence[Dims], name: str) -> bool:
    """Return True if no operation reduces the dim, or only the last one does, exactly."""
    reducing = [op for op, row in zip(operations, members, strict=True) if row[name][1]]
    return not reducing or (reducing == [operations[-1]] and reduces_exactly(operations[-1]))


def reduces_exactly(operation: Any) -> bool:
    """Return True if combining results of tiles gives the same bits: true of max and min."""
    return getattr(operation.data, "reduction_type", None) in ("max", "min")


def is_matmul(operation: Any) -> bool:
    """Return True for a matmul, batched or not."""
    data = operation.data
    return isinstance(data, ir.Reduction) and data.reduction_type == "batchmatmul"


def hoisted(operations: Sequence[Any], dims: Mapping[str, Dims]) -> list[Any]:
    """Return the operations of a run, reordered within their dependencies.

    An operation that lacks a dim of both neighbours is moved directly behind the last operation
    that it reads, or to the front. Operations that mutate a buffer, and readers of such buffers,
    are not moved.
    """
    mutated = {target_of(op) for op in operations if target_of(op) != op.get_name()}
    order = list(operations)
    for op in operations:
        k, reads = order.index(op), names_read(op)
        if not 0 < k < len(order) - 1 or op.get_name() in mutated or reads & mutated:
            continue
        before, own, after = (set(dims[o.get_name()]) for o in order[k - 1 : k + 2])
        if target_of(op) != op.get_name() or not (before & after) - own:
            continue
        order.pop(k)
        behind = (n + 1 for n, other in enumerate(order[:k]) if other.get_name() in reads)
        order.insert(max(behind, default=0), op)
    return order


# --- the best loops of one range ------------------------------------------------------------------

Levels = tuple[TileLevel, ...]
UNTILED: Levels = ()
COUNT_DOES_NOT_FIT = "SPY973"
"""The error of tiles that cut sticks; other counts of the same dim may be possible."""
RISES = 3
"""The search of a dim ends after this many counts in a row that are worse than the best."""


class Outcome(msgspec.Struct, frozen=True):
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
    def is_possible(self) -> bool:
        """True if a kernel with these tiles can be compiled."""
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

    one_loop = []
    for name, extent in extents.items():
        counts = ((TileLevel(n, name),) for n in divisors(extent)[1:])
        if tried := list(_climb(counts, try_once)):
            one_loop.append(best_of(tried))
    ordered = sorted(one_loop, key=lambda outcome: outcome.time_ns)
    _nest(ordered[:NESTED_DIMS], extents, try_once)
    return list(outcomes.values())


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the fastest outcome; of equal ones the first, which has the fewest iterations."""
    return min(outcomes, key=lambda outcome: outcome.time_ns)


def _climb(candidates: Iterator[Levels], trial: Trial) -> Iterator[Outcome]:
    """Yield outcomes of candidates with rising counts, until all intermediate results are in the
    scratchpads and `RISES` times in a row were worse than the best.
    """
    best, worse = float("inf"), 0
    for levels in candidates:
        outcome = trial(levels)
        if not outcome.is_possible:
            # whether other counts along the same dims are possible
            if not outcome.why.startswith(COUNT_DOES_NOT_FIT):
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
            pairs = ((level, TileLevel(n, name)) for n in divisors(extents[str(name)])[1:])
            second = list(_climb(pairs, trial))
            if not second:
                break
            chosen = best_of(second).levels[1]
            pairs = (
                (TileLevel(n, level.dim), chosen) for n in divisors(extents[str(level.dim)])[1:]
            )
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
    lines += [
        f"    {levels_text(outcome.levels)}: {outcome.time_ns / 1e3:,.1f} us, "
        f"{outcome.hbm_bytes:,} bytes in HBM, {outcome.lx_bytes:,} of LX"
        for outcome in shown
    ]
    if len(possible) > len(shown):
        lines.append(f"    {len(possible) - len(shown)} more, slower ones")
    refused = [outcome for outcome in outcomes if not outcome.is_possible]
    lines += [f"    {levels_text(o.levels)}: {o.why}" for o in refused[:MOST_SHOWN]]
    if len(refused) > MOST_SHOWN:
        lines.append(f"    {len(refused) - MOST_SHOWN} more that are not possible")
    return "\n".join(lines) + "\n"


# --- the best ranges of a graph ---------------------------------------------------------------


MIN_SAVING = 0.01
"""Share of a range's time that loops have to save."""
MAX_TRIALS = 1000
"""Kernels compiled for trial per graph; ranges tried after that are not tiled."""


class _Choice(msgspec.Struct, frozen=True):
    """The outcomes of a range of operations, which begins at position ``begin`` of its run.

    ``left``: why it is not tiled although loops would save time within the range.
    """

    begin: int
    names: tuple[str, ...]
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
        operations, choices = _planned(run, trials)
        chosen = _tiles(choices)
        if chosen:  # the run is contiguous
            begin = min(map(graph.operations.index, operations))
            graph.operations[begin : begin + len(operations)] = operations
        for choice in choices:
            setattr(graph.name_to_buffer[choice.names[0]], TILING_REPORT, choice.report)
            logger.info("automatic tiling: %s", choice.report)
        for tiles in chosen:
            number = first + len(groups)
            groups.append(_group(tiles, number, graph.name_to_buffer, trials.classes))
    return groups


Tiles = tuple[tuple[str, ...], Levels]
"""A range of operations, by name, and the loops around it over classes of dims."""


def _tiles(choices: Sequence[_Choice]) -> list[Tiles]:
    """Return the loops, in the order of the operations."""
    chosen = sorted((c for c in choices if c.levels), key=lambda c: c.begin)
    return [(choice.names, choice.levels) for choice in chosen]


def _group(tiles: Tiles, number: int, operations: Mapping[str, Any], classes: Classes) -> TileGroup:
    """Return group ``number`` of a graph for `coarse_tile`; names the dims of its operations."""
    names, levels = tiles
    for name in names:
        operations[name].named_dims = classes[name]
    path = (number, *[0] * (len(levels) - 1))
    return TileGroup(path, levels, tuple(operations[name] for name in names))


class _Trials:
    """Compiles candidates of one graph for trial, at most `MAX_TRIALS`."""

    def __init__(self, graph: Any, classes: Classes) -> None:
        self.graph, self.classes = graph, classes
        self.made = 0

    def outcome(
        self, operations: Sequence[Any], results: frozenset[str], levels: Levels
    ) -> Outcome:
        """Return the cost of loops ``levels`` around all ``operations``."""
        names = tuple(op.get_name() for op in operations)
        return self.tiled(operations, results, [(names, levels)] if levels else [])

    def tiled(
        self, operations: Sequence[Any], results: frozenset[str], tiles: Sequence[Tiles]
    ) -> Outcome:
        """Return the cost of ``operations`` with the loops ``tiles`` around some of them."""
        levels = tiles[0][1] if tiles else UNTILED
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
    """Return the modelled cost of one launch of ``kernel`` at the LX fraction of the settings."""
    counts = launch_counts(kernel)
    machine = machine_with(default_machine(), settings().lx_fraction)
    time_ns = kernel_ns(counts.operations, machine).total_ns
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
    linker = Linker(bundle.program, bundle.operations, Numerics(), threads=1)
    linked = linker.link(Binding(addresses, allocations=tuple(allocations)))
    return LaunchCounts([linked.view])


def _planned(run: OperationRun, trials: _Trials) -> tuple[list[Any], list[_Choice]]:
    """Return a run's operations in their new order and the choices for its ranges: no loops if
    they do not make the whole run faster.
    """
    before = [step.operation for step in run.steps]
    dims = {op.get_name(): dims_of(op, trials.classes) for op in before}
    operations = hoisted(before, dims)
    choices = list(_choices(operations, dims, run.results, trials))
    if not (tiles := _tiles(choices)):
        return operations, choices
    whole = trials.tiled(before, run.results, [])
    tiled = trials.tiled(operations, run.results, tiles)
    if tiled.time_ns < whole.time_ns:
        return operations, choices
    times = f"{tiled.time_ns / 1e3:,.1f} us, not {whole.time_ns / 1e3:,.1f}"
    why = f"; not tiled, the whole bundle would take {times}"
    return operations, [replace(choice, left=why) for choice in choices]


def _choices(
    operations: Sequence[Any], dims: Mapping[str, Dims], results: frozenset[str], trials: _Trials
) -> Iterator[_Choice]:
    """Yield choices for disjoint ranges of a run, the largest saving first."""
    choices: dict[Range, _Choice] = {}
    for ends, extents in candidate_ranges(operations, dims):
        members = operations[slice(*ends)]
        left = _read_elsewhere(members, operations, results)
        trial = functools.cache(functools.partial(trials.outcome, members, left))
        whole = trial(UNTILED)
        # loops pay where they keep intermediate results in LX, or accumulators of matmuls small
        if whole.is_possible and (whole.spills or any(map(is_matmul, members))):
            names = tuple(op.get_name() for op in members)
            choices[ends] = _Choice(ends[0], names, best_levels(extents, trial))
    taken: set[int] = set()
    for ends, choice in sorted(choices.items(), key=lambda item: -item[1].saved_ns):
        if taken.isdisjoint(range(*ends)):
            taken.update(range(*ends))
            yield choice


def _read_elsewhere(
    members: Sequence[Any], operations: Sequence[Any], results: frozenset[str]
) -> frozenset[str]:
    inside = {id(op) for op in members}
    read = {name for op in operations if id(op) not in inside for name in names_read(op)}
    return frozenset(op.get_name() for op in members if op.get_name() in read | results)


def trial_kernel(
    graph: Any,
    operations: Sequence[Any],
    results: Collection[str],
    tiles: Sequence[Tiles],
    classes: Classes,
) -> PlannedKernel:
    """Return the kernel of the contiguous ``operations`` alone, with the loops ``tiles``.

    ``results``: names of the operations that others read. Raises the SpyreErrors of `coarse_tile`
    and the LoweringErrors of `SpyreKernel`.
    """
    copies = [_copied(op) for op in operations]
    trial = _trial_graph(graph, copies, results)
    with V.set_graph_handler(trial):
        by_name = {op.get_name(): op for op in copies}
        groups = [_group(row, number, by_name, classes) for number, row in enumerate(tiles)]
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
