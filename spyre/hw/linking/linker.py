"""Linking: a program, its operations and a binding become tables and dispatches.

All addresses of all loop iterations are computed here with arrays; every operand of every execute
is checked against the allocations before anything runs, so that no kernel can leave them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw import plan_table as tb
from spyre.hw.linking.binding import FIXED, UNKNOWN, AllocationTable, Binding
from spyre.hw.linking.checks import (
    allows_overread,
    check_alignment,
    check_bound,
    check_hbm,
    check_literals,
    check_lx,
    operand_location,
)
from spyre.hw.linking.linked_program import LinkedCode, LinkedProgram, LinkedStatement
from spyre.hw.linking.trace import common_owner, operand_owners, value_owner
from spyre.hw.numerics import Numerics
from spyre.hw.plans import (
    CorePlan,
    LinkedPart,
    UniformPart,
    check_slices,
    plan_operation,
    uniform_operations,
)
from spyre.hw.spec import LX_BASE, LX_BYTES, MAX_OPERANDS, REGION_BITS, REGION_SKEW_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import (
    INDEX_LIMIT_CONSTANT,
    Component,
    Indirection,
    Operation,
    group_by_sizes,
    with_sizes,
)
from spyre.mlir.program import Execute, LinkableProgram, Schedule

_FARTHEST = 1 << 56
"""Bytes that no operand reaches."""


class Linker(msgspec.Struct, eq=False):
    """Links one program; plans are cached between launches. Several threads may link.

    ``operations``: by name; of bundles the name is the SDSC file. ``core_order``: seed of a random
    order of cores, see :mod:`spyre.hw.plans.core_plan`.
    """

    program: LinkableProgram
    operations: Mapping[str, Operation]
    numerics: Numerics
    threads: int
    core_order: int | None = None
    _plans: dict[tuple[object, ...], CorePlan] = msgspec.field(default_factory=dict)
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def link(self, binding: Binding) -> LinkedProgram:
        """Tables and dispatches for ``binding``. DeviceFault for accesses outside of its memory."""
        with self._lock:
            schedule = self.program.schedule(binding.parameters, binding.scratch_addresses)
            memory = AllocationTable(binding.allocations)
            movable = is_relocatable(self.program, schedule, binding)
            launch = _LinkState(schedule, binding, memory, movable)
            linked = [self._link_execute(execute, launch) for execute in self.program.executes]
        operations = [self.operations[e.sdsc_filename] for e in self.program.executes]
        return assemble(self.program, operations, schedule, linked, binding, launch.movable)

    def _link_execute(self, execute: Execute, launch: _LinkState) -> list[list[LinkedPart]]:
        """The runs of each part of one static execute, in the order the parts run."""
        op = self.operations[execute.sdsc_filename]
        symbols = launch.schedule.symbols[execute.index]
        check_bound(op, execute)
        check_literals(op, execute, self.program)
        check_slices(op)
        starts = start_addresses(op, execute, symbols, launch.binding)
        owners = launch.owners(op, execute)
        parts: list[list[LinkedPart]] = []
        for sizes, instances in group_by_sizes(op, execute.symbol_ids, symbols):
            sized = with_sizes(op, sizes)
            for number, part in enumerate(uniform_operations(sized, starts[instances])):
                if number == len(parts):
                    parts.append([])
                key = (execute.sdsc_filename, number, *sizes.items())
                parts[number] += self._runs(
                    *part, execute, instances, owners[instances], key, launch
                )
        return parts

    def _runs(
        self,
        part: UniformPart,
        divided: UniformPart | None,
        execute: Execute,
        instances: Int64Array,
        owners: Int64Array,
        key: tuple[object, ...],
        launch: _LinkState,
    ) -> Iterator[LinkedPart]:
        """Plans, checks and tables of one part for ``instances``; ``owners``: [member, operand]."""
        (op, starts), binding = part, launch.binding
        # A plan depends on the cores' starts relative to the first one, not on their addresses.
        bases = starts[:, :, 0]
        patterns = starts - bases[:, :, None]
        for same_pattern in _equal_patterns(patterns):
            first = int(same_pattern[0])
            tags = arrangements_at(op, bases[first], binding)
            plan = self._plan(op, key, _host_pattern(op, starts[first]), tags)
            loops = launch.schedule.loop_indices[execute.index]
            locate = partial(operand_location, op, execute, loops, instances[same_pattern])
            check_alignment(op, locate, starts[same_pattern])
            whole, of_whole = divided or part
            check_lx(locate, whole, of_whole[same_pattern])
            holders = check_hbm(
                plan, locate, starts[same_pattern], binding.allocations, launch.memory
            )
            base_allocations = launch.memory.confirmed(
                owners[same_pattern], holders, bases[same_pattern]
            )
            for tables, of_limit in _bounded_tables(
                plan, bases[same_pattern], holders[:, :, 0], binding
            ):
                rows = same_pattern[of_limit]
                yield LinkedPart(
                    plan,
                    instances[rows],
                    bases[rows],
                    patterns[first],
                    divided[0] if divided else None,
                    base_allocations[of_limit],
                    tables,
                )

    def _plan(
        self, op: Operation, name: tuple[object, ...], pattern: Int64Array, tags: tuple[str, ...]
    ) -> CorePlan:
        key = (name, pattern.tobytes(), tags)
        if key not in self._plans:
            self._plans[key] = plan_operation(
                op, pattern, tags, self.numerics, self.threads, self.core_order
            )
        return self._plans[key]


class _LinkState(msgspec.Struct, frozen=True):
    """State shared by all executes of one linking."""

    schedule: Schedule
    binding: Binding
    memory: AllocationTable
    movable: bool

    def owners(self, op: Operation, execute: Execute) -> Int64Array:
        """The allocation that each operand of ``op`` moves with, [instance, operand]."""
        symbols = self.schedule.symbols[execute.index]
        result = np.full((len(symbols), len(op.tensors)), UNKNOWN, np.int64)
        if self.movable:
            owners = operand_owners(op, execute, symbols, self.binding.owners)
            for operand, per_core in enumerate(owners):
                result[:, operand] = common_owner(per_core)
        return result


_SAFE = 1 << 62
"""Symbols below it cannot leave int64 when an allocation moves within HBM."""


def is_relocatable(program: LinkableProgram, schedule: Schedule, binding: Binding) -> bool:
    """True if other starts of allocations change symbols only: no loop bound, no overflow."""
    if any(value_owner(value, binding.owners) != FIXED for value in program.control_values):
        return False
    return all(abs(int(v)) < _SAFE for s in schedule.symbols if s.size for v in (s.min(), s.max()))


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


def _host_pattern(op: Operation, starts: Int64Array) -> Int64Array:
    """Starts [operand, core] in host memory, relative to the first core's.

    Regions have larger distances in host memory than on the card, which matters if each core has a
    tensor in HBM to itself: these may be in different regions.
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


