"""Ranks that are processes, as torchrun starts them: the examples, on one host and on two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "torch"


def start(example, *arguments, launcher=(), transport="auto"):
    command = [sys.executable, "-m", "torch.distributed.run", *launcher]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SPYRE_FALLBACK": "silent",
        "SPYRECCL_TRANSPORT": transport,
    }
    return subprocess.Popen(
        [*command, str(EXAMPLES / example), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """Lines of a process that must end well."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out.splitlines()


def test_training():
    lines = ended(start("data_parallel.py", "--steps", "11", launcher=["--nproc-per-node=2"]))
    losses = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("step")]
    assert losses[1] < losses[0]
    # Both ranks write to one pipe: without buffering, text and line break are two writes.
    assert sum(line.count("replicas equal: True") for line in lines) == 2


def test_two_hosts():
    """Two addresses of the loopback range, with the transport that hosts have between them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        start(
            "tensor_parallel.py",
            *("--tokens", "8"),
            launcher=[
                *("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"),
                *("--master-addr=127.0.0.1", f"--master-port={port}"),
                f"--local-addr=127.0.0.{node + 1}",
            ],
            transport="gloo",
        )
        for node in range(2)
    ]
    tokens = [line.partition(": ")[2] for node in nodes for line in ended(node)]
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert len(tokens[0].split()) == 8


AGAIN = """
import sys, time
from datetime import timedelta
from types import SimpleNamespace
import torch.distributed as dist
from spyre.torch_backend.distributed.group import close_all, open_group
rank, path = int(sys.argv[1]), sys.argv[2]
options = {"store": dist.FileStore(path, 2), "group_rank": rank, "group_size": 2, "group_id": ""}
for turn in range(4):
    time.sleep(0.3 if turn and turn % 2 == rank else 0)
    open_group(SimpleNamespace(timeout=timedelta(seconds=20), **options))
    close_all()
"""


def test_groups_are_opened_again_with_the_same_store(tmp_path):
    """A rank that comes early must not take the address of another's closed group for the new."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        ended(rank)
