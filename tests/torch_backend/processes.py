"""Runs a few lines in a process of their own, with the device registered."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROLOGUE = """
import warnings
import torch
from spyre.torch_backend import autoload
autoload()
"""


def run(code: str, prologue: str = PROLOGUE, **environment: str) -> str:
    """What the lines print; their traceback is the message of the failure."""
    variables = {**os.environ, "SPYRE_FALLBACK": "silent", **environment}
    done = subprocess.run(
        [sys.executable, "-c", prologue + textwrap.dedent(code)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
