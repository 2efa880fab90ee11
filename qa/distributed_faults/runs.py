"""Runs 3 ranks as processes with one fault, checks the consequences, and restarts the job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from qa.distributed_faults.rank import NO_FAULT, RANKS, TIMEOUT, Plan, Report, work

DEATH_SECONDS = 0.5
TIMEOUT_MARGIN = 0.3
DESTROY_SECONDS = 1.0
START_SECONDS = 300
"""Most seconds until the fault, on a busy machine."""
RUN_SECONDS = 30
"""Most seconds from the fault to the end of the other ranks."""
VICTIM_EXITS = {
    "kill": -signal.SIGKILL,
    "stop": -signal.SIGKILL,
    "raise": 1,
    "operation": 1,
    "size": 1,
    "interrupt": 1,
}
"""Exit code of the victim by fault; a stopped victim is killed when the others have ended."""
CODES = {
    "kill": ("SPY954", "SPY957"),
    "stop": ("SPY955", "SPY957", "SPY954"),
    "raise": ("SPY954", "SPY957"),
    "operation": ("SPY952", "SPY957", "SPY954"),
    "size": ("SPY952", "SPY957", "SPY954"),
    "interrupt": ("SPY954", "SPY957"),
}


def context() -> Any:
    """Return a context whose processes start with all modules imported."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["qa.distributed_faults.preload"])
    return chosen


def run(plan: Plan) -> list[str]:
    """Carry out ``plan`` and return the problems found."""
    before = set(os.listdir("/dev/shm"))
    # torchrun's store also lives as long as the job
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reports, exits, problems = _attempt(plan, store.port)
    wanted = [VICTIM_EXITS[plan.fault] if k == plan.victim else 1 for k in range(RANKS)]
    problems += [*_judged_exits(exits, wanted), *_judged(plan, reports)]
    if plan.restarts:
        problems += [f"started again: {text}" for text in _started_again(plan, store.port)]
    left = [name for name in os.listdir("/dev/shm") if name.startswith(("spyre", "torch"))]
    return problems + [f"left in /dev/shm: {name}" for name in left if name not in before]


def _started_again(plan: Plan, port: int) -> Iterator[str]:
    reports, exits, hanging = _attempt(replace(plan, fault=NO_FAULT), port)
    yield from (*hanging, *_judged_exits(exits, [0] * RANKS))
    yield from (f"rank {r.rank}: {r.kind}: {r.text}" for r in reports if r.kind != "end")


def _judged_exits(exits: list[int], wanted: list[int]) -> Iterator[str]:
    for rank, (found, expected) in enumerate(zip(exits, wanted, strict=True)):
        if found != expected:
            yield f"exit code of rank {rank}: {found}, expected {expected}"


def _attempt(plan: Plan, port: int) -> tuple[list[Report], list[int], list[str]]:
    """Return reports and exit codes of the ranks, and a message for each rank that hung."""
    pipes, processes = _start(plan, port)
    others = [k for k in range(RANKS) if k != plan.victim]
    pipes[plan.victim].poll(START_SECONDS)
    last = time.monotonic() + RUN_SECONDS * plan.patience
    for k in others:
        processes[k].join(max(0.0, last - time.monotonic()))
    hanging = [k for k in others if processes[k].is_alive()]
    if plan.fault == "stop" or hanging:
        for process in processes:
            process.kill()
    for process in processes:
        process.join(10)
        if process.is_alive():
            hanging.append(plan.victim)
            process.kill()
            process.join()
    reports = [report for pipe in pipes for report in _received(pipe)]
    exits = [process.exitcode for process in processes]
    return reports, exits, [f"rank {k} hangs" for k in hanging]


def _start(plan: Plan, port: int) -> tuple[list[Any], list[Any]]:
    chosen = context()
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = chosen.Pipe(duplex=False)
        process = chosen.Process(target=work, args=(plan, rank, port, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    return pipes, processes


def _received(pipe: Any) -> Iterator[Report]:
    try:
        while pipe.poll(0):
            yield pipe.recv()
    except (EOFError, OSError):
        return


def _judged(plan: Plan, reports: list[Report]) -> Iterator[str]:
    fault = next((r for r in reports if r.kind == "fault"), None)
    if fault is None:
        yield "the fault did not happen"
        return
    for rank in range(RANKS):
        own = [r for r in reports if r.rank == rank]
        yield from (f"rank {rank}: wrong numbers: {r.text}" for r in own if r.kind == "wrong")
        errors = [r for r in own if r.kind == "error"]
        if rank != plan.victim and not errors:
            yield f"rank {rank}: no error"
        for error in errors:
            yield from (f"rank {rank}: {text}" for text in _judged_error(plan, fault, error))
    yield from _judged_moments(plan, fault, [r for r in reports if r.kind == "error"])


def _judged_moments(plan: Plan, fault: Report, errors: list[Report]) -> Iterator[str]:
    for error in errors:
        since_begin = error.at - error.began
        if plan.fault == "stop":
            if since_begin > (TIMEOUT + TIMEOUT_MARGIN) * plan.patience:
                yield (
                    f"rank {error.rank}: failed {since_begin:.2f} s after its operation began, "
                    f"timeout {TIMEOUT * plan.patience:g} s"
                )
            continue
        # a rank notices the fault when it enters its operation; a mismatch of two ranks can be
        # noticed once both have entered
        came = [error.began]
        if plan.fault in ("operation", "size"):
            came += [other.began for other in errors]
        late = error.at - max(fault.at, *came)
        if late > DEATH_SECONDS * plan.patience:
            yield f"rank {error.rank}: failed {late:.2f} s after it could know of the fault"


def _judged_error(plan: Plan, fault: Report, error: Report) -> Iterator[str]:
    # Where a message fails, its rank leaves the ring early: the others may meet it in a collective
    # that they do not call.
    codes = CODES[plan.fault] + ("SPY952",) * (plan.collective == "messages")
    if not any(code in error.text for code in codes):
        yield f"expected {codes}: {error.text}"
    # a failed message has no number and does not end the group; the next collective does
    is_message = error.text.startswith(("send ", "recv "))
    if "rank" not in error.text or not (is_message or "operation" in error.text):
        yield f"names no rank or operation: {error.text}"
    if not any(code in error.again for code in (*codes * is_message, "SPY956")):
        yield f"the group is not dead: {error.again}"
    if error.destroyed_after > DESTROY_SECONDS * plan.patience:
        yield f"destroyed after {error.destroyed_after:.2f} s"
