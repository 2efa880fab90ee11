"""A whole sweep: what is left of it is measured by a runner, noted in the journal, and returned
as records.

Runners are processes of this machine, or the workers of a Dask cluster. Both give (task, records)
in the order in which tasks end, and a record for every point whatever happens: a worker that dies
leaves an error. The journal is a line of JSON per finished point, so that a sweep can go on
later; its first line is the sweep's definition. Lines are written whole; what a process that was
killed left of its last one is cut off. One process at a time has a journal.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from spyre.config import THREADS, thread_count
from spyre.errors import SweepError
from spyre.sweep.definition import Definition, SweepTask
from spyre.sweep.point import Record, complete, failed, measure


class Journal:
    """An open journal. ``finished``: records by key, in the order in which they were added."""

    def __init__(self, descriptor: int, finished: dict[str, Record]) -> None:
        self._descriptor = descriptor
        self.finished = finished

    def add(self, key: str, record: Record) -> None:
        """Write a finished point."""
        _append(self._descriptor, {"key": key, "record": record})
        self.finished[key] = record


@contextmanager
def opened_journal(path: Path, definition: str, anew: bool = False) -> Iterator[Journal]:
    """The journal of the sweep ``definition`` at ``path``, made if there is none.

    ``anew``: what is there is thrown away. SweepError SPY741 for the journal of another sweep,
    SPY742 if another process has it, or it is none.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _lock(descriptor, path)
        if anew:
            os.ftruncate(descriptor, 0)
        yield Journal(descriptor, _finished(descriptor, path, definition))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SweepError("SPY742", f"another process writes {path}") from error


def _finished(descriptor: int, path: Path, definition: str) -> dict[str, Record]:
    """Points of the journal, and its first line written if it is empty."""
    whole, _, broken = path.read_bytes().rpartition(b"\n")
    if broken:
        os.ftruncate(descriptor, len(whole) + bool(whole))
    if not whole:
        _append(descriptor, {"sweep": definition})
        return {}
    head, *lines = map(_read_line, whole.splitlines())
    if "sweep" not in head or not all("key" in line for line in lines):
        raise SweepError("SPY742", f"{path} is no journal of a sweep")
    if head["sweep"] != definition:
        raise _other_sweep(path, str(head["sweep"]), definition)
    return {str(line["key"]): line["record"] for line in lines}


def _read_line(line: bytes) -> Record:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _append(descriptor: int, line: Record) -> None:
    """One write: a line is there as a whole or, if the process is killed in it, cut off later."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _other_sweep(path: Path, found: str, wanted: str) -> SweepError:
    return SweepError(
        "SPY741",
        f"{path} was written by another sweep",
        expected=_changed(wanted, found),
        found=_changed(found, wanted),
        hint="--anew throws it away; another --out leaves it",
    )


def _changed(text: str, other: str) -> str:
    """What ``text`` says otherwise than ``other``."""
    mine, theirs = json.loads(text), json.loads(other)
    return json.dumps({key: mine[key] for key in mine if mine[key] != theirs.get(key)})


Measure = Callable[[SweepTask], list[Record]]
CONNECT_SECONDS = 10
Outcome = tuple[SweepTask, list[Record]]


class Runner(Protocol):
    """Measures tasks; used by one thread."""

    def run(self, tasks: Sequence[SweepTask]) -> Iterator[Outcome]:
        """Every task with its records, as they end."""


class ProcessRunner:
    """A pool of ``jobs`` processes that share the host's threads evenly."""

    def __init__(self, jobs: int, measure: Measure = measure) -> None:
        self._jobs, self._measure = jobs, measure

    def run(self, tasks: Sequence[SweepTask]) -> Iterator[Outcome]:
        """Every task with its records.

        When a process dies, the tasks that were under way run again, one at a time; what kills
        its process then has the error.
        """
        waiting = deque(tasks)
        while waiting:
            suspects: list[SweepTask] = []
            yield from self._until_broken(waiting, suspects)
            for task in suspects:
                yield task, self._alone(task)

    def _until_broken(
        self, waiting: deque[SweepTask], suspects: list[SweepTask]
    ) -> Iterator[Outcome]:
        """Run until all is done or a process dies; never more under way than processes."""
        with self._pool(min(self._jobs, len(waiting))) as pool:
            running: dict[Future[list[Record]], SweepTask] = {}
            try:
                while waiting or running:
                    while waiting and not suspects and len(running) < self._jobs:
                        future = pool.submit(self._measure, waiting[0])
                        running[future] = waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task = running.pop(future)
                        if isinstance(future.exception(), BrokenProcessPool):
                            suspects.append(task)
                        else:
                            yield task, _records_of(task, future)
                    if suspects and not running:
                        return
            except BrokenProcessPool:  # at submit: it stays the first of those that wait
                suspects += running.values()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _alone(self, task: SweepTask) -> list[Record]:
        with self._pool(1) as pool:
            return _records_of(task, pool.submit(self._measure, task))

    def _pool(self, processes: int) -> ProcessPoolExecutor:
        threads = max(1, thread_count() // self._jobs)
        return ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_begin, initargs=(threads,)
        )


