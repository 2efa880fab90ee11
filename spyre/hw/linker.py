"""Linking: a LoopProgram, its operations and a binding become tables and dispatches.

All addresses of all loop iterations are computed here with arrays; every operand of every execute
is checked against the allocations before anything runs, so that no kernel can leave them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from spyre.errors import BundleError, JsonLocation, UnsupportedError
from spyre.hw import table as tb
from spyre.hw.anchors import UNKNOWN, HeldMemory, moves_as_a_whole, operand_anchors
from spyre.hw.assembly import ExecutePart, assemble
from spyre.hw.binding import Binding
from spyre.hw.core_plan import CorePlan, plan_operation
from spyre.hw.kernels.opcodes import COPY_KIND
from spyre.hw.link_checks import Place, check_alignment, check_hbm, check_lx
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.parts import Part, check_slices, plain_parts
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import (
    LX_BASE,
    LX_BYTES,
    REGION_BITS,
    REGION_SKEW_BYTES,
)
from spyre.mlir.operation import Component, Indirection, Operation
from spyre.mlir.program import Execute, LoopProgram, Schedule
from spyre.mlir.runtime_sizes import group_by_sizes, with_sizes


@dataclass
class Linker:
    """Links one program; plans are kept between launches. Several threads may link.

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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def link(self, binding: Binding) -> LinkedProgram:
        """Tables and dispatches for ``binding``; raises DeviceFault for what it may not touch."""
        with self._lock:
            schedule = self.program.schedule(binding.parameters, binding.scratch_addresses)
            launch = _LinkedLaunch.of(self.program, schedule, binding)
            linked = [self._link_execute(execute, launch) for execute in self.program.executes]
        return assemble(self.program, schedule, linked, binding, launch.movable)

    def _link_execute(self, execute: Execute, launch: _LinkedLaunch) -> list[ExecutePart]:
        """The parts of one static execute, in the order they run."""
        op = self.operations[execute.sdsc_filename]
        symbols = launch.schedule.symbols[execute.index]
        check_bound(op, execute)
        check_slices(op)
        starts = start_addresses(op, execute, symbols, launch.binding)
        anchors = launch.anchors(op, execute)
        parts: list[ExecutePart] = []
        for sizes, instances in group_by_sizes(op, execute.symbol_ids, symbols):
            sized = with_sizes(op, sizes)
            for place, plain in enumerate(plain_parts(sized, starts[instances])):
                if place == len(parts):
                    parts.append(ExecutePart(len(symbols)))
                key = (execute.sdsc_filename, place, *sizes.items())
                chosen = _Instances(execute, instances, anchors[instances])
                self._link_part(parts[place], plain, chosen, key, launch)
        return parts

    def _link_part(
        self,
        part: ExecutePart,
        plain: Part,
        members: _Instances,
        key: tuple[object, ...],
        launch: _LinkedLaunch,
    ) -> None:
        """Plans, checks and tables of one part for ``members``."""
        op, starts, binding = plain.op, plain.starts, launch.binding
        bases = starts[:, :, 0]
        patterns = starts - bases[:, :, None]
        for chosen in _equal_patterns(patterns):
            first = int(chosen[0])
            tags = _arrangements(op, bases[first], binding)
            plan = self._plan(op, key, _host_pattern(op, starts[first]), tags)
            place = Place(op, members.execute, launch.schedule, plan, members.rows[chosen])
            check_alignment(place, starts[chosen])
            check_lx(place, plain.divided or plain, first)
            owners = check_hbm(place, starts[chosen], binding.allocations)
            anchors = launch.memory.confirmed(members.anchors[chosen], owners, bases[chosen])
            for tables, own in _bounded_tables(place, bases[chosen], owners[:, :, 0], binding):
                rows = chosen[own]
                divided = plain.divided.op if plain.divided else None
                run = PlanRun(
                    plan, members.rows[rows], bases[rows], patterns[first], divided, anchors[own]
                )
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


@dataclass(frozen=True)
class _LinkedLaunch:
    """What all executes of one linking share."""

    schedule: Schedule
    binding: Binding
    memory: HeldMemory
    movable: bool

    @classmethod
    def of(cls, program: LoopProgram, schedule: Schedule, binding: Binding) -> _LinkedLaunch:
        """Linking ``program`` for ``binding``."""
        memory = HeldMemory.of(binding.allocations)
        return cls(schedule, binding, memory, moves_as_a_whole(program, schedule, binding))

    def anchors(self, op: Operation, execute: Execute) -> Int64Array:
        """What the operands of ``op`` move with, [instance, operand]."""
        symbols = self.schedule.symbols[execute.index]
        if self.movable:
            return operand_anchors(op, execute, symbols, self.binding)
        return np.full((len(symbols), len(op.tensors)), UNKNOWN, np.int64)


@dataclass(frozen=True)
class _Instances:
    """Instances (``rows``) of an execute statement; ``anchors``: [row, operand]."""

    execute: Execute
    rows: Int64Array
    anchors: Int64Array


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


def _bounded_tables(
    place: Place, bases: Int64Array, owners: Int64Array, binding: Binding
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


def _refuse_unrelated(place: Place, value: int) -> None:
    """One limit serves all cores, which tensors of the cores' own in HBM do not have."""
    tensor = place.op.tensors[value]
    if tensor.per_core_in_hbm:
        raise UnsupportedError(
            "SPY533",
            f"{place.op.name}: indices into {tensor.name}, one tensor per core, are not simulated",
            JsonLocation(place.op.file, tensor.json_path),
            expected="one tensor of all cores",
            found=f"{len(place.op.cores)} cores, each with a tensor of its own",
        )
