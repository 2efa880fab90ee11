"""Checks of a linked program that need no run: memory, alignment, spans, scratchpads.

An operand must stay in the allocation that its address is computed from
(:mod:`spyre.hw.linking.trace`), even if other allocated memory follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.access import Box, canonical_cores, global_coordinate, is_indirect
from spyre.hw.counters import ExecuteLabels
from spyre.hw.linking import Allocation, LinkedProgram, Variant, first_outside, variants_of
from spyre.hw.sanitizer.findings import Check, SanitizerFinding, count_of, shown_address
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES
from spyre.hw.tile_dims import pitch_mismatch, tile_dims
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Indirection

PLANNER_LX_BYTES = 1_677_721
"""LX available to the compiler's planner: 80 % of 2 MiB (hardware reference §2)."""
MAX_SPAN_BYTES = 256 << 20
"""Largest range of one tensor that one core may access in one execute (SDSC reference §5)."""


def _finding(
    variant: Variant,
    label: ExecuteLabels,
    check: Check,
    code: str,
    severity: Severity,
    message: str,
    operand: int,
    *,
    member: int | None = None,
    position: int | None = None,
    address: int | None = None,
    **details: Any,
) -> SanitizerFinding:
    """A finding about ``operand``; ``details`` are further fields of SanitizerFinding."""
    execute = variant.execute
    loops: tuple[int, ...] = ()
    if member is not None:
        instance = int(variant.instances[member])
        loops = tuple(variant.schedule.loop_indices[execute.index][instance].tolist())
    return SanitizerFinding(
        check=check,
        code=code,
        severity=severity,
        message=message,
        sdsc=label.sdsc(execute.sdsc_filename),
        source=execute.location,
        execute=label.first_execute + execute.index,
        loop_indices=loops,
        core=None if position is None else variant.op.cores[position],
        tensor=variant.op.tensors[operand].name,
        address_bytes=None if address is None else shown_address(address),
        **details,
    )


BoolArray = npt.NDArray[np.bool_]
POOL_NAME = "pool"
POOLS = (POOL_NAME, "device_mem_allocate")
"""Beginnings of the names of a program's memory for intermediate tensors."""
_CHUNK = 1 << 22
"""Stick addresses compared at once."""


def check_memory(variant: Variant, label: ExecuteLabels) -> Iterator[SanitizerFinding]:
    """Accesses outside of the memory that an address is computed from; pitches it does not have."""
    for operand, tensor in enumerate(variant.op.tensors):
        if tensor.component is Component.HBM:
            yield from _check_bounds(variant, label, operand)
            yield from _check_layout(variant, label, operand)


def _check_bounds(
    variant: Variant, label: ExecuteLabels, operand: int
) -> Iterator[SanitizerFinding]:
    starts = variant.starts[:, operand, :]
    boxes = variant.boxes[operand]
    owners = variant.owners[operand]
    firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
    ends = np.array([box.end_bytes if box else 0 for box in boxes], np.int64)
    lows, highs = _ranges(owners)
    outside = (starts + firsts < lows) | (starts + ends > highs)
    outside &= np.array([box is not None for box in boxes])
    if not outside.any():
        return
    member, position = (int(i) for i in np.argwhere(outside)[0])
    owner, box = owners[position], boxes[position]
    assert owner is not None
    assert box is not None
    start = int(starts[member, position])
    offset = first_outside(box, start, [owner])
    assert offset is not None
    sticks = _count_outside(starts, boxes, (lows, highs), outside)
    is_pool = owner.name == POOL_NAME
    name = f"the {POOL_NAME}" if is_pool else owner.name
    tensor = variant.op.tensors[operand]
    yield _finding(
        variant,
        label,
        Check.MEMORY,
        "SPY703" if is_pool else "SPY701",
        Severity.ERROR,
        f"{variant.op.name}: {tensor.name} leaves {name}, which its address names",
        operand,
        member=member,
        position=position,
        address=start + offset,
        coordinate=global_coordinate(variant.op, tensor, box, position, offset),
        expected=f"addresses of {name}, {owner.address_bytes:#x} to {owner.end_bytes:#x}",
        found=f"{count_of(sticks, 'stick')} outside in "
        f"{count_of(int(outside.any(axis=1).sum()), 'execution')}"
        f"{_neighbour(variant, start + offset)}",
        sticks=sticks,
        executions=int(outside.any(axis=1).sum()),
    )


