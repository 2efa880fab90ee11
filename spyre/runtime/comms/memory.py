"""Rounds through memory that the ranks share: processes of one machine, or threads of one process.

Every rank has a page of control words, which only this rank writes, and an arena with its outboxes.
Processes open each other's arenas as ``/proc/PID/fd/N`` of a memfd, which has no name in a file
system: a killed job leaves no file behind, and no mount limits the size.

Protocol of a page: a rank sets outboxes and header, then ``ROUND``; it increments the progress of
an outbox when a piece is complete; it sets ``DONE`` when it has read all it needs, and begins the
next round when all ranks have set it. The progress contains the number of the round, so it is never
reset. Stores become visible in the order they are made (x86-64; the interpreter does not reorder
them).
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
from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    MAX_RANKS,
    Bytes,
    CollectiveError,
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
"""Words of a page; words that other ranks wait for are in separate cache lines."""
HEADER_BYTES = 8 * (BOXES - HEADER)
REASON_BYTES = 8 * (PAGE_WORDS - REASON)
ROUND_SHIFT = 32
PF_EXITING = 4
"""Flag of a process in Linux: its first thread has begun to end."""
SPIN_SECONDS = 300e-6
LOOK_SECONDS = 0.01
"""A waiting rank spins so long, and checks the other ranks every `LOOK_SECONDS`."""
LONGEST_PAUSE_SECONDS = 0.5e-3
"""A waiting rank sleeps for an eighth of the time it has waited, and no longer than this."""
SMALLEST_ARENA = 1 << 16
PIECE_BYTES = 512 << 10
"""Small enough for the host's second-level cache, large beside the cost of handing it over."""


class RankMemory(Protocol):
    """The memory of the pages and arenas of all ranks."""

    pages: np.ndarray[tuple[int, int], np.dtype[np.uint64]]

    def own_arena(self, size_bytes: int) -> Bytes:
        """Return this rank's arena, of at least ``size_bytes``; its old content may be lost."""

    def arena(self, rank: int) -> Bytes:
        """Return another rank's arena, of the size in its page."""

    def is_alive(self, rank: int) -> bool:
        """Whether the process of the rank is still running."""

    def close(self) -> None:
        """Release all memory."""


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
        # A rank that does not come reports its own error.
        with suppress(CollectiveError):
            for other in self._others:
                wait.until(lambda other=other: self._pages[other, DONE] >= self._round, other)  # type: ignore[misc]


@dataclass(slots=True)
class _Waiting:
    """Waits for words of other ranks until a deadline, and while these ranks are alive."""

    memory: RankMemory
    others: Sequence[int]
    header: str
    deadline: Deadline

    def until(self, ready: Callable[[], bool], rank: int) -> None:
        """Wait until ``ready()``, which depends on ``rank``. CollectiveError if that fails."""
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
        # A rank may end after it has written its last word: the operation is complete then.
        if dead and not ready():
            raise _gone(dead, self.header)
        if self.deadline.seconds_left == 0:
            raise missing([rank], self.header, self.deadline)


def _pause(waited: float) -> None:
    """Yield to other threads of this process and other processes on this core.

    Any sleep takes at least 80 µs, also one of 0 s.
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
        """Write the outboxes and the header into the page, then the number of the round."""
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

    def send(self, box: int, index: int, content: Bytes) -> None:
        """See `Round.send`; the content is copied, because other ranks read the arena only."""
        self.piece(box, index).reshape(content.shape)[...] = content
        self.commit(box)

    def meet(self, rank: int) -> None:
        """Wait until ``rank`` is in this round. CollectiveError SPY952 if its header differs."""
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

    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        """See `Round.receive`."""
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
        """See `RankMemory.is_alive`; with another start time the process number was reused."""
        page = self.pages[rank]
        return _start_time(int(page[PROCESS])) == int(page[STARTED])

    def close(self) -> None:
        """See `RankMemory.close`; a mapping is released with the last array over it."""
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
    """Return the start time in ``/proc/PID/stat``, in clock ticks since boot.

    None if the process has ended or begun to end: until it is a zombie, it releases its memory,
    which may take long.
    """
    fields = stat.rpartition(")")[2].split()
    ends = fields[0] in "ZX" or int(fields[6]) & PF_EXITING
    return None if ends else int(fields[19])


def machine_name() -> str:
    """Return a name that is equal for processes with the same kernel and process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def join_processes(store: Store, rank: int, size: int) -> SharedMemory | None:
    """Return the transport of this process, or None on all ranks if they cannot share memory.

    Blocks until all ranks have called it, or the store's wait for a key times out. CollectiveError
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
    """Open a file; -1 if the user of the other process or the kernel does not allow it."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError:
        return -1


def check_size(size: int) -> None:
    """Raise CollectiveError SPY959 for more ranks than a page has outboxes."""
    if size > MAX_RANKS:
        raise CollectiveError(
            "SPY959",
            "a group has too many ranks",
            expected=f"at most {MAX_RANKS}",
            found=str(size),
        )


# --- threads ----------------------------------------------------------------------------------


class _ThreadPages:
    """Pages and arenas of ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.pages = np.zeros((size, PAGE_WORDS), np.uint64)
        self.arenas = [np.empty(0, np.uint8)] * size
        self.present = 0


_by_token: dict[str, _ThreadPages] = {}
_by_token_lock = threading.Lock()


class ThreadMemory:
    """Pages and arenas of ranks that are threads. ``token``: common to all ranks of the group."""

    def __init__(self, token: str, rank: int, size: int) -> None:
        with _by_token_lock:
            self._shared = _by_token.setdefault(token, _ThreadPages(size))
            self._shared.present += 1
        self._token, self._rank = token, rank
        self.pages = self._shared.pages

    def own_arena(self, size_bytes: int) -> Bytes:
        """See `RankMemory.own_arena`."""
        if size_bytes > self._shared.arenas[self._rank].size:
            self._shared.arenas[self._rank] = np.empty(size_bytes, np.uint8)
        return self._shared.arenas[self._rank]

    def arena(self, rank: int) -> Bytes:
        """See `RankMemory.arena`."""
        return self._shared.arenas[rank]

    def is_alive(self, rank: int) -> bool:
        """Threads end with their process; a missing rank is detected by the deadline."""
        return True

    def close(self) -> None:
        """See `RankMemory.close`; the memory is released with its last rank."""
        with _by_token_lock:
            self._shared.present -= 1
            if self._shared.present == 0:
                _by_token.pop(self._token, None)


def join_threads(store: Store, rank: int, size: int) -> SharedMemory:
    """Return the transport of a rank, if all ranks are threads of this process.

    Blocks until all ranks have called it.
    """
    check_size(size)
    if rank == 0:
        store.set("token", secrets.token_hex(8))
    memory = ThreadMemory(store.get("token").decode(), rank, size)
    # The memory is released with its last rank, so all ranks wait until all have joined.
    store.set(f"joined/{rank}", "yes")
    for other in range(size):
        store.get(f"joined/{other}")
    return SharedMemory(memory, rank, size)
