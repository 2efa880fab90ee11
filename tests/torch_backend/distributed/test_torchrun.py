"""Ranks that are processes, as torchrun starts them: the examples, on one host and on two."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "torch"


def start(example, *arguments, launcher=(), transport="auto"):
    """Start it with the options of torchrun, or without torchrun where ``launcher`` is None."""
    torchrun = () if launcher is None else ("-m", "torch.distributed.run", *launcher)
    command = [sys.executable, *torchrun]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SPYRE_FALLBACK": "silent",
        "SPYRECCL_TRANSPORT": transport,
    }
    return subprocess.Popen(
        [*command, str(EXAMPLES / example), *map(str, arguments)],
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


def test_training_without_torchrun():
    lines = ended(start("data_parallel.py", "--steps", "1", launcher=None))
    assert lines[-1] == "rank 0 of 1: replicas equal: True"


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
os.write(1, f"sum {x[0].item()}\\n".encode())  # whole lines of both ranks
dist.destroy_process_group()
"""


def test_a_restarted_job_is_right(tmp_path):
    """The store of torchrun still has the addresses of the first attempt."""
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    lines = ended(start(script, launcher=options))
    assert lines == ["sum 6.0"] * 2


BESIDE = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("spyreccl")
rank, parts = dist.get_rank(), [torch.empty(2, 70, device="spyre") for _ in range(2)]
stopped, peer, number = torch.zeros(1, device="spyre"), 1 - rank, 0
while not stopped.item():
    number += 1
    x = torch.full((2, 70), float(number), device="spyre")
    own, whole = x + rank, torch.empty(4, 70, device="spyre")
    dist.all_gather(parts, own)
    assert [part.unique().tolist() for part in parts] == [[number], [number + 1]]
    dist.reduce_scatter_tensor(x, torch.cat([own, own + 1]))
    assert x.unique().tolist() == [2 * number + 1 + 2 * rank]
    dist.all_to_all_single(whole, torch.cat([own, own + 2]))
    assert whole[:2].unique().tolist() == [number + 2 * rank], whole
    assert whole[2:].unique().tolist() == [number + 1 + 2 * rank], whole
    dist.all_reduce(own)
    assert own.unique().tolist() == [2 * number + 1]
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, own + rank, peer), dist.P2POp(dist.irecv, x, peer)]
    ):
        work.wait()
    assert x.unique().tolist() == [2 * number + 1 + peer]
    if rank == 0:
        stopped.fill_(float(os.path.exists(sys.argv[1])))
    dist.broadcast(stopped, 0)
    if number == 2:
        os.write(1, f"{os.getpid()}\\n".encode())
dist.barrier()
os.write(1, b"right\\n")
dist.destroy_process_group()
"""


def test_a_killed_job_leaves_another_one_alone(tmp_path):
    script, stop = tmp_path / "beside.py", tmp_path / "stop"
    script.write_text(BESIDE)
    options = ["--standalone", "--nproc-per-node=2"]
    jobs = [start(script, stop, launcher=options) for _ in range(2)]
    try:
        ranks = [[int(job.stdout.readline()) for _ in range(2)] for job in jobs]
        for process in (jobs[0].pid, *ranks[0]):
            os.kill(process, signal.SIGKILL)
        jobs[0].communicate(timeout=60)
    finally:
        stop.touch()
    assert ended(jobs[1]) == ["right"] * 2
    # Whole numbers only: other tests' names there hold random digits.
    numbers = "|".join(map(str, ranks[0] + ranks[1]))
    ours = re.compile(rf"spyre|(?<![0-9a-f])({numbers})(?![0-9a-f])")
    assert not [name for name in os.listdir("/dev/shm") if ours.search(name)]


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
