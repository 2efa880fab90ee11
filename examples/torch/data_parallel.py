"""Training on several cards: every rank takes a part of the batch, gradients are averaged.

    python examples/torch/data_parallel.py
    torchrun --nproc-per-node 2 examples/torch/data_parallel.py
    torchrun --nproc-per-node 4 examples/torch/data_parallel.py --steps 50

Prints the loss, and whether all ranks ended with the same parameters, bit by bit.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="steps of training; default: 20")
    steps = parser.parse_args().steps
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,spyre:spyreccl", **alone)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).half().to("spyre")
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    inputs = torch.randn(BATCH, 64)
    targets = inputs[:, :4].sum(1, keepdim=True)
    own = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    x, y = inputs[own].half().to("spyre"), targets[own].half().to("spyre")
    for step in range(steps):
        loss = (wrapped(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss of rank 0 {loss.item():.4f}")
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    everything = [torch.empty_like(parameters) for _ in range(ranks)]
    dist.all_gather(everything, parameters)
    same = all(torch.equal(other.cpu(), parameters.cpu()) for other in everything)
    print(f"rank {rank} of {ranks}: replicas equal: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
