"""The journal of a sweep: a line of JSON per finished point, so that a sweep can go on later.

The first line is the sweep's definition. Lines are written whole; what a process that was killed
left of its last one is cut off. One process at a time has a journal.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spyre.errors import SweepError
from spyre.sweep.point import Record


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
        raise _other(path, str(head["sweep"]), definition)
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


def _other(path: Path, found: str, wanted: str) -> SweepError:
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
