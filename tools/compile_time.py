"""Profile of the compilation of kernels: ``python -m tools.compile_time examples/softmax``.

Runs a bundle with an empty cache, and prints CPU seconds by function (without its callees), by
stage of numba and by pass of LLVM.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

os.environ["NUMBA_LLVM_PASS_TIMINGS"] = "1"  # read when numba is imported

import numba.core.event as events
from numba.core.codegen import CPUCodeLibrary

ROWS = 15


class Times(events.Listener):  # type: ignore[misc]
    """CPU seconds of the events of one kind by name, without nested events."""

    def __init__(self, kind: str, name: Callable[[events.Event], str]) -> None:
        self.seconds: Counter[str] = Counter()
        self._name = name
        self._open: list[list[float]] = []
        events.register(kind, self)

    def on_start(self, event: events.Event) -> None:
        self._open.append([time.thread_time(), 0.0])

    def on_end(self, event: events.Event) -> None:
        begin, within = self._open.pop()
        seconds = time.thread_time() - begin
        self.seconds[self._name(event)] += seconds - within
        if self._open:
            self._open[-1][1] += seconds


def function_name(event: events.Event) -> str:
    function = event.data["dispatcher"].py_func
    return f"{function.__module__}.{function.__name__}"


def pass_times() -> Counter[str]:
    """Return a counter of seconds by pass of LLVM, updated by every library compiled later."""
    seconds: Counter[str] = Counter()
    finalize = CPUCodeLibrary.finalize

    def timed(library: Any) -> None:
        finalize(library)
        for _, timings in library.recorded_timings:
            for record in timings.list_records():
                if record.pass_name != "Total":
                    name = record.pass_name.split(" #")[0]
                    seconds[name] += record.user_time + record.system_time

    CPUCodeLibrary.finalize = timed
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code of the bundle's run."""
    parser = argparse.ArgumentParser(prog="python -m tools.compile_time", description=__doc__)
    parser.add_argument("bundle")
    bundle = parser.parse_args(arguments).bundle
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(SPYRE_CACHE_DIR=cache, SPYRE_PROGRESS="0")
        # compile in this process, which has the listeners
        os.environ.update(SPYRE_MEANWHILE="0", SPYRE_NUM_THREADS="1")
        functions = Times("numba:compile", function_name)
        stages = Times("numba:run_pass", lambda event: event.data["name"].split(" ")[0])
        passes = pass_times()
        from spyre.cli.run import main as run

        code = run(["--quiet", bundle])
    print(f"CPU seconds of the process: {time.process_time():.1f}")
    titles = ("function", "stage of numba", "pass of LLVM")
    for title, counted in zip(titles, (functions.seconds, stages.seconds, passes), strict=True):
        print(f"\n{title}: {len(counted)}, {counted.total():.1f} s")
        for name, seconds in counted.most_common(ROWS):
            print(f"{seconds:8.2f}  {name}")
    return code


if __name__ == "__main__":
    sys.exit(main())
