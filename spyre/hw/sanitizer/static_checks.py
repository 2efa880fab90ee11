"""Checks of a linked program that need no run: memory, alignment, spans, scratchpads.

An operand must stay in the allocation that its address is computed from
(:mod:`spyre.hw.linking.trace`), whatever memory follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.access import Box, core_boxes, global_coordinate, is_indirect
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import (
    Allocation,
    LinkedProgram,
    Variant,
    core_owners,
    first_outside,
    operand_owners,
    variants_of,
)
from spyre.hw.sanitizer.findings import Check, SanitizerFinding, count_of, shown_address
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES
from spyre.hw.tile_dims import pitch_mismatch, tile_dims
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation
from spyre.mlir.program import Execute

PLANNER_LX_BYTES = 1_677_721
"""LX available to the compiler's planner: 80 % of 2 MiB (hardware reference §2)."""
MAX_SPAN_BYTES = 256 << 20
"""Largest range of one tensor that one core may access in one execute (SDSC reference §5)."""


@dataclass(frozen=True)
class ExecuteSite:
    """An execute statement (``static``: its number) with one operation that it runs."""

    linked: LinkedProgram
    label: ExecuteLabels
    static: int
    variant: Variant

    @property
    def execute(self) -> Execute:
        return self.linked.program.executes[self.static]

    @property
    def op(self) -> Operation:
        return self.variant.op

    @property
    def starts(self) -> Int64Array:
        """Start addresses in bytes, [member, operand, core]."""
        return self.variant.starts

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
        binding = self.linked.binding
        symbols = self.linked.schedule.symbols[self.static]
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

    def loops(self, instance: int) -> tuple[int, ...]:
        """Loop indices of a member of the variant's instances."""
        member = int(self.variant.instances[instance])
        return self.linked.view.loop_indices(self.static, member)

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


def execute_sites(linked: LinkedProgram, label: ExecuteLabels) -> Iterator[ExecuteSite]:
    """Every execute statement that runs at least once, in textual order."""
    for static in range(len(linked.program.executes)):
        for variant in variants_of(linked, static):
            yield ExecuteSite(linked, label, static, variant)


BoolArray = npt.NDArray[np.bool_]
POOL_NAME = "pool"
_CHUNK = 1 << 22
"""Stick addresses compared at once."""


def check_memory(site: ExecuteSite) -> Iterator[SanitizerFinding]:
    """Accesses outside of the memory that an address is computed from; pitches it does not have."""
    for operand, tensor in enumerate(site.op.tensors):
        if tensor.component is Component.HBM:
            yield from _check_bounds(site, operand)
            yield from _check_layout(site, operand)


def _check_bounds(site: ExecuteSite, operand: int) -> Iterator[SanitizerFinding]:
    starts, boxes, owners = site.starts[:, operand, :], site.boxes[operand], site.owners[operand]
    firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
    ends = np.array([box.end_bytes if box else 0 for box in boxes], np.int64)
    lows, highs = _ranges(owners)
    outside = (starts + firsts < lows) | (starts + ends > highs)
    outside &= np.array([box is not None for box in boxes])
    if not outside.any():
        return
    instance, position = (int(i) for i in np.argwhere(outside)[0])
    owner, box = owners[position], boxes[position]
    assert owner is not None
    assert box is not None
    start = int(starts[instance, position])
    offset = first_outside(box, start, [owner])
    assert offset is not None
    sticks = _count_outside(starts, boxes, (lows, highs), outside)
    is_pool = owner.name == POOL_NAME
    name = f"the {POOL_NAME}" if is_pool else owner.name
    tensor = site.op.tensors[operand]
    yield site.finding(
        Check.MEMORY,
        "SPY703" if is_pool else "SPY701",
        Severity.ERROR,
        f"{site.op.name}: {tensor.name} leaves {name}, which its address names",
        operand,
        instance=instance,
        position=position,
        address=start + offset,
        coordinate=global_coordinate(site.op, tensor, box, position, offset),
        expected=f"addresses of {name}, {owner.address_bytes:#x} to {owner.end_bytes:#x}",
        found=f"{count_of(sticks, 'stick')} outside in "
        f"{count_of(int(outside.any(axis=1).sum()), 'execution')}"
        f"{_neighbour(site, start + offset)}",
        sticks=sticks,
        executions=int(outside.any(axis=1).sum()),
    )


