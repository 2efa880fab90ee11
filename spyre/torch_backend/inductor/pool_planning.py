"""Placing the intermediate results that stay in HBM: one pool, shared by what never lives together.

The pool is one argument of the kernel, in a segment of its own. Source: hardware reference §4.3
(HBM intermediates): first fit over live ranges from the write to the last read. Unlike the
reference's, free ranges that touch are one. Pure functions over frozen data, for any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spyre.errors import DeviceOutOfMemory
from spyre.hw.spec import REGION_BYTES
from spyre.torch_backend.inductor.op_spec import Spec
from spyre.torch_backend.inductor.scratchpad.eligibility import Surroundings
from spyre.torch_backend.inductor.scratchpad.gaps import aligned, gaps
from spyre.torch_backend.inductor.scratchpad.liveness import Buffer, buffer_of, first_is_write
from spyre.torch_backend.inductor.scratchpad.operations import operations_of
from spyre.torch_backend.inductor.scratchpad.plan import NO_SURROUNDINGS


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
        return {name: {"pool": offset} for name, offset in self.offsets.items()}


def pool_buffers(
    specs: Sequence[Spec],
    names: Sequence[Sequence[str]],
    *,
    surroundings: Surroundings = NO_SURROUNDINGS,
    in_lx: Collection[str] = (),
) -> list[Buffer]:
    """The buffers of a kernel that belong into the pool, in the order of first use.

    Those are made in the kernel, not used outside it, and not among ``in_lx``. Sizes are of the
    whole buffer, all cores together. ``names`` as in `operations_of`; BundleError SPY988.
    """
    operations = operations_of(specs, names)
    around = surroundings.graph_inputs | surroundings.graph_outputs | surroundings.used_outside
    return [
        buffer_of(name, max(a.size_bytes for _, a in accesses), accesses, operations.loops)
        for name, accesses in operations.accesses().items()
        if name not in around and name not in in_lx and first_is_write(accesses)
    ]


def plan_pool(buffers: Sequence[Buffer], limit_bytes: int = REGION_BYTES) -> PoolPlan:
    """Offsets in the pool: each buffer, in the order they begin to live, in the lowest free place.

    Offsets are multiples of a stick. DeviceOutOfMemory SPY987 beyond ``limit_bytes``.
    """
    offsets: dict[str, int] = {}
    live: list[tuple[int, Buffer]] = []
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


def _overflow(buffer: Buffer, live_bytes: int, limit_bytes: int) -> DeviceOutOfMemory:
    return DeviceOutOfMemory(
        "SPY987",
        f"{buffer.name} has no place in the pool of intermediate results",
        expected=f"at most {limit_bytes} bytes alive at operation {buffer.start}",
        found=f"{buffer.size_bytes} bytes besides {live_bytes} of others",
        hint="use smaller batches, or tile the kernel",
    )
