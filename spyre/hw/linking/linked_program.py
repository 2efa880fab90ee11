"""A linked program: plan tables, and dispatches in program order, for one set of addresses.

Where every base address belongs to an allocation (:mod:`spyre.hw.linking.trace`), a program linked
once can be moved: allocations of the same sizes that overlap in the same way may begin elsewhere.
Plans, tables and checks stay, each base moves with its allocation. Launches for which this does not
hold are linked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import DeviceLocation, SourceLocation
from spyre.hw import plan_table as tb
from spyre.hw.access import Box, core_boxes, is_indirect
from spyre.hw.counters import (
    NO_ACCESSES,
    Counters,
    Dispatches,
    Executions,
    LxAccesses,
    OperationCounts,
    count_cores,
    count_execute,
    count_operation,
)
from spyre.hw.linking.binding import Allocation, Binding
from spyre.hw.linking.trace import core_owners, operand_owners
from spyre.hw.plans import CorePlan, LinkedPart
from spyre.hw.spec import HBM_BYTES, LX_BASE, LX_BYTES, REGION_BITS, REGION_SKEW_BYTES, STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation
from spyre.mlir.program import Execute, LinkableProgram, Schedule


class LinkedStatement(msgspec.Struct, frozen=True, eq=False, dict=True):
    """An execute statement with the operation of its SDSC and the plans linked for it."""

    execute: Execute
    operation: Operation
    runs: tuple[LinkedPart, ...]

    @property
    def index(self) -> int:
        return self.execute.index

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def shape(self) -> str:
        """The iteration space; for a runtime size the sizes of the executions."""
        return shape_text(self.operation, self.runs)

    @property
    def source(self) -> str:
        return self.execute.sdsc_filename

    @property
    def location(self) -> SourceLocation | None:
        return self.execute.location

    @cached_property
    def cores(self) -> tuple[int, ...]:
        return tuple(sorted({core for run in self.runs for core in run.plan.op.cores}))

    @cached_property
    def counters(self) -> Counters:
        """The work of all its executions."""
        return count_execute(self.runs)

    @cached_property
    def core_counts(self) -> Int64Array:
        """The same core by core, int64 [CORES, len(CORE_COLUMNS)]."""
        return count_cores(self.runs)

    @cached_property
    def operation_counts(self) -> OperationCounts:
        """The same with its class and shape."""
        return count_operation(self.runs)


def shape_text(op: Operation, runs: Sequence[LinkedPart] = ()) -> str:
    """The iteration space in N_ order, in elements; for a runtime size the sizes in ``runs``."""
    extents = {dim: str(op.extents[dim]) for dim in op.dims}
    for dim in op.symbolic_dims if runs else ():
        sizes = {run.plan.op.extents[dim] for run in runs}
        extents[dim] = "-".join(map(str, sorted({min(sizes), max(sizes)})))
    return ", ".join(f"{dim} {extent}" for dim, extent in extents.items())


class LinkedCode(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The result of linking, shared by all moved copies of the program.

    It is the :class:`~spyre.hw.counters.program.ProgramView` of all of them; data for observers is
    computed on first access.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``statements``:
    with the plans and instances of each; an instance with several parts is in several runs.
    ``dispatch``: in program order, [dispatch, DISPATCH_WORDS]. ``run_rows``: first row in
    ``tables`` of each run, statement by statement. ``binding``: the launch it was linked for, whose
    addresses these have. ``base_allocations``: the allocation each base of each dispatch moves
    with, int32 [dispatch, operand], FIXED or UNKNOWN. ``movable``: everything that depends on an
    allocation moves with it. ``chained``: some dispatches are chains, see
    :mod:`spyre.hw.linking.linker`.
    """

    tables: Int64Array
    program: LinkableProgram
    statements: tuple[LinkedStatement, ...]
    schedule: Schedule
    dispatch: Int64Array
    run_rows: Int64Array
    binding: Binding
    base_allocations: npt.NDArray[np.int32]
    movable: bool
    chained: bool

    @cached_property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        return entry_addresses(self.kinds)

    @property
    def kinds(self) -> list[int]:
        """Kinds of the kernels the program uses."""
        kinds = self.tables[:, tb.KIND]
        used: list[int] = np.flatnonzero(np.bincount(kinds[kinds != tb.EXTRA])).tolist()
        return [*used, tb.CHAIN_KIND] if self.chained else used

    def first_bytes(self) -> dict[str, int]:
        """Lowest byte that tensors without an index access in each allocation, from its start."""
        found: dict[str, int] = {}
        for run in (run for statement in self.statements for run in statement.runs):
            for k, tensor in enumerate(run.plan.op.tensors):
                if tensor.component is not Component.HBM or is_indirect(tensor):
                    continue
                lowest = run.bases[:, k] + run.plan.low_bytes[k]
                for holder in self.binding.allocations:
                    begin, end = holder.address_bytes, holder.end_bytes
                    held = lowest[(lowest >= begin) & (lowest < end)] - begin
                    if held.size:
                        found[holder.name] = min(found.get(holder.name, end), int(held.min()))
        return found

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """The dispatches with base addresses as host offsets."""
        mapped = self.dispatch.copy()
        bases = mapped[:, tb.DISPATCH_BASES :]
        bases += (bases >> REGION_BITS) * REGION_SKEW_BYTES
        return mapped

    @cached_property
    def bases(self) -> Int64Array:
        """Address of each allocation of ``binding``."""
        return np.array([a.address_bytes for a in self.binding.allocations], np.int64)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each allocation of ``binding``."""
        return tuple(a.size_bytes for a in self.binding.allocations)

    # --- as observers see it ------------------------------------------------------------------

    @cached_property
    def executions(self) -> Executions:
        """Executions with dispatches, in program order; the parts of one count once."""
        statement, instance = self.dispatch[:, 1], self.dispatch[:, 2]
        span = int(instance.max(initial=0)) + 1
        _, first = np.unique(statement * span + instance, return_index=True)
        rows = np.sort(first)
        return Executions(statement[rows], instance[rows])

    @cached_property
    def dispatches(self) -> Dispatches:
        """All dispatches; each run is a part."""
        part = np.searchsorted(self.run_rows, self.dispatch[:, 0], side="right") - 1
        cores = (run.plan.op.cores for statement in self.statements for run in statement.runs)
        return Dispatches(self.dispatch[:, 1], self.dispatch[:, 2], part, tuple(cores))

    @cached_property
    def lx_accesses(self) -> LxAccesses:
        """Every use of a range of the scratchpads."""
        uses = [use for statement in self.statements for use in self._lx_uses(statement)]
        return LxAccesses(*np.concatenate(uses, axis=1)) if uses else NO_ACCESSES

    def _lx_uses(self, statement: LinkedStatement) -> Iterator[Int64Array]:
        if not statement.runs:
            return
        positions = np.flatnonzero(self.executions.statement == statement.index)
        instance = self.executions.instance[positions]
        position_of = np.zeros(int(instance.max(initial=0)) + 1, np.int64)
        position_of[instance] = positions
        for run in statement.runs:
            for operand, access in enumerate(run.plan.accesses):
                if access.tensor.component is not Component.LX:
                    continue
                starts = (run.starts(operand) - LX_BASE) % LX_BYTES
                low, high = starts.min(axis=1), starts.max(axis=1) + access.span_bytes
                index = np.full(len(low), statement.index)
                writes = np.full(len(low), int(access.tensor in run.plan.op.outputs))
                yield np.stack([low, high, position_of[run.instances], index, writes])

    def loop_indices(self, statement: int, instance: int) -> tuple[int, ...]:
        """Indices of the loops around an execution, outermost first."""
        return tuple(self.schedule.loop_indices[statement][instance].tolist())


class LinkedProgram(msgspec.Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A program ready to run; any thread may read it.

    ``bases``: addresses of the allocations if they were moved (None: those of the binding it was
    linked for). ``names``: of the allocations in messages, the binding's if empty. Moved copies
    compute everything but `host_dispatch` on first access.
    """

    code: LinkedCode
    bases: Sequence[int] | None = None
    names: tuple[str, ...] = ()

    @property
    def tables(self) -> Int64Array:
        """Plan tables of all runs, [row, WORDS]."""
        return self.code.tables

    @property
    def program(self) -> LinkableProgram:
        """The program that was linked."""
        return self.code.program

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """``dispatch`` with base addresses as host offsets, as kernels take them."""
        if self.bases is None:
            return self.code.host_dispatch
        return place_rows(self.code, np.array([self.bases], np.int64))

    @cached_property
    def binding(self) -> Binding:
        """The launch; its allocations are in the order they had when it was linked."""
        binding = self.code.binding
        return binding if self.bases is None else binding.moved(self.bases, self.names)

    @cached_property
    def schedule(self) -> Schedule:
        """All executes with their symbol values."""
        if self.bases is None:
            return self.code.schedule
        return self.program.schedule(self.binding.parameters, self.binding.scratch_addresses)

    @cached_property
    def dispatch(self) -> Int64Array:
        """Dispatches in program order, with device addresses, [dispatch, tb.DISPATCH_WORDS].

        Table, static execute, instance, chain length, 8 base addresses.
        """
        if self.bases is None:
            return self.code.dispatch
        moved = self.code.dispatch.copy()
        moved[:, tb.DISPATCH_BASES :] += self._shifts[self.code.base_allocations]
        return moved

    @cached_property
    def runs(self) -> tuple[tuple[LinkedPart, ...], ...]:
        """Plans and their instances per static execute."""
        runs = tuple(statement.runs for statement in self.code.statements)
        return runs if self.bases is None else tuple(tuple(map(self._moved, g)) for g in runs)

    def _moved(self, run: LinkedPart) -> LinkedPart:
        return replace(run, bases=run.bases + self._shifts[run.base_allocations])

    @cached_property
    def _shifts(self) -> Int64Array:
        """Bytes each allocation moves by, and 0 at the end for FIXED (index -1)."""
        return np.append(np.array(self.bases, np.int64) - self.code.bases, 0)

    def location(
        self, static: int, instance: int, tensor: str, address: int, core: int | None = None
    ) -> DeviceLocation:
        """The location of a device address in an instance of an execute statement, for messages."""
        execute = self.program.executes[static]
        loops = tuple(int(i) for i in self.schedule.loop_indices[static][instance])
        file = self.code.statements[static].operation.file
        return DeviceLocation(file, static, core, tensor, address, loops, execute.location)

    @property
    def counters(self) -> tuple[Counters, ...]:
        """The work of every static execute in one launch; counted once per linked program."""
        return tuple(statement.counters for statement in self.code.statements)

    @property
    def view(self) -> LinkedCode:
        """The program as observers see it: one object for all moved copies."""
        return self.code

    @cached_property
    def plans(self) -> tuple[tuple[CorePlan, ...], ...]:
        """The distinct plans of each static execute."""
        return tuple(
            tuple({id(run.plan): run.plan for run in statement.runs}.values())
            for statement in self.code.statements
        )