def arrangements_at(op: Operation, bases: Int64Array, binding: Binding) -> tuple[str, ...]:
    """Element arrangement of every operand whose first core's part starts at ``bases``."""
    tags = []
    for tensor, base in zip(op.tensors, bases.tolist(), strict=True):
        owner = None
        if tensor.component is Component.HBM:
            owner = next(
                (a for a in binding.allocations if a.address_bytes <= base < a.end_bytes), None
            )
        tags.append(owner.arrangement if owner is not None else "STANDARD")
    return tuple(tags)


def _bounded_tables(
    plan: CorePlan, bases: Int64Array, holders: Int64Array, binding: Binding
) -> list[tuple[Int64Array, Int64Array]]:
    """Pairs of tables and the members they are for.

    If the kernel asks for the end of an argument, there is one pair per distinct end.
    """
    if allows_overread(plan):
        return _cut_tables(plan, bases, holders, binding)
    value = next(
        (k for k, t in enumerate(plan.op.tensors) if t.indirection is Indirection.VALUE), None
    )
    if value is None or not (plan.tables[:, tb.KIND] == tb.COPY_KIND).all():
        return [(plan.tables, np.arange(len(bases)))]
    return _index_limited_tables(plan, value, bases, holders, binding)


def _cut_tables(
    plan: CorePlan, bases: Int64Array, holders: Int64Array, binding: Binding
) -> list[tuple[Int64Array, Int64Array]]:
    """Tables with the ends of the arguments that operands read beyond, per distinct ends."""
    tables, everyone = plan.tables, np.arange(len(bases))
    ends = np.array([*(a.end_bytes for a in binding.allocations), 0], np.int64)
    local = np.array([tensor.is_local for tensor in plan.op.tensors])
    rooms = np.where(local, _FARTHEST, ends[holders] - bases)
    over = np.array(plan.high_bytes, np.int64) > rooms
    if not over.any():
        return [(tables, everyone)]
    result = []
    distinct, which = np.unique(rooms, axis=0, return_inverse=True)
    for k, room in enumerate(distinct):
        cut = tables.copy()
        heads = np.flatnonzero(cut[:, tb.KIND] != tb.EXTRA)
        cut[heads, tb.FLAGS] |= tb.BOUNDED
        for operand, room_bytes in enumerate(room):
            cut[heads, tb.OPERAND + operand * tb.OPERAND_WORDS + tb.END] = 8 * room_bytes
        result.append((cut, np.flatnonzero(which.reshape(-1) == k)))
    return result


