"""`CardGroup`: the collectives of one process group on one rank, run in the order of their calls.

A call checks its tensors, records an event on the caller's stream, and returns a ``Work``; a thread
of the group waits for the event, runs the collective and completes the work. A synchronous call
with no earlier call pending runs on the calling thread, because two thread switches would take
longer than a small collective. Point-to-point operations have a thread per peer and direction, so
that two ranks that both send first do not block each other. Errors also complete the work; since
torch's ``Work`` of a future does not raise, `wait` and `wait_tensor` check for them
(`spyre.torch_backend.distributed.compat.wrap_work_wait`).
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spyre import config
from spyre.errors import SpyreError
from spyre.runtime.comms import (
    ALGORITHMS,
    CollectiveError,
    CollectiveRecord,
    Communicator,
    Deadline,
    MessageTransport,
    Pending,
    Transport,
    join_processes,
)
from spyre.runtime.flex import ControlBlock, MemoryRange, RecordedBlock
from spyre.torch_backend.device import Stream, card_at, current_stream
from spyre.torch_backend.distributed import compat
from spyre.torch_backend.distributed.images import Bytes
from spyre.torch_backend.tensors import DeviceBuffer, buffer_of

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

Job = Callable[[Deadline], None]
TRANSPORTS = ("auto", "shm", "gloo")
COLLECTIVES = "collectives"
"""The lane of all operations except point-to-point ones."""

_groups: dict[tuple[str, int], CardGroup] = {}
_failures: weakref.WeakKeyDictionary[DeviceBuffer, Exception] = weakref.WeakKeyDictionary()
"""Errors by the buffer that the failed operation should have written; see `raise_failure_of`."""


class CollectiveFailure(dist.DistBackendError):  # type: ignore[misc]
    """The error that `Work.wait` raises; its text has the code."""


@dataclass(slots=True)
class _Call:
    """One operation, passed from the thread that issued it to the one that runs it."""

    name: str
    tensors: list[torch.Tensor]
    job: Job
    result: list[torch.Tensor]
    future: Any
    events: list[Any]
    timeout: float
    done: threading.Event = field(default_factory=threading.Event)
    work: Any = None


class CardGroup:
    """One rank of a group on backend spyreccl.

    ``options``: torch's ``_DistributedBackendOptions``; ``gloo``: the backend object that torch
    keeps, used for point-to-point operations. Raises CollectiveError SPY959 for an unknown
    transport or algorithm.
    """

    def __init__(self, options: Any, gloo: Any) -> None:
        self.rank: int = options.group_rank
        self.size: int = options.group_size
        self.timeout: float = options.timeout.total_seconds()
        self.gloo = gloo
        algorithm = _choice("COLL_ALLREDUCE_ALGO", config.ALLREDUCE_ALGORITHM.read(), ALGORITHMS)
        self.name = str(options.group_id)
        self.communicator = Communicator(_join(options), algorithm, self.note)
        self._running = threading.local()
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()

    def submit(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        job: Job,
        result: Sequence[torch.Tensor],
        timeout_ms: int = -1,
        lane: str = COLLECTIVES,
        *,
        is_async: bool = True,
    ) -> Any:
        """Return a torch ``Work``, boxed, for ``job``, which reads and writes ``tensors``.

        Does not block if ``is_async``. Otherwise the caller waits next, and this may run the job
        and raise its error.
        """
        for tensor in tensors:
            check_tensor(name, tensor)
        if lane == COLLECTIVES:
            try:
                self.communicator.check()
            except SpyreError as error:
                raise CollectiveFailure(str(error)) from None
        timeout = self.timeout if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1e3
        future: Any = torch.futures.Future()
        events = [current_stream(index).record_event() for index in _cards(tensors)]
        call = _Call(name, list(tensors), job, list(result), future, events, timeout)
        return self._lane(lane).take(call, is_async).boxed()

    @contextmanager
    def running(self, call: _Call) -> Iterator[None]:
        """Attribute records of the calling thread within the block to ``call``."""
        self._running.call = call
        try:
            yield
        finally:
            self._running.call = None

    def note(self, record: CollectiveRecord) -> None:
        """Pass a record of the running call to the observers and to recordings of its cards."""
        for observer in _observers:
            observer(self.name, record)
        call: _Call = self._running.call
        for index in _cards(call.tensors):
            card = card_at(index)
            if card.scheduler.is_observed:
                used = [t for t in call.tensors if t.device.index == index and t.numel()]
                card.streams.current.record_block(_noted(record, self.name, card, used))

    def _lane(self, name: str) -> _Lane:
        with self._lock:
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = _Lane(name, self)
            return lane

    def close(self, patience: float = 1.0) -> None:
        """Stop the threads and close the transport; calls have ``patience`` seconds to end."""
        with self._lock:
            lanes, self._lanes = list(self._lanes.values()), {}
        for lane in lanes:
            lane.end()
        last = Deadline.after(patience)
        if not all([lane.has_ended(last) for lane in lanes]):
            self.communicator.fail(
                CollectiveError("SPY957", f"rank {self.rank} destroyed the group during a call")
            )
        self.communicator.close(last.seconds_left)


class _Lane:
    """Runs calls one at a time, in order, on the caller's thread or on a separate thread with
    separate streams, created by the first call that needs them.
    """

    def __init__(self, name: str, group: CardGroup) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._name, self._group = name, group
        self._streams: dict[int, Any] = {}
        self._is_collective = name == COLLECTIVES
        # a wait of the main thread must let Ctrl-C through
        self._may_run_here = self._is_collective and group.communicator.transport.is_interruptible
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held while a call runs
        self._unfinished = 0
        self._thread: threading.Thread | None = None

    def take(self, call: _Call, is_async: bool) -> Any:
        """Return the ``Work`` of a call, which runs after all earlier calls."""
        with self._lock:
            runs_here = self._may_run_here and not is_async and self._unfinished == 0
            self._unfinished += 1
        if runs_here:
            return self._run_here(call)
        call.work = compat.work_of_future(call.future.then(_raise_error), call.done)
        self._calls.put(call)
        with self._lock:
            if self._thread is None:
                name = f"spyreccl-{self._name}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
        return call.work

    def end(self) -> None:
        """Accept no more calls; pending ones still run."""
        self._calls.put(None)

    def has_ended(self, deadline: Deadline) -> bool:
        """Return True if all calls end before the deadline."""
        if self._thread is not None:
            self._thread.join(deadline.seconds_left)
            if self._thread.is_alive():
                return False
        return self._turn.acquire(timeout=deadline.seconds_left)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._run(call)
            # release the call's tensors before waiting for the next call
            del call

    def _run(self, call: _Call) -> None:
        try:
            for index in _cards(call.tensors):
                if index not in self._streams:
                    self._streams[index] = Stream(index)
                torch.spyre.set_stream(self._streams[index])
            for event, index in zip(call.events, _cards(call.tensors), strict=True):
                if card_at(index).scheduler.is_observed:
                    event.wait()  # records the dependence on earlier work
            self._do(call)
        except BaseException as error:
            call.future.set_result(self._failed(call, error))
        else:
            call.future.set_result(call.result)
            compat.forget_work(call.work)
        call.done.set()

    def _run_here(self, call: _Call) -> Any:
        try:
            self._do(call)
        except Exception as error:
            raise self._failed(call, error) from error
        except BaseException as interrupt:
            self._failed(call, interrupt)
            raise
        call.future.set_result(call.result)
        return compat.ended_work_of_future(call.future)

    def _do(self, call: _Call) -> None:
        try:
            # inference mode can write all tensors; tensors created in it can be written only there
            with self._turn, torch.inference_mode(), self._group.running(call):
                for event in call.events:
                    event.synchronize()
                call.job(Deadline.after(call.timeout))
        finally:
            with self._lock:
                self._unfinished -= 1

    def _failed(self, call: _Call, error: BaseException) -> CollectiveFailure:
        group = self._group
        failure = CollectiveFailure(f"{call.name} on rank {group.rank} of {group.size}: {error}")
        failure.__cause__ = error
        if self._is_collective:
            reason = f"{call.name}: {type(error).__name__}: {error}"
            own = error if isinstance(error, SpyreError) else CollectiveError("SPY957", reason)
            group.communicator.fail(own)
        for tensor in call.result:
            _failures[buffer_of(tensor)] = failure
        return failure


def _noted(
    record: CollectiveRecord, group: str, card: FlexDevice, tensors: Sequence[torch.Tensor]
) -> RecordedBlock:
    """Return the entry of a collective over ``tensors`` in recordings of a card."""
    buffers = [buffer_of(tensor) for tensor in tensors]
    laid_out = [(b.address_bytes, b.base.layout.device_bytes) for b in buffers if b.base]
    resolve = card.allocator.virtual_address
    places = tuple(MemoryRange("tensor", resolve(address)) for address, _ in laid_out)
    shown = {
        "group": group,
        "rank": record.rank,
        "ranks": record.ranks,
        "operation": record.sequence,
        "sent_bytes": list(record.sent_bytes),
        "received_bytes": list(record.received_bytes),
        "combined_bytes": record.combined_bytes,
    }
    return RecordedBlock(
        ControlBlock("collective", str(record), places, record.size_bytes),
        tuple(size_bytes for _, size_bytes in laid_out),
        record.begin_ns,
        record.end_ns,
        f"rank {record.rank} of group {group}",
        record,
        shown,
    )


Observer = Callable[[str, CollectiveRecord], object]
"""Called with the group's name and the record of a completed collective, on the thread that ran
it."""
_observers: tuple[Observer, ...] = ()


_observers_lock = threading.Lock()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` for each collective that ends in the block."""
    global _observers
    with _observers_lock:
        _observers = (*_observers, observer)
    try:
        yield
    finally:
        with _observers_lock:
            _observers = tuple(each for each in _observers if each is not observer)


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor that is not on a card, CollectiveFailure (SPY958) for a sparse
    one.
    """
    if tensor.layout != torch.strided:
        raise CollectiveFailure(
            str(CollectiveError("SPY958", f"{name} of a {tensor.layout} tensor"))
        )
    if tensor.device.type != "spyre":
        raise ValueError(f"spyreccl: {name}: expected tensors on spyre, found {tensor.device}")


def _cards(tensors: Sequence[torch.Tensor]) -> list[int]:
    return sorted({tensor.device.index or 0 for tensor in tensors})


def _raise_error(future: Any) -> Any:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def raise_failure_of(tensor: torch.Tensor) -> None:
    """Raise, once, the error of the operation that should have written ``tensor``."""
    failure = _failures.pop(buffer_of(tensor), None) if _failures else None
    if failure is not None:
        raise failure


# --- groups -----------------------------------------------------------------------------------


def create(options: Any, _: Any) -> Any:
    """Create a group on backend spyreccl; torch calls this, and keeps the returned C++ backend.

    Blocks until all ranks have joined.
    """
    from spyre.torch_backend.distributed.operators import register_operators

    register_operators()
    gloo = compat.new_gloo("spyre_p2p/", options)
    key = str(options.group_id), options.group_rank
    _groups[key] = CardGroup(options, gloo)
    if len(_groups) == 1:
        atexit.register(_close_at_exit)
    return gloo


def group_of(name: str, rank: int) -> CardGroup:
    """Return the group with the name and rank of a `ProcessGroup`."""
    return _groups[name, rank]


def live_groups() -> list[CardGroup]:
    """Return the groups that are not destroyed."""
    return list(_groups.values())


def close_group(name: str, rank: int) -> None:
    """Close a group that is being destroyed, if its backend is spyreccl."""
    group = _groups.pop((name, rank), None)
    if group is not None:
        group.close()


def close_all(patience: float = 1.0) -> None:
    """Close all groups; see `CardGroup.close`."""
    while _groups:
        _, group = _groups.popitem()
        group.close(patience)


def _close_at_exit() -> None:
    # after an error or Ctrl-C, the other ranks are notified at once
    close_all(0.0 if getattr(sys, "last_value", None) is not None else 1.0)


# --- transports -------------------------------------------------------------------------------


def _choice(variable: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise CollectiveError(
            "SPY959", f"{variable} has an unknown value", expected=", ".join(allowed), found=value
        )
    return value


def _join(options: Any) -> Transport:
    """Return the transport of a group: shared memory if all ranks can share it, else gloo messages.

    Keys are numbered, because a group can be created again with the same store, after a failure.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    number = store.add(f"spyreccl/{rank}", 1)
    numbered = dist.PrefixStore(f"spyreccl/{number}/", store)
    kind = _choice("SPYRECCL_TRANSPORT", config.CCL_TRANSPORT.read(), TRANSPORTS)
    shared = join_processes(numbered, rank, size) if kind in ("auto", "shm") else None
    if shared is not None:
        return shared
    if kind == "shm":
        raise CollectiveError(
            "SPY959",
            "SPYRECCL_TRANSPORT is shm, and the ranks cannot share memory",
            expected="all ranks on one machine, as one user",
            found=f"rank {rank} cannot access all others",
        )
    gloo = compat.new_gloo(f"spyreccl/{number}/", options)
    return MessageTransport(GlooMessages(gloo), rank, size)


class GlooMessages:
    """Messages through a separate gloo backend, whose close the other ranks detect."""

    def __init__(self, gloo: Any) -> None:
        self._gloo = gloo
        self._is_closed = False

    def send(self, content: Bytes, rank: int, tag: int) -> Pending:
        tensor = torch.from_numpy(content)
        return partial(_wait, self._gloo.send([tensor], rank, tag), tensor)

    def receive(self, content: Bytes, rank: int, tag: int) -> Pending:
        tensor = torch.from_numpy(content)
        return partial(_wait, self._gloo.recv([tensor], rank, tag), tensor)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._gloo.abort()


def _wait(work: Any, tensor: torch.Tensor, seconds: float) -> bool:
    """Wait for a message; ``tensor``: its memory, which must live as long."""
    work.wait(compat.milliseconds(seconds))
    return True