class Variant(msgspec.Struct, frozen=True, dict=True):
    """One operation that an execute statement runs, and the instances that run it.

    ``starts``: device addresses in bytes, [member of ``instances``, operand, core]. Most statements
    have one variant; runtime sizes and shorter last work slices make more. ``divided``: as in
    :class:`LinkedPart`.
    """

    binding: Binding
    schedule: Schedule
    execute: Execute
    op: Operation
    instances: Int64Array
    starts: Int64Array
    divided: Operation | None = None

    @cached_property
    def boxes(self) -> tuple[tuple[Box | None, ...], ...]:
        """The sticks that each core accesses, per operand and core."""
        return tuple(core_boxes(self.op, tensor) for tensor in self.op.tensors)

    @cached_property
    def owners(self) -> tuple[tuple[Allocation | None, ...], ...]:
        """Per operand and core the allocation its address is computed from.

        None in LX, and where an address is computed from several or from none. Of views of one
        memory that begin together, the largest.
        """
        binding, symbols = self.binding, self.schedule.symbols[self.execute.index]
        per_operand = operand_owners(self.op, self.execute, symbols, binding.owners)
        largest = sorted(binding.allocations, key=lambda a: a.size_bytes)
        at = {allocation.address_bytes: allocation for allocation in largest}
        begins = [a.address_bytes for a in binding.allocations]
        return tuple(
            tuple(
                None if number < 0 else at[begins[number]]
                for number in core_owners(owners, len(self.op.cores))
            )
            for owners in per_operand
        )


