"""Rounds through memory that the ranks share: processes of one machine, or threads of one process.

Every rank has a page of control words, which it alone writes, and an arena that holds its boxes.
Processes find each other's arenas as open files (``/proc/PID/fd/N`` of a memfd): nothing has a name
in a file system, so a killed job leaves nothing behind, and no mount limits the size.

Protocol of a page: a rank sets boxes and header, then ``ROUND``; adds one to a box's progress after
its piece is complete; sets ``DONE`` when it reads nothing more of this round, and begins the next
one when all have. Progress carries the round's number, so words need no reset. Stores become
visible in the order they are made (x86-64; the interpreter does not reorder them).
"""

from __future__ import annotations

import mmap
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from spyre.runtime.comms.algorithms import edges_of
from spyre.runtime.comms.errors import CollectiveError
from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    MAX_RANKS,
    Bytes,
    Deadline,
    Outbox,
    Store,
    disagreement,
    missing,
)

ROUND, DONE, FAILED, PROCESS, STARTED, ARENA_FD, ARENA_BYTES = 0, 8, 16, 24, 25, 26, 27
HEADER, BOXES, BOX_WORDS, REASON = 32, 64, 8, 768
PROGRESS, OFFSET, SIZE = 0, 1, 2
PAGE_WORDS = 1024
"""Words of a page; those that others wait for have cache lines of their own."""
HEADER_BYTES = 8 * (BOXES - HEADER)
REASON_BYTES = 8 * (PAGE_WORDS - REASON)
ROUND_SHIFT = 32
PF_EXITING = 4
"""Flag of a process in Linux: its first thread has begun to end."""
SPIN_SECONDS = 300e-6
LOOK_SECONDS = 0.01
"""How long a waiting rank spins, and waits before a look at the others."""
LONGEST_PAUSE_SECONDS = 0.5e-3
"""A waiting rank sleeps for an eighth of the time it has waited, and no longer than this."""
SMALLEST_ARENA = 1 << 16
PIECE_BYTES = 512 << 10
"""Small enough for the host's second-level cache, large beside the cost of handing it over."""


class RankMemory(Protocol):
    """Where pages and arenas lie."""

    pages: np.ndarray[tuple[int, int], np.dtype[np.uint64]]

    def own_arena(self, size_bytes: int) -> Bytes:
        """This rank's arena, of at least so many bytes; what it held may be gone."""

    def arena(self, rank: int) -> Bytes:
        """Another rank's arena, as large as its page says."""

    def is_alive(self, rank: int) -> bool:
        """False once the rank's process has ended."""

    def close(self) -> None:
        """Give everything back."""


