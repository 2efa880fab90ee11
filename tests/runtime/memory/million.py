"""A million random allocations and frees.

``python -m tests.runtime.memory.million [STEPS [SEED]] [resolve]``: with ``resolve`` every address
is read, as by a launch, which counts as time but not as an operation; memory then has to be cleared
when it is freed, which is skipped for allocations whose address was never read.

At intervals all live allocations are compared with each other and with the statistics; at the end
everything is freed and every region must be one free block again. Sizes are log-uniform from 1 byte
to 4 MiB; the number of live allocations wanders up to `LIVE` and is halved now and then.
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np

from spyre.hw.device.device import Device
from spyre.runtime.memory.allocator import AllocationIndex, FlexAllocator
from spyre.runtime.memory.flex_mode import FlexMode

LIVE = 6000
BATCH = 50_000
LARGEST = 4 << 20


class Steps(msgspec.Struct):
    """Random steps on one allocator; ``seconds``: spent in the loop that does them,
    ``cpu_seconds``: those of them in which the machine let it run."""

    flex: FlexAllocator
    resolving: bool
    rng: np.random.Generator
    live: list[AllocationIndex] = msgspec.field(default_factory=list)
    sizes: dict[AllocationIndex, int] = msgspec.field(default_factory=dict)
    done: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def batch(self, count: int) -> None:
        """``count`` steps, timed, then the check."""
        sizes = np.exp(self.rng.uniform(0, np.log(LARGEST), count)).astype(int).tolist()
        picks = self.rng.random(count).tolist()
        share = 0.3 if self.rng.random() < 0.8 else 0.8
        made, freed = [], []
        live, allocate, deallocate = self.live, self.flex.allocate, self.flex.deallocate
        resolve = self.flex.resolve if self.resolving else None
        start, busy = time.perf_counter(), time.thread_time()
        for size, pick in zip(sizes, picks, strict=True):
            if len(live) > LIVE or (pick < share and live):
                k = int(pick * 1e9) % len(live)
                index = live[k]
                live[k] = live[-1]
                live.pop()
                deallocate(index)
                freed.append(index)
            else:
                index = allocate(size)
                live.append(index)
                made.append((index, size))
                if resolve is not None:
                    resolve(index)
        self.seconds += time.perf_counter() - start
        self.cpu_seconds += time.thread_time() - busy
        self.done += count
        self.sizes.update(made)
        for index in freed:
            del self.sizes[index]
        self.check()

    def check(self) -> None:
        """Nothing overlaps, every allocation is as large as asked for, the statistics add up."""
        chunks = [self.flex.composite(index).chunks for index in self.live]
        assert all(len(c) == 1 for c in chunks)
        starts = np.array([c.address.region_id << 34 | c.address.offset for (c,) in chunks], int)
        sizes = np.array([c.size_bytes for (c,) in chunks], int)
        asked = np.array([self.sizes[index] for index in self.live], int)
        assert (sizes == (asked + 127) // 128 * 128).all()
        order = np.argsort(starts)
        assert ((starts + sizes)[order][:-1] <= starts[order][1:]).all()
        found = self.flex.statistics()
        assert found.allocated_bytes.current == sizes.sum()
        assert found.allocations.current == len(self.live)
        assert found.free_bytes == found.reserved_bytes - sizes.sum()

    def free_all(self) -> None:
        """Back to the start: one free block per region."""
        order = self.rng.permutation(len(self.live)).tolist()
        start, busy = time.perf_counter(), time.thread_time()
        for k in order:
            self.flex.deallocate(self.live[k])
        self.seconds += time.perf_counter() - start
        self.cpu_seconds += time.thread_time() - busy
        self.done += len(order)
        found = self.flex.statistics()
        assert found.allocated_bytes.current == found.allocations.current == 0
        assert all(r.largest_free_bytes == r.capacity_bytes for r in found.regions)


def run(steps: int, seed: int = 0, resolving: bool = False) -> Steps:
    """``steps`` random steps and the end."""
    flex = FlexAllocator(Device(threads=1), FlexMode.VF)
    state = Steps(flex, resolving, np.random.default_rng(seed))
    while state.done < steps:
        state.batch(min(BATCH, steps - state.done))
    state.free_all()
    return state


def main() -> None:
    """Run and print operations per second."""
    words = sys.argv[1:]
    resolving = "resolve" in words
    numbers = [int(word) for word in words if word != "resolve"]
    steps, seed = (*numbers, *(1_000_000, 0)[len(numbers) :])
    state = run(steps, seed, resolving)
    statistics = state.flex.statistics()
    print(
        f"{state.done} operations in {state.seconds:.2f} s: "
        f"{state.done / state.seconds:,.0f} operations per second, "
        f"{state.done / state.cpu_seconds:,.0f} per second of CPU time; at most "
        f"{statistics.allocations.peak} live, {statistics.allocated_bytes.peak:,} bytes"
    )


if __name__ == "__main__":
    main()