def variants_of(linked: LinkedProgram, static: int) -> tuple[Variant, ...]:
    """The operations of execute statement ``static``, in the order of its parts."""
    groups: dict[int, list[LinkedPart]] = {}
    for run in linked.runs[static]:
        groups.setdefault(id(run.plan.op), []).append(run)
    variants = []
    for runs in groups.values():
        instances = np.concatenate([run.instances for run in runs])
        starts = np.concatenate([run.bases[:, :, None] + run.pattern[None] for run in runs])
        order = np.argsort(instances, kind="stable")
        execute, op = linked.program.executes[static], runs[0].plan.op
        instances, starts = instances[order], starts[order]
        variant = Variant(
            linked.binding, linked.schedule, execute, op, instances, starts, runs[0].divided
        )
        variants.append(variant)
    return tuple(variants)


def is_movable(addresses: Iterable[int], sizes: Iterable[int]) -> bool:
    """True if each allocation begins on a stick and is within one region of HBM."""
    for low, size in zip(addresses, sizes, strict=True):
        last = low + (size or 1) - 1
        if low % STICK_BYTES or last >> REGION_BITS != low >> REGION_BITS:
            return False
        if low < 0 or last >= HBM_BYTES:
            return False
    return True


def movable_rows(addresses: Int64Array, sizes: Int64Array) -> npt.NDArray[np.bool_]:
    """`is_movable` of many launches at once, [launch]; ``addresses``: [launch, allocation]."""
    last = addresses + np.maximum(sizes, 1) - 1
    outside = (addresses < 0) | (last >= HBM_BYTES) | (addresses % STICK_BYTES != 0)
    outside |= last >> REGION_BITS != addresses >> REGION_BITS
    inside: npt.NDArray[np.bool_] = ~outside.any(axis=1)
    return inside


