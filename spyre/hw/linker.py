"""Linking: a LoopProgram, its operations and a binding become tables and dispatches.

All addresses of all loop iterations are computed here with arrays; every operand of every execute
is checked against the allocations before anything runs, so that no kernel can leave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from spyre.errors import BundleError, DeviceFault, DeviceLocation, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.binding import Allocation, Binding
from spyre.hw.core_plan import CorePlan, plan_operation
from spyre.hw.kernels.opcodes import COPY_KIND, DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.kernels.registry import entry_addresses
from spyre.hw.nest import Int64Array
from spyre.hw.outside import first_outside
from spyre.hw.parts import Part, check_slices, plain_parts
from spyre.hw.spec import (
    LX_BASE,
    LX_BYTES,
    MAX_OPERANDS,
    REGION_BITS,
    REGION_SKEW_BYTES,
)
from spyre.mlir.footprint import footprint
from spyre.mlir.operation import Component, Indirection, Operation
from spyre.mlir.program import Execute, LoopProgram, Schedule
from spyre.mlir.runtime_sizes import group_by_sizes, with_sizes


@dataclass(frozen=True)
class PlanRun:
    """A plan and the instances of a static execute it runs for.

    ``bases``: start addresses of the first core, int64 [instance, operand]; ``pattern``: those of
    all cores relative to it, [operand, core]. ``divided``: the operation with its tensors' own work
    slices, where the plan's is in cells, which may lie in other cores' scratchpads.
    """

    plan: CorePlan
    instances: Int64Array
    bases: Int64Array
    pattern: Int64Array
    divided: Operation | None = None

    def starts(self, operand: int) -> Int64Array:
        """Start addresses of an operand, [instance, core]."""
        starts: Int64Array = self.bases[:, operand, None] + self.pattern[operand]
        return starts


@dataclass(frozen=True)
class LinkedProgram:
    """Ready to run: plan tables, and dispatches in program order.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``dispatch``:
    int64 [m, DISPATCH_WORDS]: table, static execute, instance, spare, 8 base addresses. ``runs``:
    what runs for each static execute; an instance with several parts is in several runs.
    ``binding``: what it was linked for. ``run_rows``: first row in ``tables`` of each run, those of
    all executes one behind another.
    """

    tables: Int64Array
    dispatch: Int64Array
    program: LoopProgram
    schedule: Schedule
    runs: tuple[tuple[PlanRun, ...], ...]
    binding: Binding
    run_rows: Int64Array

    @cached_property
    def plans(self) -> tuple[tuple[CorePlan, ...], ...]:
        """The distinct plans of each static execute."""
        return tuple(tuple({id(r.plan): r.plan for r in runs}.values()) for runs in self.runs)

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """``dispatch`` with base addresses as host offsets, which is what kernels take."""
        mapped = self.dispatch.copy()
        bases = mapped[:, DISPATCH_BASES:]
        bases += (bases >> REGION_BITS) * REGION_SKEW_BYTES
        return mapped

    @cached_property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        kinds = np.unique(self.tables[:, tb.KIND])
        return entry_addresses(kinds[kinds != tb.EXTRA].tolist())


@dataclass(frozen=True)
class Variant:
    """One operation an execute statement runs, and for which of its instances.

    ``starts``: device addresses in bytes, [member of ``instances``, operand, core]. Most statements
    have one variant; runtime sizes and shorter last work slices make more. ``divided``: as in
    :class:`PlanRun`.
    """

    op: Operation
    instances: Int64Array
    starts: Int64Array
    divided: Operation | None = None


def variants_of(linked: LinkedProgram, static: int) -> tuple[Variant, ...]:
    """What execute statement ``static`` runs, in the order of its parts."""
    groups: dict[int, list[PlanRun]] = {}
    for run in linked.runs[static]:
        groups.setdefault(id(run.plan.op), []).append(run)
    return tuple(map(_variant, groups.values()))


def _variant(runs: list[PlanRun]) -> Variant:
    instances = np.concatenate([run.instances for run in runs])
    starts = np.concatenate([run.bases[:, :, None] + run.pattern[None] for run in runs])
    order = np.argsort(instances, kind="stable")
    return Variant(runs[0].plan.op, instances[order], starts[order], runs[0].divided)


@dataclass
class Linker:
    """Links one program; plans are kept between launches.

    ``operations``: by SDSC file name. ``half_format``: table code of 16-bit floats. ``chunked``:
    sums of them accumulate in DL16. ``core_order``: seed of a
    random order of cores, see :mod:`spyre.hw.core_order`.
    """

    program: LoopProgram
    operations: Mapping[str, Operation]
    half_format: int
    threads: int
    chunked: bool = False
    core_order: int | None = None
    _plans: dict[tuple[object, ...], CorePlan] = field(default_factory=dict)

    def link(self, binding: Binding) -> LinkedProgram:
        """Tables and dispatches for ``binding``; raises DeviceFault for what it may not touch."""
        schedule = self.program.schedule(binding.parameters, binding.scratch_addresses)
        linked = [
            self._link_execute(execute, schedule, binding) for execute in self.program.executes
        ]
        return _assemble(self.program, schedule, linked, binding)

    def _link_execute(
        self, execute: Execute, schedule: Schedule, binding: Binding
    ) -> list[_ExecutePart]:
        """The parts of one static execute, in the order they run."""
        op = self.operations[execute.sdsc_filename]
        symbols = schedule.symbols[execute.index]
        check_bound(op, execute)
        check_slices(op)
        starts = start_addresses(op, execute, symbols, binding)
        parts: list[_ExecutePart] = []
        for sizes, instances in group_by_sizes(op, execute.symbol_ids, symbols):
            sized = with_sizes(op, sizes)
            for place, plain in enumerate(plain_parts(sized, starts[instances])):
                if place == len(parts):
                    parts.append(_ExecutePart(len(symbols)))
                key = (execute.sdsc_filename, place, *sizes.items())
                self._link_part(parts[place], plain, instances, key, (execute, schedule, binding))
        return parts

    def _link_part(
        self,
        part: _ExecutePart,
        plain: Part,
        instances: Int64Array,
        key: tuple[object, ...],
        launch: tuple[Execute, Schedule, Binding],
    ) -> None:
        """Plans, checks and tables of one part for ``instances``."""
        execute, schedule, binding = launch
        op, starts = plain.op, plain.starts
        bases = starts[:, :, 0]
        patterns = starts - bases[:, :, None]
        for chosen in _equal_patterns(patterns):
            first = int(chosen[0])
            tags = _arrangements(op, bases[first], binding)
            plan = self._plan(op, key, _host_pattern(op, starts[first]), tags)
            place = _Place(op, execute, schedule, plan, instances[chosen])
            _check_alignment(place, starts[chosen])
            _check_lx(place, plain.divided or plain, first)
            owners = _check_hbm(place, starts[chosen], binding.allocations)
            for tables, members in _bounded_tables(place, bases[chosen], owners, binding):
                own = chosen[members]
                divided = plain.divided.op if plain.divided else None
                run = PlanRun(plan, instances[own], bases[own], patterns[first], divided)
                part.add(run, tables)

    def _plan(
        self, op: Operation, name: tuple[object, ...], pattern: Int64Array, tags: tuple[str, ...]
    ) -> CorePlan:
        key = (name, pattern.tobytes(), tags)
        if key not in self._plans:
            self._plans[key] = plan_operation(
                op, pattern, tags, self.half_format, self.threads, self.chunked, self.core_order
            )
        return self._plans[key]


@dataclass
class _ExecutePart:
    """Tables and instance bases of one part of a static execute."""

    instances: int
    runs: list[PlanRun] = field(default_factory=list)
    tables: list[Int64Array] = field(default_factory=list)

    def add(self, run: PlanRun, tables: Int64Array) -> None:
        """``tables`` run for the instances of ``run``."""
        self.runs.append(run)
        self.tables.append(tables)


@dataclass(frozen=True)
class _Place:
    """Where a check is made, for messages."""

    op: Operation
    execute: Execute
    schedule: Schedule
    plan: CorePlan
    instances: Int64Array

    def location(self, member: int, operand: int, core: int | None, address: int) -> DeviceLocation:
        loops = self.schedule.loop_indices[self.execute.index][self.instances[member]]
        return DeviceLocation(
            self.op.file,
            self.execute.index,
            core,
            self.op.tensors[operand].name,
            address,
            tuple(int(i) for i in loops),
            self.execute.location,
        )


def start_addresses(
    op: Operation, execute: Execute, symbols: Int64Array, binding: Binding
) -> Int64Array:
    """Start addresses, bytes in the simulator's memory: [instance, operand, core].

    ``symbols``: values of the execute's symbols, [instance, symbol].
    """
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    shape = (len(symbols), len(op.tensors), len(op.cores))
    starts = np.empty(shape, np.int64)
    lx = LX_BASE + np.array(op.cores, np.int64) * LX_BYTES
    for k, tensor in enumerate(op.tensors):
        if tensor.symbolic:
            values = symbols[:, [column[s] for s in tensor.starts]]
            starts[:, k, :] = binding.relocate(values)
        elif tensor.component is Component.LX:
            starts[:, k, :] = lx + np.array(tensor.starts, np.int64)
        else:
            starts[:, k, :] = binding.relocate(np.array(tensor.starts, np.int64))
    return starts


def instance_arrangements(op: Operation, starts: Int64Array, binding: Binding) -> tuple[str, ...]:
    """Element arrangement of every operand that starts at ``starts`` [operand, core]."""
    return _arrangements(op, starts[:, 0], binding)


def check_bound(op: Operation, execute: Execute) -> None:
    """The checker's SPY275, for programs that were not checked."""
    missing = sorted(set(op.symbol_ids) - set(execute.symbol_ids))
    if missing:
        raise BundleError(
            "SPY275",
            f"{op.file} uses symbols that are not bound",
            execute.location,
            expected=f"symbol ids {list(execute.symbol_ids)}",
            found=str(missing),
        )


