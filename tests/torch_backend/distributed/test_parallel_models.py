"""Models spread over cards: DTensor, tensor parallelism, compiled collectives, pipelines."""

from __future__ import annotations

import copy
import importlib
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import convert_frame
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from spyre.errors import UnsupportedError
from spyre.torch_backend.distributed import compat
from tests.torch_backend.distributed.ranks import mesh_of, run_ranks
from tests.torch_backend.processes import run

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "torch" / "tensor_parallel.py"
TOKENS = 256 if "SPYRE_TEST_EXAMPLES" in os.environ else 48
RANKS = pytest.mark.parametrize("ranks", [2, 4])
BOUNDS = pytest.mark.parametrize(
    ("dtype", "bounds"),
    [(torch.float32, (1e-7, 5e-7, 5e-7)), (torch.float16, (8.9e-4, 2e-3, 2e-3))],
    ids=str,
)
"""Bounds of errors of results and gradients, relative to the largest number."""


def random(*size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), device="cpu")


@RANKS
def test_redistribution_of_uneven_shards(ranks):
    host = random(7, 6)

    def body(rank):
        mesh = mesh_of(ranks)
        rows = distribute_tensor(host.to("spyre"), mesh, [Shard(0)])
        columns = rows.redistribute(mesh, [Shard(1)])
        whole = columns.redistribute(mesh, [Replicate()]).to_local()
        local = rows.to_local().shape[0], columns.to_local().shape[1]
        return local, whole.cpu(), (rows @ rows.t()).full_tensor().cpu()

    results = run_ranks(ranks, body)
    assert [sum(sizes) for sizes in zip(*(r[0] for r in results), strict=True)] == [7, 6]
    card = host.to("spyre")
    for _, whole, product in results:
        assert torch.equal(whole, host)
        assert (product - (card @ card.t()).cpu()).abs().max() < 1e-6


def mlp(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(64, 256, dtype=dtype), nn.ReLU(), nn.Linear(256, 64, dtype=dtype)
        )


PLAN = {"0": ColwiseParallel, "2": RowwiseParallel}


def parallel(net, ranks):
    plan = {name: style() for name, style in PLAN.items()}
    return parallelize_module(net, mesh_of(ranks), plan)


@RANKS
@BOUNDS
def test_tensor_parallel_module(ranks, dtype, bounds):
    net, host = mlp(dtype), random(4, 64).to(dtype)

    def results_of(own, x):
        x = x.to("spyre").requires_grad_()
        y = own(x)
        y.float().square().mean().backward()
        weight = own[0].weight.grad
        full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        return [t.detach().cpu().float() for t in (y, x.grad, full)]

    expected = results_of(copy.deepcopy(net).to("spyre"), host)
    for found in run_ranks(
        ranks, lambda _: results_of(parallel(copy.deepcopy(net).to("spyre"), ranks), host)
    ):
        for one, other, bound in zip(found, expected, bounds, strict=True):
            assert (one - other).abs().max() <= bound * other.abs().max()


def test_compiled_tensor_parallel_module():
    net, host = mlp(torch.float16), random(4, 64).half()

    def body(rank):
        own = parallel(copy.deepcopy(net).to("spyre"), 2)
        x = host.to("spyre")
        with torch.no_grad():
            return own(x).cpu(), torch.compile(own, fullgraph=True)(x).cpu()

    for eager, compiled in run_ranks(2, body):
        assert (eager - compiled).abs().max() <= 1e-3 * eager.abs().max()


