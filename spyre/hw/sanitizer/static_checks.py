"""Checks that need no run: addresses, alignment, spans, layouts, and how the scratchpads are
used.

Which argument an address names is not where it points, but what it is computed from: in a
symbolic bundle the expression of a symbol says it (`%arg_0_base_addr + 2048 * %i`), in a baked
one the segment of the address does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.access import (
    Box,
    contradicting_dims,
    core_boxes,
    global_coordinate,
    is_indirect,
)
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import Allocation, LinkedProgram, Variant, variants_of
from spyre.hw.sanitizer.findings import (
    MAX_SPAN_BYTES,
    PLANNER_LX_BYTES,
    Check,
    SanitizerFinding,
    count_of,
)
from spyre.hw.sanitizer.run_findings import shown_address
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BITS, STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, footprint
from spyre.mlir.program import (
    AllocationAtom,
    Atom,
    Derived,
    Execute,
    IndexValue,
    ParameterAtom,
)


@dataclass(frozen=True)
class ExecuteSite:
    """``static``: number of the execute statement in its program; ``variant``: what it runs."""

    linked: LinkedProgram
    label: ExecuteLabels
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


@dataclass(frozen=True)
class Owners:
    """Per core of one operand the allocation its address names (None where nothing is named).

    Loops change an address, never what it is computed from, so instances share their owners.
    """

    allocations: tuple[Allocation | None, ...]

    @property
    def lows(self) -> Int64Array:
        """First byte each core may touch."""
        return np.array([a.address_bytes if a else 0 for a in self.allocations], np.int64)

    @property
    def highs(self) -> Int64Array:
        """End of what each core may touch."""
        top = np.iinfo(np.int64).max
        return np.array([a.end_bytes if a else top for a in self.allocations], np.int64)


def find_owners(site: ExecuteSite, operand: int) -> Owners:
    """What the start addresses of ``operand`` name, per core."""
    tensor = site.op.tensors[operand]
    if tensor.component is not Component.HBM:
        return Owners((None,) * len(site.op.cores))
    if tensor.symbolic:
        values = dict(zip(site.execute.symbol_ids, site.execute.symbols, strict=True))
        return Owners(tuple(_of_value(site, values[symbol]) for symbol in tensor.starts))
    return Owners(tuple(_of_segment(site, start >> REGION_BITS) for start in tensor.starts))


def _of_segment(site: ExecuteSite, segment: int) -> Allocation | None:
    segments = site.linked.binding.segments
    return None if segments is None else _allocation_at(site, segments.get(segment))


def _of_value(site: ExecuteSite, value: IndexValue) -> Allocation | None:
    """The one address the value is computed from; None when there are several or none."""
    binding, program = site.linked.binding, site.linked.program
    bases = set()
    for atom in set(_atoms_of(value)):
        if isinstance(atom, AllocationAtom):
            bases.add(binding.scratch_addresses[atom.index])
        elif isinstance(atom, ParameterAtom):
            parameter = program.parameters[atom.index]
            if parameter.kind == "input_arg" and parameter.max_value is None:
                bases.add(binding.parameters[parameter.name])
    return _allocation_at(site, bases.pop()) if len(bases) == 1 else None


def _atoms_of(value: IndexValue) -> Iterator[Atom]:
    for atom, _ in value.terms:
        if isinstance(atom, Derived):
            yield from _atoms_of(atom.left)
            yield from _atoms_of(atom.right)
        else:
            yield atom


def _allocation_at(site: ExecuteSite, address: int | None) -> Allocation | None:
    """The allocation that begins at ``address``; of views of one memory the largest."""
    binding = site.linked.binding
    begin = None if address is None else binding.origin(address)
    beginning_there = [a for a in binding.allocations if a.address_bytes == begin]
    return max(beginning_there, key=lambda a: a.size_bytes, default=None)


BoolArray = npt.NDArray[np.bool_]
POOL_NAME = "pool"
_CHUNK = 1 << 22
"""Stick addresses compared at once."""


def check_memory(site: ExecuteSite) -> Iterator[SanitizerFinding]:
    """Findings of one execute statement."""
    for operand, tensor in enumerate(site.op.tensors):
        if tensor.component is not Component.HBM:
            continue
        owners = find_owners(site, operand)
        yield from _check_bounds(site, operand, owners)
        yield from _check_layout(site, operand, owners)


def _check_bounds(site: ExecuteSite, operand: int, owners: Owners) -> Iterator[SanitizerFinding]:
    starts = site.starts[:, operand, :]
    boxes = site.boxes[operand]
    firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
    ends = np.array([box.end_bytes if box else 0 for box in boxes], np.int64)
    outside = (starts + firsts < owners.lows) | (starts + ends > owners.highs)
    outside &= np.array([box is not None for box in boxes])
    if not outside.any():
        return
    instance, position = (int(i) for i in np.argwhere(outside)[0])
    owner, box = owners.allocations[position], boxes[position]
    assert owner is not None
    assert box is not None
    start = int(starts[instance, position])
    offset = first_outside(box, start, owner)
    sticks = _count_outside(starts, boxes, owners, outside)
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


def first_outside(box: Box, start: int, owner: Allocation) -> int:
    """Offset in bytes of the first stick of a core's box that is not wholly in ``owner``."""
    offsets = box.walk.offsets()
    addresses = start + offsets
    outside = (addresses < owner.address_bytes) | (addresses + STICK_BYTES > owner.end_bytes)
    return int(offsets[np.argmax(outside)])


