"""Runs a few lines in a new process, with the device registered."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from tests.torch_backend import fork_server

PROLOGUE = """
import warnings
import torch
from spyre.torch_backend import autoload
autoload()
"""
READ_BY_IMPORTS = ("PYTHON", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_LOGS")
"""Beginnings of environment variables that have been read before a forked process begins."""
CHECKOUT = Path(__file__).resolve().parents[2]


def run(code: str, **environment: str) -> str:
    """Run the lines and return their output; a traceback is the message of the failure.

    They run after `PROLOGUE`, in a process forked after torch was imported. To test imports and
    the environment variables that they read, use `run_anew`.
    """
    assert "SPYRE_WITHOUT_PATCHES" not in environment, "read when the device was registered"
    return _run_in_fork("registered", textwrap.dedent(code), environment)


def run_bare(code: str, prologue: str = "", **environment: str) -> str:
    """Like `run`, but this package is not imported yet and torch has no device."""
    return _run_in_fork("bare", prologue + textwrap.dedent(code), environment)


def run_anew(code: str, prologue: str = PROLOGUE, **environment: str) -> str:
    """Like `run`, but in a new interpreter, which takes 2 s more of CPU time."""
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


def _run_in_fork(server: str, code: str, environment: dict[str, str]) -> str:
    assert not [name for name in environment if name.startswith(READ_BY_IMPORTS)]
    with TemporaryDirectory() as folder:
        output, errors = (Path(folder) / name for name in ("output", "errors"))
        for path in (output, errors):
            path.touch()
        request = {
            "code": code,
            "environment": _variables(environment),
            "folder": os.getcwd(),
            "output": str(output),
            "errors": str(errors),
        }
        lines = _servers()[server]
        print(json.dumps(request), file=lines, flush=True)
        answer = lines.readline()
        assert answer, "the fork server has ended"
        assert int(answer) == 0, f"exit code {answer}{errors.read_text()}"
        return output.read_text() + errors.read_text()


@cache
def _servers() -> dict[str, TextIO]:
    """Start the fork servers of this process, which end with it; return their connections by name.

    The first caller's current folder may be one from which `tests` cannot be imported.
    """
    pairs = {name: socket.socketpair() for name in ("bare", "registered")}
    numbers = [served.fileno() for _, served in pairs.values()]
    server = subprocess.Popen(
        [sys.executable, "-c", fork_server.PROGRAM, *map(str, numbers)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=numbers,
    )
    for _, served in pairs.values():
        served.close()
    lines = {name: own.makefile("rw") for name, (own, _) in pairs.items()}
    atexit.register(_end, server, lines)
    return lines


def _end(server: subprocess.Popen[bytes], lines: dict[str, TextIO]) -> None:
    for connection in lines.values():
        connection.close()
    server.wait()
