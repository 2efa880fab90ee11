"""The scheduler: runs what `Scheduling` picks, on its own threads and on those that wait.

An engine is a token, not a thread: whoever runs a unit holds the engines it needs. A thread that
waits for work runs units itself meanwhile, so a launch that is waited for at once costs no thread
switch; the scheduler's own threads make work go on that nobody waits for, large work at once and
small work when no more of it comes in. They end when idle.
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

from spyre.interrupts import interrupts
from spyre.runtime.flex.scheduling import WHOLE, Policy, Scheduling, StreamQueue, Work, WorkUnit
from spyre.runtime.flex.virtual_time import VirtualTime

THREADS = 2
"""Own threads at most: one for the cores, one that prepares or copies meanwhile."""
IDLE_SECONDS = 2.0
"""How long an own thread waits for work before it ends."""
DOZE_SECONDS = 0.0005
"""How long an own thread leaves small work to whoever may be about to wait for it: being woken for
every launch would cost that one more than the launch. Twice as long after every look in vain: a
look takes the interpreter from a thread that goes on submitting, which hands it over at every
operation once somebody wants it. So work nobody waits for begins no later than as long as its
submission took.
"""
DOZES = 6
"""Times it looks for work in vain before it sleeps until it is woken."""

PAUSE_SECONDS = 0.0003
"""How long nothing small has come in before own threads run small work. Beside a thread that goes
on submitting, each would wait for the interpreter most of the time, and both would take longer than
one after the other.
"""
MAX_BACKLOG = 512
"""Works that are left to such a thread; they keep memory of tensors that may be gone."""

Observer = Callable[[WorkUnit, int, int, BaseException | None], None]
"""Told of every unit that ran, with the host clock at its begin and end (ns) and what it raised,
under the lock."""


class Scheduler:
    """Dispatches the streams of one card. All methods may be called from any thread."""

    def __init__(
        self,
        policy: Policy = Policy.SERIALISED,
        ended: Callable[[Work], None] | None = None,
        dependent: Callable[[BaseException, StreamQueue], BaseException] | None = None,
    ) -> None:
        # Guards the state and the counters below. Held for short bookkeeping only: never while a
        # unit runs, memory is freed or somebody is called back, since all of these may submit.
        self._lock = threading.Lock()
        # Both deques are filled and emptied without the lock: append and popleft are atomic.
        self._finished: deque[Work] = deque()
        self._inbox: deque[Work] = deque()
        self._note_end = ended
        arguments = {} if dependent is None else {"dependent": dependent}
        self._state = Scheduling(policy, self._finished.append, **arguments)
        # A thread at rest blocks on a lock of its own, which whoever wakes it takes out of one of
        # these lists and releases: each is woken once, and only the one that is meant.
        self._waiting: list[threading.Lock] = []
        self._idle: list[threading.Lock] = []
        self._dozing: list[threading.Lock] = []
        self._threads = 0  # own ones that live, at work or at rest
        self._running = 0  # units that run now
        self._large = 0  # those of them that are worth a second thread
        self._helpers = 0  # waiting threads that look for units themselves
        self._small_came = 0.0  # when the last small work came in, s
        self._large_came = False  # large work did, and own threads have not run out of work since
        self._closed = False
        self._virtual: tuple[int, VirtualTime] | None = None
        self._virtual_owner = threading.Lock()
        self.observer: Observer | None = None
        _SCHEDULERS.add(self)

    @property
    def policy(self) -> Policy:
        """How jobs of different streams share the card."""
        return self._state.policy

    @property
    def recovers(self) -> bool:
        """Whether work that fails leaves its stream as it is, for what is behind it to run."""
        return self._state.recovers

    @recovers.setter
    def recovers(self, recovers: bool) -> None:
        self._state.recovers = recovers

    # --- work ------------------------------------------------------------------------------------

    def submit(self, stream: StreamQueue, work: Work) -> None:
        """Append ``work`` to a stream and return at once. StreamHasFailed if the stream has, and
        streams do not recover.

        It takes no lock that a running unit could hold: the work goes to an inbox, which whoever
        looks for something to run empties first.
        """
        if stream.failure is not None and not self._state.recovers:
            raise StreamHasFailed(stream)
        work.stream = stream
        with stream.lock:  # `last` and the inbox agree on the order
            # In this order: nobody waits for work that an interrupt kept from coming in.
            self._inbox.append(work)
            stream.last = work
        if work.is_large:
            self._large_came = True
        else:
            self._small_came = time.monotonic()
        # Whoever runs a small unit looks at the inbox when it is done, which is soon.
        if self._running <= self._large and self._wants_thread(work.is_large):
            self._wake(work.is_large)

    def _wants_thread(self, at_once: bool) -> bool:
        """Whether a thread must be called."""
        # No lock is needed: the work is in the inbox already, and a thread that goes to sleep puts
        # itself on the list of idle ones first and looks at the inbox then. One of the two sees the
        # other. A dozing thread looks by itself before long; only large work is worth waking it.
        if not self._threads or self._idle:
            return True
        return bool(self._dozing) and at_once

    def _empty_inbox(self) -> None:
        """Submit what came in; under the lock."""
        inbox = self._inbox
        while inbox:
            work = inbox.popleft()
            assert work.stream is not None
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
        """The next unit, counted as running; under the lock."""
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
        """Run a unit that was taken. Only what is no Exception (an interrupt) is raised."""
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
        """Tell of work that ended and give up its payload; then those who wait look again."""
        # Outside of the lock: freeing memory takes other locks, and may run finalizers that submit.
        # `has_ended` comes last, so that whoever sees it finds the memory free.
        while (work := self._next_finished()) is not None:
            if self._note_end is not None:
                self._note_end(work)
            work.payload = None
            work.has_ended = True
        if self._waiting:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                waiter.release()

    def _next_finished(self) -> Work | None:
        try:
            return self._finished.popleft()
        except IndexError:  # another thread was faster
            return None

    # --- waiting ---------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Return once ``done()``, running units meanwhile; ``done`` only reads states."""
        virtual = self._virtual
        if virtual is not None and virtual[0] == threading.get_ident():
            virtual[1].run()
        interrupts.begin()
        # While helpers are counted, own threads leave small units to them: a launch that is waited
        # for at once then runs in the thread that waits, without a switch.
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
            # Hand-over: what own threads left to this one, nobody may be running now.
            self._count_helper(-1)
            if self._state.pending or self._inbox:
                self._wake()
            interrupts.end()

    def _sleep_until_some_end(self, done: Callable[[], bool]) -> None:
        """Sleep until some work ends, unless there is something to do after all."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            self._waiting.append(waiter)
        # Only now that it will be woken is it safe to look for the last time: what ended before
        # woke nobody, and what came in before own threads may have left to this thread.
        if done() or self.step():
            return  # the waiter stays on the list; releasing it later harms nobody
        self._count_helper(-1)  # asleep it helps nobody
        try:
            if self._inbox:
                self._wake()
            with interrupts.allowed():
                waiter.acquire()
        finally:
            self._count_helper(1)

    def _count_helper(self, change: int) -> None:
        with self._lock:
            self._helpers += change

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
        """True if somebody is told of units, or they run in virtual time."""
        return self.observer is not None or self._virtual is not None

    def watch(self, observer: Observer | None) -> None:
        """Tell ``observer`` of every single iteration of every stage from now on; None ends it."""
        with self._lock:
            self.observer = observer
            self._state.one_by_one = observer is not None

    @contextmanager
    def guarded(self) -> Iterator[Scheduling]:
        """The state, with the lock held: for events, resets and reports."""
        with self._lock:
            self._empty_inbox()
            yield self._state
        self._report_ends()
        self._wake()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Submit without anything being dispatched until the end of all such blocks."""
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
        """Run what is submitted in the block in virtual time, at its end or when it waits.

        Only the calling thread runs units then, single iterations of single stages; ``duration``
        says how long each takes. Other threads may submit and wait. What an exception leaves
        behind runs as usual. One block at a time.
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

    def _wake(self, at_once: bool = True) -> None:
        with self._lock:
            call = self._call_thread(at_once)
        call()

    # --- threads ---------------------------------------------------------------------------------

    def _call_thread(self, at_once: bool) -> Callable[[], None]:
        """What makes an own thread look for work, if one should; call it without the lock.

        One is enough while units are small: two would only contend for the interpreter.
        ``at_once``: one that dozes is to begin.
        """
        if self._state.holds or self._running > self._large:
            return _nothing
        if not self._state.pending and not self._inbox:
            return _nothing
        if self._dozing:
            return self._dozing.pop().release if at_once else _nothing
        if self._idle:
            return self._idle.pop().release
        if self._threads >= min(THREADS, 1 + self._large) or self._closed:
            return _nothing
        self._threads += 1
        return self._start_thread

    def _start_thread(self) -> None:
        arguments = (weakref.ref(self),)
        threading.Thread(target=_serve, args=arguments, name="spyre-scheduler", daemon=True).start()

    def _take_or_rest(self, take: bool, doze: bool) -> WorkUnit | threading.Lock | None:
        """A unit if one is to be taken, else a lock to rest on, or None: the thread is to end.

        ``doze``: only large work wakes it.
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
            # The other half of `_wants_thread`: who submitted before this saw no idle thread.
            if not doze and self._inbox:
                self._idle.remove(waker)
                waker.release()
            return waker

    def _is_wanted(self) -> bool:
        """Whether an own thread is to run what there is; under the lock."""
        # Beside a thread that waits and runs small units, or one that submits them, a second one
        # would only contend with it for the interpreter.
        if self._large or self._helpers:
            return self._large > 0
        if self._large_came or self._state.pending + len(self._inbox) > MAX_BACKLOG:
            return True
        return time.monotonic() - self._small_came >= PAUSE_SECONDS

    def _rested(self, waker: threading.Lock, ends: bool) -> bool:
        """A thread was not woken. True if it has slept long enough and ``ends`` now."""
        # Its lock may have been taken off the list a moment ago: then somebody counts on it, and it
        # has to look for work once more.
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
        """After a fork there are none: the child starts its own."""
        # Whoever held the lock in the parent does not exist in the child.
        self._lock = threading.Lock()
        self._threads = self._running = self._large = self._helpers = 0
        self._idle.clear()
        self._dozing.clear()
        self._waiting.clear()

    def close(self) -> None:
        """End the own threads; queued work stays undone. May be called twice."""
        with self._lock:
            self._closed = True
            resting = [*self._idle, *self._dozing]
            self._idle, self._dozing = [], []
        for waker in resting:
            waker.release()


def _nothing() -> None:
    """Nobody is to be woken."""


class StreamHasFailed(Exception):
    """Work was submitted to a failed stream; whoever submits says it with words."""

    def __init__(self, stream: StreamQueue) -> None:
        super().__init__(f"stream {stream.stream_id}")
        self.stream = stream


# An own thread:
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
# Small work that comes to a sleeping thread is not taken at once: most launches are waited for by
# whoever submitted them, and a thread that is faster than the waiting one costs it two switches.
def _serve(reference: weakref.ref[Scheduler]) -> None:
    """Body of an own thread: run units while there are any, rest, end when idle or unneeded."""
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
            # The stream has the error. An own thread has nobody to raise an interrupt to.
            with suppress(BaseException):
                scheduler._run(unit_or_waker)
            dozes, take = 0, True
            continue
        del scheduler  # a thread at rest keeps no scheduler alive
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
