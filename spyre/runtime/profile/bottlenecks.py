"""The largest bottlenecks of a profile, each with its cause and advice, for the report.

Executes of one kernel with the same operation and shape count as one bottleneck, since they are
often one unrolled loop. The advice follows from the terms of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from spyre.hw.cost import Bound
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.kernels import ExecuteProfile, KernelProfile
from spyre.runtime.profile.sources import Places, places_of
from spyre.runtime.profile.table import time_text
from spyre.runtime.units import format_bytes, format_count

MOST = 5
_UNEVEN = 1.2
"""Work of the busiest core over the mean, above which another division of the work is advised."""
_PART = 0.1
"""Part of an execute's time above which a term of the cost model is named."""


@dataclass(frozen=True)
class Bottleneck:
    """``share``: part of the time of all kernels, launching included. ``saved_ns``: upper bound of
    the time that could be saved, None if unknown. ``places``: lines of the program, if known.
    """

    name: str
    kernel: str
    time_ns: float
    share: float
    why: str
    help: str
    saved_ns: float | None = None
    places: Places = ()


def bottlenecks_of(profile: ProfileData, most: int = MOST) -> tuple[Bottleneck, ...]:
    """Return at most ``most`` bottlenecks, the largest first."""
    found = [*_launching(profile), *_executes(profile)]
    found.sort(key=lambda each: -each.time_ns)
    return tuple(each for each in found[:most] if each.time_ns)


def _launching(profile: ProfileData) -> Iterator[Bottleneck]:
    launches = len(profile.launches)
    if not launches:
        return
    each_ns = profile.launch_ns / launches
    time, times = time_text(each_ns), "launch" if launches == 1 else "launches"
    yield Bottleneck(
        "launching",
        "",
        profile.launch_ns,
        profile.launch_ns / (profile.kernel_ns or 1.0),
        f"{launches:,} {times}, {time} for each, however little it computes",
        "fewer and larger programs: torch.compile makes one of many operations; larger batches",
    )


def _executes(profile: ProfileData) -> Iterator[Bottleneck]:
    groups: dict[tuple[int, str, str, int], list[tuple[KernelProfile, ExecuteProfile]]] = {}
    for kernel, execute in profile.executes:
        key = id(kernel), execute.op, execute.shape, len(execute.cores)
        groups.setdefault(key, []).append((kernel, execute))
    for members in groups.values():
        (kernel, first), executes = members[0], [execute for _, execute in members]
        time_ns = sum(execute.total_ns for execute in executes)
        alike = f" and {len(executes) - 1} alike" if len(executes) > 1 else ""
        yield Bottleneck(
            f"execute {first.index}{alike}: {first.op} ({first.shape})",
            kernel.name,
            time_ns,
            time_ns / (profile.kernel_ns or 1.0),
            _why(profile, executes),
            "; ".join(_helps(profile, first)),
            sum(_saved(execute) for execute in executes),
            places_of(kernel, executes),
        )


def _why(profile: ProfileData, executes: list[ExecuteProfile]) -> str:
    first = executes[0]
    time_ns = sum(execute.total_ns for execute in executes) or 1.0
    counters = [execute.counters for execute in executes]
    if first.bound is Bound.MEMORY:
        moved = sum(each.memory_bytes for each in counters)
        peak = moved / time_ns / profile.machine.hardware.hbm_peak_gbps
        return (
            f"waits for HBM: {format_bytes(moved)}, {moved / time_ns:.3g} GB/s, {peak:.0%} of peak"
        )
    if first.bound is Bound.RING:
        sent = sum(each.ring_bytes for each in counters)
        return f"waits for the ring between the cores: {format_bytes(sent)}"
    if first.bound is Bound.RUNS:
        runs = sum(each.executions for each in counters)
        return f"begins {runs:,} runs, each over little work"
    if first.bound is Bound.PT:
        done = sum(each.multiply_adds for each in counters)
        return f"computes products: {format_count(done)} multiply-adds"
    if first.bound is Bound.LX:
        moved = sum(each.lx_bytes for each in counters)
        return f"waits for the scratchpads: {format_bytes(moved)}"
    done = sum(each.element_operations for each in counters)
    return f"computes on the vector units: {format_count(done)} element operations"


def _helps(profile: ProfileData, execute: ExecuteProfile) -> Iterator[str]:
    """Yield advice for an execute, the most specific first."""
    cores, used = profile.machine.hardware.cores, len(execute.cores)
    if used < cores:
        yield f"divide it among more cores: {used} of {cores} work"
    most = float(execute.core_shares.max()) / float(execute.core_shares[list(execute.cores)].mean())
    if most > _UNEVEN:
        yield f"divide it evenly: the busiest core does {most:.2g} times the mean"
    terms, total = execute.time.terms, execute.time.total_ns or 1.0
    if terms.tile > _PART * total:
        yield "tiles of another height: rows of this one are read in short pieces"
    if terms.spill > _PART * total:
        yield "smaller tiles of the product: its accumulators do not stay in the arrays"
    in_lx = "more of its" if execute.counters.lx_bytes else "its"
    yield {
        Bound.MEMORY: f"keep {in_lx} operands or its result in LX between executes",
        Bound.RING: "divide another dim than the one it sums over, so that no partial sums meet",
        Bound.RUNS: "larger tiles, so that loops have fewer trips",
        Bound.PT: "formats of 8 or 4 bits, which the arrays multiply faster",
        Bound.SFU: "fewer operations per element",
        Bound.LX: "fewer passes over what is in the scratchpads",
    }[execute.bound]


def _saved(execute: ExecuteProfile) -> float:
    """Return the time, in ns, that all launches would save without the term it is bound by."""
    terms = execute.time.terms
    without = {
        Bound.MEMORY: replace(terms, memory=0.0, turnaround=0.0, tile=0.0, spill=0.0),
        Bound.PT: replace(terms, pt=0.0, split=0.0),
        Bound.SFU: replace(terms, sfu=0.0),
        Bound.LX: replace(terms, lx=0.0),
        Bound.RING: replace(terms, ring=0.0),
        Bound.RUNS: replace(terms, runs=0.0),
    }[execute.bound]
    # Without its largest term, what had overlapped with that is no longer hidden.
    left_ns = sum(replace(without, overlap=0.0).values)
    return max(terms.total - left_ns, 0.0) * execute.launches