def in_graph(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def summed(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def spread(x):
    everything = functional.all_gather_tensor(x + 1, 0, dist.group.WORLD)
    return functional.reduce_scatter_tensor(everything * 2, "sum", 0, dist.group.WORLD)


@pytest.mark.parametrize("function", [in_graph, summed, spread])
def test_collectives_in_compiled_functions(function):
    hosts = [random(64, 130, seed=k).half() for k in range(2)]

    def body(rank):
        x = hosts[rank].to("spyre")
        return function(x).cpu(), torch.compile(function, fullgraph=True)(x).cpu()

    for eager, compiled in run_ranks(2, body):
        assert torch.equal(eager, compiled)


@RANKS
def test_pipeline(ranks):
    """A stage per rank: activations forward and gradients back by send and recv."""
    stages = [mlp(torch.float32) for _ in range(ranks)]
    host = random(4, 64)

    def body(rank):
        stage = copy.deepcopy(stages[rank]).to("spyre")
        x = host.to("spyre") if rank == 0 else torch.empty(4, 64, device="spyre")
        if rank:
            dist.recv(x, rank - 1)
        y = stage(x.requires_grad_())
        if rank == ranks - 1:
            y.sum().backward()
        else:
            dist.send(y.detach(), rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        if rank:
            dist.send(x.grad, rank - 1)
        return y.detach().cpu(), stage[0].weight.grad.cpu()

    whole = nn.Sequential(*map(copy.deepcopy, stages)).to("spyre")
    y = whole(host.to("spyre"))
    y.sum().backward()
    results = run_ranks(ranks, body)
    assert torch.equal(results[-1][0], y.detach().cpu())
    for stage, (_, gradient) in zip(whole, results, strict=True):
        assert torch.equal(gradient, stage[0].weight.grad.cpu())


def test_random_numbers_of_shards_and_replicas():
    """Ranks are threads with a card each, as the numbers of a card are one sequence."""
    printed = run(
        """
    import torch.distributed as dist
    import torch.distributed.tensor as dt
    from tests.torch_backend.distributed.ranks import run_ranks
    Shard, Replicate = dt.Shard, dt.Replicate

    def body(rank):
        torch.spyre.set_device(rank)
        mesh = dist.init_device_mesh("spyre", (2,))
        torch.spyre.manual_seed(7 + rank)  # the first operation takes rank 0's
        def drawn(placement):
            return dt.rand((4, 70), device_mesh=mesh, placements=[placement])
        whole = drawn(Shard(0)).full_tensor().cpu()
        same = drawn(Replicate()).to_local().cpu()
        again = drawn(Replicate()).to_local().cpu()
        own = torch.rand(3, device="spyre").cpu()
        return whole, same, again, own

    one, other = run_ranks(2, body)
    assert all(map(torch.equal, one, other))
    whole, same, again, _ = one
    assert not torch.equal(whole[:2], whole[2:])
    assert not torch.equal(same, again)
    """,
        AIU_WORLD_SIZE="2",
        SPYRECCL_TRANSPORT="shm",
    )
    assert "Error" not in printed


class NoModule(importlib.abc.MetaPathFinder):
    """Finds nothing."""

    def find_spec(self, name, path, target=None):
        return None


def test_dynamo_leaves_collectives_and_imports_to_python(monkeypatch):
    """It would wait for its lock where others wait for this rank, or for the lock of imports."""
    monkeypatch.setattr(sys, "meta_path", [NoModule(), *sys.meta_path])
    compat.keep_imports_from_dynamo.__wrapped__()
    looked_at = []
    add = convert_frame.input_codes.add
    monkeypatch.setattr(
        convert_frame.input_codes, "add", lambda code: (looked_at.append(code), add(code))
    )

    def import_nothing():
        with suppress(ImportError):
            importlib.import_module("no_such_module")

    @torch._dynamo.disable(recursive=False)
    def outside(x):
        import_nothing()
        dist.group.WORLD.allreduce([x]).wait()

    @torch.compile(backend="eager")
    def reduced(x):
        outside(x)
        return x + 1

    (result,) = run_ranks(1, lambda _: reduced(torch.ones(4, device="spyre")).cpu())
    assert torch.equal(result, torch.full((4,), 2.0))
    assert import_nothing.__code__ in looked_at
    assert NoModule.find_spec.__code__ not in looked_at
    assert [code for code in looked_at if "/spyre/torch_backend/" in code.co_filename] == []


def test_random_numbers_of_compiled_dtensors_are_refused():
    def body(rank):
        mesh = mesh_of(2)
        x = distribute_tensor(torch.ones(4, 70, device="spyre"), mesh, [Shard(0)])

        @torch.compile(fullgraph=True)
        def noisy(x):
            return torch.nn.functional.dropout(x, 0.5)

        with pytest.raises(Exception, match="SPY979"):
            noisy(x)

    run_ranks(2, body)


def test_random_numbers_are_refused_before_any_is_drawn(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(UnsupportedError, match="SPY979"), compat._shard_random(None, None):
        pass


def test_a_model_decodes_the_same_tokens_on_two_cards():
    decode = runpy.run_path(str(EXAMPLE), run_name="example")["decode"]
    card = torch.device("spyre", 0)
    expected = decode(0, 1, card, TOKENS)
    assert len(set(expected)) > TOKENS // 13
    assert run_ranks(2, lambda rank: decode(rank, 2, card, TOKENS)) == [expected] * 2
    assert run_ranks(4, lambda rank: decode(rank, 4, card, 16)) == [expected[:16]] * 4
