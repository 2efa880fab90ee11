"""`CardGroup`: the collectives of one process group on one rank, run in the order of their calls.

A call checks its tensors, records an event on the caller's stream, and returns a ``Work``; a thread
of the group waits for the event, runs the collective and completes the work. A synchronous call
with no earlier call pending runs on the calling thread, because two thread switches would take
longer than a small collective. Point-to-point operations have a thread per peer, direction and tag,
so that they are matched by tag in any order. Callbacks of futures run on other threads, and their
collectives through other channels (`spyre.torch_backend.distributed.threads`). Errors also complete
the work; since torch's ``Work`` of a future does not raise, `wait` and `wait_tensor` check for them
(`spyre.torch_backend.distributed.compat.wait`).
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

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
    agree_on_name,
    join_processes,
)
from spyre.runtime.flex import ControlBlock, MemoryRange, RecordedBlock
from spyre.torch_backend.device import card_at, current_stream, set_stream
from spyre.torch_backend.distributed import compat
from spyre.torch_backend.distributed.images import Bytes
from spyre.torch_backend.distributed.threads import (
    Completion,
    OrderedThreads,
    thread_path,
    use_own_streams,
)
from spyre.torch_backend.tensors import DeviceBuffer, buffer_of

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

Job = Callable[[], None]
TRANSPORTS = ("auto", "shm", "gloo")

_groups: dict[Any, CardGroup] = {}
"""By the backend object that torch keeps."""
_failures: weakref.WeakKeyDictionary[DeviceBuffer, Exception] = weakref.WeakKeyDictionary()
"""Errors by the buffer that the failed operation should have written; see `raise_failure_of`."""


class CollectiveFailure(dist.DistBackendError):  # type: ignore[misc]
    """The error that `Work.wait` raises; its text has the code."""


@dataclass(slots=True)
class _Call:
    """One operation, passed from the thread that issued it to the one that runs it.

    ``result``: the value of its future, tensors that it writes or lists of them. ``channel``: None
    for point-to-point operations. ``streams``: the caller's, by card. ``deadline``: while it runs.
    """

    name: str
    tensors: Sequence[torch.Tensor]
    job: Job
    result: list[Any]
    channel: _Channel | None
    timeout: float
    completion: Completion
    streams: list[Any]
    events: list[Any]
    future: Any = field(default_factory=torch.futures.Future)
    work: Any = None
    deadline: Deadline = field(init=False)


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
        self.name = str(options.group_id)
        self.threads = OrderedThreads()
        self._options = options
        self._algorithm = _choice(
            "COLL_ALLREDUCE_ALGO", config.ALLREDUCE_ALGORITHM.read(), ALGORITHMS
        )
        self._local = threading.local()
        self._channels = {"": self._new_channel("")}

    def submit(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        job: Job,
        result: list[Any],
        timeout_ms: int = -1,
        lane: str = "",
        *,
        is_async: bool = True,
    ) -> Any:
        """Return a torch ``Work``, boxed, for ``job``, which reads and writes ``tensors``.

        ``lane``: the thread of a point-to-point operation, empty for collectives. Does not block
        if ``is_async``. Otherwise the caller waits next, and this may run the job and raise its
        error.
        """
        for tensor in tensors:
            check_tensor(name, tensor)
        channel = None if lane else self._usable_channel(thread_path())
        timeout = self.timeout if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1e3
        cards = sorted({tensor.device.index or 0 for tensor in tensors})
        streams = [current_stream(index) for index in cards]
        events = [stream.record_event() for stream in streams]
        completion = Completion(self.threads, self.name, cards, lane and f"/{lane}")
        call = _Call(name, tensors, job, result, channel, timeout, completion, streams, events)
        if channel is not None and channel.begins_here(is_async):
            return self._run_here(call).boxed()
        call.work = work = compat.work_of_future(call.future.then(_raise_error), completion)
        key = lane if channel is None else f"collectives{channel.path}"
        self.threads.put(key, f"{completion.callback_path}/inline", partial(self._run, call))
        return work.boxed()

    def coalesced(self, works: Sequence[Any]) -> Any:
        """Return a ``Work``, boxed, that completes with all of ``works``."""

        def wait_for_all() -> None:
            for work in works:
                work.wait()

        return self.submit("coalesced operations", [], wait_for_all, [], lane="coalesced")

    @property
    def communicator(self) -> Communicator:
        """The communicator of the call that the calling thread runs."""
        communicator: Communicator = self._local.call.channel.communicator
        return communicator

    @property
    def deadline(self) -> Deadline:
        """The deadline of the call that the calling thread runs."""
        deadline: Deadline = self._local.call.deadline
        return deadline

    def note(self, record: CollectiveRecord) -> None:
        """Pass a record of the running call to the observers and to recordings of its cards."""
        for observer in _observers:
            observer(self.name, record)
        call: _Call = self._local.call
        for index in call.completion.cards:
            card = card_at(index)
            if card.scheduler.is_observed:
                used = [t for t in call.tensors if t.device.index == index and t.numel()]
                card.streams.current.record_block(_noted(record, self.name, card, used))

    def fail(self, reason: SpyreError) -> None:
        """Mark the group as failed and notify the other ranks."""
        for channel in list(self._channels.values()):
            channel.communicator.fail(reason)

    def _new_channel(self, path: str) -> _Channel:
        """Connect with the channels of this path of the other ranks; blocks until they do so."""
        return _Channel(path, Communicator(_join(self._options, path), self._algorithm, self.note))

    def _usable_channel(self, path: str) -> _Channel:
        """Return the channel of a path. CollectiveFailure SPY956 if the group has failed."""
        try:
            self._channels[""].communicator.check()
        except SpyreError as error:
            raise CollectiveFailure(str(error)) from None
        if path not in self._channels:  # no other thread has this path
            self._channels[path] = self._new_channel(path)
        return self._channels[path]

    def _run(self, call: _Call) -> None:
        cards = call.completion.cards
        try:
            use_own_streams(cards)
            for event, index in zip(call.events, cards, strict=True):
                if card_at(index).scheduler.is_observed:
                    event.wait()  # records the dependence on earlier work
            self._do(call)
        except BaseException as error:
            value: Any = self._failed(call, error)
        else:
            value = call.result
        # callbacks that C++ added run here; work after them is in order on the caller's streams
        for stream in call.streams:
            set_stream(stream)
        call.future.set_result(value)
        call.work = None
        call.completion.done.set()

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
        # inference mode can write all tensors; tensors created in it can be written only there
        turn = nullcontext() if call.channel is None else call.channel.turn()
        with turn, torch.inference_mode():
            for event in call.events:
                event.synchronize()
            call.deadline, self._local.call = Deadline.after(call.timeout), call
            if call.channel is not None:
                call.channel.communicator.deadline = call.deadline
            try:
                call.job()
            finally:
                self._local.call = None

    def _failed(self, call: _Call, error: BaseException) -> CollectiveFailure:
        failure = CollectiveFailure(f"{call.name} on rank {self.rank} of {self.size}: {error}")
        failure.__cause__ = error
        if call.channel is not None:
            reason = f"{call.name}: {type(error).__name__}: {error}"
            own = error if isinstance(error, SpyreError) else CollectiveError("SPY957", reason)
            self.fail(own)
        for tensor in tree_leaves(call.result):
            _failures[buffer_of(tensor)] = failure
        return failure

    def close(self, patience: float = 1.0) -> None:
        """Stop the threads and close the transports; calls have ``patience`` seconds to end."""
        last = Deadline.after(patience)
        channels = list(self._channels.values())
        if not all([self.threads.end(last), *(channel.has_ended(last) for channel in channels)]):
            self.fail(
                CollectiveError("SPY957", f"rank {self.rank} destroyed the group during a call")
            )
        for channel in channels:
            channel.communicator.close(last.seconds_left)


class _Channel:
    """The collectives that are called outside of callbacks, or in those of one path, in order."""

    def __init__(self, path: str, communicator: Communicator) -> None:
        self.path, self.communicator = path, communicator
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held while a call runs
        self._unfinished = 0

    def begins_here(self, is_async: bool) -> bool:
        """Register a call; return True if it should run at once, on the calling thread."""
        # a wait of the main thread, which runs no callbacks, must let Ctrl-C through
        may_run = bool(self.path) or self.communicator.transport.is_interruptible
        with self._lock:
            self._unfinished += 1
            return may_run and not is_async and self._unfinished == 1

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run a registered call in the block, alone."""
        try:
            with self._turn:
                yield
        finally:
            with self._lock:
                self._unfinished -= 1

    def has_ended(self, deadline: Deadline) -> bool:
        """Return True if the running call ends before the deadline."""
        return self._turn.acquire(timeout=deadline.seconds_left)


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
    return open_group(options)