def _neighbour(site: ExecuteSite, address: int) -> str:
    inside = [
        a.name for a in site.linked.binding.allocations if a.address_bytes <= address < a.end_bytes
    ]
    return f", in {inside[0]}" if inside else ""


def _count_outside(
    starts: Int64Array, boxes: tuple[Box | None, ...], owners: Owners, outside: BoolArray
) -> int:
    """Sticks outside over all instances and cores, boxes of equal shape together."""
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
            low, high = owners.lows[columns][:, None], owners.highs[columns][:, None]
            total += int(((addresses < low) | (addresses + STICK_BYTES > high)).sum())
    return total


def _check_layout(site: ExecuteSite, operand: int, owners: Owners) -> Iterator[SanitizerFinding]:
    """A step of the tensor that is no step of the argument's layout."""
    owner = owners.allocations[0]
    tensor = site.op.tensors[operand]
    if owner is None or not owner.device_dims or is_indirect(tensor):
        return
    wrong = contradicting_dims(site.op, tensor, owner.device_dims)
    if not wrong:
        return
    pitches = footprint(site.op, tensor).pitch_bytes
    yield site.finding(
        Check.MEMORY,
        "SPY702",
        Severity.WARNING,
        f"{site.op.name}: the stored extents of {tensor.name} contradict the layout of "
        f"{owner.name}",
        operand,
        expected=_layout_steps(owner),
        found=", ".join(f"{dim} in steps of {pitches[dim]} bytes" for dim in wrong),
        hint="a tile of a larger tensor needs a gap that gives it the larger one's pitches",
    )


def _layout_steps(owner: Allocation) -> str:
    steps = sorted({stride for extent, stride in owner.device_dims if extent > 1})
    return f"steps of {' or '.join(str(stride) for stride in steps)} bytes"


@dataclass(frozen=True, slots=True)
class _LxUse:
    """An LX operand of an execute: byte range in the scratchpad of the first core.

    Of cells that lie in many scratchpads: the range of all.
    """

    static: int
    operand: int
    is_output: bool
    low: int
    high: int

    def meets(self, other: _LxUse) -> bool:
        return self.low < other.high and other.low < self.high


def check_stale(linked: LinkedProgram, sites: Sequence[ExecuteSite]) -> Iterator[SanitizerFinding]:
    """A read outside of a loop of what only the loop wrote, and no execute there also reads."""
    paths = linked.program.loop_paths
    uses = [use for site in sites for use in _lx_uses(site)]
    by_static = {site.static: site for site in sites}
    for read in (use for use in uses if not use.is_output):
        before = [u for u in uses if u.is_output and u.static < read.static and u.meets(read)]
        # What reads its own result back (a sum over tiles) means to keep only the last value.
        if not before or _accumulates(before, uses):
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


def _accumulates(writes: Sequence[_LxUse], uses: Sequence[_LxUse]) -> bool:
    """True if an execute that writes the range also reads it."""
    return any(
        not use.is_output and use.static == write.static and use.meets(write)
        for write in writes
        for use in uses
    )


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


def check_program(
    linked: LinkedProgram, label: ExecuteLabels, checks: frozenset[Check]
) -> tuple[SanitizerFinding, ...]:
    """All findings that the addresses alone give, made once per program and label."""
    key = (label, checks)
    findings: dict[object, tuple[SanitizerFinding, ...]] = vars(linked).setdefault("_static", {})
    if key not in findings:
        findings[key] = tuple(_static_findings(linked, label, checks))
    return findings[key]


def _static_findings(
    linked: LinkedProgram, label: ExecuteLabels, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
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
    """Starts that are no whole stick: the card addresses sticks."""
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
    """One core may not reach further than 256 MiB within one tensor (SDSC reference §5)."""
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
    """LX beyond what the compiler's planner hands out: the rest is the backend's."""
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
            f"{site.op.name}: {tensor.name} lies in the part of LX kept for the backend",
            operand,
            instance=instance,
            position=position,
            address=int(site.starts[instance, operand, position]),
            expected=f"LX up to byte {PLANNER_LX_BYTES}, 80 % of {LX_BYTES}",
            found=f"up to byte {int(ends[instance, position])}",
        )
