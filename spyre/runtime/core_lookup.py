"""Who wrote a stick: which execute, core and loop indices last covered a device address.

Answers come from the linked program alone, after the run, vectorised over loop iterations and
cores; mismatch reports use them. The address rule is that of SDSC reference §5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spyre.hw.boxes import covers
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import STICK_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.mlir.operation import Component, Indirection
from spyre.mlir.program import Execute
from spyre.runtime.verify import CorePlace


@dataclass(frozen=True)
class CoreLookup:
    """Finds the last writer of an HBM address in one launch of a program."""

    linked: LinkedProgram

    def writer(self, address_bytes: int) -> CorePlace | None:
        """Who last wrote the stick at ``address_bytes``; core None if nobody did.

        Several cores that combine partial results count as the first of them. Where an execute
        scatters through an index, addresses depend on data and the answer is None: unknown.
        """
        best: tuple[int, CorePlace] | None = None
        for execute in self.linked.program.executes:
            found = self._last_of(execute, address_bytes)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is not None:
            return best[1]
        return None if self._scatters else CorePlace(None)

    @cached_property
    def _scatters(self) -> bool:
        plans = (plan for group in self.linked.plans for plan in group)
        return any(
            tensor.indirection is Indirection.VALUE for plan in plans for tensor in plan.op.outputs
        )

    def writer_of_stick(
        self, layout: SpyreTensorLayout, base_address: int, stick: Sequence[int]
    ) -> CorePlace | None:
        """Who last wrote the stick with device coordinates ``stick`` of a tensor."""
        position = int(np.ravel_multi_index(tuple(stick), layout.device_size[:-1]))
        return self.writer(base_address + STICK_BYTES * position)

    def _last_of(self, execute: Execute, address: int) -> tuple[int, CorePlace] | None:
        """(place in program order, writer) of the last execution that covers ``address``."""
        best: tuple[int, CorePlace] | None = None
        for run in self.linked.runs[execute.index]:
            found = self._last_of_run(execute, run, address)
            if found is not None and (best is None or found[0] >= best[0]):
                best = found
        return best

    def _last_of_run(
        self, execute: Execute, run: PlanRun, address: int
    ) -> tuple[int, CorePlace] | None:
        op = run.plan.op
        tensor = op.tensors[-1]
        if tensor.component is not Component.HBM or tensor.indirection is Indirection.VALUE:
            return None
        hits = covers(op, tensor, address - run.starts(len(op.tensors) - 1))
        rows = np.flatnonzero(hits.any(axis=1))
        if not len(rows):
            return None
        instance, order = self._latest(execute.index, run.instances[rows])
        row = int(np.flatnonzero(run.instances == instance)[0])
        core = op.cores[int(np.flatnonzero(hits[row])[0])]
        tile = self.linked.schedule.loop_indices[execute.index][instance]
        return order, CorePlace(core, tuple(int(i) for i in tile), execute.index, op.name)

    def _latest(self, static: int, rows: Int64Array) -> tuple[int, int]:
        """(instance, place in program order) of the instance of ``rows`` that runs last."""
        schedule = self.linked.schedule
        places = np.flatnonzero(schedule.order == static)
        chosen = places[np.isin(schedule.instance[places], rows)]
        return int(schedule.instance[chosen[-1]]), int(chosen[-1])