def open_group(options: Any) -> Any:
    """Create a group whose operators are registered; see `create`.

    Without ``group_id`` it gets the name of the process group that first uses it.
    """
    rank, seconds = options.group_rank, options.timeout.total_seconds()
    name = agree_on_name(options.store, rank, options.group_size, seconds)
    options.store = dist.PrefixStore(name, options.store)
    gloo = compat.new_gloo("spyre_p2p/", options.store, options)
    _groups[gloo] = CardGroup(options, gloo)
    if len(_groups) == 1:
        atexit.register(_close_at_exit)
    return gloo


def group_of(process_group: Any) -> CardGroup:
    """Return the group behind a `ProcessGroup` with cards, which may be a script object."""
    backend, name = compat.backend_of_cards(process_group)
    group = _groups[backend]
    group.name = group.name or name
    return group


def live_groups() -> list[CardGroup]:
    """Return the groups that are not destroyed."""
    return list(_groups.values())


def close_group(process_group: Any) -> None:
    """Close a group that is being destroyed, if its backend is spyreccl."""
    group = _groups.pop(compat.backend_of_cards(process_group)[0], None)
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


def _join(options: Any, path: str) -> Transport:
    """Return shared memory if all ranks can share it, else gloo; ``path``: see `_Channel`."""
    # another thread may be waiting for a key, which blocks all other users of the same store
    store = dist.PrefixStore(path[1:], options.store.clone()) if path else options.store
    rank, size = options.group_rank, options.group_size
    kind = _choice("SPYRECCL_TRANSPORT", config.CCL_TRANSPORT.read(), TRANSPORTS)
    shared = join_processes(store, rank, size) if kind in ("auto", "shm") else None
    if shared is not None:
        return shared
    if kind == "shm":
        raise CollectiveError(
            "SPY959",
            "SPYRECCL_TRANSPORT is shm, and the ranks cannot share memory",
            expected="all ranks on one machine, as one user",
            found=f"rank {rank} cannot access all others",
        )
    gloo = compat.new_gloo("spyreccl/", store, options)
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
