"""Forks the processes tests run their code in: torch is imported and the device registered once.

The process runs ``PROGRAM`` as ``python -c`` does. It uses no card and starts no thread, so that
what it forks is as a new interpreter whose imports took no time. Requests are lines of JSON on its
standard input; it answers each with the exit code of the process it forked.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

PROGRAM = """
import warnings
import torch
from spyre.torch_backend import autoload
autoload()
from tests.torch_backend import fork_server
fork_server.import_what_a_card_needs()
exec(fork_server.requested())
"""
TIMEOUT_SECONDS = 300


KERNELS = ("elementwise", "copying", "converting")
"""What nearly every program of a test runs."""


def import_what_a_card_needs() -> None:
    """The modules that the first tensor on a card imports, and kernels, without a card."""
    from spyre.hw.device import Device
    from spyre.hw.kernels import driver, transfer
    from spyre.hw.linking import entry_addresses
    from spyre.hw.plan_table import KERNEL_NAMES
    from spyre.runtime.flex import FlexDevice
    from spyre.torch_backend.eager import registry
    from spyre.torch_backend.tensors import allocation, copies

    assert all((Device, driver, FlexDevice, registry, allocation, copies))
    entry_addresses(map(KERNEL_NAMES.index, KERNELS))
    assert transfer.run.address


def requested() -> str:
    """Serves requests; returns in each process it forks, with the code to run there."""
    gc.freeze()  # a collection in a child would copy every page of what is imported
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def _become(request: dict[str, Any]) -> str:
    """Take the environment, folder and files of the request; a process that hangs is ended."""
    signal.alarm(TIMEOUT_SECONDS)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["output"], os.O_WRONLY),
        (2, request["errors"], os.O_WRONLY),
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)
    return str(request["code"])