def _index_limited_tables(
    plan: CorePlan, value: int, bases: Int64Array, holders: Int64Array, binding: Binding
) -> list[tuple[Int64Array, Int64Array]]:
    """Tables with the index limit of gathers, per distinct limit.

    UnsupportedError SPY533 for indices into one tensor per core in HBM.
    """
    tables, op, tensor = plan.tables, plan.op, plan.op.tensors[value]
    if tensor.per_core_in_hbm:  # the cores share one index limit
        raise UnsupportedError(
            "SPY533",
            f"{op.name}: indices into {tensor.name}, one tensor per core, are not simulated",
            JsonLocation(op.file, tensor.json_path),
            expected="one tensor of all cores",
            found=f"{len(op.cores)} cores with a tensor each",
        )
    # The limit is the first index out of range: beyond the operation's limit or the allocation.
    step = max(int(tables[0, tb.VALUE]), 1)
    ends = np.array([a.end_bytes for a in binding.allocations], np.int64)
    if tensor.component is Component.LX:
        room = LX_BYTES - plan.accesses[value].span_bytes + np.zeros(len(bases), np.int64)
    else:
        room = ends[holders[:, value]] - (bases[:, value] + plan.high_bytes[value])
    limits = room // step + 1
    if INDEX_LIMIT_CONSTANT in op.constants:
        limits = np.minimum(limits, op.constants[INDEX_LIMIT_CONSTANT])
    result = []
    for limit in np.unique(limits):
        limited = tables.copy()
        limited[:, tb.MASK_END] = limit
        result.append((limited, np.flatnonzero(limits == limit)))
    return result


def assemble(
    program: LinkableProgram,
    operations: Sequence[Operation],
    schedule: Schedule,
    linked: Sequence[Sequence[Sequence[LinkedPart]]],
    binding: Binding,
    movable: bool,
) -> LinkedProgram:
    """The linked program, its dispatches in program order.

    Per static execute: ``operations``: its SDSC's operation; ``linked``: the runs of its parts.
    ``movable``: as of `is_relocatable`.
    """
    parts = [part for of_statement in linked for part in of_statement]
    counts = [len(of_statement) for of_statement in linked]
    instances = [len(symbols) for symbols in schedule.symbols]
    # a slot per part and instance: its first table, how many it has, its bases and their owners
    slots = np.cumsum([0, *np.repeat(instances, counts)])
    first, count = np.zeros((2, slots[-1]), np.int64)
    bases = np.zeros((slots[-1], MAX_OPERANDS), np.int64)
    allocations = np.full((slots[-1], MAX_OPERANDS), FIXED, np.int64)
    lengths = np.ones(slots[-1], np.int64)
    tables, heads = [np.zeros((0, tb.WORDS), np.int64)], [np.zeros(0, np.int64)]
    rows: list[int] = []
    row = number = 0
    for part, slot in zip(parts, slots[:-1].tolist(), strict=True):
        for run in part:
            head = np.flatnonzero(run.tables[:, tb.KIND] != tb.EXTRA)
            at, width = slot + run.instances, run.bases.shape[1]
            first[at], count[at] = number, len(head)
            bases[at, :width], allocations[at, :width] = run.bases, run.base_allocations
            lengths[at] = ~overlaps_itself(run)
            tables.append(run.tables)
            heads.append(row + head)
            rows.append(row)
            row, number = row + len(run.tables), number + len(head)
    executes, part_of = _execute_parts(schedule, np.array(counts, np.int64))
    used = slots[part_of] + schedule.instance[executes]
    repeat = np.repeat(np.arange(len(used)), count[used])
    within = np.arange(len(repeat)) - np.repeat(np.cumsum(count[used]) - count[used], count[used])
    dispatch = np.zeros((len(repeat), tb.DISPATCH_WORDS), np.int64)
    # numbers of tables become their first rows, as rows of KIND EXTRA may follow each
    dispatch[:, 0] = np.concatenate(heads)[first[used][repeat] + within]
    dispatch[:, 1] = schedule.order[executes][repeat]
    dispatch[:, 2] = schedule.instance[executes][repeat]
    dispatch[:, tb.CHAIN_LENGTH] = lengths[used][repeat]
    dispatch[:, tb.DISPATCH_BASES :] = bases[used][repeat]
    runs = [tuple(run for part in of_statement for run in part) for of_statement in linked]
    known = all((run.base_allocations != UNKNOWN).all() for part in parts for run in part)
    stacked = np.concatenate(tables)
    chained = mark_chains(stacked, dispatch)
    code = LinkedCode(
        stacked,
        program,
        tuple(map(LinkedStatement, program.executes, operations, runs)),
        schedule,
        dispatch,
        np.array(rows, np.int64),
        binding,
        np.ascontiguousarray(allocations[used][repeat], np.int32),
        movable and known,
        chained,
    )
    return LinkedProgram(code)


