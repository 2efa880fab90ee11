"""Linking: a LoopProgram, its operations and a binding become tables and dispatches.

All addresses of all loop iterations are computed here with arrays; every operand of every execute
is checked against the allocations before anything runs, so that no kernel can leave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from spyre.errors import BundleError, DeviceFault, DeviceLocation
from spyre.hw import table as tb
from spyre.hw.binding import Allocation, Binding
from spyre.hw.core_plan import CorePlan, plan_operation
from spyre.hw.kernels.opcodes import COPY_KIND, DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.kernels.registry import entry_addresses
from spyre.hw.nest import Int64Array
from spyre.hw.outside import first_outside
from spyre.hw.spec import (
    LX_BASE,
    LX_BYTES,
    MAX_OPERANDS,
    REGION_BITS,
    REGION_SKEW_BYTES,
)
from spyre.mlir.operation import Component, Indirection, Operation, Tensor
from spyre.mlir.program import Execute, LoopProgram, Schedule


@dataclass(frozen=True)
class LinkedProgram:
    """Ready to run: plan tables, and dispatches in program order.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``dispatch``:
    int64 [m, DISPATCH_WORDS]: table, static execute, instance, spare, 8 base addresses. ``plans``:
    the plans of each static execute. ``binding``: what it was linked for.
    """

    tables: Int64Array
    dispatch: Int64Array
    program: LoopProgram
    schedule: Schedule
    plans: tuple[tuple[CorePlan, ...], ...]
    binding: Binding = field(default_factory=Binding)

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


def starts_of(linked: LinkedProgram, static: int) -> Int64Array:
    """Start addresses of execute ``static``, bytes in the simulator's memory: [instance, operand,
    core]. It must have been executed at least once.
    """
    op = linked.plans[static][0].op
    symbols = linked.schedule.symbols[static]
    return _start_addresses(op, linked.program.executes[static], symbols, linked.binding)


@dataclass
class Linker:
    """Links one program; plans are kept between launches.

    ``operations``: by SDSC file name. ``half_format``: table code of 16-bit floats. ``core_order``:
    seed of a random order of cores, see :mod:`spyre.hw.core_order`.
    """

    program: LoopProgram
    operations: Mapping[str, Operation]
    half_format: int
    threads: int
    core_order: int | None = None
    _plans: dict[tuple[object, ...], CorePlan] = field(default_factory=dict)

    def link(self, binding: Binding) -> LinkedProgram:
        """Tables and dispatches for ``binding``; raises DeviceFault for what it may not touch."""
        schedule = self.program.schedule(binding.parameters, binding.scratch_addresses)
        parts = [
            self._link_execute(execute, schedule, binding) for execute in self.program.executes
        ]
        return _assemble(self.program, schedule, parts, binding)

    def _link_execute(self, execute: Execute, schedule: Schedule, binding: Binding) -> _ExecutePart:
        op = self.operations[execute.sdsc_filename]
        starts = _start_addresses(op, execute, schedule.symbols[execute.index], binding)
        bases = starts[:, :, 0]
        patterns = starts - bases[:, :, None]
        part = _ExecutePart(len(bases))
        for chosen in _equal_patterns(patterns):
            instance = int(chosen[0])
            tags = _arrangements(op, bases[instance], binding)
            plan = self._plan(op, execute.sdsc_filename, patterns[instance], tags)
            place = _Place(op, execute, schedule, plan, chosen)
            _check_alignment(place, starts[chosen])
            _check_lx(place, starts[instance])
            owners = _check_hbm(place, starts[chosen], binding.allocations)
            for tables, members in _bounded_tables(place, bases[chosen], owners, binding):
                part.add(plan, tables, chosen[members], bases[chosen[members]])
        return part

    def _plan(
        self, op: Operation, name: str, pattern: Int64Array, tags: tuple[str, ...]
    ) -> CorePlan:
        key = (name, pattern.tobytes(), tags)
        if key not in self._plans:
            self._plans[key] = plan_operation(
                op, pattern, tags, self.half_format, self.threads, self.core_order
            )
        return self._plans[key]


@dataclass
class _ExecutePart:
    """Tables and instance bases of one static execute."""

    instances: int
    plans: list[CorePlan] = field(default_factory=list)
    groups: list[tuple[Int64Array, Int64Array, Int64Array]] = field(default_factory=list)

    def add(
        self, plan: CorePlan, tables: Int64Array, instances: Int64Array, bases: Int64Array
    ) -> None:
        self.plans.append(plan)
        self.groups.append((tables, instances, bases))


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


def _start_addresses(
    op: Operation, execute: Execute, symbols: Int64Array, binding: Binding
) -> Int64Array:
    """Start addresses, bytes in the simulator's memory: [instance, operand, core]."""
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    shape = (len(symbols), len(op.tensors), len(op.cores))
    starts = np.empty(shape, np.int64)
    lx = LX_BASE + np.array(op.cores, np.int64) * LX_BYTES
    for k, tensor in enumerate(op.tensors):
        if tensor.symbolic:
            _check_bound(op, execute, tensor)
            values = symbols[:, [column[s] for s in tensor.starts]]
            starts[:, k, :] = binding.relocate(values)
        elif tensor.component is Component.LX:
            starts[:, k, :] = lx + np.array(tensor.starts, np.int64)
        else:
            starts[:, k, :] = binding.relocate(np.array(tensor.starts, np.int64))
    return starts


