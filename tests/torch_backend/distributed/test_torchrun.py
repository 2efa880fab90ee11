"""Ranks that are processes, as torchrun starts them: the examples, on one host and on two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "torch"


def start(example, *arguments, launcher=(), transport="auto"):
    command = [sys.executable, "-m", "torch.distributed.run", *launcher]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SPYRE_FALLBACK": "silent",
        "SPYRECCL_TRANSPORT": transport,
        # Scripts of ours import what tests have in common.
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
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
    assert sum(line.endswith("replicas equal: True") for line in lines) == 2


COMPILED = """
import torch, torch.distributed as dist
from tests.torch_backend.distributed.test_training import data, fresh, train
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank = dist.get_rank()
net, alone = (fresh(torch.float16).to("spyre") for _ in range(2))
x, y = (part.to("spyre") for part in data(torch.float16))
part = slice(4 * rank, 4 * rank + 4)
train(torch.compile(DistributedDataParallel(net)), x[part], y[part], steps=3)
train(alone, x, y, steps=3)
for own, expected in zip(net.parameters(), alone.parameters()):
    assert (own - expected).abs().max().item() <= 2.5e-4
    replicas = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(replicas, own.detach())
    assert torch.equal(*(each.cpu() for each in replicas))
dist.destroy_process_group()
print("equal")
"""


def test_compiled_training(tmp_path):
    """Ranks are processes: of the threads of one process only one may compile."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    lines = ended(start(script, launcher=["--nproc-per-node=2"]))
    # two processes may print into one line
    assert "".join(lines).count("equal") == 2


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
