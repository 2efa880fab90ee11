"""The threads of a process group: jobs that run in order, and the callbacks of futures.

The ranks of a group must call its collectives in one order, also those that callbacks call. A
future of torch runs a callback on whichever thread comes last: the one that completes the future,
or the one that calls `then`. Here callbacks run on a separate thread, in the order of the calls
of `then`, and that thread's collectives are exchanged beside those of other threads: `thread_path`
is equal on all ranks, however late one of them is. So a callback may call collectives and wait for
them, and a collective never waits for a callback.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from spyre.runtime.comms import Deadline
from spyre.torch_backend.device import Stream, current_stream, set_stream

IDLE_SECONDS = 5.0
"""A thread without jobs ends after this time; the end of the process waits as long for jobs."""
_busy: set[int] = set()
"""Threads that run a job."""
os.register_at_fork(after_in_child=_busy.clear)


@atexit.register
def _wait_for_jobs() -> None:
    # Python ends a daemon thread when it returns from torch, and its C++ aborts the process.
    last = Deadline.after(IDLE_SECONDS)
    while _busy and last.seconds_left > 0:
        time.sleep(0.001)


_local = threading.local()
"""``path``: of a thread of this module; ``streams``: by card, those that belong to the thread."""


def thread_path() -> str:
    """Return the callback that this thread runs, as a path of groups; empty for other threads."""
    return getattr(_local, "path", "")


def use_own_streams(cards: Sequence[int]) -> None:
    """Make streams that belong to this thread current, one per card."""
    streams = vars(_local).setdefault("streams", {})
    for index in cards:
        if index not in streams:
            streams[index] = Stream(index)
        set_stream(streams[index])


class OrderedThreads:
    """Daemon threads by key, each of which runs its jobs one after another, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, tuple[queue.SimpleQueue[Any], threading.Thread]] = {}

    def put(self, key: str, path: str, job: Callable[[], None]) -> None:
        """Run ``job``, which raises nothing, behind all jobs of this key, on a thread of ``path``.

        A key has one path.
        """
        with self._lock:
            if key not in self._running:
                jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
                thread = threading.Thread(target=self._serve, args=(key, path, jobs), daemon=True)
                thread.name = f"spyreccl-{key}"
                self._running[key] = jobs, thread
                thread.start()
            self._running[key][0].put(job)

    def _serve(self, key: str, path: str, jobs: queue.SimpleQueue[Any]) -> None:
        _local.path = path
        while True:
            try:
                job = jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if jobs.empty():
                        self._running.pop(key, None)
                        return
                continue
            if job is None:
                return
            _busy.add(threading.get_ident())
            job()
            del job  # and its tensors, before waiting for the next one
            _busy.discard(threading.get_ident())

    def end(self, deadline: Deadline) -> bool:
        """End all threads behind their jobs; return False if one still runs at the deadline."""
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for jobs, _ in running:
            jobs.put(None)
        for _, thread in running:
            thread.join(deadline.seconds_left)
        return not any(thread.is_alive() for _, thread in running)


class Completion(msgspec.Struct, eq=False):
    """The end of an operation or of a callback, and where its callbacks run.

    ``group``, ``lane``: name of the group, and of its thread for messages, or empty. ``cards``: of
    the tensors.
    """

    threads: OrderedThreads
    group: str
    cards: Sequence[int]
    lane: str = ""
    done: threading.Event = msgspec.field(default_factory=threading.Event)

    @property
    def callback_path(self) -> str:
        """The path of the thread that runs callbacks which the calling thread adds."""
        return f"{thread_path()}/{self.group}{self.lane}"

    def then(self, start: Callable[[], None]) -> Completion:
        """Call ``start`` on the callback thread after this and all earlier callbacks; return the
        completion of the call.
        """
        after = Completion(self.threads, self.group, self.cards, self.lane)

        def run() -> None:
            self.done.wait()
            start()
            after.done.set()

        path = self.callback_path
        self.threads.put(f"callbacks{path}", path, run)
        return after

    def ordered(self, callback: Callable[[Any], Any], future: Any) -> Callable[[Any], Any]:
        """Return a function that calls ``callback(future)`` behind the work that the caller's
        streams have now, and returns once the callback's own work has ended.
        """
        events = [current_stream(index).record_event() for index in self.cards]
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def call(_: Any) -> Any:
            use_own_streams(self.cards)
            for event in events:
                event.synchronize()
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                value = callback(future)
            for index in self.cards:
                current_stream(index).synchronize()
            return value

        return call
