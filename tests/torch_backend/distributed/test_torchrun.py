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


RESTARTED = """
import os, time
import torch, torch.distributed as dist

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
late = os.environ["RANK"] == "1" and not first
time.sleep(2 * late)  # the others find the keys of the rank that died
dist.init_process_group("spyreccl")
x = torch.ones(70, device="spyre") + dist.get_rank()
for group in (None, dist.new_group([0, 1])):
    dist.all_reduce(x, group=group)
if first and dist.get_rank() == 1:
    raise ValueError("the model has failed")
dist.barrier()
print("sum", x[0].item())
dist.destroy_process_group()
"""


def test_a_restarted_job_is_right(tmp_path):
    """The store of torchrun still has the addresses of the first attempt."""
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    lines = ended(start(script, launcher=options))
    assert lines == ["sum 6.0"] * 2


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
