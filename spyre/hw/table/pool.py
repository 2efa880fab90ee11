"""Words of the control block that the thread pool's caller and workers share (int64 each)."""

from __future__ import annotations

MAX_THREADS = 256

NEXT = 0
"""Next chunk to claim, with the job's number above JOB_BITS; CLOSED between jobs."""
CHUNKS = 8
"""End of the chunks of the job, with its number above JOB_BITS."""
DONE = 16
GENERATION = 24
BUSY = 32
"""1 while a caller has the workers."""
STATUS = 40
UNITS = 48
THREADS = 49
ARGUMENTS = 50
"""function, table, bases, memory."""
SLEEPING = 64
"""One word per thread: 1 while it waits on its semaphore."""
SEMAPHORES = SLEEPING + MAX_THREADS
SEMAPHORE_WORDS = 8
"""Room for one sem_t (32 bytes on Linux), a cache line each."""
WORDS = SEMAPHORES + MAX_THREADS * SEMAPHORE_WORDS

CLOSED = 1 << 60
JOB_BITS = 24
CHUNK_MASK = (1 << JOB_BITS) - 1
SPIN_ROUNDS = 2000
"""Pauses before the caller yields its CPU while a worker finishes its last chunk."""
LINGER_ROUNDS = 2000
"""Pauses (some 50 µs) a worker waits for the next job before it sleeps: programs are many jobs."""
CHUNKS_PER_THREAD = 8
