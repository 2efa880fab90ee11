"""Training on several cards: DDP and FSDP have the results of one card."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from tests.torch_backend.distributed.ranks import mesh_of, run_ranks

BATCH = 8
ONE_STEP = 2e-8
"""Between neighbouring float32 as large as the parameters; of float16 it is 2.5e-4."""


class Net(nn.Module):
    """Two layers, and one that `uses_extra` may leave out."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(16, 64, dtype=dtype)
        self.extra = nn.Linear(64, 64, dtype=dtype)
        self.last = nn.Linear(64, 4, dtype=dtype)

    def forward(self, x, uses_extra=True):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.extra(x)) if uses_extra else x)


def fresh(dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(dtype)


def data(dtype=torch.float32):
    random = torch.Generator().manual_seed(1)
    x, y = (torch.randn(BATCH, n, generator=random, device="cpu") for n in (16, 4))
    return x.to(dtype), y.to(dtype)


def train(model, x, y, steps=5, **options):
    """Losses of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = ((model(x, **options) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parameters(model):
    return [p.detach().cpu().float() for p in model.parameters()]


def on_one_card(dtype=torch.float32, steps=5, **options):
    model, (x, y) = fresh(dtype).to("spyre"), data(dtype)
    train(model, x.to("spyre"), y.to("spyre"), steps, **options)
    return parameters(model)


def on_ranks(ranks, wrap, dtype=torch.float32, steps=5, full=parameters, **options):
    """Parameters of every rank after training on its part of the batch."""
    model, (x, y) = fresh(dtype), data(dtype)

    def body(rank):
        own = copy.deepcopy(model).to("spyre")
        wrapped = wrap(own)
        part = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        train(wrapped, x[part].to("spyre"), y[part].to("spyre"), steps, **options)
        return full(own)

    return run_ranks(ranks, body)


def assert_replicas(results, expected, bound):
    for own in results:
        assert all(map(torch.equal, own, results[0]))
    for found, wanted in zip(results[0], expected, strict=True):
        assert (found - wanted).abs().max() <= bound


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, ONE_STEP), (torch.float16, 2.5e-4)])
def test_ddp(ranks, dtype, bound):
    found = on_ranks(ranks, DistributedDataParallel, dtype)
    assert_replicas(found, on_one_card(dtype), bound)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.005, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_options(ranks, options):
    found = on_ranks(ranks, lambda net: DistributedDataParallel(net, **options))
    assert_replicas(found, on_one_card(), 1e-7)


def test_compiled_ddp(monkeypatch):
    """Ranks compile, one after the other, while they wait for each other."""
    # torch keeps one for all threads; ranks that restore the former one may leave an old one
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    found = on_ranks(2, lambda net: torch.compile(DistributedDataParallel(net)), torch.float16, 3)
    assert_replicas(found, on_one_card(torch.float16, 3), 2.5e-4)


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_parameters_that_no_rank_uses(options):
    found = on_ranks(
        2, lambda net: DistributedDataParallel(net, **options), steps=3, uses_extra=False
    )
    assert_replicas(found, on_one_card(steps=3, uses_extra=False), 1e-7)


def test_parameters_that_one_rank_uses():
    """Only the reduced map says that the other rank must take the gradient too."""
    model = fresh()

    def body(rank):
        own = copy.deepcopy(model).to("spyre")
        wrapped = DistributedDataParallel(own, find_unused_parameters=True)
        x = torch.ones(2, 16, device="spyre")
        wrapped(x, uses_extra=rank == 0).sum().backward()
        return [None if p.grad is None else p.grad.cpu() for p in own.parameters()]

    first, second = run_ranks(2, body)
    assert all(grad is not None for grad in first)
    assert all(map(torch.equal, first, second))


def test_replicas_are_equal_after_50_steps():
    found = on_ranks(2, DistributedDataParallel, torch.float16, steps=50)
    assert_replicas(found, found[0], 0)


@pytest.mark.parametrize(
    ("hook", "bound"),
    [(default_hooks.allreduce_hook, 1e-7), (default_hooks.fp16_compress_hook, 1e-3)],
)
def test_ddp_hooks(hook, bound):
    def wrap(net):
        wrapped = DistributedDataParallel(net)
        wrapped.register_comm_hook(None, hook)
        return wrapped

    assert_replicas(on_ranks(2, wrap), on_one_card(), bound)


def test_no_sync_accumulates():
    model, (x, _) = fresh(), data()

    def body(rank):
        own = copy.deepcopy(model).to("spyre")
        wrapped = DistributedDataParallel(own)
        part = x[rank * 4 : rank * 4 + 4].to("spyre")
        with wrapped.no_sync():
            wrapped(part[:2]).mean().backward()
            local = own.first.weight.grad.cpu()
        wrapped(part[2:]).mean().backward()
        return local, own.first.weight.grad.cpu()

    (first, one), (second, other) = run_ranks(2, body)
    assert not torch.equal(first, second)
    assert torch.equal(one, other)
    card = copy.deepcopy(model).to("spyre")
    (card(x.to("spyre")).mean() * 2).backward()
    assert (card.first.weight.grad.cpu() - one).abs().max() < 1e-6


def gathered(net):
    return [p.full_tensor().detach().cpu().float() for p in net.parameters()]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, ONE_STEP), (torch.float16, 2.5e-4)])
def test_fully_shard(ranks, dtype, bound):
    def wrap(net):
        mesh = mesh_of(ranks)
        for layer in net.children():
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    found = on_ranks(ranks, wrap, dtype, full=gathered)
    assert_replicas(found, on_one_card(dtype), bound)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("uses_original", [False, True])
def test_fsdp_of_the_first_kind(ranks, uses_original):
    model, (x, y) = fresh(), data()

    def body(rank):
        own = FullyShardedDataParallel(
            copy.deepcopy(model),
            use_orig_params=uses_original,
            device_id=torch.device("spyre", 0),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        )
        part = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        train(own, x[part].to("spyre"), y[part].to("spyre"))
        with FullyShardedDataParallel.summon_full_params(own):
            return parameters(own)

    assert_replicas(run_ranks(ranks, body), on_one_card(), 1e-7)
