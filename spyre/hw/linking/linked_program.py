"""A linked program: plan tables, and dispatches in program order, for one set of addresses.

Where every base address belongs to an allocation (:mod:`spyre.hw.linking.trace`), a program linked
once can be moved: allocations of the same sizes that overlap in the same way may begin elsewhere.
Plans, tables and checks stay, each base moves with its allocation. Launches for which this does not
hold are linked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.hw import plan_table as tb
from spyre.hw.linking.aliases import AliasStructure, alias_structure
from spyre.hw.linking.binding import Binding
from spyre.hw.linking.view import LinkedView
from spyre.hw.plans import CorePlan, PlanRun
from spyre.hw.spec import (
    HBM_BYTES,
    REGION_BITS,
    REGION_SKEW_BYTES,
    STICK_BYTES,
)
from spyre.layout import Int64Array
from spyre.mlir.operation import Operation
from spyre.mlir.program import LinkableProgram, Schedule

if TYPE_CHECKING:
    from spyre.hw.counters import Counters


@dataclass(frozen=True, eq=False)
class LinkedCode:
    """The result of linking, shared by all moved copies of the program.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``run_rows``:
    first row in ``tables`` of each run, in the order of ``runs``. ``runs``: plans and instances of
    each static execute; an instance with several parts is in several runs. ``binding``: the launch
    it was linked for, whose addresses ``view``, ``runs`` and `host_dispatch` have.
    ``base_allocations``: the allocation each base of each dispatch moves with, int32 [dispatch,
    operand], FIXED or UNKNOWN. ``movable``: everything that depends on an allocation moves with it.
    ``chained``: some dispatches are chains, see :mod:`spyre.hw.linking.linker`.
    """

    tables: Int64Array
    program: LinkableProgram
    run_rows: Int64Array
    view: LinkedView
    runs: tuple[tuple[PlanRun, ...], ...]
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

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """The dispatches with base addresses as host offsets."""
        mapped = self.view.dispatch.copy()
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

    @cached_property
    def aliases(self) -> AliasStructure | None:
        """Overlaps of the allocations of ``binding``."""
        return alias_structure(self.bases.tolist(), self.sizes)


@dataclass(frozen=True, eq=False)
class LinkedProgram:
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

    @property
    def run_rows(self) -> Int64Array:
        """First row in ``tables`` of each run."""
        return self.code.run_rows

    @property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        return self.code.entries

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
            return self.view.schedule
        return self.program.schedule(self.binding.parameters, self.binding.scratch_addresses)

    @cached_property
    def dispatch(self) -> Int64Array:
        """Dispatches in program order, with device addresses, [dispatch, tb.DISPATCH_WORDS].

        Table, static execute, instance, chain length, 8 base addresses.
        """
        if self.bases is None:
            return self.view.dispatch
        moved = self.view.dispatch.copy()
        moved[:, tb.DISPATCH_BASES :] += self._shifts[self.code.base_allocations]
        return moved

    @cached_property
    def runs(self) -> tuple[tuple[PlanRun, ...], ...]:
        """Plans and their instances per static execute."""
        if self.bases is None:
            return self.code.runs
        return tuple(tuple(map(self._moved, group)) for group in self.code.runs)

    def _moved(self, run: PlanRun) -> PlanRun:
        return replace(run, bases=run.bases + self._shifts[run.base_allocations])

    @cached_property
    def _shifts(self) -> Int64Array:
        """Bytes each allocation moves by, and 0 at the end for FIXED (index -1)."""
        return np.append(np.array(self.bases, np.int64) - self.code.bases, 0)

    @property
    def counters(self) -> tuple[Counters, ...]:
        """The work of every static execute in one launch; counted once per linked program."""
        return tuple(statement.counters for statement in self.view.statements)

    @property
    def view(self) -> LinkedView:
        """The program as observers see it: one object for all moved copies."""
        return self.code.view

    @cached_property
    def plans(self) -> tuple[tuple[CorePlan, ...], ...]:
        """The distinct plans of each static execute."""
        runs = self.code.runs
        return tuple(tuple({id(r.plan): r.plan for r in group}.values()) for group in runs)


@dataclass(frozen=True)
class Variant:
    """One operation that an execute statement runs, and the instances that run it.

    ``starts``: device addresses in bytes, [member of ``instances``, operand, core]. Most statements
    have one variant; runtime sizes and shorter last work slices make more. ``divided``: as in
    :class:`PlanRun`.
    """

    op: Operation
    instances: Int64Array
    starts: Int64Array
    divided: Operation | None = None


def variants_of(linked: LinkedProgram, static: int) -> tuple[Variant, ...]:
    """The operations of execute statement ``static``, in the order of its parts."""
    groups: dict[int, list[PlanRun]] = {}
    for run in linked.runs[static]:
        groups.setdefault(id(run.plan.op), []).append(run)
    return tuple(map(_variant, groups.values()))


def _variant(runs: list[PlanRun]) -> Variant:
    instances = np.concatenate([run.instances for run in runs])
    starts = np.concatenate([run.bases[:, :, None] + run.pattern[None] for run in runs])
    order = np.argsort(instances, kind="stable")
    return Variant(runs[0].plan.op, instances[order], starts[order], runs[0].divided)


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
    _ = moved.host_dispatch  # a program is moved to be run
    return moved


def place_rows(code: LinkedCode, bases: Int64Array) -> Int64Array:
    """Dispatches of many launches one behind another, bases as host offsets; see `move`.

    ``bases``: addresses of the allocations, [launch, allocation] → [launch · dispatch,
    tb.DISPATCH_WORDS].
    """
    from spyre.hw.kernels.driver import place_dispatches

    dispatch = code.view.dispatch
    place = place_dispatches
    if not place.overloads:  # type: ignore[attr-defined]
        from spyre.hw.interpreter.background import compiled_or_interpreted

        place = compiled_or_interpreted(place, len(bases) * len(dispatch))
    rows = np.empty((len(bases) * len(dispatch), tb.DISPATCH_WORDS), np.int64)
    place(dispatch, code.base_allocations, code.bases, bases, rows)
    return rows


MAX_ROWS = 1 << 16
"""Dispatches that are joined into one array at a time: 6 MB."""


@dataclass(frozen=True)
class BatchGroup:
    """Launches that differ in the addresses of their allocations only.

    ``bases``: [launch, allocation of ``linked``]; None: the one launch ``linked`` was linked for.
    ``names``: of the allocations, per launch; empty: those of ``linked``.
    """

    linked: LinkedProgram
    bases: Int64Array | None = None
    names: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return 1 if self.bases is None else len(self.bases)

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` of the group as a separate program."""
        if self.bases is None:
            return self.linked
        names = self.names[launch] if self.names else ()
        return move(self.linked, self.bases[launch].tolist(), names)

    def rows(self, first: int, last: int) -> Int64Array:
        """Dispatches of launches ``first`` to ``last`` (excluded), bases as host offsets."""
        if self.bases is None:
            return self.linked.host_dispatch
        return place_rows(self.linked.code, self.bases[first:last])


