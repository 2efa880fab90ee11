"""The process of a rank: it checks the results of collectives until one of the ranks fails."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from spyre.torch_backend.distributed.group import live_groups

RANKS = 3
TIMEOUT = 2.0
"""Timeout of the group once its cards are ready, in seconds on an idle machine."""
START_TIMEOUT = 300
LARGE = (1000, 130)
SIZES = ((48,), (70,), (3, 130), LARGE, (1 << 20,))
FAULTS = ("kill", "stop", "raise", "operation", "size", "interrupt")
NO_FAULT = "none"
RESTARTED = 0.25
"""Share of the runs whose job is started again with its store."""


@dataclass(frozen=True)
class Plan:
    """One run. ``at``, ``collective``: number and name of the operation at which the fault happens.
    ``delay``: seconds after which another thread of the victim causes it; None: before the
    operation. ``restarts``: the job is started again afterwards. ``patience``: factor of all time
    limits.
    """

    seed: int
    transport: str
    fault: str
    victim: int
    at: int
    collective: str
    delay: float | None
    restarts: bool
    patience: float

    @classmethod
    def of(cls, seed: int, patience: float) -> Plan:
        """Draw the plan of a seed."""
        chosen = random.Random(seed)
        fault = chosen.choice(FAULTS)
        delay = chosen.choice((None, chosen.random() * 0.01))
        if fault not in ("kill", "stop", "interrupt"):
            delay = None
        transport = chosen.choice(("shm", "shm", "shm", "gloo"))
        names = {"operation": COMPARED, "size": COMPARED[:-1]}.get(fault, tuple(COLLECTIVES))
        victim, at = chosen.randrange(RANKS), chosen.randrange(1, 8)
        name, restarts = chosen.choice(names), chosen.random() < RESTARTED
        return cls(seed, transport, fault, victim, at, name, delay, restarts, patience)


@dataclass(frozen=True)
class Report:
    """An event at a rank. ``kind``: ``fault`` (the victim's), ``error``, ``wrong`` or ``end``.

    ``at``, ``began``: seconds on the machine's monotonic clock; ``began``: of the failed operation.
    """

    rank: int
    kind: str
    at: float
    began: float = 0.0
    text: str = ""
    again: str = ""
    destroyed_after: float = 0.0


def work(plan: Plan, rank: int, port: int, pipe: Any) -> None:
    """Run the process of a rank; an uncaught error ends it, as it would end any program.

    ``port``: of the store, which keeps the keys of an earlier attempt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["SPYRECCL_TRANSPORT"] = plan.transport

    torch.set_num_threads(1)
    dist.init_process_group(
        "spyreccl",
        store=dist.TCPStore("127.0.0.1", port, is_master=False),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=START_TIMEOUT),
    )
    operations = random.Random(plan.seed + 1)
    for name in (plan.collective, "callback"):
        _is_right(name, _own(rank, LARGE, 0), 0)
    # cards and kernels are ready: the short timeout suffices from here on
    for group in live_groups():
        group.timeout = TIMEOUT * plan.patience
    for number in range(1, 12):
        name, size = operations.choice(tuple(COLLECTIVES)), operations.choice(SIZES)
        is_faulty = number == plan.at and plan.fault != NO_FAULT
        name = plan.collective if is_faulty else name
        began = time.monotonic()
        try:
            if is_faulty and rank == plan.victim:
                name, size = _fault(plan, pipe, size)
            own = _own(rank, size, number)
            began = time.monotonic()
            if not _is_right(name, own, number):
                pipe.send(Report(rank, "wrong", time.monotonic(), began, f"{name} {size}"))
        except RuntimeError as error:
            pipe.send(_after(rank, began, error))
            raise
    pipe.send(Report(rank, "end", time.monotonic()))


