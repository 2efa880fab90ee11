"""A whole sweep: what is left of it is measured, noted in the journal, and made a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from spyre.sweep.definition import Definition, Task
from spyre.sweep.journal import Journal, opened_journal
from spyre.sweep.point import Record
from spyre.sweep.runners import Runner

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


def remaining(definition: Definition, journal: Journal, retry: bool = False) -> Iterator[Task]:
    """Tasks with those of their machines that are not finished."""

    def is_done(key: str) -> bool:
        found = journal.finished.get(key)
        return found is not None and not (retry and found["error"])

    for task in definition.tasks():
        pairs = zip(task.machines, task.point_keys, strict=True)
        machines = tuple(machine for machine, key in pairs if not is_done(key))
        if machines:
            yield replace(task, machines=machines)