@dataclass(frozen=True)
class BatchPiece:
    """Launches ``first`` to ``last`` (excluded) of a batch, all of one group.

    ``offset``: number of the group's first launch in the batch.
    """

    group: BatchGroup
    offset: int
    first: int
    last: int

    @property
    def rows(self) -> Int64Array:
        """Their dispatches, bases as host offsets."""
        return self.group.rows(self.first - self.offset, self.last - self.offset)

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` of the batch."""
        return self.group.program(launch - self.offset)


class LinkedBatch:
    """Launches in the order they run. Immutable; any thread may read it."""

    def __init__(self, groups: Sequence[BatchGroup]) -> None:
        self.groups = tuple(groups)
        self._offsets = (0, *accumulate(map(len, groups)))

    def __len__(self) -> int:
        """Number of launches."""
        return self._offsets[-1]

    def program(self, launch: int) -> LinkedProgram:
        """Launch number ``launch`` as a separate program."""
        (piece,) = self.pieces(launch, launch + 1)
        return piece.program(launch)

    def pieces(self, first: int, last: int) -> Iterator[BatchPiece]:
        """Launches ``first`` to ``last`` (excluded) in pieces of at most MAX_ROWS dispatches.

        A launch with more dispatches is one piece.
        """
        for group, (begin, end) in zip(self.groups, pairwise(self._offsets), strict=True):
            step = max(MAX_ROWS // max(len(group.linked.view.dispatch), 1), 1)
            low, high = max(first, begin), min(last, end)
            for launch in range(low, high, step):
                yield BatchPiece(group, begin, launch, min(launch + step, high))


# --- kernels ----------------------------------------------------------------------------------


@cache
def _address(kind: int) -> int:
    from spyre.hw.kernels.parallel_compile import entry_of  # imports numba

    return entry_of(tb.KERNEL_NAMES[kind]).address


def entry_addresses(kinds: Iterable[int]) -> Int64Array:
    """Address of the kernel of every kind in ``kinds`` (0 for kinds not asked for).

    Kernels are compiled, or loaded from the disk cache, on first use; several at a time where
    there are CPUs.
    """
    from spyre.hw.kernels.parallel_compile import compile_together
    from spyre.hw.kernels.progress import compile_progress  # imports numba

    wanted = list(kinds)
    compile_together([tb.KERNEL_NAMES[kind] for kind in wanted])
    addresses = np.zeros(len(tb.KERNEL_NAMES), np.int64)
    for kind in compile_progress().numbered(wanted):
        addresses[kind] = _address(kind)
    return addresses
