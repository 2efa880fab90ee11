"""Rounds through memory that the ranks share: processes of one machine, or threads of a process.

Every rank has a page of control words, which only this rank writes, and an arena with its outboxes.
Ranks open each other's arenas as ``/proc/PID/fd/N`` of a memfd, which has no name in a file
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
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from spyre.runtime.comms.transport import (
    LINGER_SECONDS,
    Bytes,
    CollectiveError,
    Deadline,
    Store,
    Transport,
    check_size,
    padded,
    text_of,
)

ROUND, DONE, FAILED, PROCESS, STARTED, ARENA_FD, ARENA_BYTES = 0, 8, 16, 24, 25, 26, 27
HEADER, BOXES, BOX_WORDS, REASON = 32, 64, 8, 768
PROGRESS, OFFSET, SIZE = 0, 1, 2
PAGE_WORDS = 1024
"""Words of a page; words that other ranks wait for are in separate cache lines."""
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


class SharedMemory(Transport):
    """The transport of one rank over a `RankMemory`."""

    is_interruptible = True
    piece_bytes = PIECE_BYTES

    def __init__(self, memory: RankMemory, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._memory = memory
        self._pages = memory.pages
        self._own: list[list[Bytes]] = []
        self._theirs: dict[tuple[int, int], list[Bytes]] = {}

    def _begin(self) -> None:
        """Write the outboxes and the header into the page, then the number of the round."""
        self._wait_for_all(DONE, self._number - 1)
        page, at = self._pages[self.rank], 0
        arena = self._memory.own_arena(sum(box.size_bytes for box in self._boxes))
        sizes = page[BOXES:REASON].reshape(-1, BOX_WORDS)
        sizes[:, SIZE] = 0
        for words, box in zip(sizes, self._boxes, strict=False):
            words[OFFSET], words[SIZE] = at, box.size_bytes
            words[PROGRESS] = self._number << ROUND_SHIFT
            self._own.append(_pieces(arena, box.sizes, at))
            at += box.size_bytes
        page[HEADER:BOXES].view(np.uint8)[:] = self._content
        page[ROUND] = self._number

    def _end(self) -> None:
        self._pages[self.rank, DONE] = self._number

    def _release(self) -> None:
        self._own, self._theirs = [], {}

    def fail(self, reason: str) -> None:
        page = self._pages[self.rank]
        page[REASON:].view(np.uint8)[:] = padded(reason, REASON_BYTES)
        page[FAILED] = 1

    def close(self, patience: float = LINGER_SECONDS) -> None:
        page = self._pages[self.rank]
        if not page[FAILED] and page[DONE] == self._number:
            self._deadline = Deadline.after(patience)
            # A rank that does not come reports its own error.
            with suppress(CollectiveError):
                self._wait_for_all(DONE, self._number)
        self._memory.close()

    def piece(self, box: int, index: int) -> Bytes:
        return self._own[box][index]

    def commit(self, box: int) -> None:
        self._pages[self.rank, BOXES + box * BOX_WORDS + PROGRESS] += np.uint64(1)

    def send(self, box: int, index: int, content: Bytes) -> None:
        # A copy, because other ranks read the arena only.
        self.piece(box, index).reshape(content.shape)[...] = content
        self.commit(box)

    def _header_of(self, rank: int) -> Bytes:
        self._wait(rank, ROUND, self._number)
        return self._pages[rank, HEADER:BOXES].view(np.uint8)

    def read(self, rank: int, box: int, index: int, sizes: Sequence[int]) -> Bytes:
        if (rank, box) not in self._theirs:
            self._open(rank, box, sizes)
        progress = (self._number << ROUND_SHIFT) + index + 1
        self._wait(rank, BOXES + box * BOX_WORDS + PROGRESS, progress)
        return self._theirs[rank, box][index]

    def receive(self, rank: int, box: int, index: int, targets: Sequence[Bytes]) -> None:
        if (rank, box) not in self._theirs:
            self._open(rank, box, [target.size for target in targets])
        content = self.read(rank, box, index, ())
        targets[index][...] = content.reshape(targets[index].shape)

    def _open(self, rank: int, box: int, sizes: Sequence[int]) -> None:
        # The own outboxes are filled before this, while the other ranks come.
        self._compare_headers()
        words = self._pages[rank, BOXES + box * BOX_WORDS :]
        self._check_box(rank, int(words[SIZE]), sizes)
        try:
            arena = self._memory.arena(rank)
        except OSError as error:
            self._look_for_failures()
            raise self._gone([rank]) from error
        self._theirs[rank, box] = _pieces(arena, sizes, int(words[OFFSET]))

    # --- waiting ------------------------------------------------------------------------------

    def _wait_for_all(self, word: int, least: int) -> None:
        for other in self._others:
            self._wait(other, word, least)

    def _wait(self, rank: int, word: int, least: int) -> None:
        """Wait until a word of ``rank`` is at least ``least``.

        CollectiveError at the deadline, if a rank fails or if its process ends.
        """
        page = self._pages[rank]
        if page[word] >= least:
            return
        start = time.monotonic()
        look = start + LOOK_SECONDS
        while page[word] < least:
            now = time.monotonic()
            if now >= look:
                self._look(rank, word, least)
                look = now + LOOK_SECONDS
            _pause(now - start)

    def _look_for_failures(self) -> None:
        for other in self._others:
            if self._pages[other, FAILED]:
                message = f"{self._header}: another rank has failed"
                found = text_of(self._pages[other, REASON:].view(np.uint8))
                raise CollectiveError("SPY957", message, found=found)

    def _look(self, rank: int, word: int, least: int) -> None:
        self._look_for_failures()
        dead = [other for other in self._others if not self._memory.is_alive(other)]
        # A rank may end after it has written its last word: the operation is complete then.
        if dead and self._pages[rank, word] < least:
            raise self._gone(dead)
        if self._deadline.seconds_left == 0:
            raise self._missing(rank)

    def _gone(self, ranks: Sequence[int]) -> CollectiveError:
        message = f"{self._header}: the process of rank {', '.join(map(str, ranks))} has ended"
        expected = "every rank to take part in every operation of its group"
        return CollectiveError("SPY954", message, expected=expected)


def _pieces(arena: Bytes, sizes: Sequence[int], start: int) -> list[Bytes]:
    """Return consecutive pieces of these sizes, the first of which begins at byte ``start``."""
    edges = (start + end for end in accumulate(sizes, initial=0))
    return [arena[low:high] for low, high in pairwise(edges)]


def _pause(waited: float) -> None:
    """Yield to other threads of this process and other processes on this core.

    Any sleep takes at least 80 µs, also one of 0 s.
    """
    if waited < SPIN_SECONDS:
        select.select((), (), (), 0)
        os.sched_yield()
    else:
        time.sleep(min(LONGEST_PAUSE_SECONDS, waited / 8))


class RankMemory:
    """Pages and arenas of all ranks, in memfds of their processes, which are on one machine."""

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
        """Return this rank's arena, of at least ``size_bytes``; its old content may be lost."""
        if size_bytes > self._arena.size:
            capacity = max(SMALLEST_ARENA, 1 << (size_bytes - 1).bit_length())
            os.ftruncate(self._arena_fd, capacity)
            self._arena = np.frombuffer(mmap.mmap(self._arena_fd, capacity), np.uint8)
            self.pages[self._rank, ARENA_BYTES] = capacity
        return self._arena

    def arena(self, rank: int) -> Bytes:
        """Return another rank's arena, of the size in its page."""
        page = self.pages[rank]
        mapped = self._peers.get(rank)
        if mapped is None or mapped.size < page[ARENA_BYTES]:
            opened = os.open(f"/proc/{int(page[PROCESS])}/fd/{int(page[ARENA_FD])}", os.O_RDWR)
            try:
                mapped = np.frombuffer(mmap.mmap(opened, int(page[ARENA_BYTES])), np.uint8)
            finally:
                os.close(opened)
            self._peers[rank] = mapped
        return mapped

    def is_alive(self, rank: int) -> bool:
        """Return True if the process of a rank runs; with another start time it is another one."""
        page = self.pages[rank]
        return _start_time(int(page[PROCESS])) == int(page[STARTED])

    def close(self) -> None:
        """Release all memory; a mapping is released with the last array over it."""
        if self._arena_fd >= 0:
            os.close(self._arena_fd)
            self._arena_fd = -1
        self._peers.clear()


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


def join_processes(store: Store, rank: int, size: int) -> SharedMemory | None:
    """Return the transport of a rank, or None on all ranks if they cannot share memory.

    Blocks until all ranks have called it, or the store's wait for a key times out. CollectiveError
    SPY959 for more than 64 ranks.
    """
    check_size(size)
    try:
        # Equal for processes with the same kernel and process namespace.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        name = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
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
        try:
            control = os.open(store.get("control").decode(), os.O_RDWR)
        except OSError:  # the user of the other process or the kernel does not allow it
            control = -1
    reached = control >= 0
    memory = RankMemory(rank, size, control) if reached else None
    store.set(f"joined/{rank}", "yes" if reached else "no")
    joined = [store.get(f"joined/{k}") == b"yes" for k in range(size)]
    if reached:
        # every rank has mapped the pages by now
        os.close(control)
    return SharedMemory(memory, rank, size) if memory is not None and all(joined) else None
