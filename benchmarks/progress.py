"""What is being measured, and for how long: on stderr, from the third second of a section on.

A terminal gets one line that is rewritten twice a second; a file or pipe a line every ten seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

DELAY_SECONDS = 2.0
TERMINAL_SECONDS, PIPE_SECONDS = 0.5, 10.0
WIDTH = 100


class Progress:
    """One section at a time. ``at`` is called by what measures, drawing is a thread's."""

    def __init__(self) -> None:
        self._item = ""

    def at(self, item: str) -> None:
        """``item`` is measured from now on."""
        self._item = item

    @contextmanager
    def section(self, name: str, title: str) -> Iterator[None]:
        """Says what begins, shows progress meanwhile, and how long it took at the end."""
        self._item = ""
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        begin, ended = time.perf_counter(), threading.Event()
        drawer = threading.Thread(target=self._draw, args=(name, begin, ended), daemon=True)
        drawer.start()
        try:
            yield
        finally:
            ended.set()
            drawer.join()
            _show(f"{name}: {time.perf_counter() - begin:.1f} s", "\n")

    def _draw(self, name: str, begin: float, ended: threading.Event) -> None:
        period = TERMINAL_SECONDS if sys.stderr.isatty() else PIPE_SECONDS
        wait = DELAY_SECONDS
        while not ended.wait(wait):
            wait = period
            end = "" if sys.stderr.isatty() else "\n"
            _show(f"{name}: {time.perf_counter() - begin:.0f} s: {self._item}"[:WIDTH], end)


def _show(text: str, end: str) -> None:
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}{text}", file=sys.stderr, end=end, flush=True)


progress = Progress()
"""The suite's: whatever measures in it says what it is at."""
