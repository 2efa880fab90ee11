"""Run a sweep: a runner measures the points that are not in the journal yet.

Runners are processes of this machine, or the workers of a Dask cluster. Both yield (task, records)
in the order in which tasks end, with a record for every point: a worker that dies produces records
with an error. The journal has a line of JSON per finished point, so that a sweep can be resumed;
its first line is the sweep's definition. An incomplete last line, of a process that was killed, is
cut off. The journal is locked: only one process can use it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
from msgspec.structs import replace

from spyre.config import THREADS, thread_count
from spyre.errors import SweepError
from spyre.files import read_regular
from spyre.sweep.definition import Definition, SweepTask
from spyre.sweep.point import MEASURED, Record, complete, failed, measure
from spyre.sweep.results import writing


class Journal:
    """An open journal. ``finished``: records by key, in the order in which they were added."""

    def __init__(self, path: Path, descriptor: int, finished: dict[str, Record]) -> None:
        self._path = path
        self._descriptor = descriptor
        self.finished = finished

    def add(self, key: str, record: Record) -> None:
        """Write a finished point. SweepError SPY746 if writing fails."""
        with writing(self._path):
            _append(self._descriptor, {"key": key, "record": record})
        self.finished[key] = record


@contextmanager
def opened_journal(path: Path, definition: str, anew: bool = False) -> Iterator[Journal]:
    """Open or create the journal of the sweep ``definition`` at ``path``.

    ``anew``: an existing journal is erased. SweepError SPY741 for the journal of another sweep,
    SPY742 if another process uses it or the file is not a journal, SPY746 if it cannot be written.
    """
    with writing(path):
        if os.path.lexists(path) and not path.is_file():
            raise _no_journal(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with writing(path):
            _lock(descriptor, path)
            if anew:
                os.ftruncate(descriptor, 0)
            journal = Journal(path, descriptor, _finished(descriptor, path, definition))
        yield journal
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        # The kernel releases the lock when the process ends, also if it is killed.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SweepError("SPY742", f"another process writes {path}") from error


def _finished(descriptor: int, path: Path, definition: str) -> dict[str, Record]:
    """Return the points in the journal; write the first line of an empty one."""
    complete, end, torn = read_regular(path).rpartition(b"\n")
    if not end and not json.dumps({"sweep": definition}).encode().startswith(torn):
        raise _no_journal(path)
    # A process died while it wrote the last line, which therefore has no end.
    if torn:
        os.ftruncate(descriptor, len(complete) + len(end))
    if not end:
        _append(descriptor, {"sweep": definition})
        return {}
    head, *lines = complete.split(b"\n")
    try:
        sweep = msgspec.json.decode(head, type=dict[str, str])["sweep"]
        points = [msgspec.json.decode(line, type=_Point) for line in lines]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise _no_journal(path) from error
    if sweep != definition:
        raise SweepError(
            "SPY741",
            f"{path} was written by another sweep",
            expected=_changed(definition, sweep),
            found=_changed(sweep, definition),
            hint="--anew erases it; another --out leaves it unchanged",
        )
    if not all(point.record.keys() >= set(MEASURED) for point in points):
        raise _no_journal(path)
    return {point.key: point.record for point in points}


class _Point(msgspec.Struct):
    """A finished point: any line of a journal but the first, which is the definition."""

    key: str
    record: Record


def _no_journal(path: Path) -> SweepError:
    return SweepError("SPY742", f"{path} is not a journal of a sweep", hint="--anew erases it")


def _append(descriptor: int, line: Record) -> None:
    """Append a line of JSON; if the process is killed here, the next one cuts the line off."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _changed(text: str, other: str) -> str:
    """Return the fields of the object ``text`` that differ in ``other``, as JSON."""
    mine, theirs = _as_object(text), _as_object(other)
    return json.dumps({key: mine[key] for key in mine if mine[key] != theirs.get(key)})