def _host_pattern(op: Operation, starts: Int64Array) -> Int64Array:
    """Starts [operand, core] relative to the first core's, as the kernels' memory has them.

    Regions lie further apart there than on the card, which matters where the cores' tensors are
    unrelated and may be in different regions.
    """
    pattern = starts - starts[:, :1]
    for k, tensor in enumerate(op.tensors):
        if tensor.per_core_in_hbm:
            regions = starts[k] >> REGION_BITS
            pattern[k] += (regions - regions[0]) * REGION_SKEW_BYTES
    return pattern


def _equal_patterns(patterns: Int64Array) -> list[Int64Array]:
    """Instances grouped by equal patterns of core starts; nearly always one group."""
    if len(patterns) == 0:
        return []
    if (patterns == patterns[0]).all():
        return [np.arange(len(patterns))]
    flat = patterns.reshape(len(patterns), -1)
    _, which = np.unique(flat, axis=0, return_inverse=True)
    return [np.flatnonzero(which == k) for k in range(int(which.max()) + 1)]


def _arrangements(op: Operation, bases: Int64Array, binding: Binding) -> tuple[str, ...]:
    tags = []
    for tensor, base in zip(op.tensors, bases.tolist(), strict=True):
        owner = None
        if tensor.component is Component.HBM:
            owner = next(
                (a for a in binding.allocations if a.address_bytes <= base < a.end_bytes), None
            )
        tags.append(owner.arrangement if owner is not None else "STANDARD")
    return tuple(tags)


