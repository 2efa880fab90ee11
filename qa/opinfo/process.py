"""The parent's side of a worker process: requests, answers with a deadline, and its end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

STDERR_LINES = 3
STARTUP_SECONDS = 600.0


class WorkerDied(Exception):
    """The process ended without an answer; the message has its exit code or signal."""


class WorkerTimeout(Exception):
    """No answer before the deadline."""


class WorkerProcess:
    """One worker. Belongs to one thread; :meth:`close` ends the process."""

    def __init__(self, arguments: list[str], threads: int) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qa.opinfo.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe(self._process.stdout), selectors.EVENT_READ)
        try:
            self.receive(time.monotonic() + STARTUP_SECONDS)
        except WorkerTimeout as error:
            self.close()
            raise WorkerDied(f"it does not start within {STARTUP_SECONDS:g} s") from error
        except BaseException:
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send a request. WorkerDied if the process has ended."""
        try:
            os.write(self._pipe(self._process.stdin), (json.dumps(message) + "\n").encode())
        except BrokenPipeError as error:
            raise WorkerDied(self._how_it_ended()) from error

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next answer; WorkerTimeout after ``deadline`` (monotonic seconds), WorkerDied."""
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise WorkerTimeout
            more = os.read(self._pipe(self._process.stdout), 1 << 16)
            if not more:
                raise WorkerDied(self._how_it_ended())
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Kill the process if it still runs, and close its streams."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr, self._selector):
            if stream is not None:
                stream.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        fatal = [line for line in lines if "Error" in line or "error" in line]
        return ": ".join([f"the process ended with {how}", *(fatal or lines)[-STDERR_LINES:]])

    @staticmethod
    def _pipe(stream: Any) -> int:
        descriptor: int = stream.fileno()
        return descriptor
