"""Forks the processes of test files, so that torch and torch-spyre are imported once.

Requests are lines of JSON on standard input: arguments of pytest, environment variables and a file
for the output. The answer is the process's id and, when it has ended, its exit code. The forking
process makes no tensor and starts no thread.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import pytest


def import_what_tests_need() -> None:
    """Import torch and the simulator without opening a card."""
    import torch  # noqa: F401

    from spyre.hw.device import Device  # noqa: F401
    from spyre.hw.kernels import driver  # noqa: F401
    from spyre.runtime.flex import FlexDevice  # noqa: F401


def main() -> int:
    import_what_tests_need()
    gc.freeze()  # a collection in a child would copy every page of the imported modules
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            return _run(request["arguments"], request["environment"], request["output"])
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


def open_cards_here() -> None:
    """Undo torch-spyre's mark of forked processes, which may not open a card: none was open."""
    import torch

    state = getattr(getattr(torch, "spyre", None), "_impl", None)
    for name in ("_initialized", "_in_bad_fork"):
        if hasattr(state, name):
            setattr(state, name, False)


def _run(arguments: list[str], environment: dict[str, str], output: str) -> int:
    open_cards_here()
    os.environ.update(environment)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, output, os.O_WRONLY | os.O_APPEND),
        (2, output, os.O_WRONLY | os.O_APPEND),
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)
    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
