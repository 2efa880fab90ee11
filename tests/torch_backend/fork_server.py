"""Forks the processes tests run their code in: torch is imported once, the device registered once.

The interpreter runs ``PROGRAM`` as ``python -c`` does, imports torch and then forks: it serves the
requests for torch alone, and its child registers the device and serves the others. Neither uses a
card or starts a thread, so that what they fork is as a new interpreter whose imports took no time.
Requests are lines of JSON on a socket; each is answered with the exit code of the process that was
forked for it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from typing import Any

PROGRAM = """
import sys
import warnings
import torch
from tests.torch_backend import fork_server
exec(fork_server.requested(*map(int, sys.argv[1:])))
"""
TIMEOUT_SECONDS = 300


KERNELS = ("elementwise", "copying", "converting")
"""Kernels that nearly all programs of tests run."""


def import_what_a_card_needs() -> None:
    """The modules that the first tensor on a card imports, and kernels, without a card."""
    from spyre.hw.device import Device
    from spyre.hw.kernels.machine_code import DRIVER, TRANSFER, entry_of
    from spyre.hw.linking import entry_addresses
    from spyre.hw.plan_table import KERNEL_NAMES
    from spyre.runtime.flex import FlexDevice
    from spyre.torch_backend.eager import registry
    from spyre.torch_backend.tensors import allocation, copies

    assert all((Device, FlexDevice, registry, allocation, copies))
    entry_addresses(map(KERNEL_NAMES.index, KERNELS))
    assert all(entry_of(name).address for name in (TRANSFER, *DRIVER))


def requested(bare: int, registered: int) -> str:
    """Serves requests on two sockets: for torch alone, and with the device."""
    if os.fork():
        os.close(registered)
        return _served(bare)
    from spyre.torch_backend import autoload

    os.close(bare)
    autoload()
    import_what_a_card_needs()
    return _served(registered)


def _served(number: int) -> str:
    """Serves the requests of a socket; returns in each process it forks, with the code to run."""
    gc.freeze()  # a collection in a child would copy every page of the imported modules
    with socket.socket(fileno=number) as connection, connection.makefile("rw") as lines:
        for line in lines:
            child = os.fork()
            if child == 0:
                return _become(json.loads(line))
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), file=lines, flush=True)
    raise SystemExit


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
