"""Runs a command line and judges whether its exit code agrees with its output."""

from __future__ import annotations

import contextlib
import gc
import io
import random
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spyre.cli.compile import main as compile_main
from spyre.cli.run import main as run_main
from spyre.sweep.__main__ import main as sweep_main

PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {
    "spyre-run": run_main,
    "spyre-compile": compile_main,
    "spyre.sweep": sweep_main,
}
MODULES = {
    "spyre-run": "spyre.cli.run",
    "spyre-compile": "spyre.cli.compile",
    "spyre.sweep": "spyre.sweep",
}
Command = tuple[str, ...]
"""A program of `PROGRAMS` and its arguments."""


@dataclass(frozen=True)
class Fault:
    """A fault: ``inject(rng)`` causes it and returns the problem that follows, or "".

    ``seconds``: time limit, after which it counts as a hang.
    """

    name: str
    inject: Callable[[random.Random], str]
    seconds: int = 60


_ERROR = re.compile(r"error\[SPY\d+|\"code\": ?\"SPY\d+")
_DIFFERENCE = re.compile(r"elements differ|faulted|error\[SPY[46]\d\d|points, [1-9]\d* with errors")


@dataclass(frozen=True)
class Ended:
    """Exit code and output; ``foreign``: traceback of an uncaught exception, or ""."""

    code: int
    out: str
    err: str
    foreign: str = ""

    @property
    def untruth(self) -> str:
        """Reason why this end is wrong after any fault, or ""."""
        said = self.out + self.err
        if self.foreign or "Traceback (most recent" in said:
            return f"a traceback: {self.foreign or said[-3000:]}"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}: {said[-1000:]}"
        if self.code == 0 and _ERROR.search(said):
            return f"exit code 0 with an error: {said[-1000:]}"
        if self.code == 1 and not _DIFFERENCE.search(said):
            return f"exit code 1 without a difference: {said[-1000:]}"
        if self.code == 2 and not self.err and not _ERROR.search(said):
            return "exit code 2 without a word"
        return ""


def ended(command: Command) -> Ended:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code, foreign = PROGRAMS[command[0]](command[1:]), ""
        except SystemExit as left:
            code, foreign = (left.code if isinstance(left.code, int) else 0), ""
        except Exception:
            code, foreign = 2, traceback.format_exc()
    return Ended(code, out.getvalue(), err.getvalue(), foreign)


def after(command: Command) -> str:
    """Run a command on undamaged files; return "" if it succeeds, else the problem."""
    gc.collect()  # every card reserves address space
    again = ended(command)
    return "" if again.code == 0 else f"not right afterwards: {again}"