def _check_alignment(place: _Place, starts: Int64Array) -> None:
    """Kernels address whole elements: [member, operand, core] must be multiples of their size."""
    words = np.array([max(tensor.word_length_bytes, 1) for tensor in place.op.tensors], np.int64)
    bad = starts % words[:, None] != 0
    if not bad.any():
        return
    member, operand, core = (int(i) for i in np.argwhere(bad)[0])
    address = int(starts[member, operand, core])
    raise DeviceFault(
        "SPY413",
        f"{place.op.name}: an element does not lie on a multiple of its size",
        place.location(member, operand, place.op.cores[core], address),
        expected=f"a multiple of {words[operand]} bytes",
        found=f"{address:#x}",
    )


def _check_lx(place: _Place, divided: Part, member: int) -> None:
    """Every core's tensors in LX lie within its scratchpad; ``divided`` over cores, not cells."""
    op = divided.op
    for k, tensor in enumerate(op.tensors):
        if tensor.component is not Component.LX:
            continue
        span = footprint(op, tensor).span_bytes
        for i, core in enumerate(op.cores):
            offset = int(divided.starts[member, k, i]) - LX_BASE - core * LX_BYTES
            if offset < 0 or offset + span > LX_BYTES:
                raise DeviceFault(
                    "SPY410",
                    f"{op.name} leaves the scratchpad of its core",
                    place.location(0, k, core, offset),
                    expected=f"bytes 0 to {LX_BYTES}",
                    found=f"bytes {offset} to {offset + span}",
                )


