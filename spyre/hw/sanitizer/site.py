"""One execute statement of a linked program, as the checks that need no run look at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spyre.errors import Severity
from spyre.hw.boxes import Box, core_boxes
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram, Variant, variants_of
from spyre.hw.nest import Int64Array
from spyre.hw.sanitizer.checks import Check
from spyre.hw.sanitizer.findings import SanitizerFinding
from spyre.hw.sanitizer.run_findings import shown_address
from spyre.mlir.operation import Operation
from spyre.mlir.program import Execute


@dataclass(frozen=True)
class Site:
    """``static``: number of the execute statement in its program; ``variant``: what it runs."""

    linked: LinkedProgram
    label: LaunchLabel
    static: int
    variant: Variant

    @property
    def execute(self) -> Execute:
        """The statement."""
        return self.linked.program.executes[self.static]

    @property
    def op(self) -> Operation:
        """Its operation."""
        return self.variant.op

    @property
    def starts(self) -> Int64Array:
        """Start addresses in bytes, [member, operand, core]."""
        return self.variant.starts

    @cached_property
    def boxes(self) -> tuple[tuple[Box | None, ...], ...]:
        """Per operand and core what is touched."""
        return tuple(core_boxes(self.op, tensor) for tensor in self.op.tensors)

    def loops(self, instance: int) -> tuple[int, ...]:
        """Loop indices of a member of the variant's instances."""
        member = int(self.variant.instances[instance])
        indices = self.linked.schedule.loop_indices[self.static][member]
        return tuple(int(i) for i in indices)

    def finding(
        self,
        check: Check,
        code: str,
        severity: Severity,
        message: str,
        operand: int,
        *,
        instance: int | None = None,
        position: int | None = None,
        address: int | None = None,
        **details: Any,
    ) -> SanitizerFinding:
        """A finding about ``operand``; ``details`` are further fields of SanitizerFinding."""
        return SanitizerFinding(
            check=check,
            code=code,
            severity=severity,
            message=message,
            sdsc=self.label.sdsc(self.execute.sdsc_filename),
            source=self.execute.location,
            execute=self.label.first_execute + self.static,
            loop_indices=() if instance is None else self.loops(instance),
            core=None if position is None else self.op.cores[position],
            tensor=self.op.tensors[operand].name,
            address_bytes=None if address is None else shown_address(address),
            **details,
        )


def sites(linked: LinkedProgram, label: LaunchLabel) -> Iterator[Site]:
    """Every execute statement that runs at least once, in textual order."""
    for static in range(len(linked.program.executes)):
        for variant in variants_of(linked, static):
            yield Site(linked, label, static, variant)