def move(linked: LinkedProgram, bases: Sequence[int], names: tuple[str, ...] = ()) -> LinkedProgram:
    """``linked`` with allocation ``k`` of the binding it was linked for at ``bases[k]``.

    Equal to linking at those addresses if everything is movable (`LinkedCode.movable`), both sets
    of addresses meet `is_movable` and the allocations overlap in the same way; nothing is checked.
    """
    moved = LinkedProgram(linked.code, bases, names)
    # A program is moved to be run. Set directly, since a cached property takes a lock first.
    vars(moved)["host_dispatch"] = place_rows(linked.code, np.array([bases], np.int64))
    return moved


_PLACE = "driver.place_dispatches"


def place_rows(code: LinkedCode, bases: Int64Array) -> Int64Array:
    """Dispatches of many launches one behind another, bases as host offsets; see `move`.

    ``bases``: addresses of the allocations, [launch, allocation] → [launch · dispatch,
    tb.DISPATCH_WORDS].
    """
    from spyre.hw.kernels.machine_code import entry_of

    dispatch, place = code.dispatch, entry_of(_PLACE).loaded
    if place is None:
        from spyre.hw.interpreter.background import compiled_or_interpreted

        place = compiled_or_interpreted(_PLACE, len(bases) * len(dispatch))
    rows = np.empty((len(bases) * len(dispatch), tb.DISPATCH_WORDS), np.int64)
    place(dispatch, code.base_allocations, code.bases, bases, rows)
    return rows


MAX_ROWS = 1 << 16
"""Dispatches that are joined into one array at a time: 6 MB."""


class BatchGroup(msgspec.Struct, frozen=True):
    """Launches that differ in the addresses of their allocations only. Any thread may read it.

    ``bases``: [launch, allocation of ``linked``]; None: the one launch ``linked`` was linked for.
    """

    linked: LinkedProgram
    bases: Int64Array | None = None

    def __len__(self) -> int:
        return 1 if self.bases is None else len(self.bases)

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` of the group as a separate program."""
        return self.linked if self.bases is None else move(self.linked, self.bases[launch].tolist())

    def pieces(self) -> Iterator[BatchGroup]:
        """The group in pieces of at most MAX_ROWS dispatches; a launch with more is one piece."""
        if self.bases is None:
            yield self
            return
        step = max(MAX_ROWS // max(len(self.linked.code.dispatch), 1), 1)
        for first in range(0, len(self), step):
            yield BatchGroup(self.linked, self.bases[first : first + step])

    @property
    def rows(self) -> Int64Array:
        """The dispatches of all launches, bases as host offsets."""
        if self.bases is None:
            return self.linked.host_dispatch
        return place_rows(self.linked.code, self.bases)


# --- kernels ----------------------------------------------------------------------------------


def entry_addresses(kinds: Iterable[int]) -> Int64Array:
    """Address of the kernel of every kind in ``kinds`` (0 for kinds not asked for).

    Kernels are compiled, or loaded from the disk cache, on first use; several at a time where
    there are CPUs.
    """
    from spyre.hw.kernels.machine_code import entry_of  # import LLVM
    from spyre.hw.kernels.parallel_compile import compile_together

    wanted = list(kinds)
    compile_together([tb.KERNEL_NAMES[kind] for kind in wanted])
    addresses = np.zeros(len(tb.KERNEL_NAMES), np.int64)
    for kind in wanted:
        addresses[kind] = entry_of(tb.KERNEL_NAMES[kind]).address
    return addresses
