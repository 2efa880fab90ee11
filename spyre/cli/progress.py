"""A progress bar for long runs: on stderr, only on a terminal, and only past two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY_S = 2.0


class ProgressBar:
    """A context; ``update`` is called with (done, in all) of what ``label`` names."""

    def __init__(self, enabled: bool = True, label: str = "executes") -> None:
        self._label = label
        self._enabled = enabled and sys.stderr.isatty()
        self._start = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> ProgressBar:
        self._start = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def update(self, done: int, total: int) -> None:
        """Move the bar; it appears when the run has gone on for DELAY_S seconds."""
        if not self._enabled or time.monotonic() - self._start < DELAY_S:
            return
        if self._shown is None:
            self._shown = _make_bar(self._label, total)
        progress, task = self._shown
        progress.update(task, completed=done)


def _make_bar(label: str, total: int) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    task = progress.add_task(label, total=total)
    progress.start()
    return progress, task
