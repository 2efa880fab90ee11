"""Runs operators in worker processes: a crash or a hang is the outcome of one operator.

An interrupted run can be continued if its results are kept in a file.
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
    """Options of workers: device, number at a time, time limit per sample in seconds."""

    device: str
    jobs: int = 1
    timeout: float = 120.0
    limit: int | None = None
    database: str = DATABASE

    def worker_arguments(self) -> list[str]:
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return ["--device", self.device, "--database", self.database, *limit]


class Journal:
    """Results in a file, one JSON line each; without a path, none are kept.

    ``results``: those in the file at the start. ValueError for a damaged line.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        known = [OpResult.from_json(json.loads(line)) for line in lines]
        self.results = {Job(one.op, one.dtype, one.way): one for one in known}

    def add(self, result: OpResult) -> None:
        """Append a result and close the file, so that a later crash cannot lose it."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result.as_json()) + "\n")


def run_jobs(
    jobs: list[Job], options: PoolOptions, done: Callable[[OpResult], None] = lambda result: None
) -> list[OpResult]:
    """Return results in the order of ``jobs``. ``done`` gets each result when it is known, from one
    thread at a time. WorkerDied if a worker cannot be started."""
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
    """State that the threads of one call share; each thread has a separate worker."""

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
        """Return the worker's message at the end of the current sample or operator."""
        return worker.receive(time.monotonic() + self.options.timeout)

    def _started(self) -> WorkerProcess:
        cores = os.cpu_count() or 1
        return WorkerProcess(self.options.worker_arguments(), max(1, cores // self.options.jobs))

    def _attempt(self, worker: WorkerProcess, job: Job) -> tuple[OpResult, WorkerProcess | None]:
        """Return the result, and the worker if it can be used again."""
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
