"""The compiled half of the thread pool: claiming, running and finishing chunks of one job.

The caller does not wait for workers that have not begun: chunks are claimed from a counter, and
only claimed ones are waited for. A worker that wakes late (another process on its CPU, a scheduler
tick) finds nothing left and sleeps again. Words of the shared control block are int64.

States of a worker, and the events between them::

    helping ──no chunk left──▶ lingering ──GENERATION grew──▶ helping
                                   │ after LINGER_ROUNDS pauses: SLEEPING := 1, looks once more
               GENERATION grew     ▼
    helping ◀──took SLEEPING back── dozing off ──no job──▶ asleep ──sem_post──▶ helping
                                   │                         ▲
                                   └──the caller took it─────┘

All words that order accesses are read and written sequentially consistent.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from spyre.hw.kernels.intrinsics import I64, call_entry, pointer_i64
from spyre.hw.kernels.jit import kernel
from spyre.hw.plan_table import (
    CHUNK_MASK,
    CLOSED,
    JOB_BITS,
    LINGER_ROUNDS,
    POOL_ARGUMENTS as ARGUMENTS,
    POOL_BUSY as BUSY,
    POOL_CHUNKS as CHUNKS,
    POOL_DONE as DONE,
    POOL_GENERATION as GENERATION,
    POOL_NEXT as NEXT,
    POOL_SEMAPHORES as SEMAPHORES,
    POOL_SLEEPING as SLEEPING,
    POOL_STATUS as STATUS,
    POOL_THREADS as THREADS,
    POOL_UNITS as UNITS,
    POOL_WORDS as WORDS,
    SEMAPHORE_WORDS,
    SPIN_ROUNDS,
)

_X86 = platform.machine().lower() in ("x86_64", "amd64")
_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
_sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def atomic_add(typing_context, address, amount):
    """Add to the int64 at ``address``; returns the old value. Sequentially consistent."""

    def codegen(context, b, signature, args):
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_exchange(typing_context, address, value):
    """Store to the int64 at ``address``; returns the old value. Sequentially consistent."""

    def codegen(context, b, signature, args):
        return b.atomic_rmw("xchg", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typing_context, address):
    """The int64 at ``address``, without taking its cache line from its writer."""

    def codegen(context, b, signature, args):
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def spin_pause(typing_context):
    """Tell the CPU that this is a waiting loop (no-op where there is no such hint)."""

    def codegen(context, b, signature, args):
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@kernel
def run_chunks(block, scratch):
    """Claim and run chunks until none is left; the first fault goes to STATUS.

    Tickets carry the number of their job above JOB_BITS: a worker that sleeps between taking a
    ticket of a finished job and reading the limit must not take it for one of the next job.
    """
    words = carray(pointer_i64(block), WORDS)
    while True:
        # The ticket first: NEXT is opened after CHUNKS and the job's words are written, so a thread
        # with a ticket of a job sees all of it. A thread without one has read none of the words.
        ticket = atomic_add(block + 8 * NEXT, 1)
        limit = atomic_load(block + 8 * CHUNKS)
        if ticket >= limit or ticket >> JOB_BITS != limit >> JOB_BITS:
            return
        # Plain reads from here on: the caller changes no word before DONE says that this chunk,
        # which it counts, is finished.
        units, chunk, chunks = words[UNITS], ticket & CHUNK_MASK, limit & CHUNK_MASK
        first, last = units * chunk // chunks, units * (chunk + 1) // chunks
        a = ARGUMENTS
        status = call_entry(
            words[a], words[a + 1], words[a + 2], words[a + 3], scratch, first, last
        )
        if status != 0:
            atomic_exchange(block + 8 * STATUS, status)
        # Publishes the chunk's writes, and the fault before it, to the caller that reads DONE.
        atomic_add(block + 8 * DONE, 1)


@kernel
def run_job(
    block: int,
    scratch: int,
    function: int,
    table: int,
    bases: int,
    memory: int,
    units: int,
    chunks: int,
) -> Any:
    """Run units 0 .. ``units`` of a kernel entry in ``chunks`` shares; returns 0 or a fault word.

    While another caller has the workers, this thread runs everything itself.
    """
    if atomic_exchange(block + 8 * BUSY, 1) == 1:
        return call_entry(function, table, bases, memory, scratch, 0, units)
    # NEXT is closed (or the last job's limit reached): no worker reads these words now.
    words = carray(pointer_i64(block), WORDS)
    words[ARGUMENTS] = function
    words[ARGUMENTS + 1] = table
    words[ARGUMENTS + 2] = bases
    words[ARGUMENTS + 3] = memory
    words[UNITS] = units
    atomic_exchange(block + 8 * STATUS, 0)
    atomic_exchange(block + 8 * DONE, 0)
    job = (atomic_load(block + 8 * GENERATION) + 1) << JOB_BITS
    # In this order: a ticket of this job must find this job's limit, and a worker that sees the
    # new generation must find tickets. Opening NEXT publishes the plain writes above.
    atomic_exchange(block + 8 * CHUNKS, job + chunks)
    atomic_exchange(block + 8 * NEXT, job)
    atomic_add(block + 8 * GENERATION, 1)
    # A worker sets SLEEPING and then reads GENERATION; here GENERATION grows and then SLEEPING is
    # read. One of the two sees the other's write, so no worker sleeps through a job. The thread
    # that takes the 1 out of SLEEPING decides: the caller posts, exactly once, or the worker stays
    # awake.
    for worker in range(1, words[THREADS]):
        if atomic_exchange(block + 8 * (SLEEPING + worker), 0) == 1:
            _sem_post(block + 8 * (SEMAPHORES + worker * SEMAPHORE_WORDS))
    run_chunks(block, scratch)
    # All chunks are claimed; those that workers have begun are waited for.
    rounds = 0
    while atomic_load(block + 8 * DONE) < chunks:
        spin_pause()
        rounds += 1
        if rounds > SPIN_ROUNDS:
            _sched_yield()
    # Late workers find no ticket of any job; only then may another caller write the words.
    atomic_exchange(block + 8 * NEXT, CLOSED)
    status = words[STATUS]
    atomic_exchange(block + 8 * BUSY, 0)
    return status


@kernel
def serve(block: int, worker: int, scratch: int) -> None:
    """Body of worker thread ``worker``: sleep until there is a job, then help with it, forever."""
    semaphore = block + 8 * (SEMAPHORES + worker * SEMAPHORE_WORDS)
    sleeping = block + 8 * (SLEEPING + worker)
    seen = atomic_load(block + 8 * GENERATION)
    while True:
        rounds = 0
        while atomic_load(block + 8 * GENERATION) == seen and rounds < LINGER_ROUNDS:
            spin_pause()
            rounds += 1
        if atomic_load(block + 8 * GENERATION) == seen:
            atomic_exchange(sleeping, 1)
            fresh = atomic_load(block + 8 * GENERATION) != seen
            # With a fresh job SLEEPING is taken back; if the caller was faster, its post is on the
            # way and has to be consumed, or the next sleep would end at once.
            if not fresh or atomic_exchange(sleeping, 0) == 0:
                while _sem_wait(semaphore) != 0:  # interrupted by a signal
                    pass
        seen = atomic_load(block + 8 * GENERATION)
        run_chunks(block, scratch)
