"""Shadow memory: the last writer of every stick of HBM and LX, in a lazily committed mapping.

One uint32 per stick: 0 if the stick is unwritten, else ``record << 6 | core + 1``. A *record* is
the number of an upload, or of one execution of an execute statement, in the `RecordLog`.
"""

from __future__ import annotations

import bisect
import mmap
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.errors import UnsupportedError
from spyre.hw import check_table as ct
from spyre.hw.counters import ExecuteLabels, ProgramView, StatementView
from spyre.hw.memory import reserve
from spyre.hw.spec import (
    CORES,
    HOST_BYTES,
    LX_BASE,
    LX_BYTES,
    REGION_BITS,
    REGION_SKEW_BYTES,
    STICK_BYTES,
    host_offset,
)
from spyre.layout import Int64Array

UInt32Array = npt.NDArray[np.uint32]
_WORD_BYTES = 4
_LX_FIRST = host_offset(LX_BASE) // STICK_BYTES


@dataclass(frozen=True)
class LabelledProgram:
    """A launched program, with the numbers and names of its executes in findings."""

    view: ProgramView
    label: ExecuteLabels

    def locate(self, execution: int) -> tuple[StatementView, int, tuple[int, ...]]:
        """Statement, instance and loop indices of execution number ``execution`` of a launch."""
        index = int(self.view.executions.statement[execution])
        instance = int(self.view.executions.instance[execution])
        return self.view.statements[index], instance, self.view.loop_indices(index, instance)

    def describe(self, execution: int, core: int | None) -> str:
        """One execution in words, such as ``execute 3 (add), core 5, loop indices (1, 0)``."""
        statement, _, loops = self.locate(execution)
        parts = [f"execute {self.label.first_execute + statement.index} ({statement.name})"]
        parts += [] if core is None else [f"core {core}"]
        parts += [f"loop indices {tuple(loops)}"] if loops else []
        return ", ".join(parts)


Event = str | LabelledProgram
"""A launch, or the name of the memory that the host wrote, by a transfer or directly."""


class RecordLog:
    """Uploads and launches by record. Records count from 1; a launch has one per execution.

    Copies in several threads may `add` at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._events: list[Event] = []
        self.next_record = 1

    def add(self, event: Event, records: int = 1) -> int:
        """The first record of a new event. UnsupportedError SPY738 if no records are left."""
        # Two uploads at once must not get the same record.
        with self._lock:
            first = self.next_record
            if first + records > ct.MAX_RECORD:
                raise UnsupportedError(
                    "SPY738",
                    "the sanitizer has seen more executions than it can tell apart",
                    expected=f"at most {ct.MAX_RECORD} executions and uploads until a reset",
                    found=f"{first + records}",
                    hint="Device.reset() starts again",
                )
            self._firsts.append(first)
            self._events.append(event)
            self.next_record += records
            return first

    def find(self, record: int) -> tuple[Event, int]:
        """The event of ``record``, and the number of the execution within the event."""
        number = bisect.bisect_right(self._firsts, record) - 1
        return self._events[number], record - self._firsts[number]


class ShadowMemory:
    """The words of all sticks, in the order of the card's memory on the host.

    ``words``: by number of the host stick. ``ranges``: by number of the LX stick, the range of the
    tensor that wrote it.
    """

    def __init__(self) -> None:
        self._mapping = reserve(HOST_BYTES // STICK_BYTES * _WORD_BYTES)
        self.words: UInt32Array = np.frombuffer(self._mapping, np.uint32)
        self.ranges: UInt32Array = np.zeros(CORES * LX_BYTES // STICK_BYTES, np.uint32)

    def of_range(self, address_bytes: int, size_bytes: int) -> UInt32Array:
        """The words of the sticks of a device range, as a view."""
        start = host_offset(address_bytes)
        return self.words[start // STICK_BYTES : -(-(start + size_bytes) // STICK_BYTES)]

    def mark(self, address_bytes: int, size_bytes: int, record: int) -> None:
        """Record a host write of a range."""
        self.of_range(address_bytes, size_bytes)[:] = record << ct.CORE_BITS | ct.UNKNOWN_CORE
        self._forget_ranges(address_bytes, size_bytes)

    def mark_sticks(self, addresses_bytes: Int64Array, record: int) -> None:
        """Record a write of the sticks of HBM at ``addresses_bytes``."""
        self.words[host_sticks(addresses_bytes)] = record << ct.CORE_BITS | ct.UNKNOWN_CORE

    def clear(self, address_bytes: int, size_bytes: int) -> None:
        """Mark a range as unwritten; whole pages are returned to the host."""
        start = host_offset(address_bytes)
        first, last = start // STICK_BYTES, -(-(start + size_bytes) // STICK_BYTES)
        page = mmap.PAGESIZE // _WORD_BYTES
        low, high = -(-first // page) * page, last // page * page
        if low < high:
            # Returned pages read as zero, and an untouched page costs nothing.
            self.words[first:low] = 0
            self._mapping.madvise(mmap.MADV_DONTNEED, low * _WORD_BYTES, (high - low) * _WORD_BYTES)
            first = high
        self.words[first:last] = 0
        self._forget_ranges(address_bytes, size_bytes)

    def clear_all(self) -> None:
        """Mark all memory as unwritten."""
        pages_bytes = self.words.nbytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, 0, pages_bytes)
        self.words[pages_bytes // _WORD_BYTES :] = 0
        self.ranges[:] = 0

    def _forget_ranges(self, address_bytes: int, size_bytes: int) -> None:
        if address_bytes >= LX_BASE:
            first = host_offset(address_bytes) // STICK_BYTES - _LX_FIRST
            self.ranges[first : first + -(-size_bytes // STICK_BYTES)] = 0


def describe_writer(log: RecordLog, word: int) -> str:
    """The writer of a stick in words; ``word`` is not 0."""
    event, execution = log.find(word >> ct.CORE_BITS)
    if isinstance(event, str):
        return f"upload of {event}"
    tag = word & ((1 << ct.CORE_BITS) - 1)
    return event.describe(execution, tag - 1 if 0 < tag <= CORES else None)


def host_sticks(addresses: Int64Array) -> Int64Array:
    """Number in the host reservation of the stick of each device address."""
    mapped: Int64Array = addresses + (addresses >> REGION_BITS) * REGION_SKEW_BYTES
    return mapped // STICK_BYTES
