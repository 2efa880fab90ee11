"""Device memory as ``torch.spyre`` and ``torch.accelerator`` report it.

*Allocated* bytes are those of tensors, rounded up to sticks. *Reserved* bytes are all that the
card's allocator has handed out, including programs, constants and scratch memory of operations.
There is no cache: memory of a tensor is free as soon as its last view is collected and the work
submitted with it has run. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from spyre.errors import DeviceOutOfMemory
from spyre.interrupts import FinalizerQueue
from spyre.runtime.units import format_bytes
from spyre.torch_backend.device.cards import card_of

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice
    from spyre.runtime.memory import DeviceStorage


class SpyreOutOfMemory(DeviceOutOfMemory, torch.OutOfMemoryError):  # type: ignore[misc]
    """DeviceOutOfMemory that ``except torch.OutOfMemoryError`` catches."""


class TensorMemory:
    """Counters of one card. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._finalizers: FinalizerQueue[int] = FinalizerQueue()
        self._out_of_memory = 0
        self._bytes = self._peak_bytes = self._total_bytes = 0
        self._count = self._peak_count = self._total_count = 0

    def count(self, owner: object, size_bytes: int, before: int = 0) -> int:
        """Count ``size_bytes``, whole sticks, until ``owner`` is collected; return an id for it.

        ``before``: id of the count that this one replaces. Returns 0 for 0 bytes. The caller holds
        interrupts off.
        """
        number = 0
        with self._lock:
            if self._finalizers.pending:
                self._settle()
            before_bytes = self._finalizers.cancel(before) if before else None
            if before_bytes is not None:
                self._bytes -= before_bytes
                self._count -= 1
            if size_bytes:
                number = self._finalizers.register(owner, size_bytes)
                self._bytes += size_bytes
                self._count += 1
                self._total_bytes += size_bytes
                self._total_count += 1
            if self._bytes > self._peak_bytes:
                self._peak_bytes = self._bytes
            if self._count > self._peak_count:
                self._peak_count = self._count
        return number

    def note_out_of_memory(self) -> None:
        with self._lock:
            self._out_of_memory += 1

    def _settle(self) -> None:
        for size_bytes in self._finalizers.drain():
            self._bytes -= size_bytes
            self._count -= 1

    def counters(self) -> dict[str, int]:
        """Current, peak and accumulated bytes and allocations, under torch's names."""
        with self._lock:
            self._settle()
            freed_bytes = self._total_bytes - self._bytes
            return {
                "allocated_bytes.all.current": self._bytes,
                "allocated_bytes.all.peak": self._peak_bytes,
                "allocated_bytes.all.allocated": self._total_bytes,
                "allocated_bytes.all.freed": freed_bytes,
                "allocation.all.current": self._count,
                "allocation.all.peak": self._peak_count,
                "allocation.all.allocated": self._total_count,
                "allocation.all.freed": self._total_count - self._count,
                "num_ooms": self._out_of_memory,
            }

    def reset_peak(self) -> None:
        """Set the peaks to the current values."""
        with self._lock:
            self._settle()
            self._peak_bytes, self._peak_count = self._bytes, self._count

    def reset_accumulated(self) -> None:
        """Set the accumulated values to the current ones."""
        with self._lock:
            self._settle()
            self._total_bytes, self._total_count = self._bytes, self._count


_memories: dict[int, TensorMemory] = {}


def tensor_memory(card: FlexDevice) -> TensorMemory:
    memory = _memories.get(card.index)
    return memory if memory is not None else _memories.setdefault(card.index, TensorMemory())


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Return counters of a card under torch's names, such as ``allocated_bytes.all.peak``."""
    card = card_of(device)
    reserved = card.allocator.statistics().allocated_bytes
    stats = tensor_memory(card).counters() | {
        "reserved_bytes.all.current": reserved.current,
        "reserved_bytes.all.peak": reserved.peak,
        "reserved_bytes.all.allocated": reserved.accumulated,
        "reserved_bytes.all.freed": reserved.accumulated - reserved.current,
    }
    return OrderedDict(sorted(stats.items()))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of `memory_allocated` since the last `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the card's allocator has handed out."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of `memory_reserved` since the last `reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set the peaks to the current values."""
    card = card_of(device)
    tensor_memory(card).reset_peak()
    card.allocator.reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set the sums of allocated and freed bytes of tensors to the current values."""
    tensor_memory(card_of(device)).reset_accumulated()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free bytes and the total bytes of a card's memory for tensors."""
    statistics = card_of(device).allocator.statistics()
    return statistics.free_bytes, statistics.reserved_bytes


get_memory_info = mem_get_info


def empty_cache() -> None:
    """Free the memory of the current card that the backend caches."""
    card = card_of()
    for hook in tuple(card.allocator.pressure_hooks):
        hook()
    card.device.clear_leftovers()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return `memory_stats` as a table; ``abbreviated``: without sums."""
    card = card_of(device)
    stats = memory_stats(card.index)
    free_bytes, total_bytes = mem_get_info(card.index)
    columns = ("current", "peak") if abbreviated else ("current", "peak", "allocated", "freed")
    rows = [
        ("tensor bytes", [stats[f"allocated_bytes.all.{c}"] for c in columns]),
        ("tensors", [stats[f"allocation.all.{c}"] for c in columns]),
        ("all bytes", [stats[f"reserved_bytes.all.{c}"] for c in columns]),
    ]
    lines = [f"spyre:{card.index}: {free_bytes:,} of {total_bytes:,} bytes are free"]
    lines.append(_line("", columns))
    lines.extend(_line(name, (f"{value:,}" for value in values)) for name, values in rows)
    return "\n".join(lines)


def _line(name: str, values: Iterable[str]) -> str:
    return f"{name:<14}" + "".join(f"{value:>20}" for value in values)


def allocate_memory(
    card: FlexDevice, size_bytes: int, uncleared: bool = True
) -> tuple[DeviceStorage, int]:
    """Allocate memory of ``card``; return it with its address. The content of more than
    `KEEP_BYTES` is undefined if ``uncleared``.

    SpyreOutOfMemory SPY401 if there is not enough memory. The caller holds interrupts off.
    """
    try:
        return card.allocate_with_address(size_bytes, uncleared)
    except DeviceOutOfMemory as error:
        raise _noted(card, format_bytes(size_bytes), error) from None


@contextmanager
def out_of_memory_as_torch_says(card: FlexDevice, wanted: str) -> Iterator[None]:
    """Raise SpyreOutOfMemory, naming ``wanted``, if the block runs out of memory of ``card``."""
    try:
        yield
    except DeviceOutOfMemory as error:
        raise _noted(card, wanted, error) from None


def _noted(card: FlexDevice, wanted: str, error: DeviceOutOfMemory) -> SpyreOutOfMemory:
    """Count the error in the card's statistics and return it in torch's form."""
    tensor_memory(card).note_out_of_memory()
    statistics = card.allocator.statistics()
    return SpyreOutOfMemory(
        error.code,
        f"spyre:{card.index} out of memory. Tried to allocate {wanted}",
        expected=f"at most {format_bytes(statistics.largest_free_bytes)}, the largest free block: "
        "a tensor lies in one region of memory",
        found=f"{format_bytes(statistics.free_bytes)} of "
        f"{format_bytes(statistics.reserved_bytes)} are free",
        hint="delete tensors that are no longer needed, or use smaller batches",
    )
