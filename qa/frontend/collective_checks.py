"""Tests of the stand-in's collectives in the process of `test_device`; ranks are threads."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_spyre._C as native

from qa.frontend.device_checks import F, H, get, put
from tests.torch_backend.distributed.ranks import run_ranks

dist.Backend.register_backend(
    "spyreccl", lambda *given: native.createSpyreCCLBackend(*given), devices=["spyre"]
)
BACKEND = "cpu:gloo,spyre:spyreccl"
ops = torch.ops.spyre


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch):
    monkeypatch.setenv("SPYRECCL_TRANSPORT", "shm")


def on_ranks(body, size=2):
    return run_ranks(size, body, BACKEND)


def numbers(rank, *size):
    count = torch.Size(size).numel()
    return (torch.arange(count).reshape(size) % 64 + rank).to(H)


def by_columns(tensor):
    """Return a layout that the collectives cannot send: sticks along the first dim."""
    order = list(reversed(range(tensor.dim())))
    return native.SpyreTensorLayout(tensor.size(), tensor.stride(), tensor.dtype, order)


@pytest.mark.parametrize("size", [(70,), (5, 70), (3, 64), ()])
def test_sum(size):
    def body(rank):
        card = put(numbers(rank, *size))
        dist.all_reduce(card)
        return get(card)

    expected = numbers(0, *size) + numbers(1, *size)
    assert all(torch.equal(found, expected) for found in on_ranks(body))


def test_sum_in_another_layout():
    def body(rank):
        host = numbers(rank, 64, 128)
        card = put(host, by_columns(host))
        layout = native.get_spyre_tensor_layout(card)
        dist.all_reduce(card)
        assert native.get_spyre_tensor_layout(card) == layout
        return get(card)

    expected = numbers(0, 64, 128) + numbers(1, 64, 128)
    assert all(torch.equal(found, expected) for found in on_ranks(body))


def test_sum_of_a_view():
    def body(rank):
        whole = put(numbers(rank, 4, 70))
        dist.all_reduce(whole[1:3])
        return get(whole)

    for rank, found in enumerate(on_ranks(body)):
        expected = numbers(rank, 4, 70)
        expected[1:3] = numbers(0, 4, 70)[1:3] + numbers(1, 4, 70)[1:3]
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [H, F, torch.int32])
def test_moves(dtype):
    def body(rank):
        mine = put(numbers(rank, 4, 64).to(dtype))
        parts = [put(torch.zeros(4, 64, dtype=dtype)) for _ in range(2)]
        dist.all_gather(parts, mine)
        rows = [put(torch.zeros(4, 64, dtype=dtype)) for _ in range(2)] if rank == 1 else None
        dist.gather(mine, rows, dst=1)
        dist.broadcast(mine, 1)
        if rank == 0:
            dist.send(parts[1], 1, tag=3)
        else:
            dist.recv(parts[1], 0, tag=3)
        dist.barrier()
        return [get(each) for each in (*parts, *(rows or parts), mine)]

    both = [numbers(rank, 4, 64).to(dtype) for rank in range(2)]
    for found in on_ranks(body):
        for tensor, expected in zip(found, [*both, *both, both[1]], strict=True):
            assert torch.equal(tensor, expected)


def test_what_a_compiled_function_calls():
    def body(rank):
        name = dist.group.WORLD.group_name
        mine = put(numbers(rank, 128))
        sent = ops.broadcast_async(mine, 1, name)
        summed = ops.all_reduce_async(mine, "sum", name)
        return get(ops.wait_work(sent)), get(ops.wait_work(summed))

    for sent, summed in on_ranks(body):
        assert torch.equal(sent, numbers(1, 128))
        assert torch.equal(summed, numbers(0, 128) + numbers(1, 128))


def test_what_the_card_does_not_do():
    def body(rank):
        mine, other = put(numbers(rank, 64)), put(numbers(rank, 64).float())
        whole = put(numbers(rank, 128))
        calls = [
            (lambda: dist.all_gather_into_tensor(whole, mine), "SPY958"),
            (lambda: dist.reduce_scatter_tensor(mine, whole), "SPY958"),
            (lambda: dist.all_reduce(mine, dist.ReduceOp.MAX), "SPY958"),
            (lambda: dist.all_reduce(other), "SPY958"),
            (lambda: dist.broadcast(put(numbers(0, 4, 64)).t(), 0), "contiguous"),
            (lambda: ops.wait_work(mine), "No pending"),
            (lambda: ops.all_reduce_async(mine, "max", "default"), "SPY958"),
            (lambda: ops.broadcast_async(mine, 2, "default"), "no rank 2"),
        ]
        for call, text in calls:
            with pytest.raises(RuntimeError, match=text):
                call()
        dist.all_reduce(mine)
        return get(mine)

    assert torch.equal(on_ranks(body)[0], numbers(0, 64) + numbers(1, 64))


def test_a_group_of_one_rank():
    def body(rank):
        assert dist.get_default_backend_for_device("spyre") == "spyreccl"
        group = dist.new_group([0], timeout=timedelta(seconds=20))
        card = put(numbers(rank, 64))
        dist.all_reduce(card, group=group)
        return get(card)

    assert torch.equal(on_ranks(body, 1)[0], numbers(0, 64))
