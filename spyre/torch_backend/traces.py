"""``torch.spyre.trace``: what the cards did, as a trace beside that of ``torch.profiler``."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from spyre.runtime.flex.trace import check_trace_file, write_trace
from spyre.torch_backend.trace_axis import time_axis
from spyre.torch_backend.watched_cards import recordings


class trace:
    """``with torch.spyre.trace("out.json"):`` writes what all cards do in the block, for Perfetto.

    A process per card with tracks for streams and engines; times and process numbers are such that
    the file can be shown with, or its ``traceEvents`` appended to, those of
    ``torch.profiler``'s ``export_chrome_trace``. What was submitted before the block runs first,
    what was submitted in it has ended when the block is left. The file is written whole or not at
    all, also when the block raises. LaunchError SPY886 for a file that cannot be written, SPY950
    within another trace, profile or counting of the process.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = check_trace_file(path)
        self._recordings = recordings()

    def __enter__(self) -> trace:
        self._recordings.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._recordings.end(kind, error, traceback)
        finally:
            write_trace(self._path, self._recordings.found, time_axis())
