"""What linking makes: plan tables, dispatches, and what runs for which execution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spyre.hw import table as tb
from spyre.hw.aliasing import AliasStructure, alias_structure
from spyre.hw.binding import Binding
from spyre.hw.core_plan import CorePlan
from spyre.hw.counters import Counters
from spyre.hw.kernels.opcodes import CHAIN_KIND, DISPATCH_BASES
from spyre.hw.kernels.registry import entry_addresses
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import (
    REGION_BITS,
    REGION_SKEW_BYTES,
)
from spyre.mlir.operation import Operation
from spyre.mlir.program import LoopProgram, Schedule


@dataclass(frozen=True)
class LinkedCode:
    """What linking makes that does not depend on where allocations begin.

    ``tables``, ``run_rows``: see :class:`LinkedProgram`. ``anchors``: the allocation each base of
    each dispatch moves with, int32 [dispatch, operand], see :mod:`spyre.hw.anchors`. ``movable``:
    everything that depends on an allocation moves with it. ``chained``: some dispatches are chains,
    see :mod:`spyre.hw.chains`.
    """

    tables: Int64Array
    program: LoopProgram
    run_rows: Int64Array
    anchors: npt.NDArray[np.int32]
    movable: bool
    chained: bool

    @cached_property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        kinds = self.tables[:, tb.KIND]
        used = np.flatnonzero(np.bincount(kinds[kinds != tb.EXTRA])).tolist()
        return entry_addresses([*used, CHAIN_KIND] if self.chained else used)


class Places(Protocol):
    """What depends on where allocations begin; see :class:`LinkedProgram`."""

    @property
    def dispatch(self) -> Int64Array:
        """Dispatches with device addresses."""

    @property
    def host_dispatch(self) -> Int64Array:
        """Dispatches with host offsets."""

    @property
    def schedule(self) -> Schedule:
        """All executes with their symbol values."""

    @property
    def runs(self) -> tuple[tuple[PlanRun, ...], ...]:
        """Plans and their instances per static execute."""

    @property
    def binding(self) -> Binding:
        """The launch."""

    @property
    def origin(self) -> LinkedPlaces:
        """The places that linking found, which these were moved from."""


@dataclass(frozen=True)
class LinkedPlaces:
    """Places as linking found them."""

    dispatch: Int64Array
    schedule: Schedule
    runs: tuple[tuple[PlanRun, ...], ...]
    binding: Binding

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """``dispatch`` with base addresses as host offsets."""
        mapped = self.dispatch.copy()
        bases = mapped[:, DISPATCH_BASES:]
        bases += (bases >> REGION_BITS) * REGION_SKEW_BYTES
        return mapped

    @property
    def origin(self) -> LinkedPlaces:
        """These places."""
        return self

    @cached_property
    def counters(self) -> tuple[Counters, ...]:
        """The work of every static execute in one launch, wherever it is moved to."""
        from spyre.hw.execute_counters import count_execute

        return tuple(map(count_execute, self.runs))

    @cached_property
    def bases(self) -> Int64Array:
        """Where the binding's allocations begin."""
        return np.array([a.address_bytes for a in self.binding.allocations], np.int64)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the binding's allocations."""
        return tuple(a.size_bytes for a in self.binding.allocations)

    @cached_property
    def aliases(self) -> AliasStructure | None:
        """How the binding's allocations overlap."""
        return alias_structure(self.bases.tolist(), self.sizes)


@dataclass(frozen=True)
class LinkedProgram:
    """Ready to run: plan tables, and dispatches in program order. Any thread may read it.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``dispatch``:
    int64 [m, DISPATCH_WORDS]: table, static execute, instance, chain length, 8 base addresses.
    ``runs``: what runs for each static execute; an instance with several parts is in several runs.
    ``binding``: what it was linked for. ``run_rows``: first row in ``tables`` of each run, those of
    all executes one behind another.
    """

    code: LinkedCode
    places: Places

    @property
    def tables(self) -> Int64Array:
        """Plan tables of all runs, [row, WORDS]."""
        return self.code.tables

    @property
    def program(self) -> LoopProgram:
        """What was linked."""
        return self.code.program

    @property
    def run_rows(self) -> Int64Array:
        """First row in ``tables`` of each run."""
        return self.code.run_rows

    @property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        return self.code.entries

    @property
    def dispatch(self) -> Int64Array:
        """What runs in program order, with device addresses, [dispatch, DISPATCH_WORDS]."""
        return self.places.dispatch

    @property
    def host_dispatch(self) -> Int64Array:
        """``dispatch`` with base addresses as host offsets, which is what kernels take."""
        return self.places.host_dispatch

    @property
    def schedule(self) -> Schedule:
        """All executes with their symbol values."""
        return self.places.schedule

    @property
    def runs(self) -> tuple[tuple[PlanRun, ...], ...]:
        """Plans and their instances per static execute."""
        return self.places.runs

    @property
    def binding(self) -> Binding:
        """What it was linked for, or moved to."""
        return self.places.binding

    @property
    def counters(self) -> tuple[Counters, ...]:
        """The work of every static execute in one launch; counted once per linked program."""
        return self.places.origin.counters

    @cached_property
    def plans(self) -> tuple[tuple[CorePlan, ...], ...]:
        """The distinct plans of each static execute."""
        runs = self.places.origin.runs
        return tuple(tuple({id(r.plan): r.plan for r in group}.values()) for group in runs)


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