class SharedMemory:
    """The transport of one rank over a `RankMemory`."""

    is_interruptible = True
    piece_bytes = PIECE_BYTES

    def __init__(self, memory: RankMemory, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._memory = memory
        self._pages = memory.pages
        self._round = 0
        self._others = [k for k in range(size) if k != rank]

    @contextmanager
    def round(
        self, header: str, boxes: Sequence[Outbox], deadline: Deadline
    ) -> Iterator[_MemoryRound]:
        """See `Transport.round`."""
        last = self._round
        self._round += 1
        wait = _Waiting(self._memory, self._others, header, deadline)
        for other in self._others:
            wait.until(lambda other=other: self._pages[other, DONE] >= last, other)  # type: ignore[misc]
        current = _MemoryRound(self._memory, self.rank, self._round, header, wait)
        current.publish(boxes)
        yield current
        for other in self._others:
            current.meet(other)
        self._pages[self.rank, DONE] = self._round

    def fail(self, reason: str) -> None:
        """See `Transport.fail`."""
        page = self._pages[self.rank]
        page[REASON:].view(np.uint8)[:] = _padded(reason, REASON_BYTES)
        page[FAILED] = 1

    def close(self, patience: float = LINGER_SECONDS) -> None:
        """See `Transport.close`."""
        page = self._pages[self.rank]
        if not page[FAILED] and page[DONE] == self._round:
            self._linger(Deadline.after(patience))
        self._memory.close()

    def _linger(self, deadline: Deadline) -> None:
        wait = _Waiting(self._memory, self._others, "close", deadline)
        # a rank that does not come has an error of its own
        with suppress(CollectiveError):
            for other in self._others:
                wait.until(lambda other=other: self._pages[other, DONE] >= self._round, other)  # type: ignore[misc]


@dataclass(slots=True)
class _Waiting:
    """Waits for words of other ranks, bounded by a deadline and by the others' lives."""

    memory: RankMemory
    others: Sequence[int]
    header: str
    deadline: Deadline

    def until(self, ready: Callable[[], bool], rank: int) -> None:
        """Return once ``ready``, which depends on ``rank``; else raise what keeps it."""
        if ready():
            return
        start = time.monotonic()
        look = start + LOOK_SECONDS
        while not ready():
            now = time.monotonic()
            if now >= look:
                self._look(rank, ready)
                look = now + LOOK_SECONDS
            _pause(now - start)

    def _look(self, rank: int, ready: Callable[[], bool]) -> None:
        for other in self.others:
            if self.memory.pages[other, FAILED]:
                raise CollectiveError(
                    "SPY957",
                    f"{self.header}: another rank has failed",
                    found=_text(self.memory.pages[other, REASON:]),
                )
        dead = [other for other in self.others if not self.memory.is_alive(other)]
        # a rank that ends after its last word is no failure of an operation it has done
        if dead and not ready():
            raise _gone(dead, self.header)
        if self.deadline.seconds_left == 0:
            raise missing([rank], self.header, self.deadline)


def _pause(waited: float) -> None:
    """Let others run: other threads of this process, and other processes on this core.

    Any sleep takes 80 us at least, also one of 0.
    """
    if waited < SPIN_SECONDS:
        select.select((), (), (), 0)
        os.sched_yield()
    else:
        time.sleep(min(LONGEST_PAUSE_SECONDS, waited / 8))


def _gone(ranks: Sequence[int], header: str) -> CollectiveError:
    return CollectiveError(
        "SPY954",
        f"{header}: the process of rank {', '.join(map(str, ranks))} has ended",
        expected="every rank to take part in every operation of its group",
    )


@dataclass(slots=True)
class _MemoryRound:
    """See `Round`."""

    memory: RankMemory
    rank: int
    number: int
    header: str
    wait: _Waiting
    own: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    starts: list[list[int]] = field(default_factory=list)
    met: set[int] = field(default_factory=set)
    arenas: dict[int, Bytes] = field(default_factory=dict)
    offsets: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def publish(self, boxes: Sequence[Outbox]) -> None:
        """Lay out the boxes and tell the others that this rank has come."""
        page = self.memory.pages[self.rank]
        total = sum(box.size_bytes for box in boxes)
        self.own = self.memory.own_arena(total)
        at = 0
        sizes = page[BOXES:REASON].reshape(-1, BOX_WORDS)
        sizes[:, SIZE] = 0
        for words, box in zip(sizes, boxes, strict=False):
            words[OFFSET], words[SIZE] = at, box.size_bytes
            words[PROGRESS] = self.number << ROUND_SHIFT
            self.starts.append(edges_of(box.sizes, at))
            at += box.size_bytes
        page[HEADER:BOXES].view(np.uint8)[:] = _padded(self.header, HEADER_BYTES)
        page[ROUND] = self.number

    def piece(self, box: int, index: int) -> Bytes:
        """See `Round.piece`."""
        edges = self.starts[box]
        return self.own[edges[index] : edges[index + 1]]

    def commit(self, box: int) -> None:
        """See `Round.commit`."""
        self.memory.pages[self.rank, BOXES + box * BOX_WORDS + PROGRESS] += np.uint64(1)

    def give(self, box: int, index: int, content: Bytes) -> None:
        """See `Round.give`: others see the arena only."""
        self.piece(box, index).reshape(content.shape)[...] = content
        self.commit(box)

    def meet(self, rank: int) -> None:
        """Wait until ``rank`` has come to this round; it must be doing the same."""
        if rank in self.met:
            return
        page = self.memory.pages[rank]
        self.wait.until(lambda: page[ROUND] >= self.number, rank)
        theirs = _text(page[HEADER:BOXES])
        if theirs != _text(_padded(self.header, HEADER_BYTES)):
            raise disagreement(rank, theirs, self.rank, self.header)
        self.met.add(rank)

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        """See `Round.read`."""
        if (rank, box) not in self.offsets:
            self._open(rank, box, sizes)
        return self._complete(rank, box, index)

    def take(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """See `Round.take`."""
        if (rank, box) not in self.offsets:
            self._open(rank, box, [target.size for target in targets])
        targets[index][...] = self._complete(rank, box, index).reshape(targets[index].shape)

    def _complete(self, rank: int, box: int, index: int) -> Bytes:
        edges = self.offsets[rank, box]
        word = BOXES + box * BOX_WORDS + PROGRESS
        needed, page = (self.number << ROUND_SHIFT) + index + 1, self.memory.pages[rank]
        self.wait.until(lambda: page[word] >= needed, rank)
        return self.arenas[rank][edges[index] : edges[index + 1]]

    def _open(self, rank: int, box: int, sizes: Sequence[int]) -> None:
        self.meet(rank)
        words = self.memory.pages[rank, BOXES + box * BOX_WORDS :]
        expected, found = sum(sizes), int(words[SIZE])
        if expected != found:
            raise disagreement(
                rank,
                f"{self.header}, {found} bytes for rank {self.rank}",
                self.rank,
                f"{self.header}, {expected} bytes from rank {rank}",
            )
        if rank not in self.arenas:
            try:
                self.arenas[rank] = self.memory.arena(rank)
            except OSError as error:
                raise _gone([rank], self.header) from error
        self.offsets[rank, box] = edges_of(sizes, int(words[OFFSET]))


def _padded(text: str, size_bytes: int) -> Bytes:
    content = text.encode()[:size_bytes].ljust(size_bytes, b"\0")
    return np.frombuffer(content, np.uint8)


def _text(words: np.ndarray[tuple[int], np.dtype[np.uint64 | np.uint8]]) -> str:
    return words.tobytes().rstrip(b"\0").decode(errors="replace")


# --- processes --------------------------------------------------------------------------------


class ProcessMemory:
    """Pages and arenas in memfds of the ranks' processes, which are on one machine."""

    def __init__(self, rank: int, size: int, control: int) -> None:
        self._rank = rank
        mapping = mmap.mmap(control, size * PAGE_WORDS * 8)
        self.pages = np.frombuffer(mapping, np.uint64).reshape(size, PAGE_WORDS)
        self._arena_fd = os.memfd_create("spyreccl")
        self._arena = np.empty(0, np.uint8)
        self._peers: dict[int, Bytes] = {}
        self._ended: set[int] = set()
        page = self.pages[rank]
        page[PROCESS], page[STARTED] = os.getpid(), _start_time(os.getpid()) or 0
        page[ARENA_FD] = self._arena_fd

    def own_arena(self, size_bytes: int) -> Bytes:
        """See `RankMemory.own_arena`."""
        if size_bytes > self._arena.size:
            capacity = max(SMALLEST_ARENA, 1 << (size_bytes - 1).bit_length())
            os.ftruncate(self._arena_fd, capacity)
            self._arena = np.frombuffer(mmap.mmap(self._arena_fd, capacity), np.uint8)
            self.pages[self._rank, ARENA_BYTES] = capacity
        return self._arena

    def arena(self, rank: int) -> Bytes:
        """See `RankMemory.arena`."""
        page = self.pages[rank]
        mapped = self._peers.get(rank)
        if mapped is None or mapped.size < page[ARENA_BYTES]:
            mapped = _map_of(int(page[PROCESS]), int(page[ARENA_FD]), int(page[ARENA_BYTES]))
            self._peers[rank] = mapped
        return mapped

    def is_alive(self, rank: int) -> bool:
        """See `RankMemory.is_alive`; a process whose number was given to another one has ended."""
        page = self.pages[rank]
        return _start_time(int(page[PROCESS])) == int(page[STARTED])

    def close(self) -> None:
        """See `RankMemory.close`; mappings go with the last array that shows them."""
        if self._arena_fd >= 0:
            os.close(self._arena_fd)
            self._arena_fd = -1
        self._peers.clear()


def _map_of(process: int, descriptor: int, size_bytes: int) -> Bytes:
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(opened, size_bytes), np.uint8)
    finally:
        os.close(opened)


def _start_time(process: int) -> int | None:
    try:
        return started_at(Path(f"/proc/{process}/stat").read_text())
    except OSError:
        return None


def started_at(stat: str) -> int | None:
    """When a process began, by its ``/proc/PID/stat``: clock ticks since boot.

    None once it has ended or begun to: what follows, until it is a zombie, is to give its memory
    back, which takes long.
    """
    fields = stat.rpartition(")")[2].split()
    ends = fields[0] in "ZX" or int(fields[6]) & PF_EXITING
    return None if ends else int(fields[19])


def machine_name() -> str:
    """Equal for processes that can share memory: same kernel, same process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def join_processes(store: Store, rank: int, size: int) -> SharedMemory | None:
    """The transport of this process, or None (for all ranks) where they cannot share memory.

    Blocks until all ranks have come, as long as the store waits for a key. Raises CollectiveError
    SPY959 for more than 64 ranks.
    """
    check_size(size)
    try:
        name = machine_name()
    except OSError:
        name = f"no /proc on the machine of rank {rank}"
    store.set(f"machine/{rank}", name)
    if len({bytes(store.get(f"machine/{k}")) for k in range(size)}) > 1 or name.startswith("no "):
        return None
    if rank == 0:
        control = os.memfd_create("spyreccl")
        os.ftruncate(control, size * PAGE_WORDS * 8)
        store.set("control", f"/proc/{os.getpid()}/fd/{control}")
    else:
        control = _opened(store.get("control").decode())
    reached = control >= 0
    memory = ProcessMemory(rank, size, control) if reached else None
    store.set(f"joined/{rank}", "yes" if reached else "no")
    joined = [store.get(f"joined/{k}") == b"yes" for k in range(size)]
    if reached:
        # every rank has mapped the pages by now
        os.close(control)
    return SharedMemory(memory, rank, size) if memory is not None and all(joined) else None


def _opened(path: str) -> int:
    """-1 where another user's process, or a hardened kernel, does not let us."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError:
        return -1


def check_size(size: int) -> None:
    """CollectiveError SPY959 for more ranks than a page has boxes for."""
    if size > MAX_RANKS:
        raise CollectiveError(
            "SPY959",
            "a group has too many ranks",
            expected=f"at most {MAX_RANKS}",
            found=str(size),
        )


# --- threads ----------------------------------------------------------------------------------


class _Room:
    """Pages and arenas of ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.pages = np.zeros((size, PAGE_WORDS), np.uint64)
        self.arenas = [np.empty(0, np.uint8)] * size
        self.present = 0


_rooms: dict[str, _Room] = {}
_rooms_lock = threading.Lock()


class ThreadMemory:
    """Pages and arenas of one process; ``token``: the room's, known to all ranks."""

    def __init__(self, token: str, rank: int, size: int) -> None:
        with _rooms_lock:
            self._room = _rooms.setdefault(token, _Room(size))
            self._room.present += 1
        self._token, self._rank = token, rank
        self.pages = self._room.pages

    def own_arena(self, size_bytes: int) -> Bytes:
        """See `RankMemory.own_arena`."""
        if size_bytes > self._room.arenas[self._rank].size:
            self._room.arenas[self._rank] = np.empty(size_bytes, np.uint8)
        return self._room.arenas[self._rank]

    def arena(self, rank: int) -> Bytes:
        """See `RankMemory.arena`."""
        return self._room.arenas[rank]

    def is_alive(self, rank: int) -> bool:
        """Threads end with their process: a rank that does not come is missed at the deadline."""
        return True

    def close(self) -> None:
        """See `RankMemory.close`; the room goes with its last rank."""
        with _rooms_lock:
            self._room.present -= 1
            if self._room.present == 0:
                _rooms.pop(self._token, None)


def join_threads(store: Store, rank: int, size: int) -> SharedMemory:
    """The transport of a rank that is a thread of this process, as are all others.

    Blocks until all ranks have come.
    """
    check_size(size)
    if rank == 0:
        store.set("room", secrets.token_hex(8))
    memory = ThreadMemory(store.get("room").decode(), rank, size)
    # a room goes with the last rank in it: nobody may leave before all have come
    store.set(f"joined/{rank}", "yes")
    for other in range(size):
        store.get(f"joined/{other}")
    return SharedMemory(memory, rank, size)