def _ranges(owners: Sequence[Allocation | None]) -> tuple[Int64Array, Int64Array]:
    """First byte and end of the memory of each core; everything for a core without owner."""
    lows = [owner.address_bytes if owner else 0 for owner in owners]
    highs = [owner.end_bytes if owner else np.iinfo(np.int64).max for owner in owners]
    return np.array(lows, np.int64), np.array(highs, np.int64)


def _neighbour(site: ExecuteSite, address: int) -> str:
    inside = [
        a.name for a in site.linked.binding.allocations if a.address_bytes <= address < a.end_bytes
    ]
    return f", in {inside[0]}" if inside else ""


def _count_outside(
    starts: Int64Array,
    boxes: tuple[Box | None, ...],
    memory: tuple[Int64Array, Int64Array],
    outside: BoolArray,
) -> int:
    """Sticks outside of ``memory`` (first bytes and ends, by core), of all instances and cores."""
    total = 0
    for box in {id(b): b for b in boxes if b is not None}.values():
        mine = np.array([b is box for b in boxes])
        instances, cores = np.nonzero(outside & mine)
        offsets = box.walk.offsets()
        # In pieces: instances times sticks of a large launch do not fit into memory at once.
        step = max(1, _CHUNK // len(offsets))
        for first in range(0, len(instances), step):
            rows, columns = instances[first : first + step], cores[first : first + step]
            addresses = starts[rows, columns][:, None] + offsets
            low, high = (ends[columns][:, None] for ends in memory)
            total += int(((addresses < low) | (addresses + STICK_BYTES > high)).sum())
    return total


def _check_layout(site: ExecuteSite, operand: int) -> Iterator[SanitizerFinding]:
    """A pitch of the tensor that the layout of its argument does not have (SPY702)."""
    owner, tensor = site.owners[operand][0], site.op.tensors[operand]
    if owner is None or not owner.device_dims or is_indirect(tensor):
        return
    layout = owner.device_dims
    dims = tile_dims(site.op, tensor, layout)
    found = pitch_mismatch(site.op, tensor, dims, layout, owner.name)
    if found is not None:
        yield site.finding(
            Check.MEMORY,
            found.code,
            found.severity,
            found.message,
            operand,
            expected=found.expected,
            found=found.found,
            hint=found.hint,
        )


@dataclass(frozen=True, slots=True)
class _LxUse:
    """An LX operand of an execute: its byte range in the scratchpad of the first core.

    If the operand's cells are in many scratchpads: the range that covers all of them.
    """

    static: int
    operand: int
    is_output: bool
    low: int
    high: int

    def meets(self, other: _LxUse) -> bool:
        return self.low < other.high and other.low < self.high


def check_stale(linked: LinkedProgram, sites: Sequence[ExecuteSite]) -> Iterator[SanitizerFinding]:
    """Reads after a loop of LX that only the loop wrote, without accumulating (SPY732)."""
    paths = linked.program.loop_paths
    uses = [use for site in sites for use in _lx_uses(site)]
    by_static = {site.static: site for site in sites}
    for read in (use for use in uses if not use.is_output):
        before = [u for u in uses if u.is_output and u.static < read.static and u.meets(read)]
        # An execute that reads its own result back (a sum over tiles) keeps the last on purpose.
        reads = [u for u in uses if not u.is_output]
        is_sum = any(u.static == w.static and u.meets(w) for w in before for u in reads)
        if not before or is_sum:
            continue
        last = before[-1]
        # The outermost loop that the read has left but the write is in.
        inner = [d for d, loop in enumerate(paths[last.static]) if loop not in paths[read.static]]
        if not inner or not _repeats(linked, last.static, inner[0]):
            continue
        loop = paths[last.static][inner[0]]
        if all(loop in paths[use.static] for use in before):
            yield _stale_finding(by_static[read.static], read, by_static[last.static])


def _repeats(linked: LinkedProgram, static: int, depth: int) -> bool:
    """True if the loop at ``depth`` around an execute has more than one trip."""
    indices = linked.schedule.loop_indices[static]
    return len(indices) > len(np.unique(indices[:, :depth], axis=0))


def _stale_finding(site: ExecuteSite, read: _LxUse, writer: ExecuteSite) -> SanitizerFinding:
    tensor = site.op.tensors[read.operand]
    number = writer.label.first_execute + writer.static
    return site.finding(
        Check.LX,
        "SPY732",
        Severity.WARNING,
        f"{site.op.name} reads {tensor.name} in LX after the loop that wrote it: "
        "only the last iteration is left",
        read.operand,
        expected="LX written outside of the loop, or accumulated in it",
        found=f"written by execute {number} ({writer.op.name}), {len(writer.starts)} executions",
    )


def _lx_uses(site: ExecuteSite) -> Iterator[_LxUse]:
    first_output = len(site.op.tensors) - len(site.op.outputs)
    for operand, tensor in enumerate(site.op.tensors):
        count = 1 if site.variant.divided is None else len(site.op.cores)
        boxes = [(k, box) for k, box in enumerate(site.boxes[operand][:count]) if box is not None]
        if tensor.component is not Component.LX or not boxes:
            continue
        starts = ((site.starts[0, operand] - LX_BASE) % LX_BYTES).tolist()
        low = min(starts[k] + box.first_bytes for k, box in boxes)
        high = max(starts[k] + box.end_bytes for k, box in boxes)
        yield _LxUse(site.static, operand, operand >= first_output, low, high)


def static_findings(
    linked: LinkedProgram, label: ExecuteLabels, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
    """All findings that follow from the addresses alone."""
    sites = list(execute_sites(linked, label))
    for site in sites:
        if Check.MEMORY in checks:
            yield from check_memory(site)
        if Check.ALIGN in checks:
            yield from check_alignment(site)
            yield from check_span(site)
        if Check.LX in checks:
            yield from check_lx_boundary(site)
    if Check.LX in checks:
        yield from check_stale(linked, sites)


def check_alignment(site: ExecuteSite) -> Iterator[SanitizerFinding]:
    """Starts inside a stick: the card addresses whole sticks (SPY735)."""
    for operand, tensor in enumerate(site.op.tensors):
        wrong = site.starts[:, operand, :] % STICK_BYTES != 0
        if not wrong.any():
            continue
        instance, position = (int(i) for i in np.argwhere(wrong)[0])
        executions = int(wrong.any(axis=1).sum())
        address = int(site.starts[instance, operand, position])
        yield site.finding(
            Check.ALIGN,
            "SPY735",
            Severity.ERROR,
            f"{site.op.name}: {tensor.name} does not start at a stick",
            operand,
            instance=instance,
            position=position,
            address=address,
            expected=f"multiples of {STICK_BYTES} bytes",
            found=f"{address % STICK_BYTES} bytes into a stick; "
            f"{count_of(int(wrong.sum()), 'start')} in {count_of(executions, 'execution')}",
            executions=executions,
        )


def check_span(site: ExecuteSite) -> Iterator[SanitizerFinding]:
    """Cores that access more than MAX_SPAN_BYTES of one tensor (SPY736)."""
    for operand, tensor in enumerate(site.op.tensors):
        spans = [box.span_bytes if box else 0 for box in site.boxes[operand]]
        position = int(np.argmax(spans))
        if tensor.component is not Component.HBM or spans[position] <= MAX_SPAN_BYTES:
            continue
        yield site.finding(
            Check.ALIGN,
            "SPY736",
            Severity.ERROR,
            f"{site.op.name}: one core touches too long a range of {tensor.name}",
            operand,
            position=position,
            expected=f"at most {MAX_SPAN_BYTES} bytes from first to last",
            found=f"{spans[position]} bytes",
        )


def check_lx_boundary(site: ExecuteSite) -> Iterator[SanitizerFinding]:
    """Tensors beyond the compiler's part of LX; the rest belongs to the backend (SPY730)."""
    for operand, tensor in enumerate(site.op.tensors):
        if tensor.component is not Component.LX:
            continue
        reaches = np.array([box.end_bytes if box else 0 for box in site.boxes[operand]], np.int64)
        ends = (site.starts[:, operand, :] - LX_BASE) % LX_BYTES + reaches
        beyond = ends > PLANNER_LX_BYTES
        if not beyond.any():
            continue
        instance, position = (int(i) for i in np.argwhere(beyond)[0])
        yield site.finding(
            Check.LX,
            "SPY730",
            Severity.WARNING,
            f"{site.op.name}: {tensor.name} is in the part of LX reserved for the backend",
            operand,
            instance=instance,
            position=position,
            address=int(site.starts[instance, operand, position]),
            expected=f"LX up to byte {PLANNER_LX_BYTES}, 80 % of {LX_BYTES}",
            found=f"up to byte {int(ends[instance, position])}",
        )
