"""LX that outlives its loop: after a loop over tiles only the last tile is still there.

A static analysis: LX addresses do not change with loops, so every iteration overwrites the one
before. Reading such a tensor after the loop is right only for something the loop accumulates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.errors import Severity
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.sanitizer.checks import Check
from spyre.hw.sanitizer.findings import SanitizerFinding
from spyre.hw.sanitizer.site import Site
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.loops import Body, Execute
from spyre.mlir.operation import Component


@dataclass(frozen=True, slots=True)
class _Use:
    """An LX operand of an execute: byte range in the scratchpad of the first core.

    Of cells that lie in many scratchpads: the range of all.
    """

    static: int
    operand: int
    is_output: bool
    low: int
    high: int

    def meets(self, other: _Use) -> bool:
        return self.low < other.high and other.low < self.high


def check_stale(linked: LinkedProgram, sites: Sequence[Site]) -> Iterator[SanitizerFinding]:
    """A read outside of a loop of what only the loop wrote, and no execute there also reads."""
    paths = {static: path for path, static in _paths(linked.program.body, ())}
    uses = [use for site in sites for use in _uses(site)]
    by_static = {site.static: site for site in sites}
    for read in (use for use in uses if not use.is_output):
        before = [u for u in uses if u.is_output and u.static < read.static and u.meets(read)]
        if not before or _accumulates(before, uses):
            continue
        last = before[-1]
        inner = [d for d, loop in enumerate(paths[last.static]) if loop not in paths[read.static]]
        if not inner or not _repeats(linked, last.static, inner[0]):
            continue
        loop = paths[last.static][inner[0]]
        if all(loop in paths[use.static] for use in before):
            yield _finding(by_static[read.static], read, by_static[last.static])


def _repeats(linked: LinkedProgram, static: int, depth: int) -> bool:
    """True if the loop at ``depth`` around an execute has more than one trip."""
    indices = linked.schedule.loop_indices[static]
    return len(indices) > len(np.unique(indices[:, :depth], axis=0))


def _accumulates(writes: Sequence[_Use], uses: Sequence[_Use]) -> bool:
    """True if an execute that writes the range also reads it."""
    return any(
        not use.is_output and use.static == write.static and use.meets(write)
        for write in writes
        for use in uses
    )


def _finding(site: Site, read: _Use, writer: Site) -> SanitizerFinding:
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


def _uses(site: Site) -> Iterator[_Use]:
    first_output = len(site.op.tensors) - len(site.op.outputs)
    for operand, tensor in enumerate(site.op.tensors):
        count = 1 if site.variant.divided is None else len(site.op.cores)
        boxes = [(k, box) for k, box in enumerate(site.boxes[operand][:count]) if box is not None]
        if tensor.component is not Component.LX or not boxes:
            continue
        starts = ((site.starts[0, operand] - LX_BASE) % LX_BYTES).tolist()
        low = min(starts[k] + box.first_bytes for k, box in boxes)
        high = max(starts[k] + box.end_bytes for k, box in boxes)
        yield _Use(site.static, operand, operand >= first_output, low, high)


def _paths(body: Body, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Per execute the loops around it, outermost first, by identity."""
    for item in body:
        if isinstance(item, Execute):
            yield path, item.index
        else:
            yield from _paths(item.body, (*path, id(item)))