def _check_bound(op: Operation, execute: Execute, tensor: Tensor) -> None:
    """The checker's SPY275, for programs that were not checked."""
    missing = sorted(set(tensor.starts) - set(execute.symbol_ids))
    if missing:
        raise BundleError(
            "SPY275",
            f"{tensor.name} of {op.file} starts at symbols that are not bound",
            execute.location,
            expected=f"symbol ids {list(execute.symbol_ids)}",
            found=str(missing),
        )


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
    words = np.array([tensor.word_length_bytes for tensor in place.op.tensors], np.int64)
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


def _check_lx(place: _Place, starts: Int64Array) -> None:
    for k, access in enumerate(place.plan.accesses):
        if access.tensor.component is not Component.LX:
            continue
        for i, core in enumerate(place.op.cores):
            offset = int(starts[k, i]) - LX_BASE - core * LX_BYTES
            if offset < 0 or offset + access.span_bytes > LX_BYTES:
                raise DeviceFault(
                    "SPY410",
                    f"{place.op.name} leaves the scratchpad of its core",
                    place.location(0, k, core, offset),
                    expected=f"bytes 0 to {LX_BYTES}",
                    found=f"bytes {offset} to {offset + access.span_bytes}",
                )


def _check_hbm(place: _Place, starts: Int64Array, allocations: Sequence[Allocation]) -> Int64Array:
    """Owner (index into allocations) of every operand, [member, operand]; -1 for LX.

    ``starts``: bytes, [member, operand, core].
    """
    bases = starts[:, :, 0]
    ordered = sorted(range(len(allocations)), key=lambda i: allocations[i].address_bytes)
    lows = np.array([allocations[i].address_bytes for i in ordered], np.int64)
    highs = np.array([allocations[i].end_bytes for i in ordered], np.int64)
    widest = _widest_before(highs)
    owners = np.full(bases.shape, -1, np.int64)
    for k, tensor in enumerate(place.op.tensors):
        if tensor.component is not Component.HBM:
            continue
        low = bases[:, k] + place.plan.low_bytes[k]
        high = bases[:, k] + place.plan.high_bytes[k]
        at = np.searchsorted(lows, low, side="right") - 1
        bad = at < 0
        if len(ordered):
            at = np.where(bad, 0, widest[at])
            bad |= high > highs[at]
        if bad.any():
            member = int(np.flatnonzero(bad)[0])
            extent = int(low[member]), int(high[member])
            _raise_out_of_bounds(place, member, k, starts[member, k], extent, allocations)
        owners[:, k] = np.array(ordered, np.int64)[at]
    return owners


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
    """``starts``: of every core; ``extent``: what all cores touch, end excluded. Both in bytes."""
    low, high = extent
    near = [a for a in allocations if a.address_bytes <= low < a.end_bytes]
    expected = "one of: " + ", ".join(
        f"{a.name} {a.address_bytes:#x}..{a.end_bytes:#x}" for a in (near or allocations)[:8]
    )
    position, address, coordinate = first_outside(place.op, operand, starts, near or allocations)
    raise DeviceFault(
        "SPY411",
        f"{place.op.name} touches memory outside of its arguments",
        place.location(member, operand, place.op.cores[position], address),
        expected=expected if allocations else "no device memory at all",
        found=f"bytes {low:#x}..{high:#x} ({high - low} bytes) over all cores{coordinate}",
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
    step = int(tables[0, tb.VALUE])
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


def _assemble(
    program: LoopProgram, schedule: Schedule, parts: Sequence[_ExecutePart], binding: Binding
) -> LinkedProgram:
    """Put all dispatches in program order."""
    tables: list[Int64Array] = []
    heads: list[Int64Array] = [np.zeros(0, np.int64)]
    total_rows = total_heads = 0
    first_table, table_count, base_rows = [], [], []
    for part in parts:
        first = np.zeros(part.instances, np.int64)
        count = np.zeros(part.instances, np.int64)
        bases = np.zeros((part.instances, MAX_OPERANDS), np.int64)
        for rows, instances, values in part.groups:
            tables.append(rows)
            head = np.flatnonzero(rows[:, tb.KIND] != tb.EXTRA)
            heads.append(total_rows + head)
            first[instances] = total_heads
            count[instances] = len(head)
            bases[instances, : values.shape[1]] = values
            total_rows += len(rows)
            total_heads += len(head)
        first_table.append(first)
        table_count.append(count)
        base_rows.append(bases)
    stacked = np.concatenate(tables) if tables else np.zeros((0, tb.WORDS), np.int64)
    dispatch = _dispatches(schedule, first_table, table_count, base_rows)
    dispatch[:, 0] = np.concatenate(heads)[dispatch[:, 0]]
    plans = tuple(tuple(part.plans) for part in parts)
    return LinkedProgram(stacked, dispatch, program, schedule, plans, binding)


def _dispatches(
    schedule: Schedule,
    first_table: list[Int64Array],
    table_count: list[Int64Array],
    base_rows: list[Int64Array],
) -> Int64Array:
    offsets = np.cumsum([0] + [len(f) for f in first_table])[:-1]
    if not first_table:
        return np.zeros((0, DISPATCH_WORDS), np.int64)
    row = offsets[schedule.order] + schedule.instance
    first = np.concatenate(first_table)[row]
    count = np.concatenate(table_count)[row]
    bases = np.concatenate(base_rows)[row]
    repeat = np.repeat(np.arange(len(row)), count)
    within = np.arange(len(repeat)) - np.repeat(np.cumsum(count) - count, count)
    dispatch = np.zeros((len(repeat), DISPATCH_WORDS), np.int64)
    dispatch[:, 0] = first[repeat] + within
    dispatch[:, 1] = schedule.order[repeat]
    dispatch[:, 2] = schedule.instance[repeat]
    dispatch[:, DISPATCH_BASES:] = bases[repeat]
    return np.ascontiguousarray(dispatch)
