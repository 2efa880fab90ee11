"""The only reader of environment variables; ``docs/environment.md`` lists them.

A value is read when it is asked for, so a test may change the environment. Importing this module
costs nothing and imports nothing of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, default (as text) and what it does."""

    name: str
    default: str
    description: str

    def read(self) -> str:
        """The variable's value, or its default when unset or empty."""
        return os.environ.get(self.name, "") or self.default


THREADS = Variable("SPYRE_NUM_THREADS", "", "host threads for kernels; default: usable CPUs")
CACHE_DIR = Variable("SPYRE_CACHE_DIR", "", "compiled kernels and plans; default: ~/.cache/spyre")
PLAN_CACHE = Variable(
    "SPYRE_PLAN_CACHE", "on", "`off` (or `0`): compiled plans are neither read nor written"
)
NUMERICS = Variable(
    "SPYRE_NUMERICS",
    "dl16",
    "default number mode, in the form `--numerics` takes, such as dl16:alu=even",
)
VECTOR_WIDTH = Variable(
    "SPYRE_VECTOR_WIDTH", "", "float32 lanes of the matmul microkernel: 8 or 16; default: CPU's"
)

VARIABLES = (THREADS, CACHE_DIR, PLAN_CACHE, NUMERICS, VECTOR_WIDTH)


def thread_count() -> int:
    """Host threads kernels may use: SPYRE_NUM_THREADS, else the CPUs this process may run on."""
    text = THREADS.read()
    if text.isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0))


def keeps_plans() -> bool:
    """False when SPYRE_PLAN_CACHE says so."""
    return PLAN_CACHE.read().lower() not in ("off", "0", "no", "false")


def cache_directory() -> Path:
    """Directory for compiled kernels and plans (not created here)."""
    text = CACHE_DIR.read()
    if text:
        return Path(text)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "spyre"