def _execute_parts(schedule: Schedule, parts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Dynamic executes, repeated once per part, and the number of each part."""
    count = parts[schedule.order]
    executes = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(executes)) - np.repeat(np.cumsum(count) - count, count)
    first = np.cumsum(parts) - parts
    return executes, first[schedule.order[executes]] + within


_STEPS = [tb.BASE, *range(tb.PITCH, tb.OPERAND_WORDS)]
"""Words of an operand that say which stick each unit touches."""


def overlaps_itself(run: LinkedPart) -> npt.NDArray[np.bool_]:
    """True, per instance, if a unit may read sticks that another unit writes.

    The order of the units then matters. A unit may write the sticks that it reads itself.
    """
    tables, output = run.tables[run.tables[:, tb.KIND] != tb.EXTRA], run.bases.shape[1] - 1
    clash = np.zeros(len(run.instances), np.bool_)
    if (tables[:, tb.UNITS] < 2).all():
        return clash
    low, high = _touched(run, output)
    for operand in range(output):
        first, last = _touched(run, operand)
        meets = (first < high) & (low < last)
        if meets.any() and _reads_what_it_writes(tables, operand):
            meets &= run.bases[:, operand] != run.bases[:, output]
        clash |= meets
    return clash


def _touched(run: LinkedPart, operand: int) -> tuple[Int64Array, Int64Array]:
    """First byte and end of an operand, per instance; in LX as if all cores had one scratchpad."""
    plan, tensor = run.plan, run.plan.op.tensors[operand]
    if tensor.component is Component.LX:
        starts = LX_BASE + (run.starts(operand) - LX_BASE) % LX_BYTES
        return starts.min(axis=1), starts.max(axis=1) + plan.accesses[operand].span_bytes
    bases, end = run.bases[:, operand], plan.high_bytes[operand]
    if tensor.indirection is Indirection.VALUE:
        end += (run.tables[:, tb.MASK_END].max() - 1) * run.tables[0, tb.VALUE]
    return bases + plan.low_bytes[operand], bases + end


def _reads_what_it_writes(tables: Int64Array, operand: int) -> bool:
    """True if each unit's sticks of an input are those of the output, if these begin together."""
    kind, is_indirect = tables[0, tb.KIND], tables[0, tb.FLAGS] != 0
    if kind != tb.ELEMENTWISE_KIND and (kind != tb.COPY_KIND or is_indirect):
        return False
    output = tables[0, tb.INPUTS] if kind == tb.ELEMENTWISE_KIND else 1
    slots = tables[:, tb.OPERAND :].reshape(len(tables), -1, tb.OPERAND_WORDS)
    reads = np.flatnonzero(slots[0, :output, tb.TENSOR] == operand)
    steps = slots[:, :, _STEPS]
    return bool((steps[:, reads] == steps[:, output, None]).all())


def mark_chains(tables: Int64Array, dispatch: Int64Array) -> bool:
    """Set CHAIN_LENGTH of every dispatch, whose bases are device addresses; True if any is chained.

    ``tables``: [row, WORDS]; ``dispatch``: [dispatch, DISPATCH_WORDS], of lengths 1 or 0.
    """
    kinds, units = tables[dispatch[:, 0]][:, (tb.KIND, tb.UNITS)].T
    long = (kinds == tb.ELEMENTWISE_KIND) & (units * tb.BLOCK_STICKS > tb.STRIP_STICKS)
    if not np.any(long):
        return False
    from spyre.hw.interpreter.background import compiled_or_interpreted

    find = compiled_or_interpreted("fusion.find_chains", len(dispatch))
    return bool(find(tables, dispatch))
