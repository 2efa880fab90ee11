"""What a rank does: collectives whose results it checks, until one of the ranks has a fault."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from spyre.torch_backend.distributed.group import live_groups

RANKS = 3
TIMEOUT = 2.0
"""Of the group, in seconds, once its cards are ready."""
START_TIMEOUT = 300
SIZES = ((70,), (3, 130), (1000, 130), (1 << 20,))
KINDS = 11
"""Of collectives; the last ones are sends in a ring, and a callback with another collective."""
COMPARED = 9
"""The first kinds: ranks that call different ones, or with different sizes, get SPY952."""
FAULTS = ("kill", "stop", "raise", "operation", "size", "interrupt")


@dataclass(frozen=True)
class Plan:
    """One run. ``at``: the number of the operation; ``delay``: seconds until the fault comes, from
    another thread of the victim, or None: before the operation.
    """

    seed: int
    transport: str
    fault: str
    victim: int
    at: int
    delay: float | None

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The plan a seed stands for."""
        chosen = random.Random(seed)
        fault = chosen.choice(FAULTS)
        delay = chosen.choice((None, chosen.random() * 0.01))
        if fault not in ("kill", "stop", "interrupt"):
            delay = None
        transport = chosen.choice(("shm", "shm", "shm", "gloo"))
        return cls(seed, transport, fault, chosen.randrange(RANKS), chosen.randrange(1, 8), delay)


@dataclass(frozen=True)
class Report:
    """What a rank saw. ``kind``: ``fault`` (the victim, before it), ``error``, ``wrong``, ``end``.

    ``at``: on the monotonic clock of the machine; ``began``: of the failed operation.
    """

    rank: int
    kind: str
    at: float
    began: float = 0.0
    text: str = ""
    again: str = ""
    destroyed_after: float = 0.0


def work(plan: Plan, rank: int, scratch: str, pipe: Any) -> None:
    """The process of a rank; an uncaught error is its end, as of any program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["SPYRECCL_TRANSPORT"] = plan.transport

    torch.set_num_threads(1)
    dist.init_process_group(
        "spyreccl",
        init_method=f"file://{scratch}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=START_TIMEOUT),
    )
    operations = random.Random(plan.seed + 1)
    for kind in (operations.randrange(KINDS), KINDS - 1):
        _collective(kind, _own(rank, SIZES[2], 0), 0)
    # cards and kernels are ready: from here on the short timeout is fair
    for group in live_groups():
        group.timeout = TIMEOUT
    for number in range(1, 12):
        kind, size = operations.randrange(KINDS), operations.choice(SIZES)
        if number == plan.at and plan.fault in ("operation", "size"):
            kind %= COMPARED
        began = time.monotonic()
        try:
            if number == plan.at and rank == plan.victim:
                kind, size = _fault(plan, pipe, kind, size)
            own = _own(rank, size, number)
            began = time.monotonic()
            if not _collective(kind, own, number):
                pipe.send(Report(rank, "wrong", time.monotonic(), began, f"{kind} {size}"))
        except RuntimeError as error:
            pipe.send(_after(rank, began, error))
            raise
    pipe.send(Report(rank, "end", time.monotonic()))


def _fault(plan: Plan, pipe: Any, kind: int, size: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    signals = {
        "kill": signal.SIGKILL,
        "stop": signal.SIGSTOP,
        "interrupt": signal.SIGINT,
    }

    def happen() -> None:
        time.sleep(plan.delay or 0)
        pipe.send(Report(plan.victim, "fault", time.monotonic()))
        os.kill(os.getpid(), signals[plan.fault])

    if plan.fault in signals and plan.delay is None:
        happen()
    elif plan.fault in signals:
        threading.Thread(target=happen, daemon=True).start()
    else:
        pipe.send(Report(plan.victim, "fault", time.monotonic()))
    if plan.fault == "raise":
        raise ValueError("the model has failed")
    if plan.fault == "operation":
        return (kind + 1) % COMPARED, size
    if plan.fault == "size":
        return kind, (size[0] + 64, *size[1:])
    return kind, size


def _own(rank: int, size: tuple[int, ...], number: int) -> torch.Tensor:
    """What a rank gives: small whole numbers, so that no sum rounds."""
    own = torch.full(size, float(rank + number), dtype=torch.float16).to("spyre")
    torch.spyre.synchronize()
    return own


def _collective(kind: int, own: torch.Tensor, number: int) -> bool:
    """Whether the result is right."""
    values = [k + number for k in range(RANKS)]
    if kind == 0:
        dist.all_reduce(own)
        return _holds(own, sum(values))
    if kind == 1:
        dist.broadcast(own, number % RANKS)
        return _holds(own, values[number % RANKS])
    if kind == 2:
        outs = [torch.empty_like(own) for _ in range(RANKS)]
        dist.all_gather(outs, own)
        return all(map(_holds, outs, values))
    if kind == 3:
        out = torch.empty_like(own)
        dist.reduce_scatter(out, [own] * RANKS)
        return _holds(out, sum(values))
    if kind == 4:
        outs = [torch.empty_like(own) for _ in range(RANKS)]
        dist.all_to_all(outs, [own] * RANKS)
        return all(map(_holds, outs, values))
    if kind < KINDS - 1:
        return _rooted_or_ring(kind, own, number)
    future = dist.all_reduce(own, async_op=True).get_future().then(_reduced_again)
    return _holds(future.wait(), RANKS * sum(values))


def _rooted_or_ring(kind: int, own: torch.Tensor, number: int) -> bool:
    """`_collective` for the kinds in which ranks have different parts, and the barrier."""
    rank, root = dist.get_rank(), number % RANKS
    values, is_root = [k + number for k in range(RANKS)], rank == root
    if kind == 5:
        dist.reduce(own, root)
        return not is_root or _holds(own, sum(values))
    if kind == 6:
        outs = [torch.empty_like(own) for _ in range(RANKS)] if is_root else None
        dist.gather(own, outs, root)
        return outs is None or all(map(_holds, outs, values))
    if kind == 7:
        out = torch.empty_like(own)
        dist.scatter(out, [own + k for k in range(RANKS)] if is_root else None, root)
        return _holds(out, values[root] + rank)
    if kind == 8:
        dist.barrier()
        return _holds(own, values[rank])
    out = torch.empty_like(own)
    send = dist.P2POp(dist.isend, own, (rank + 1) % RANKS)
    receive = dist.P2POp(dist.irecv, out, (rank - 1) % RANKS)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return _holds(out, values[rank - 1])


def _reduced_again(future: Any) -> torch.Tensor:
    """A callback that calls a collective."""
    (own,) = future.value()
    dist.all_reduce(own)
    return own


def _holds(tensor: torch.Tensor, value: int) -> bool:
    return bool((tensor.cpu() == value).all())


def _after(rank: int, began: float, error: Exception) -> Report:
    """The group is dead, the card is not; ending the group does not take long."""
    failed_at, again = time.monotonic(), "nothing"
    x = torch.ones(70, dtype=torch.float16, device="spyre")
    try:
        dist.all_reduce(x)
    except dist.DistBackendError as second:
        again = str(second)
    if not _holds(x + 1, 2):
        return Report(rank, "wrong", failed_at, began, "the card after the failure")
    start = time.monotonic()
    dist.destroy_process_group()
    return Report(rank, "error", failed_at, began, str(error), again, time.monotonic() - start)
