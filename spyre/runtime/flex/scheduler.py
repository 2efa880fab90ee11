"""The scheduler: runs the units that `Scheduling` selects, on worker threads and waiting threads.

An engine is a token, not a thread: the thread that runs a unit holds the engines it needs. A thread
that waits for work runs units itself, so waiting for a launch right after its submission costs no
thread switch. Worker threads run the remaining work: large work at once, small work when submission
pauses. They end when idle.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from spyre.errors import LaunchError
from spyre.hw.cost import VirtualClock
from spyre.interrupts import interrupts
from spyre.runtime.flex.scheduling import (
    WHOLE,
    Engine,
    Policy,
    Scheduling,
    StreamQueue,
    Work,
    WorkUnit,
    label_text,
)

THREADS = 2
"""Maximum number of worker threads: one for the cores, one that prepares or copies meanwhile."""
IDLE_SECONDS = 2.0
"""Time after which an idle worker thread ends."""
DOZE_SECONDS = 0.0005
"""Delay before a worker thread picks up small work. A thread that calls `synchronize` runs it
itself, which is cheaper than a wake-up per launch. The delay doubles after each empty poll, because
polling takes the GIL from the submitting thread. So small work begins, at the latest, after as much
time as its submission took.
"""
DOZES = 6
"""Empty polls after which a worker thread sleeps until it is woken."""

STUCK_SECONDS = 0.25
"""Time between two checks of a callback that waits whether any unit can still run."""

PAUSE_SECONDS = 0.0003
"""Pause in the submission of small work after which worker threads run it. Earlier, they would
compete with the submitting thread for the GIL, which makes both slower.
"""
MAX_BACKLOG = 512
"""Works that may wait for such a pause; they keep memory of deleted tensors alive."""

Observer = Callable[[WorkUnit, int, int, BaseException | None], None]
"""Called under the lock after every unit: the unit, host clock at begin and end (ns), exception."""


class _Callbacks(threading.local):
    """``running``: the number of callbacks that the thread runs, one within the other."""

    running = 0


class Scheduler:
    """Dispatches the streams of one card. All methods may be called from any thread."""

    def __init__(self, policy: Policy = Policy.SERIALISED) -> None:
        # Guards the state and the counters below. Held for short bookkeeping only: never while a
        # unit runs, memory is freed or a callback is called, since all of these may submit.
        self._lock = threading.Lock()
        self.policy = policy
        self._state = Scheduling(policy)
        # Both deques are filled and emptied without the lock: append and popleft are atomic.
        self._finished = self._state.finished
        self._inbox: deque[Work] = deque()
        # Each resting thread blocks on its own lock. To wake it, another thread removes the lock
        # from one of these lists and releases it, so each is woken once.
        self._waiting: list[threading.Lock] = []
        self._idle: list[threading.Lock] = []
        self._dozing: list[threading.Lock] = []
        self._threads = 0  # live worker threads, running or resting
        self._running = 0  # units that run now
        self._large = 0  # large units that run now
        self._helpers = 0  # waiting threads that run units themselves
        self._callbacks = _Callbacks()
        self._waiting_callbacks = 0  # units that run now and are callbacks that sleep
        self._small_came = 0.0  # time of the last small submission, s
        self._large_came = False  # large work came, and workers have not run out of work since
        self._closed = False
        self._virtual: tuple[int, VirtualTime] | None = None
        self._virtual_owner = threading.Lock()
        self.observer: Observer | None = None
        _SCHEDULERS.add(self)

    @property
    def recovers(self) -> bool:
        """True if failing work does not fail its stream, so that later work runs."""
        return self._state.recovers

    @recovers.setter
    def recovers(self, recovers: bool) -> None:
        self._state.recovers = recovers

    # --- work ------------------------------------------------------------------------------------

    def submit(self, stream: StreamQueue, work: Work) -> None:
        """Append ``work`` to a stream and return at once.

        StreamError SPY870 if the stream has failed and streams do not recover. Takes no lock that a
        running unit could hold: the work goes to an inbox, which is emptied before the next unit is
        selected.
        """
        if stream.failure is not None and not self._state.recovers:
            raise stream.refusal() from stream.error
        work.stream = stream
        with stream.lock:  # `last` and the inbox agree on the order
            # In this order: an interrupt in between must not leave work that is never run.
            self._inbox.append(work)
            stream.last = work
        if work.is_large:
            self._large_came = True
        else:
            self._small_came = time.monotonic()
        # The thread that runs a small unit checks the inbox soon, when the unit ends.
        if self._running > self._large:
            return
        # No lock is needed: the work is in the inbox already, and a thread that goes to sleep first
        # adds itself to the idle list and then checks the inbox, so one of the two sees the other.
        # A dozing thread polls soon; it is woken for large work only.
        if not self._threads or self._idle or (self._dozing and work.is_large):
            self._wake(work.is_large)

    def _empty_inbox(self) -> None:
        """Move work from the inbox to the state; call it under the lock."""
        inbox = self._inbox
        while inbox:
            work = inbox.popleft()
            self._state.submit(work.stream, work)

    def step(self) -> bool:
        """Run one unit in this thread; False if there was nothing to run."""
        with self._lock:
            unit = self._take()
        if unit is None:
            return False
        self._run(unit)
        return True

    def _take(self) -> WorkUnit | None:
        """The next unit, counted as running; call it under the lock."""
        if self._inbox:
            self._empty_inbox()
        unit = self._state.next_unit()
        if unit is None:
            self._large_came = False
        else:
            self._running += 1
            self._large += unit.work.is_large
        return unit

    def _run(self, unit: WorkUnit) -> None:
        """Run a unit from `_take`. Raises only exceptions that are no Exception (interrupts)."""
        if unit.work.is_large and self._state.pending > 1:
            self._wake()  # a second thread may prepare or copy beside it
        observed = unit.stage != WHOLE
        begin = self._state.clock() if observed else 0
        error: BaseException | None = None
        try:
            unit.run()
        except BaseException as raised:
            error = raised
        self._complete(unit, error, begin, self._state.clock() if observed else 0)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _complete(self, unit: WorkUnit, error: BaseException | None, begin: int, end: int) -> None:
        with self._lock:
            self._running -= 1
            self._large -= unit.work.is_large
            try:
                if self.observer is not None and unit.stage != WHOLE:
                    self.observer(unit, begin, end, error)
            finally:
                self._state.complete(unit, error)
        self._report_ends()

    def _report_ends(self) -> None:
        """Release ended work, then wake the waiting threads."""
        # Outside the lock: freeing memory takes other locks, and may run finalizers that submit.
        # `has_ended` is set last, when the memory is free.
        while self._finished:
            try:
                work = self._finished.popleft()
            except IndexError:  # another thread was faster
                break
            work.release()
            work.has_ended = True
        if self._waiting:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                waiter.release()

    # --- waiting ---------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Run units until ``done()``; ``done`` only reads states."""
        virtual = self._virtual
        if virtual is not None and virtual[0] == threading.get_ident():
            virtual[1].run()
        interrupts.begin()
        # Worker threads leave small units to the counted helpers, so a launch that is waited for at
        # once runs in the waiting thread, without a switch.
        self._count_helper(1)
        try:
            while not done():
                if self.step():
                    interrupts.poll()
                    continue
                if self._finished:
                    self._report_ends()
                    continue
                self._sleep_until_some_end(done)
        finally:
            # Worker threads may have left work to this one: wake them to continue.
            self._count_helper(-1)
            if self._state.pending or self._inbox:
                self._wake()
            interrupts.end()

    def _sleep_until_some_end(self, done: Callable[[], bool]) -> None:
        """Sleep until some work ends, unless ``done()`` or a unit can run."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            self._waiting.append(waiter)
        # Check again now that the waiter is on the list: work that ended earlier did not wake it,
        # and worker threads may have left earlier submissions to this thread.
        if done() or self.step():
            return  # the waiter stays on the list; releasing it later has no effect
        callbacks = self._callbacks.running
        self._count_helper(-1, callbacks)  # a sleeping thread runs no units
        try:
            if self._inbox:
                self._wake()
            with interrupts.allowed():
                stuck = 0
                while not waiter.acquire(timeout=STUCK_SECONDS if callbacks else -1):
                    stuck = 0 if done() or not self._is_stuck else stuck + 1
                    if stuck == 2:  # by then, work that had ended at the first check has reported
                        raise LaunchError("SPY874", "a callback waits for work that waits for it")
        finally:
            self._count_helper(1, -callbacks)

    def _count_helper(self, change: int, callbacks: int = 0) -> None:
        with self._lock:
            self._helpers += change
            self._waiting_callbacks += callbacks

    def run_callback(self, function: Callable[[], None]) -> None:
        """Call ``function``; LaunchError SPY874 in it if it waits and no unit can run meanwhile."""
        self._callbacks.running += 1
        try:
            with interrupts.allowed():
                function()
        finally:
            self._callbacks.running -= 1

    @property
    def _is_stuck(self) -> bool:
        """True if all running units are callbacks that sleep, and no other unit can run."""
        with self._lock:
            may_run = self._inbox or self._finished or self._state.holds
            return not may_run and self._running <= self._waiting_callbacks

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued and nothing runs."""
        return not (self._running or self._state.pending or self._inbox or self._finished)

    @property
    def is_held(self) -> bool:
        """True within `held`."""
        return self._state.holds > 0

    @property
    def is_observed(self) -> bool:
        """True if units are reported to an observer, or run in virtual time."""
        return self.observer is not None or self._virtual is not None

    def watch(self, observer: Observer | None) -> None:
        """Call ``observer`` for every iteration of every stage from now on; None ends it."""
        with self._lock:
            self.observer = observer
            self._state.one_by_one = observer is not None

    @contextmanager
    def guarded(self) -> Iterator[Scheduling]:
        """Hold the lock and yield the state, for events, resets and reports."""
        with self._lock:
            self._empty_inbox()
            yield self._state
        self._report_ends()
        self._wake()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Dispatch nothing until all such blocks have ended; work can be submitted."""
        with self._lock:
            self._state.holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._state.holds -= 1
            self._wake()

    @contextmanager
    def virtual_time(self, duration: Callable[[WorkUnit], int]) -> Iterator[VirtualTime]:
        """Run the work submitted in the block in virtual time, at its end or when it waits.

        Only the calling thread runs units, single iterations of single stages; ``duration`` returns
        the duration of each. Other threads may submit and wait. Work left after an exception runs
        as usual. One block at a time.
        """
        with self._virtual_owner, self.held():
            self.wait_until(lambda: self._running == 0)
            time = VirtualTime(self._take_though_held, self._complete, duration)
            with self._lock:
                clock, self._state.clock = self._state.clock, lambda: time.now
            self._virtual = threading.get_ident(), time
            try:
                yield time
                time.run()
            finally:
                self._virtual = None
                with self._lock:
                    self._state.clock = clock
                    self._state.one_by_one = self.observer is not None

    def _take_though_held(self) -> WorkUnit | None:
        with self._lock:
            self._state.one_by_one = True
            self._state.holds -= 1
            try:
                return self._take()
            finally:
                self._state.holds += 1

    # --- threads ---------------------------------------------------------------------------------

    def _wake(self, at_once: bool = True) -> None:
        """Wake or start a worker thread if one is needed. ``at_once``: wake a dozing thread too.

        While units are small one thread is enough: two would compete for the GIL.
        """
        with self._lock:
            resting = self._dozing or self._idle
            if self._state.holds or self._running > self._large:
                return
            if not self._state.pending and not self._inbox:
                return
            if self._dozing and not at_once:
                return
            if not resting and (self._threads >= min(THREADS, 1 + self._large) or self._closed):
                return
            waker = resting.pop() if resting else None
            self._threads += waker is None
        if waker is not None:
            waker.release()
            return
        reference = (weakref.ref(self),)
        threading.Thread(target=_serve, args=reference, name="spyre-scheduler", daemon=True).start()

    def _take_or_rest(self, take: bool, doze: bool) -> WorkUnit | threading.Lock | None:
        """A unit to run if ``take``, else a lock to rest on; None if the thread should end.

        ``doze``: rest such that only large work wakes the thread.
        """
        with self._lock:
            if self._closed:
                self._threads -= 1
                return None
            unit = self._take() if take and self._is_wanted() else None
            if unit is not None:
                return unit
            waker = threading.Lock()
            waker.acquire()
            (self._dozing if doze else self._idle).append(waker)
            # Counterpart of `submit`: earlier submissions saw no idle thread.
            if not doze and self._inbox:
                self._idle.remove(waker)
                waker.release()
            return waker

    def _is_wanted(self) -> bool:
        """True if a worker thread should run the available work; call it under the lock."""
        # While another thread waits and runs small units, or submits them, a worker would only
        # compete with it for the GIL.
        if self._large or self._helpers:
            return self._large > 0
        if self._large_came or self._state.pending + len(self._inbox) > MAX_BACKLOG:
            return True
        return time.monotonic() - self._small_came >= PAUSE_SECONDS

    def _rested(self, waker: threading.Lock, ends: bool) -> bool:
        """Take a thread that was not woken off the lists. True if it ends now (``ends``)."""
        # If its lock was just taken off the list by another thread, it must check for work again.
        with self._lock:
            if waker in self._dozing:
                self._dozing.remove(waker)
            elif waker in self._idle:
                self._idle.remove(waker)
                self._threads -= ends
                return ends
            return False

    @property
    def _has_large_work(self) -> bool:
        inbox = list(self._inbox)
        return self._large > 0 or any(work.is_large for work in inbox)

    def _forget_threads(self) -> None:
        """Reset the counters after a fork: the child has no worker threads yet."""
        # The thread that held the lock in the parent does not exist in the child.
        self._lock = threading.Lock()
        self._threads = self._running = self._large = self._helpers = 0
        self._idle.clear()
        self._dozing.clear()
        self._waiting.clear()

    def close(self) -> None:
        """End the worker threads; queued work is not run. May be called twice."""
        with self._lock:
            self._closed = True
            resting = [*self._idle, *self._dozing]
            self._idle, self._dozing = [], []
        for waker in resting:
            waker.release()


# A worker thread:
#
#            a unit             it has run
#   start ─▶ LOOK ────────▶ RUN ─────────▶ LOOK
#             │ nothing, or left to a thread that waits or goes on submitting
#             ▼
#            DOZE ── 0.5 ms, then 1, 2 .. 16 over, or woken by large work ─▶ LOOK
#             │ 6 times in vain
#             ▼
#            SLEEP ── woken ─▶ DOZE, or LOOK if there is large work
#             │ 2 s
#             ▼
#            end
#
# A woken thread does not take small work at once: most launches are waited for by the thread that
# submitted them, and a worker that is faster costs that thread two switches.
def _serve(reference: weakref.ref[Scheduler]) -> None:
    """Body of a worker thread: run units, rest when there are none, end when idle."""
    dozes, take = 0, True
    while True:
        scheduler = reference()
        if scheduler is None:
            return
        asleep = dozes >= DOZES
        unit_or_waker = scheduler._take_or_rest(take, not asleep)
        if unit_or_waker is None:
            return
        if isinstance(unit_or_waker, WorkUnit):
            # The stream keeps the error. A worker thread has no caller to raise an interrupt to.
            with suppress(BaseException):
                scheduler._run(unit_or_waker)
            dozes, take = 0, True
            continue
        del scheduler  # a resting thread must not keep the scheduler alive
        woken = unit_or_waker.acquire(timeout=IDLE_SECONDS if asleep else DOZE_SECONDS * 2**dozes)
        scheduler = reference()
        if scheduler is None or (not woken and scheduler._rested(unit_or_waker, asleep)):
            return
        dozes, take = (0, scheduler._has_large_work) if asleep else (dozes + 1, True)


_SCHEDULERS: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _forget_threads() -> None:
    for scheduler in list(_SCHEDULERS):
        scheduler._forget_threads()


os.register_at_fork(after_in_child=_forget_threads)


@atexit.register
def _close_all() -> None:
    for scheduler in list(_SCHEDULERS):
        scheduler.close()


# --- virtual time -----------------------------------------------------------------------------
# A repeatable timeline of the engines, on one thread. The rules are those of `Scheduling`; every
# unit is executed at its virtual end. The timeline shows the effect of a policy without a clock,
# and tests compare it as text.

Take = Callable[[], WorkUnit | None]
"""Returns the next unit that may run, with its engines reserved; None if there is none."""
Complete = Callable[[WorkUnit, BaseException | None, int, int], None]
"""Called after a unit has run with its exception, virtual begin and end."""


class VirtualSpan(msgspec.Struct, frozen=True):
    """One iteration of one stage: engine, begin and end (in units of the durations)."""

    label: str
    stream_id: int
    engine: Engine
    begin: int
    end: int

    def __str__(self) -> str:
        engine = self.engine.name.lower()
        return f"{self.begin:>4} - {self.end:<4} {engine:<8}stream {self.stream_id}  {self.label}"


class VirtualTime:
    """A virtual clock that runs work on the thread that calls `run`, one unit after another.

    ``duration``: returns the duration of a unit. ``now``: the time, from 0. Read it from that
    thread, or after `run`.
    """

    def __init__(self, take: Take, complete: Complete, duration: Callable[[WorkUnit], int]) -> None:
        self._take = take
        self._complete = complete
        self._duration = duration
        self._clock: VirtualClock[WorkUnit, int] = VirtualClock(0)
        self._spans: list[VirtualSpan] = []

    @property
    def now(self) -> int:
        """The virtual time."""
        return self._clock.now

    @property
    def spans(self) -> tuple[VirtualSpan, ...]:
        """The dispatched iterations, in order of begin, then engine."""
        return tuple(sorted(self._spans, key=lambda s: (s.begin, s.engine, s.label)))

    def run(self) -> None:
        """Run until no submitted work can continue. Interrupts are raised."""
        while True:
            while (unit := self._take()) is not None:
                self._begin(unit)
            if self._clock.next_end is None:
                return
            unit, begin = self._clock.end()
            error: BaseException | None = None
            try:
                unit.run()
            except BaseException as raised:
                error = raised
            self._complete(unit, error, begin, self.now)
            if error is not None and not isinstance(error, Exception):
                for unrun, begin in self._clock.drain():
                    self._complete(unrun, error, begin, self.now)
                raise error

    def _begin(self, unit: WorkUnit) -> None:
        begin, end = self.now, self._clock.begin(unit, self._duration(unit))
        work = unit.work
        label = label_text(work.label(unit.stage, unit.first))
        engine = work.stages.engines[unit.stage]
        self._spans.append(VirtualSpan(label, work.stream.stream_id, engine, begin, end))

    def __str__(self) -> str:
        return "".join(f"{span}\n" for span in self.spans)