def _check_hbm(place: _Place, starts: Int64Array, allocations: Sequence[Allocation]) -> Int64Array:
    """Owner (index into allocations) of every operand, [member, operand]; -1 for LX.

    ``starts``: [member, operand, core]. Where each core has a tensor of its own, each lies in some
    allocation, and the owner is that of the first core's.
    """
    index = _AllocationIndex.of(allocations)
    owners = np.full(starts.shape[:2], -1, np.int64)
    for k, tensor in enumerate(place.op.tensors):
        if tensor.component is not Component.HBM:
            continue
        if tensor.per_core_in_hbm:
            low = starts[:, k, :]
            high = low + place.plan.accesses[k].span_bytes
        else:
            low = starts[:, k, :1] + place.plan.low_bytes[k]
            high = starts[:, k, :1] + place.plan.high_bytes[k]
        found = index.owner(low, high)
        if (found < 0).any():
            member, core = (int(i) for i in np.argwhere(found < 0)[0])
            extent = int(low[member, core]), int(high[member, core])
            _raise_out_of_bounds(place, member, k, starts[member, k], extent, allocations)
        owners[:, k] = found[:, 0]
    return owners


@dataclass(frozen=True)
class _AllocationIndex:
    """Allocations in order of address: positions in the list given, first and end bytes."""

    order: Int64Array
    lows: Int64Array
    highs: Int64Array

    @classmethod
    def of(cls, allocations: Sequence[Allocation]) -> _AllocationIndex:
        """The index of ``allocations``."""
        lows = np.array([a.address_bytes for a in allocations], np.int64)
        highs = np.array([a.end_bytes for a in allocations], np.int64)
        order = np.argsort(lows, kind="stable")
        return cls(order, lows[order], highs[order])

    def owner(self, low: Int64Array, high: Int64Array) -> Int64Array:
        """The allocation that holds bytes ``low`` to ``high``, for every element; -1 if none."""
        if not self.order.size:
            return np.full(low.shape, -1, np.int64)
        at = np.searchsorted(self.lows, low, side="right") - 1
        widest = _widest_before(self.highs)[np.maximum(at, 0)]
        inside = (at >= 0) & (high <= self.highs[widest])
        return np.where(inside, self.order[widest], -1)


def _widest_before(highs: Int64Array) -> Int64Array:
    """Per allocation in order of address, the one up to it that ends last: views may overlap."""
    ends = np.maximum.accumulate(highs) if highs.size else highs
    return np.searchsorted(ends, ends, side="left")


def _raise_out_of_bounds(
    place: _Place,
    member: int,
    operand: int,
    starts: Int64Array,
    extent: tuple[int, int],
    allocations: Sequence[Allocation],
) -> None:
    """``starts``: of every core; ``extent``: what the cores touch, end excluded. Both in bytes.

    Of tensors of the cores' own in HBM, ``extent`` is what one core touches.
    """
    low, high = extent
    alone = place.op.tensors[operand].per_core_in_hbm
    near = [a for a in allocations if a.address_bytes <= low < a.end_bytes]
    expected = "one of: " + ", ".join(
        f"{a.name} {a.address_bytes:#x}..{a.end_bytes:#x}" for a in (near or allocations)[:8]
    )
    memory = allocations if alone else near or allocations
    position, address, coordinate = first_outside(place.op, operand, starts, memory)
    cores = "of one core" if alone else "over all cores"
    raise DeviceFault(
        "SPY411",
        f"{place.op.name} touches memory outside of its arguments",
        place.location(member, operand, place.op.cores[position], address),
        expected=expected if allocations else "no device memory at all",
        found=f"bytes {low:#x}..{high:#x} ({high - low} bytes) {cores}{coordinate}",
    )


def _bounded_tables(
    place: _Place, bases: Int64Array, owners: Int64Array, binding: Binding
) -> list[tuple[Int64Array, Int64Array]]:
    """Tables with the index limit of gathers filled in: (tables, members) per distinct limit."""
    everyone = np.arange(len(bases))
    value = next(
        (k for k, t in enumerate(place.op.tensors) if t.indirection is Indirection.VALUE), None
    )
    tables = place.plan.tables
    if value is None or not (tables[:, tb.KIND] == COPY_KIND).all():
        return [(tables, everyone)]
    step = max(int(tables[0, tb.VALUE]), 1)
    _refuse_unrelated(place, value)
    ends = np.array([a.end_bytes for a in binding.allocations], np.int64)
    if place.op.tensors[value].component is Component.LX:
        room = LX_BYTES - place.plan.accesses[value].span_bytes + np.zeros(len(bases), np.int64)
    else:
        room = ends[owners[:, value]] - (bases[:, value] + place.plan.high_bytes[value])
    limits = room // step + 1
    result = []
    for limit in np.unique(limits):
        own = tables.copy()
        own[:, tb.MASK_END] = limit
        result.append((own, np.flatnonzero(limits == limit)))
    return result