def _begin(threads: int) -> None:
    """In a new process, before anything heavy is imported."""
    for name in (THREADS.name, "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def _records_of(task: SweepTask, future: Future[list[Record]]) -> list[Record]:
    """Records of a task that has ended, however it did."""
    error = future.exception()
    if error is None:
        return future.result()
    return complete(task, [_died(error)] * len(task.machines))


def _died(error: BaseException) -> Record:
    record = failed(error)
    if isinstance(error, BrokenProcessPool):
        record["error"] = "the worker process died"
    return record


class DaskRunner:
    """The workers of the Dask scheduler at ``address``, which see the same files and packages."""

    def __init__(self, address: str, measure: Measure = measure) -> None:
        self._address, self._measure = address, measure

    def run(self, tasks: Sequence[SweepTask]) -> Iterator[Outcome]:
        """Every task with its records. SweepError SPY743 without Dask, SPY745 without scheduler."""
        distributed = _distributed()
        try:
            client = distributed.Client(self._address, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise SweepError(
                "SPY745", f"no Dask scheduler answers at {self._address}", found=str(error)
            ) from error
        with client:
            yield from gather(client, distributed.as_completed, tasks, self._measure)


def gather(
    client: Any,
    as_completed: Callable[[Any], Iterable[Any]],
    tasks: Sequence[SweepTask],
    work: Measure,
) -> Iterator[Outcome]:
    """Submit all of ``tasks`` to a client of concurrent.futures' shape, and yield as they end."""
    futures = {client.submit(work, task, pure=False, retries=0): task for task in tasks}
    for future in as_completed(list(futures)):
        yield futures[future], _records_of(futures[future], future)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise SweepError(
            "SPY743",
            "--scheduler needs Dask, which is not installed",
            hint="pip install 'spyre[cluster]'",
        ) from error
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
    """Records of all points in the order of the definition; finished ones are not run again.

    ``retry``: those with an error are. ``progress``: called with points done and in all. Errors as
    of `opened_journal` and the runner.
    """
    keys = [key for task in definition.tasks() for key in task.point_keys]
    with opened_journal(journal_path, definition.text(), anew) as journal:
        tasks = list(remaining(definition, journal, retry))
        done = len(keys) - sum(len(task.machines) for task in tasks)
        for task, records in runner.run(tasks) if tasks else ():
            for key, record in zip(task.point_keys, records, strict=True):
                journal.add(key, record)
            done += len(records)
            if progress is not None:
                progress(done, len(keys))
        return [journal.finished[key] for key in keys]


def remaining(definition: Definition, journal: Journal, retry: bool = False) -> Iterator[SweepTask]:
    """Tasks with those of their machines that are not finished."""

    def is_done(key: str) -> bool:
        found = journal.finished.get(key)
        return found is not None and not (retry and found["error"])

    for task in definition.tasks():
        pairs = zip(task.machines, task.point_keys, strict=True)
        machines = tuple(machine for machine, key in pairs if not is_done(key))
        if machines:
            yield replace(task, machines=machines)
