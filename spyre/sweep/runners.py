"""Who measures the tasks of a sweep: processes of this machine, or the workers of a Dask cluster.

Both give (task, records) in the order in which tasks end, and a record for every point whatever
happens: a worker that dies leaves an error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from spyre.config import THREADS, thread_count
from spyre.errors import SweepError
from spyre.sweep.definition import Task
from spyre.sweep.point import Record, complete, failed, measure

Measure = Callable[[Task], list[Record]]
CONNECT_SECONDS = 10
Outcome = tuple[Task, list[Record]]


class Runner(Protocol):
    """Measures tasks; used by one thread."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Every task with its records, as they end."""


class ProcessRunner:
    """A pool of ``jobs`` processes that share the host's threads evenly."""

    def __init__(self, jobs: int, measure: Measure = measure) -> None:
        self._jobs, self._measure = jobs, measure

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Every task with its records.

        When a process dies, the tasks that were under way run again, one at a time; what kills
        its process then has the error.
        """
        waiting = deque(tasks)
        while waiting:
            suspects: list[Task] = []
            yield from self._until_broken(waiting, suspects)
            for task in suspects:
                yield task, self._alone(task)

    def _until_broken(self, waiting: deque[Task], suspects: list[Task]) -> Iterator[Outcome]:
        """Run until all is done or a process dies; never more under way than processes."""
        with self._pool(min(self._jobs, len(waiting))) as pool:
            running: dict[Future[list[Record]], Task] = {}
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
                            yield task, _records(task, future)
                    if suspects and not running:
                        return
            except BrokenProcessPool:  # at submit: it stays the first of those that wait
                suspects += running.values()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _alone(self, task: Task) -> list[Record]:
        with self._pool(1) as pool:
            return _records(task, pool.submit(self._measure, task))

    def _pool(self, processes: int) -> ProcessPoolExecutor:
        threads = max(1, thread_count() // self._jobs)
        return ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_begin, initargs=(threads,)
        )


def _begin(threads: int) -> None:
    """In a new process, before anything heavy is imported."""
    for name in (THREADS.name, "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def _records(task: Task, future: Future[list[Record]]) -> list[Record]:
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

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
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
    client: Any, as_completed: Callable[[Any], Iterable[Any]], tasks: Sequence[Task], work: Measure
) -> Iterator[Outcome]:
    """Submit all of ``tasks`` to a client of concurrent.futures' shape, and yield as they end."""
    futures = {client.submit(work, task, pure=False, retries=0): task for task in tasks}
    for future in as_completed(list(futures)):
        yield futures[future], _records(futures[future], future)


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