def _ranges(owners: Sequence[Allocation | None]) -> tuple[Int64Array, Int64Array]:
    """First byte and end of the memory of each core; everything for a core without owner."""
    lows = [owner.address_bytes if owner else 0 for owner in owners]
    highs = [owner.end_bytes if owner else np.iinfo(np.int64).max for owner in owners]
    return np.array(lows, np.int64), np.array(highs, np.int64)


def _neighbour(variant: Variant, address: int) -> str:
    inside = [
        a.name for a in variant.binding.allocations if a.address_bytes <= address < a.end_bytes
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
            total += int(((addresses < low) | (addresses + box.unit_bytes > high)).sum())
    return total


def _check_layout(
    variant: Variant, label: ExecuteLabels, operand: int
) -> Iterator[SanitizerFinding]:
    """A pitch of the tensor that the layout of its argument does not have (SPY702)."""
    owner, tensor = variant.owners[operand][0], variant.op.tensors[operand]
    if owner is None or not owner.device_dims or is_indirect(tensor):
        return
    layout = owner.device_dims
    dims = tile_dims(variant.op, tensor, layout)
    found = pitch_mismatch(variant.op, tensor, dims, layout, owner.name)
    if found is not None:
        yield _finding(
            variant,
            label,
            Check.MEMORY,
            found.code,
            found.severity,
            found.message,
            operand,
            expected=found.expected,
            found=found.found,
            hint=found.hint,
        )


class _Use(msgspec.Struct, frozen=True):
    """An operand of an execute: its byte range, in LX in the scratchpad of the first core.

    If the operand's cells are in many scratchpads: the range that covers all of them.
    """

    static: int
    operand: int
    is_output: bool
    low: int
    high: int

    def meets(self, other: _Use) -> bool:
        return self.low < other.high and other.low < self.high


def check_stale(
    linked: LinkedProgram, variants: Sequence[Variant], label: ExecuteLabels
) -> Iterator[SanitizerFinding]:
    """Reads after a loop of LX that only the loop wrote, without accumulating (SPY732)."""
    paths = linked.program.loop_paths
    uses = [use for variant in variants for use in _uses(variant)]
    by_static = {variant.execute.index: variant for variant in variants}
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
        indices = linked.schedule.loop_indices[last.static]
        # after a loop of one iteration, a later read finds the expected contents
        if not inner or len(indices) == len(np.unique(indices[:, : inner[0]], axis=0)):
            continue
        loop = paths[last.static][inner[0]]
        if all(loop in paths[use.static] for use in before):
            yield _stale_finding(by_static[read.static], label, read, by_static[last.static])


def _stale_finding(
    variant: Variant, label: ExecuteLabels, read: _Use, writer: Variant
) -> SanitizerFinding:
    tensor = variant.op.tensors[read.operand]
    number = label.first_execute + writer.execute.index
    return _finding(
        variant,
        label,
        Check.LX,
        "SPY732",
        Severity.WARNING,
        f"{variant.op.name} reads {tensor.name} in LX after the loop that wrote it: "
        "only the last iteration is left",
        read.operand,
        expected="LX written outside of the loop, or accumulated in it",
        found=f"written by execute {number} ({writer.op.name}), {len(writer.starts)} executions",
    )


def _uses(variant: Variant, pools: tuple[str, ...] = ()) -> Iterator[_Use]:
    """Operands in LX, or in memory named as one of ``pools``, there without scattered outputs."""
    first_output = len(variant.op.tensors) - len(variant.op.outputs)
    for operand, tensor in enumerate(variant.op.tensors):
        count = 1 if variant.divided is None and not pools else len(variant.op.cores)
        boxes = [
            (k, box) for k, box in enumerate(variant.boxes[operand][:count]) if box is not None
        ]
        owner, is_output = variant.owners[operand][0], operand >= first_output
        is_in_pool = owner is not None and owner.name.startswith(pools)
        is_scattered = is_output and is_indirect(tensor)
        is_here = is_in_pool and not is_scattered if pools else tensor.component is Component.LX
        if not is_here or not boxes:
            continue
        starts = variant.starts[0, operand]
        starts = (starts if pools else (starts - LX_BASE) % LX_BYTES).tolist()
        low = min(starts[k] + box.first_bytes for k, box in boxes)
        high = max(starts[k] + box.end_bytes for k, box in boxes)
        yield _Use(variant.execute.index, operand, is_output, low, high)


def check_overlaps(
    linked: LinkedProgram, variants: Sequence[Variant], label: ExecuteLabels
) -> Iterator[SanitizerFinding]:
    """Tensors in the pool, each written whole and read later, that share memory while both are
    alive (SPY733); in loops, where addresses move, none are looked for. A write to the start of a
    tensor, or over all of it, makes another tensor there.
    """
    paths, by_static = linked.program.loop_paths, {v.execute.index: v for v in variants}
    lives: list[list[_Use]] = []
    known: dict[tuple[int, int], list[_Use]] = {}
    outside = (v for v in variants if not paths[v.execute.index])
    for use in (use for variant in outside for use in _uses(variant, POOLS)):
        life = known.get((use.low, use.high))
        if not use.is_output and life is not None:
            life.append(use)
        elif use.is_output and (life is None or life[-1].static != use.static):
            for low, high in [*known]:
                if low == use.low or (use.low <= low and high <= use.high):
                    del known[low, high]
            known[use.low, use.high] = life = [use]
            lives.append(life)
    for k, (written, *reads) in enumerate(lives):
        for other, *others in lives[k + 1 :]:
            if not reads or other.static >= reads[-1].static:
                break
            if others and other.meets(written):
                yield _overlap_finding(by_static, label, written, reads[-1], other)
                break


def _overlap_finding(
    by_static: Mapping[int, Variant], label: ExecuteLabels, written: _Use, read: _Use, other: _Use
) -> SanitizerFinding:
    variant = by_static[read.static]
    tensor = variant.op.tensors[read.operand].name
    first, second = (
        f"execute {label.first_execute + use.static} ({by_static[use.static].op.name})"
        for use in (written, other)
    )
    return _finding(
        variant,
        label,
        Check.MEMORY,
        "SPY733",
        Severity.WARNING,
        f"{variant.op.name} reads {tensor} in the pool, a part of which another tensor has taken",
        read.operand,
        address=written.low,
        expected=f"the tensor that {first} wrote",
        found=f"{second} wrote to {other.low:#x} to {other.high:#x} since",
    )


def static_findings(
    linked: LinkedProgram, label: ExecuteLabels, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
    """All findings that follow from the addresses alone."""
    statics = range(len(linked.program.executes))
    variants = [variant for static in statics for variant in variants_of(linked, static)]
    for variant in variants:
        if Check.MEMORY in checks:
            yield from check_memory(variant, label)
        if Check.ALIGN in checks:
            yield from check_alignment(variant, label)
            yield from check_span(variant, label)
        if Check.LX in checks:
            yield from check_lx_boundary(variant, label)
        if Check.RACE in checks:
            yield from check_elements(variant, label)
    if Check.MEMORY in checks:
        yield from check_overlaps(linked, variants, label)
    if Check.LX in checks:
        yield from check_stale(linked, variants, label)


def check_elements(variant: Variant, label: ExecuteLabels) -> Iterator[SanitizerFinding]:
    """Elements in HBM that several cores write (SPY711), of outputs whose sticks cores share."""
    op = variant.op
    for operand in range(len(op.tensors) - len(op.outputs), len(op.tensors)):
        tensor, starts = op.tensors[operand], variant.starts[:, operand, :]
        # Which elements an index selects depends on data.
        is_gathered = tensor.indirection is Indirection.VALUE
        if not tensor.by_elements or is_gathered or tensor.component is Component.LX:
            continue
        boxes = [(p, box) for p, box in enumerate(variant.boxes[operand]) if box is not None]
        # Of instances whose cores are equally far from each other one is looked at.
        _, members = np.unique(starts - starts[:, :1], axis=0, return_index=True)
        for member in members.tolist():
            begins = starts[member] - starts[member].min()
            size = int(begins.max()) + max((box.end_bytes for _, box in boxes), default=0)
            writers = np.zeros(size // tensor.unit_bytes, np.uint8)
            for position, box in boxes:
                own = canonical_cores(op)[position] + 1
                at = (begins[position] + box.walk.offsets()) // tensor.unit_bytes
                taken = at[(writers[at] != 0) & (writers[at] != own)]
                if taken.size:
                    other = op.cores[int(writers[taken[0]]) - 1]
                    yield _finding(
                        variant, label, Check.RACE, "SPY711", Severity.ERROR,
                        f"{op.name}: several cores write the same elements of {tensor.name}",
                        operand, member=member, position=position,
                        address=int(starts[member].min() + taken[0] * tensor.unit_bytes),
                        expected="every element written by one core",
                        found=count_of(taken.size, "element"), last_writer=f"core {other}",
                    )  # fmt: skip
                    return
                writers[at] = own


def check_alignment(variant: Variant, label: ExecuteLabels) -> Iterator[SanitizerFinding]:
    """Starts inside a stick: the card addresses whole sticks (SPY735)."""
    for operand, tensor in enumerate(variant.op.tensors):
        wrong = variant.starts[:, operand, :] % STICK_BYTES != 0
        if tensor.by_elements or not wrong.any():
            continue
        member, position = (int(i) for i in np.argwhere(wrong)[0])
        executions = int(wrong.any(axis=1).sum())
        address = int(variant.starts[member, operand, position])
        yield _finding(
            variant,
            label,
            Check.ALIGN,
            "SPY735",
            Severity.ERROR,
            f"{variant.op.name}: {tensor.name} does not start at a stick",
            operand,
            member=member,
            position=position,
            address=address,
            expected=f"multiples of {STICK_BYTES} bytes",
            found=f"{address % STICK_BYTES} bytes into a stick; "
            f"{count_of(int(wrong.sum()), 'start')} in {count_of(executions, 'execution')}",
            executions=executions,
        )


def check_span(variant: Variant, label: ExecuteLabels) -> Iterator[SanitizerFinding]:
    """Cores that access more than MAX_SPAN_BYTES of one tensor (SPY736)."""
    for operand, tensor in enumerate(variant.op.tensors):
        spans = [box.span_bytes if box else 0 for box in variant.boxes[operand]]
        position = int(np.argmax(spans))
        if tensor.component is not Component.HBM or spans[position] <= MAX_SPAN_BYTES:
            continue
        yield _finding(
            variant,
            label,
            Check.ALIGN,
            "SPY736",
            Severity.ERROR,
            f"{variant.op.name}: one core touches too long a range of {tensor.name}",
            operand,
            position=position,
            expected=f"at most {MAX_SPAN_BYTES} bytes from first to last",
            found=f"{spans[position]} bytes",
        )


def check_lx_boundary(variant: Variant, label: ExecuteLabels) -> Iterator[SanitizerFinding]:
    """Tensors beyond the compiler's part of LX; the rest belongs to the backend (SPY730)."""
    for operand, tensor in enumerate(variant.op.tensors):
        if tensor.component is not Component.LX:
            continue
        reaches = np.array(
            [box.end_bytes if box else 0 for box in variant.boxes[operand]], np.int64
        )
        ends = (variant.starts[:, operand, :] - LX_BASE) % LX_BYTES + reaches
        beyond = ends > PLANNER_LX_BYTES
        if not beyond.any():
            continue
        member, position = (int(i) for i in np.argwhere(beyond)[0])
        yield _finding(
            variant,
            label,
            Check.LX,
            "SPY730",
            Severity.WARNING,
            f"{variant.op.name}: {tensor.name} is in the part of LX reserved for the backend",
            operand,
            member=member,
            position=position,
            address=int(variant.starts[member, operand, position]),
            expected=f"LX up to byte {PLANNER_LX_BYTES}, 80 % of {LX_BYTES}",
            found=f"up to byte {int(ends[member, position])}",
        )
