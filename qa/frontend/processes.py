"""The processes that run torch-spyre's tests: their start, limits and ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qa.frontend.plugin.spyre_recording import SETTINGS, read_outcomes

PLUGIN = Path(__file__).parent / "plugin"
"""Separate folder on the path, because a checkout has a package ``tests`` too."""
GIB = 1 << 30
POLL_S = 0.5
PATIENCE = 2
"""Multiple of a test's time limit after which its process is ended."""
PLUGINS = ("-p", "spyre_recording", "-p", "no:cacheprovider", "--tb=no")


class Forks:
    """A process in a checkout that has imported torch and runs pytest in forks of itself."""

    def __init__(self, checkout: Path, memory_bytes: float, seconds: int) -> None:
        self._checkout, self._memory_bytes, self._seconds = checkout, memory_bytes, seconds
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], settings: dict[str, object]) -> str | None:
        """Run pytest; return the reason if the process ended before the tests did, else None."""
        record = Path(str(settings["results"]))
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "output"
            output.touch()
            # a private cache: tests empty it, and another process may be filling the common one
            environment = {SETTINGS: json.dumps(settings), "TORCHINDUCTOR_CACHE_DIR": folder}
            request = {"arguments": ["-q", *PLUGINS, *arguments], "environment": environment}
            pid = self._ask(json.dumps(request | {"output": str(output)}))
            if pid is None:
                return "could not be forked: importing torch fails"
            reason, code = self._watch(pid, record)
            if reason is None and code not in (0, 1, 5):
                tail = output.read_bytes()[-1500:].decode(errors="replace")
                reason = f"ended with code {code}: {tail}"
            return reason

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait()
            self._server = None

    def _ask(self, line: str) -> int | None:
        """Send a request and return the id of the forked process."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "spyre_forks"],
                cwd=self._checkout,
                env=environment_of_tests(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._server.stdin is not None
        try:
            print(line, file=self._server.stdin, flush=True)
        except BrokenPipeError:
            return None
        return self._answer()

    def _answer(self) -> int | None:
        """Return the next number that the server prints; None after its end."""
        assert self._server is not None
        assert self._server.stdout is not None
        text = self._server.stdout.readline()
        return int(text) if text else None

    def _watch(self, pid: int, record: Path) -> tuple[str | None, int | None]:
        """Wait for the end of a process. Kill it if it takes too much memory, or stays too long in
        a test whose alarm has no effect because a call of compiled code does not return.
        """
        assert self._server is not None
        reason = None
        while not select.select([self._server.stdout], [], [], POLL_S)[0]:
            reason = self._too_much(pid, record)
            if reason is not None:
                os.kill(pid, signal.SIGKILL)
                break
        return reason, self._answer()

    def _too_much(self, pid: int, record: Path) -> str | None:
        if _resident_bytes(pid) > self._memory_bytes:
            return f"took more than {self._memory_bytes / GIB:g} GiB of memory"
        silent_s = time.time() - record.stat().st_mtime
        if silent_s > PATIENCE * self._seconds and read_outcomes(record).begun:
            return f"was in one test for {silent_s:.0f} s"
        return None


def environment_of_tests() -> dict[str, str]:
    """Variables of every process that runs tests of a checkout."""
    return {
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        **os.environ,
        "SPYRE_FRONTEND": "torch-spyre",
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]),
    }


def run_configuration(
    checkout: Path, config: str, settings: dict[str, object], ranks: int, torch_root: str
) -> str | None:
    """Run torch-spyre's ``tests/run_test.sh`` for a configuration; return why nothing ran, or None.

    ``ranks``: processes of distributed tests. ``torch_root``: a checkout of PyTorch, or empty.
    """
    environment = environment_of_tests() | {
        SETTINGS: json.dumps(settings),
        "PYTEST_ADDOPTS": " ".join(PLUGINS),
        "TORCH_DEVICE_ROOT": str(checkout),
        "AIU_WORLD_SIZE": str(ranks),
    }
    if torch_root:
        environment["TORCH_ROOT"] = torch_root
    with tempfile.TemporaryFile() as output:
        command = ["bash", "tests/run_test.sh", config]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        begun = read_outcomes(Path(str(settings["results"]))).of(config).rows
        if done.returncode == 0 or begun:
            return None
        output.seek(0)
        tail = output.read()[-1500:].decode(errors="replace")
        return f"ended with code {done.returncode}: {tail}"


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0  # it has ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE")
