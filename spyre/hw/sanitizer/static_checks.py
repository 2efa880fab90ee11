"""Checks that need no run: addresses, alignment, spans, and how the scratchpads are used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.errors import Severity
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.sanitizer.checks import MAX_SPAN_BYTES, PLANNER_LX_BYTES, Check
from spyre.hw.sanitizer.findings import SanitizerFinding, count_of
from spyre.hw.sanitizer.memory_checks import check_memory
from spyre.hw.sanitizer.site import Site, sites
from spyre.hw.sanitizer.stale import check_stale
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES
from spyre.mlir.operation import Component


def check_program(
    linked: LinkedProgram, label: LaunchLabel, checks: frozenset[Check]
) -> tuple[SanitizerFinding, ...]:
    """All findings that the addresses alone give, made once per program and label."""
    key = (label, checks)
    kept: dict[object, tuple[SanitizerFinding, ...]] = vars(linked).setdefault("_static", {})
    if key not in kept:
        kept[key] = tuple(_check(linked, label, checks))
    return kept[key]


def _check(
    linked: LinkedProgram, label: LaunchLabel, checks: frozenset[Check]
) -> Iterator[SanitizerFinding]:
    found = list(sites(linked, label))
    for site in found:
        if Check.MEMORY in checks:
            yield from check_memory(site)
        if Check.ALIGN in checks:
            yield from check_alignment(site)
            yield from check_span(site)
        if Check.LX in checks:
            yield from check_lx_boundary(site)
    if Check.LX in checks:
        yield from check_stale(linked, found)


def check_alignment(site: Site) -> Iterator[SanitizerFinding]:
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


def check_span(site: Site) -> Iterator[SanitizerFinding]:
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


def check_lx_boundary(site: Site) -> Iterator[SanitizerFinding]:
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
