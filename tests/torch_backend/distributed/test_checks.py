"""Mismatched tensors are refused on all ranks before data is sent; other memory is not read."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.torch_backend.distributed.ranks import run_ranks


def card(*size, dtype=torch.float32):
    return torch.ones(*size, dtype=dtype, device="spyre")


def half(*size):
    return card(*size, dtype=torch.float16)


def lists(tensor, count=2):
    return [torch.zeros_like(tensor) for _ in range(count)]


WRONG = {
    "all_gather_into_tensor dtype": lambda: dist.all_gather_into_tensor(half(6), card(3)),
    "all_gather_into_tensor size": lambda: dist.all_gather_into_tensor(card(7), card(3)),
    "reduce_scatter_tensor dtype": lambda: dist.reduce_scatter_tensor(half(3), card(6)),
    "reduce_scatter_tensor size": lambda: dist.reduce_scatter_tensor(card(3), card(7)),
    "all_gather count": lambda: dist.all_gather(lists(card(3), 3), card(3)),
    "all_gather dtype": lambda: dist.all_gather(lists(half(3)), card(3)),
    "all_gather size": lambda: dist.all_gather(lists(half(100)), half(70)),
    "gather size": lambda: dist.gather(half(70), lists(half(100)) if at_root() else None),
    "broadcast rank": lambda: dist.broadcast(card(3), 12),
    "reduce rank": lambda: dist.reduce(card(3), 2),
    "gathering rank": lambda: dist.gather(card(3), None, 12),
    "scatter rank": lambda: dist.scatter(card(3), None, 12),
    "send rank": lambda: dist.send(card(3), 12),
    "recv rank": lambda: dist.recv(card(3), 12),
    "reduce_scatter count": lambda: dist.reduce_scatter(card(3), lists(card(3), 1)),
    "reduce_scatter size": lambda: dist.reduce_scatter(half(70), lists(half(100))),
    "reduce_scatter dtype": lambda: dist.reduce_scatter(card(3), lists(half(3))),
    "all_to_all count": lambda: dist.all_to_all(lists(card(3), 3), lists(card(3), 3)),
    "all_to_all dtype": lambda: dist.all_to_all(lists(card(3)), lists(half(3))),
    "all_to_all own size": lambda: dist.all_to_all(lists(half(70)), lists(half(100))),
    "all_to_all_single dtype": lambda: dist.all_to_all_single(half(4), card(4)),
    "all_to_all_single rows": lambda: dist.all_to_all_single(card(3), card(3)),
    "all_to_all_single sum": lambda: dist.all_to_all_single(card(4), card(4), [1, 2], [2, 2]),
    "all_to_all_single count": lambda: dist.all_to_all_single(card(4), card(4), [4], [4]),
    "all_to_all_single sign": lambda: dist.all_to_all_single(card(4), card(4), [5, -1], [5, -1]),
}


def at_root():
    return dist.get_rank() == 0


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_do_not_fit_leave_the_group_usable(name):
    def body(rank):
        if at_root() or name != "gather size":
            with pytest.raises((TypeError, ValueError, RuntimeError)) as refused:
                WRONG[name]()
            assert not isinstance(refused.value, dist.DistBackendError)
        x = card(3)
        dist.all_reduce(x)
        return x[0].item()

    assert run_ranks(2, body) == [2.0, 2.0]


def scattered(size):
    parts = [half(size)] * 3
    dist.scatter(half(size), parts if dist.get_rank() == 1 else None, 1)


def gathered(size):
    dist.gather(half(size), lists(half(size), 3) if dist.get_rank() == 1 else None, 1)


def exchanged(size):
    dist.all_to_all(lists(half(size), 3), [half(size)] * 3)


def split(size):
    rows = [1, 1, size - 2]
    dist.all_to_all_single(half(size, 5), half(size, 5), rows, rows)


UNLIKE = {
    "all_reduce": lambda size: dist.all_reduce(half(size)),
    "reduce": lambda size: dist.reduce(half(size), 2),
    "broadcast": lambda size: dist.broadcast(half(size), 1),
    "all_gather": lambda size: dist.all_gather(lists(half(size), 3), half(size)),
    "all_gather_into_tensor": lambda size: dist.all_gather_into_tensor(half(3 * size), half(size)),
    "reduce_scatter": lambda size: dist.reduce_scatter(half(size), lists(half(size), 3)),
    "reduce_scatter_tensor": lambda size: dist.reduce_scatter_tensor(half(size), half(3 * size)),
    "gather": gathered,
    "scatter": scattered,
    "all_to_all": exchanged,
    "all_to_all_single": split,
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("sizes", [(70, 100), (70, 0)])
def test_ranks_with_unlike_sizes_all_fail(name, sizes):
    """Within as many sticks, and with an empty tensor."""
    if name == "all_to_all_single" and 0 in sizes:
        pytest.skip("its splits would be negative")

    def body(rank):
        with pytest.raises(dist.DistBackendError, match=r"SPY95[27]"):
            UNLIKE[name](sizes[rank == 2])
        with pytest.raises(dist.DistBackendError, match="SPY956"):
            dist.all_reduce(card(3))

    run_ranks(3, body)


def test_unlike_dtypes_and_shapes_of_one_size_all_fail():
    def body(rank):
        x = card(2, 35) if rank else card(70)
        with pytest.raises(dist.DistBackendError, match=r"SPY95[27]"):
            dist.all_to_all(lists(x), [x] * 2)

    run_ranks(2, body)


def test_forms_of_one_size_that_differ_all_fail():
    """Sticks and codes in C order of as many bytes."""

    def body(rank):
        whole = half(128, 128) if rank else half(2, 64, 128)
        with pytest.raises(dist.DistBackendError, match=r"SPY957|SPY952[\s\S]*C order"):
            dist.all_gather_into_tensor(whole, half(64, 128))

    run_ranks(2, body)


def test_empty_tensors_everywhere():
    def body(rank):
        empty = card(0, 3)
        for call in UNLIKE.values():
            if call is not split:
                call(0)
        dist.all_to_all_single(card(0, 3), card(0, 3))
        dist.all_to_all_single(empty, empty, [0] * 3, [0] * 3)
        rows = [0, 2, 0] if rank == 1 else [0, 0, 0]
        target = [0, 2, 0] if rank == 1 else [0, 0, 0]
        out = card(sum(target), 5) * 0
        dist.all_to_all_single(out, card(sum(rows), 5), target, rows)
        return out.numel(), bool((out == 1).all())

    assert run_ranks(3, body) == [(0, True), (10, True), (0, True)]
