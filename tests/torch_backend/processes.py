"""Runs a few lines in a process of their own, with the device registered."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.torch_backend import fork_server

PROLOGUE = """
import warnings
import torch
from spyre.torch_backend import autoload
autoload()
"""
READ_BY_IMPORTS = (
    "PYTHON",
    "SPYRE_WITHOUT_PATCHES",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_LOGS",
)
"""Beginnings of environment variables that have been read before a forked process begins."""
CHECKOUT = Path(__file__).resolve().parents[2]


def run(code: str, **environment: str) -> str:
    """What the lines print; their traceback is the message of the failure.

    They run after `PROLOGUE`, in a process forked where torch is imported already: for what imports
    do and what they read from the environment there is `run_anew`.
    """
    assert not [name for name in environment if name.startswith(READ_BY_IMPORTS)]
    with TemporaryDirectory() as folder:
        output, errors = (Path(folder) / name for name in ("output", "errors"))
        for path in (output, errors):
            path.touch()
        request = {
            "code": textwrap.dedent(code),
            "environment": _variables(environment),
            "folder": os.getcwd(),
            "output": str(output),
            "errors": str(errors),
        }
        exit_code = _forked(request)
        assert exit_code == 0, f"exit code {exit_code}\n{errors.read_text()}"
        return output.read_text() + errors.read_text()


def run_anew(code: str, prologue: str = PROLOGUE, **environment: str) -> str:
    """As `run`, in an interpreter that is started for it: 2 s of CPU time more."""
    done = subprocess.run(
        [sys.executable, "-c", prologue + textwrap.dedent(code)],
        env=_variables(environment),
        capture_output=True,
        text=True,
        timeout=fork_server.TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _variables(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "SPYRE_FALLBACK": "silent", **environment}


def _forked(request: dict[str, object]) -> int:
    """The exit code of a process that the fork server makes for the request."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the fork server has ended"
    return int(answer)


@cache
def _server() -> subprocess.Popen[str]:
    """The fork server of this process, which ends with it.

    Its first caller may stand in a folder where `tests` cannot be imported.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", fork_server.PROGRAM],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server
