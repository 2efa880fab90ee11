"""Copies into views: whole sticks by the cores, parts of sticks by DMA, nothing on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, agrees, numbers


@pytest.mark.parametrize("dtype", [*MOVED, torch.int8])
@pytest.mark.parametrize(
    "place",
    [
        (slice(None), slice(3, 9)),
        (slice(1, 3),),
        (slice(1, 3), slice(None, None, 2)),
        (slice(None), slice(64, 100)),
        (slice(None), slice(0, 64)),
        (2,),
        (slice(None), 7),
        (1, 99),
    ],
)
def test_slice_assignment(dtype, place):
    x = numbers(4, 100, dtype=dtype)
    y = numbers(4, 100, dtype=dtype, seed=1)[place].clone()

    def assigned(x, y):
        x = x.clone()
        x[place] = y
        return x

    agrees(assigned, x, y)


def test_broadcast_and_converted_sources():
    def assigned(x, y, z):
        x = x.clone()
        x[:, 3:9] = y
        x[1:3, 10:16] = z
        x.t()[50] = z[0]
        return x

    agrees(
        assigned, numbers(4, 100), numbers(6, dtype=torch.float32), numbers(1, dtype=torch.int64)
    )


def test_from_the_cpu_into_a_view():
    def assigned(x):
        x = x.clone()
        x[:, 2:5] = torch.ones(4, 3)
        x.diagonal().copy_(torch.arange(4))
        return x

    agrees(assigned, numbers(4, 100))


@pytest.mark.parametrize("dtype", MOVED)
def test_fill(dtype):
    agrees(lambda x: x.clone().fill_(3), numbers(4, 100, dtype=dtype))
    agrees(lambda x: x.clone().zero_(), numbers(4, 100, dtype=dtype))
    agrees(lambda x: (x := x.clone(), x[:, 3:5].fill_(1), x.t()[64:].zero_())[0], numbers(4, 100))


def test_a_slice_assignment_does_not_wait():
    x = torch.zeros(4, 100).to("spyre")
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream):
        x[:, 3:9] = 1.0
        y = x + 1
    stream.synchronize()
    assert y.sum().item() == 4 * 100 + 24


def test_a_source_may_change_after_the_copy():
    x, source = torch.zeros(4, 100).to("spyre"), torch.ones(4, 6)
    x[:, 3:9] = source
    source.zero_()
    assert x.sum().item() == 24


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_copies_to_the_host_need_no_pinned_memory(dtype):
    x = numbers(3, 70)
    moved = x.to("spyre").requires_grad_()
    down = moved.to("cpu", dtype or x.dtype, non_blocking=True)
    assert torch.equal(down, x.to(down.dtype))
    down.sum().backward()
    assert moved.grad.device == moved.device


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_conversions_need_no_empty_tensor(half, monkeypatch):
    for seed in range(3):
        host = numbers(3, 70, dtype=half, seed=seed)
        card = host.to("spyre")
        with monkeypatch.context() as patch:
            patch.setattr("spyre.torch_backend.eager.factories.COMPOSITE_KEYS", None)
            wide = card.to(torch.float32)
            back, more = wide.to(half), (card.float() + 1).add_(1)
        assert (wide.dtype, back.dtype) == (torch.float32, half)
        assert torch.equal(wide.cpu(), host.float())
        assert torch.equal(back.cpu(), host)
        assert torch.equal(more.cpu(), host.float() + 1 + 1)
        assert torch.equal(card.cpu(), host)
    leaf = torch.rand(4, 33).to("spyre").requires_grad_()
    leaf.to(half).sum().backward()
    assert torch.equal(leaf.grad.cpu(), torch.ones(4, 33))


def test_narrow_copies_into_tensors_of_any_strides():
    """torch's of the CPU takes a transposed target for a contiguous one."""
    x = torch.randn(5, 4, 3)
    for out in (torch.empty(5, 3, 2).transpose(1, 2), torch.empty(2)):
        card = out.to("spyre")
        torch.narrow_copy(x.to("spyre"), 1, 1, 2, out=card)
        assert torch.equal(card.cpu(), x[:, 1:3])
