"""Runs operators in worker processes: a crash or a hang is the outcome of one operator.

A run that was interrupted goes on where it was if its results are kept in a file.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa.opinfo.outcome import CRASHED, TIMEOUT, OpResult, SampleResult, summarised
from qa.opinfo.process import WorkerDied, WorkerProcess, WorkerTimeout
from qa.opinfo.samples import DATABASE


@dataclass(frozen=True)
class Job:
    """One operator in one dtype and one way."""

    op: str
    dtype: str
    way: str = "forward"


@dataclass(frozen=True)
class PoolOptions:
    """How workers run: on which device, how many at a time, how long per sample (seconds)."""

    device: str
    jobs: int = 1
    timeout: float = 120.0
    limit: int | None = None
    database: str = DATABASE

    def worker_arguments(self) -> list[str]:
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return ["--device", self.device, "--database", self.database, *limit]


class Journal:
    """Results in a file, one JSON line each; without a path, nothing is kept.

    ``results``: those the file held at the start. ValueError for a line that is none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        known = [OpResult.from_json(json.loads(line)) for line in lines]
        self.results = {Job(one.op, one.dtype, one.way): one for one in known}

    def add(self, result: OpResult) -> None:
        """Append a result, so that it is there whatever happens to the next one."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result.as_json()) + "\n")


def run_jobs(
    jobs: list[Job], options: PoolOptions, done: Callable[[OpResult], None] = lambda result: None
) -> list[OpResult]:
    """Results in the order of ``jobs``; ``done`` hears of each as it comes, from one thread at a
    time. WorkerDied when a worker does not even start, which is no operator's fault."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        waiting.put(number)
    run = _Run(jobs, options, waiting, done)
    threads = [threading.Thread(target=run.work) for _ in range(min(options.jobs, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        run.stop.set()
        raise
    if run.errors:
        raise run.errors[0]
    return [run.results[number] for number in range(len(jobs))]


class _Run:
    """What the threads of one call share; each thread has a worker of its own."""

    def __init__(
        self,
        jobs: list[Job],
        options: PoolOptions,
        waiting: queue.SimpleQueue[int],
        done: Callable[[OpResult], None],
    ) -> None:
        self.jobs, self.options, self.waiting, self.done = jobs, options, waiting, done
        self.results: dict[int, OpResult] = {}
        self.errors: list[Exception] = []
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def work(self) -> None:
        """Take jobs until there are none; an error of the runner stops all threads."""
        worker: WorkerProcess | None = None
        try:
            while not self.stop.is_set():
                number = self.waiting.get_nowait()
                worker = worker or self._started()
                result, worker = self._attempt(worker, self.jobs[number])
                with self._lock:
                    self.results[number] = result
                    self.done(result)
        except queue.Empty:
            pass
        except Exception as error:
            self.errors.append(error)
            self.stop.set()
        finally:
            if worker is not None:
                worker.close()

    def _next(self, worker: WorkerProcess) -> dict[str, Any]:
        """What the worker says when the sample it is at, or the last one, is done."""
        return worker.receive(time.monotonic() + self.options.timeout)

    def _started(self) -> WorkerProcess:
        cores = os.cpu_count() or 1
        return WorkerProcess(self.options.worker_arguments(), max(1, cores // self.options.jobs))

    def _attempt(self, worker: WorkerProcess, job: Job) -> tuple[OpResult, WorkerProcess | None]:
        """The result, and the worker if it is still of use."""
        start = time.monotonic()
        at = SampleResult(-1, CRASHED)
        try:
            worker.send({"op": job.op, "dtype": job.dtype, "way": job.way})
            while (message := self._next(worker))["event"] != "result":
                at = SampleResult(message["index"], CRASHED, sample=message["sample"])
            return OpResult.from_json(message["result"]), worker
        except WorkerDied as error:
            outcome, reason = CRASHED, str(error)
        except WorkerTimeout:
            outcome, reason = TIMEOUT, f"no result after {self.options.timeout:g} s"
        worker.close()
        failure = SampleResult(at.index, outcome, reason, at.sample)
        seconds = time.monotonic() - start
        return summarised(job.op, job.dtype, [failure], {}, seconds, job.way), None
