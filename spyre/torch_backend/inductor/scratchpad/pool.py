"""Placing the intermediate results that stay in HBM, and writing places into specs.

All of them share one pool, which is one argument of the kernel, in a segment of its own. Source:
hardware reference §4.3 (HBM intermediates): first fit over live ranges from the write to the last
read. Unlike the reference's, free ranges that touch are one. Pure functions over frozen data, for
any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spyre.errors import BundleError, DeviceOutOfMemory
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.bundles import Kernel, KernelLoop, KernelOp, UnimplementedOp
from spyre.torch_backend.inductor.scratchpad.accesses import (
    LiveBuffer,
    access_trace,
    buffer_of,
    first_is_write,
)
from spyre.torch_backend.inductor.scratchpad.plan import NO_SURROUNDINGS, Surroundings
from spyre.torch_backend.inductor.scratchpad.solvers import aligned, gaps


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """``offsets``: bytes from the pool's start by buffer; ``size_bytes``: of the pool.

    ``unshared_bytes``: what the buffers would take without sharing.
    """

    offsets: Mapping[str, int]
    size_bytes: int
    unshared_bytes: int

    @property
    def allocations(self) -> dict[str, dict[str, int]]:
        """Allocations as `with_allocations` takes them."""
        return {name: {POOL: offset} for name, offset in self.offsets.items()}


def pool_buffers(
    kernel: Kernel,
    names: Sequence[Sequence[str]],
    *,
    surroundings: Surroundings = NO_SURROUNDINGS,
    in_lx: Collection[str] = (),
) -> list[LiveBuffer]:
    """The buffers of a kernel that belong into the pool, in the order of first use.

    Those are made in the kernel, not used outside it, and not among ``in_lx``. Sizes are of the
    whole buffer, all cores together. ``names`` as in `access_trace`; BundleError SPY988.
    """
    operations = access_trace(kernel, names)
    around = surroundings.graph_inputs | surroundings.graph_outputs | surroundings.used_outside
    return [
        buffer_of(name, max(a.size_bytes for _, a in accesses), accesses, operations.loops)
        for name, accesses in operations.accesses().items()
        if name not in around and name not in in_lx and first_is_write(accesses)
    ]


def plan_pool(buffers: Sequence[LiveBuffer], limit_bytes: int = REGION_BYTES) -> PoolPlan:
    """Offsets in the pool: each buffer, in the order they begin to live, in the lowest free place.

    Offsets are multiples of a stick. DeviceOutOfMemory SPY987 beyond ``limit_bytes``.
    """
    offsets: dict[str, int] = {}
    live: list[tuple[int, LiveBuffer]] = []
    size = 0
    for buffer in sorted(buffers, key=lambda b: b.start):
        live = [(at, b) for at, b in live if b.end > buffer.start]
        taken = [(at, at + b.size_bytes) for at, b in live]
        free = (a for a, b in gaps(taken, limit_bytes) if b - a >= buffer.size_bytes)
        place = next(free, None)
        if place is None:
            raise _overflow(buffer, sum(b.size_bytes for _, b in live), limit_bytes)
        offsets[buffer.name] = place
        live.append((place, buffer))
        size = max(size, place + buffer.size_bytes)
    unshared = sum(aligned(b.size_bytes) for b in buffers)
    by_name = {buffer.name: offsets[buffer.name] for buffer in buffers}
    return PoolPlan(by_name, aligned(size), unshared)


def _overflow(buffer: LiveBuffer, live_bytes: int, limit_bytes: int) -> DeviceOutOfMemory:
    return DeviceOutOfMemory(
        "SPY987",
        f"{buffer.name} has no place in the pool of intermediate results",
        expected=f"at most {limit_bytes} bytes alive at operation {buffer.start}",
        found=f"{buffer.size_bytes} bytes besides {live_bytes} of others",
        hint="use smaller batches, or tile the kernel",
    )


def with_allocations(
    kernel: Kernel,
    names: Sequence[Sequence[str]],
    allocations: Mapping[str, Mapping[str, int]],
) -> Kernel:
    """``kernel`` with ``allocations`` by buffer name, such as {"y": {"lx": 0}} (bytes).

    ``names`` as in `access_trace`; those without an allocation are left alone. A tensor that gets
    one is no argument of the kernel any more (-1); others keep their numbers. BundleError SPY988 if
    the names do not fit.
    """
    rest = iter(names)
    allocated = _allocated(kernel, rest, allocations)
    if next(rest, None) is not None:
        raise _misfit("the kernel", "no more names than operations")
    return allocated


def _allocated(
    kernel: Kernel,
    names: Iterator[Sequence[str]],
    allocations: Mapping[str, Mapping[str, int]],
) -> Kernel:
    allocated: list[KernelOp | UnimplementedOp | KernelLoop] = []
    for op in kernel:
        if isinstance(op, KernelLoop):
            allocated.append(replace(op, body=tuple(_allocated(op.body, names, allocations))))
            continue
        named = next(names, None)
        if named is None:
            raise _misfit("the kernel", "names for every operation")
        allocated.append(_with_places(op, named, allocations) if isinstance(op, KernelOp) else op)
    return tuple(allocated)


def _with_places(
    op: KernelOp, names: Sequence[str], allocations: Mapping[str, Mapping[str, int]]
) -> KernelOp:
    if len(op.tensors) != len(names):
        raise _misfit(op.name, f"{len(names)} names")
    tensors = list(op.tensors)
    for number, name in enumerate(names):
        if name in allocations:
            ((memory, start),) = allocations[name].items()
            placed = replace(tensors[number], argument=-1, memory=memory, start_bytes=start)
            tensors[number] = placed
    return replace(op, tensors=tuple(tensors))


def _misfit(what: str, expected: str) -> BundleError:
    return BundleError("SPY988", f"names do not fit the tensors of {what}", expected=expected)
