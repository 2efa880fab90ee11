"""Device memory as ``torch.spyre`` and ``torch.accelerator`` tell it.

*Allocated* is what tensors hold, rounded up to sticks. *Reserved* is everything the card's
allocator has handed out, programs and scratch memory of operations included. Nothing is kept for
later: memory of a tensor is free for others as soon as its last view is gone and what was
submitted with it has run. Any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from spyre.torch_backend.cards import card_of
from spyre.torch_backend.tensor_memory import tensor_memory


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Counters of a card under torch's names, such as ``allocated_bytes.all.peak``; bytes."""
    card = card_of(device)
    reserved = card.allocator.statistics().allocated_bytes
    found = tensor_memory(card).counters() | {
        "reserved_bytes.all.current": reserved.current,
        "reserved_bytes.all.peak": reserved.peak,
        "reserved_bytes.all.allocated": reserved.accumulated,
        "reserved_bytes.all.freed": reserved.accumulated - reserved.current,
    }
    return OrderedDict(sorted(found.items()))


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors hold now."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes tensors held since the last `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes the card's allocator has handed out now."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes it had handed out since the last `reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Peaks start again at the current values."""
    card = card_of(device)
    tensor_memory(card).reset_peak()
    card.allocator.reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sums of what tensors were given and gave back start again."""
    tensor_memory(card_of(device)).reset_accumulated()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes, and all bytes there are for tensors, of a card."""
    found = card_of(device).allocator.statistics()
    return found.free_bytes, found.reserved_bytes


get_memory_info = mem_get_info


def empty_cache() -> None:
    """Drop what the backend keeps on the current card only to be faster next time."""
    card = card_of()
    for hook in tuple(card.allocator.pressure_hooks):
        hook()
    card.device.clear_leftovers()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of `memory_stats` for people; ``abbreviated``: without sums."""
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