def _fault(plan: Plan, pipe: Any, size: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Fail now, start a thread that fails later, or return another collective or size to call."""
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
        return COMPARED[(COMPARED.index(plan.collective) + 1) % len(COMPARED)], size
    if plan.fault == "size":
        return plan.collective, (size[0] + 64, *size[1:])
    return plan.collective, size


def _own(rank: int, size: tuple[int, ...], number: int) -> torch.Tensor:
    """Return a rank's operand."""
    own = _content(size, rank + number).to("spyre")
    torch.spyre.synchronize()
    return own


def _content(size: tuple[int, ...], number: int) -> torch.Tensor:
    """Return small whole numbers, so that no sum rounds, that differ from their neighbours."""
    return (torch.arange(math.prod(size)) % 7 + number).reshape(size).half()


Check = Callable[[torch.Tensor, list[torch.Tensor], int], bool]
"""Calls a collective on this rank's tensor, given the tensors of all ranks and a root; returns True
if the result is right."""


def _all_reduce(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    dist.all_reduce(own)
    return _holds(own, sum(values))


def _broadcast(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    dist.broadcast(own, root)
    return _holds(own, values[root])


def _all_gather(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    outs = [torch.empty_like(own) for _ in values]
    dist.all_gather(outs, own)
    return all(map(_holds, outs, values))


def _all_gather_single(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    whole = torch.cat([torch.empty_like(own) for _ in values])
    dist.all_gather_into_tensor(whole, own)
    return all(map(_holds, whole.chunk(RANKS), values))


def _reduce_scatter(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    out = torch.empty_like(own)
    dist.reduce_scatter(out, [own] * RANKS)
    return _holds(out, sum(values))


def _reduce_scatter_single(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    out = torch.empty_like(own)
    dist.reduce_scatter_tensor(out, torch.cat([own + k for k in range(RANKS)]))
    return _holds(out, sum(values) + RANKS * dist.get_rank())


def _all_to_all(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    outs = [torch.empty_like(own) for _ in values]
    dist.all_to_all(outs, [own] * RANKS)
    return all(map(_holds, outs, values))


def _all_to_all_single(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    out = torch.cat([torch.empty_like(own) for _ in values])
    dist.all_to_all_single(out, torch.cat([own + k for k in range(RANKS)]))
    return all(map(_holds, out.chunk(RANKS), [value + dist.get_rank() for value in values]))


def _reduce(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    dist.reduce(own, root)
    return dist.get_rank() != root or _holds(own, sum(values))


def _gather(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    outs = [torch.empty_like(own) for _ in values] if dist.get_rank() == root else None
    dist.gather(own, outs, root)
    return outs is None or all(map(_holds, outs, values))


def _scatter(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    out = torch.empty_like(own)
    parts = [own + k for k in range(RANKS)] if dist.get_rank() == root else None
    dist.scatter(out, parts, root)
    return _holds(out, values[root] + dist.get_rank())


def _barrier(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    dist.barrier()
    return _holds(own, values[dist.get_rank()])


def _coalesced(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    """Two operations that torch joins into one operation on several tensors."""
    other = own + 1
    with dist._coalescing_manager():
        dist.all_reduce(own)
        dist.all_reduce(other)
    return _holds(own, sum(values)) and _holds(other, sum(values) + RANKS)


def _coalesced_on_a_card(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    """Operations of different kinds that share one work object."""
    whole = torch.cat([torch.empty_like(own) for _ in values])
    outs = [torch.empty_like(own) for _ in values]
    with dist._coalescing_manager(device=own.device, async_ops=True) as manager:
        dist.all_gather(outs, own)
        dist.all_gather_into_tensor(whole, own)
    manager.wait()
    return all(map(_holds, (*outs, *whole.chunk(RANKS)), values * 2))


def _all_gather_objects(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    """Objects of unequal sizes."""
    objects = [[float(value.sum())] * (1 + 500 * k) for k, value in enumerate(values)]
    outs: list[Any] = [None] * RANKS
    dist.all_gather_object(outs, objects[dist.get_rank()])
    return outs == objects


def _broadcast_objects(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    objects: list[Any] = [float(values[root].sum()), {"root": root}]
    outs = objects if dist.get_rank() == root else [None, None]
    dist.broadcast_object_list(outs, root)
    return outs == objects


def _messages_in_a_ring(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    rank, out = dist.get_rank(), torch.empty_like(own)
    send = dist.P2POp(dist.isend, own, (rank + 1) % RANKS)
    receive = dist.P2POp(dist.irecv, out, (rank - 1) % RANKS)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return _holds(out, values[rank - 1])


def _callback(own: torch.Tensor, values: list[torch.Tensor], root: int) -> bool:
    """A callback that calls another collective."""
    future = dist.all_reduce(own, async_op=True).get_future().then(_reduced_again)
    return _holds(future.wait(), RANKS * sum(values))


COLLECTIVES: dict[str, Check] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_single,
    "reduce": _reduce,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "gather": _gather,
    "all_to_all_single": _all_to_all_single,
    "scatter": _scatter,
    "coalesced": _coalesced,
    "coalesced on a card": _coalesced_on_a_card,
    "barrier": _barrier,
    "all_gather_object": _all_gather_objects,
    "broadcast_object_list": _broadcast_objects,
    "messages": _messages_in_a_ring,
    "callback": _callback,
}
COMPARED = tuple(COLLECTIVES)[: list(COLLECTIVES).index("barrier") + 1]
"""Collectives whose names all ranks compare, and, except for the last, sizes (SPY952)."""


def _is_right(name: str, own: torch.Tensor, number: int) -> bool:
    values = [_content(tuple(own.shape), k + number) for k in range(RANKS)]
    return COLLECTIVES[name](own, values, number % RANKS)


def _reduced_again(future: Any) -> torch.Tensor:
    """A callback that calls a collective."""
    (own,) = future.value()
    dist.all_reduce(own)
    return own


def _holds(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(tensor.cpu(), expected)


def _after(rank: int, began: float, error: Exception) -> Report:
    """Check after ``error`` that the group fails, the card computes, and destroying is quick."""
    failed_at, again = time.monotonic(), "nothing"
    x = torch.ones(70, dtype=torch.float16, device="spyre")
    try:
        # torch only notes an all_reduce after an error within `_coalescing_manager`
        dist.barrier()
    except dist.DistBackendError as second:
        again = str(second)
    if not _holds(x + 1, torch.full((70,), 2.0, dtype=torch.float16)):
        return Report(rank, "wrong", failed_at, began, "the card after the failure")
    start = time.monotonic()
    dist.destroy_process_group()
    return Report(rank, "error", failed_at, began, str(error), again, time.monotonic() - start)