def _refuse_unrelated(place: _Place, value: int) -> None:
    """One limit serves all cores, which tensors of the cores' own in HBM do not have."""
    tensor = place.op.tensors[value]
    if tensor.per_core_in_hbm:
        raise UnsupportedError(
            "SPY533",
            f"{place.op.name}: indices into {tensor.name}, one tensor per core, are not simulated",
            place.location(0, value, None, 0),
            expected="one tensor of all cores",
        )


def _assemble(
    program: LoopProgram,
    schedule: Schedule,
    linked: Sequence[Sequence[_ExecutePart]],
    binding: Binding,
) -> LinkedProgram:
    """Put all dispatches in program order; ``linked``: the parts of each static execute."""
    layout = _TableLayout()
    for parts in linked:
        for part in parts:
            layout.add(part)
    stacked = np.concatenate(layout.tables) if layout.tables else np.zeros((0, tb.WORDS), np.int64)
    dispatch = _dispatches(schedule, layout, [len(parts) for parts in linked])
    dispatch[:, 0] = np.concatenate(layout.heads)[dispatch[:, 0]]
    runs = tuple(tuple(run for part in parts for run in part.runs) for parts in linked)
    rows = np.array(layout.run_rows, np.int64)
    return LinkedProgram(stacked, dispatch, program, schedule, runs, binding, rows)


@dataclass
class _TableLayout:
    """Tables of all parts one behind another.

    ``heads``: rows that begin a table. Per part and instance: ``first`` of its heads, how many
    (``count``), and ``bases``.
    """

    tables: list[Int64Array] = field(default_factory=list)
    heads: list[Int64Array] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    first: list[Int64Array] = field(default_factory=list)
    count: list[Int64Array] = field(default_factory=list)
    bases: list[Int64Array] = field(default_factory=list)
    run_rows: list[int] = field(default_factory=list)
    rows: int = 0
    total: int = 0

    def add(self, part: _ExecutePart) -> None:
        """Append the tables of ``part``."""
        first = np.zeros(part.instances, np.int64)
        count = np.zeros(part.instances, np.int64)
        bases = np.zeros((part.instances, MAX_OPERANDS), np.int64)
        for run, rows in zip(part.runs, part.tables, strict=True):
            head = np.flatnonzero(rows[:, tb.KIND] != tb.EXTRA)
            self.tables.append(rows)
            self.run_rows.append(self.rows)
            self.heads.append(self.rows + head)
            first[run.instances] = self.total
            count[run.instances] = len(head)
            bases[run.instances, : run.bases.shape[1]] = run.bases
            self.rows += len(rows)
            self.total += len(head)
        self.first.append(first)
        self.count.append(count)
        self.bases.append(bases)


def _dispatches(schedule: Schedule, layout: _TableLayout, parts: Sequence[int]) -> Int64Array:
    """Every dispatch in program order; ``parts``: how many each static execute has."""
    if not layout.first:
        return np.zeros((0, DISPATCH_WORDS), np.int64)
    executes, part = _execute_parts(schedule, np.array(parts, np.int64))
    offsets = np.cumsum([0] + [len(f) for f in layout.first])[:-1]
    row = offsets[part] + schedule.instance[executes]
    first = np.concatenate(layout.first)[row]
    count = np.concatenate(layout.count)[row]
    bases = np.concatenate(layout.bases)[row]
    repeat = np.repeat(np.arange(len(row)), count)
    within = np.arange(len(repeat)) - np.repeat(np.cumsum(count) - count, count)
    dispatch = np.zeros((len(repeat), DISPATCH_WORDS), np.int64)
    dispatch[:, 0] = first[repeat] + within
    dispatch[:, 1] = schedule.order[executes][repeat]
    dispatch[:, 2] = schedule.instance[executes][repeat]
    dispatch[:, DISPATCH_BASES:] = bases[repeat]
    return np.ascontiguousarray(dispatch)


def _execute_parts(schedule: Schedule, parts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Dynamic executes repeated once per part of theirs, and that part's number."""
    count = parts[schedule.order]
    executes = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(executes)) - np.repeat(np.cumsum(count) - count, count)
    first = np.cumsum(parts) - parts
    return executes, first[schedule.order[executes]] + within