def _as_object(text: str) -> Record:
    """Parse JSON; a damaged text gives an empty object."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return {}


Measure = Callable[[SweepTask], list[Record]]
CONNECT_SECONDS = 10
Outcome = tuple[SweepTask, list[Record]]
Runner = Callable[[Sequence[SweepTask]], Iterator[Outcome]]
"""Measures tasks and yields each with its records when it ends; called by one thread."""


def process_runner(jobs: int, work: Measure = measure) -> Runner:
    """Return the runner with ``jobs`` processes, which share the host's threads evenly."""

    def run(tasks: Sequence[SweepTask]) -> Iterator[Outcome]:
        with _WorkerProcesses(min(jobs, len(tasks)), max(1, thread_count() // jobs)) as client:
            yield from gather(client, as_completed, tasks, work)

    return run


def dask_runner(address: str, work: Measure = measure) -> Runner:
    """Return the runner on the workers of a Dask scheduler, which need the same files and packages.

    It raises SweepError SPY743 without Dask, SPY745 if no scheduler answers.
    """

    def run(tasks: Sequence[SweepTask]) -> Iterator[Outcome]:
        distributed = _distributed()
        try:
            client = distributed.Client(address, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise SweepError(
                "SPY745", f"no Dask scheduler answers at {address}", found=str(error)
            ) from error
        with client:
            yield from gather(client, distributed.as_completed, tasks, work)

    return run


def gather(
    client: Any,
    as_completed: Callable[[Any], Iterable[Any]],
    tasks: Sequence[SweepTask],
    work: Measure,
) -> Iterator[Outcome]:
    """Submit ``tasks`` to a client with the interface of Dask's, and yield them as they end."""
    futures = {client.submit(work, task, pure=False, retries=0): task for task in tasks}
    for future in as_completed(list(futures)):
        yield futures[future], _records_of(futures[future], future)


def _records_of(task: SweepTask, future: Future[list[Record]]) -> list[Record]:
    """Return the records of a task that has ended, with its error if it failed."""
    error = future.exception()
    if error is None:
        return future.result()
    record = failed(error)
    if isinstance(error, BrokenProcessPool):
        record["error"] = "the worker process died"
    return complete(task, [record] * len(task.machines))


class _WorkerProcesses:
    """A client of worker processes, each with ``threads`` threads.

    Every process is a pool with one worker: if a process dies, all tasks of its pool fail, so only
    the task that killed it does.
    """

    def __init__(self, jobs: int, threads: int) -> None:
        self._threads = threads
        self._waiting = ThreadPoolExecutor(jobs)
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for _ in range(jobs):
            self._idle.put(self._process())

    def __enter__(self) -> _WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().shutdown()

    def submit(
        self, work: Measure, task: SweepTask, pure: bool, retries: int
    ) -> Future[list[Record]]:
        """Run ``work`` on ``task``; the other parameters exist for Dask's interface."""
        return self._waiting.submit(self._measure, work, task)

    def _measure(self, work: Measure, task: SweepTask) -> list[Record]:
        # There are as many threads as processes, so one is idle.
        process = self._idle.get()
        try:
            return process.submit(work, task).result()
        except BrokenProcessPool:
            process = self._process()
            raise
        finally:
            self._idle.put(process)

    def _process(self) -> ProcessPoolExecutor:
        """Return a worker, whose process starts with its first task."""
        return ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_begin, initargs=(self._threads,)
        )


def _begin(threads: int) -> None:
    """Set the number of threads in a new process, before numba and torch are imported."""
    for name in (THREADS.name, "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        message = "--scheduler needs Dask, which is not installed"
        raise SweepError("SPY743", message, hint="pip install 'dask[distributed]'") from error
    return distributed


Progress = Callable[[int, int], None]


def run_sweep(
    definition: Definition,
    runner: Runner,
    journal_path: Path,
    *,
    anew: bool = False,
    retry: bool = False,
    progress: Progress | None = None,
) -> list[Record]:
    """Return the records of all points in the order of the definition.

    Points in the journal are not run again; ``retry``: those with an error are. ``progress``:
    called with the number of finished points and of all. Errors as of `opened_journal` and the
    runner.
    """
    keys = [key for task in definition.tasks() for key in task.point_keys]
    with opened_journal(journal_path, definition.text(), anew) as journal:
        tasks = list(remaining(definition, journal, retry))
        done = len(keys) - sum(len(task.machines) for task in tasks)
        for task, records in runner(tasks) if tasks else ():
            for key, record in zip(task.point_keys, records, strict=True):
                journal.add(key, record)
            done += len(records)
            if progress is not None:
                progress(done, len(keys))
        return [journal.finished[key] for key in keys]


def remaining(definition: Definition, journal: Journal, retry: bool = False) -> Iterator[SweepTask]:
    """Yield the tasks with the machines whose points are not finished."""

    def is_done(key: str) -> bool:
        record = journal.finished.get(key)
        return record is not None and not (retry and record["error"])

    for task in definition.tasks():
        pairs = zip(task.machines, task.point_keys, strict=True)
        machines = tuple(machine for machine, key in pairs if not is_done(key))
        if machines:
            yield replace(task, machines=machines)
