"""top-k, sort, max and min with positions, argmax and argmin."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.torch_backend.eager.agreement import FLOATS, agrees, numbers

SHAPES = [
    ((5,), 0),
    ((4, 9), 1),
    ((4, 9), 0),
    ((2, 65, 40), 1),
    ((3, 100, 70), 2),
    ((1, 1), 0),
    ((), 0),
]


def distinct(sizes, dim, dtype):
    """Different numbers along ``dim``, which every format holds exactly."""
    generator = torch.Generator().manual_seed(5)
    found = torch.argsort(torch.rand(sizes, generator=generator), dim) if sizes else torch.tensor(2)
    return (found - 30).to(dtype)


INTEGERS = [
    torch.tensor([[2**31 - 1, -(2**31), 0, -1, 65535, 65536, -65536, -65537, 0, -1]]),
    torch.arange(350).reshape(70, 5).mul(7919) % 5 - 2,
    torch.tensor([3, 1, 2, 1], dtype=torch.int32),
    torch.tensor(5),
]


@pytest.mark.parametrize("x", INTEGERS)
def test_integers_and_equal_ones_in_order(x):
    for dim in range(max(x.dim(), 1)):
        for falling in (True, False):
            agrees(lambda x, k=dim, f=falling: x.sort(dim=k, descending=f, stable=True), x)
    agrees(lambda x: x.argsort(0), x if x.dim() < 2 else x.unique())
    agrees(lambda x: x.topk(2, -1), torch.tensor([[70000, -5, 70001], [1, 2, 3]]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("sizes", "dim"), SHAPES)
def test_topk_and_sort(dtype, sizes, dim):
    x = distinct(sizes, dim, dtype)
    extent = sizes[dim] if sizes else 1
    for count in {1, min(3, extent)}:
        for largest in (True, False):
            agrees(lambda x, k=count, most=largest: x.topk(k, dim, largest=most), x)
    for falling in (True, False):
        agrees(lambda x, falls=falling: x.sort(dim, descending=falls), x)
    agrees(lambda x: x.argsort(dim), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("sizes", "dim"), SHAPES)
def test_extremes_and_their_positions(dtype, sizes, dim):
    x = distinct(sizes, dim, dtype)
    agrees(lambda x: x.max(dim), x)
    agrees(lambda x: x.min(dim, keepdim=True), x)
    agrees(lambda x: x.argmax(dim), x)
    agrees(lambda x: x.argmin(dim, keepdim=True), x)


@pytest.mark.parametrize("keepdim", [True, False])
def test_argmax_of_everything(keepdim):
    x = torch.arange(130.0).reshape(2, 65).roll(70)
    agrees(lambda x: x.argmax(keepdim=keepdim), x)
    agrees(lambda x: x.t().argmin(keepdim=keepdim), x)


def test_equal_elements_come_by_position():
    agrees(lambda x: x.sort(dim=0, stable=True), numbers(60, 3))
    agrees(lambda x: x.max(1), numbers(4, 90))


def test_given_results():
    def given(x):
        values, places = x.new_empty(4, 2), torch.empty(4, 2, dtype=torch.int64, device=x.device)
        return torch.topk(x, 2, out=(values, places))

    agrees(given, distinct((4, 9), 1, torch.float16))
    agrees(lambda x: torch.max(x, 1, out=(x.new_empty(0), x.new_empty(0).long())), numbers(4, 9))


def test_views():
    x = distinct((40, 70), 0, torch.float32)
    agrees(lambda x: x.t().topk(3), x)
    agrees(lambda x: x[3:30, ::2].topk(3, 0), x)
    agrees(lambda x: x[:, :1].expand(40, 5).max(0), x)
    agrees(lambda x: x.view(4, 10, 70).topk(3, 0), x)
    agrees(lambda x: x.view(4, 5, 2, 70).permute(1, 3, 0, 2).reshape(5, 70, 8).topk(3), x)


def test_dims_that_no_one_pitch_describes():
    x = distinct((6, 66), 0, torch.float16).view(2, 3, 66)
    agrees(lambda x: x.view(6, 66).topk(2, 0), x)
    agrees(lambda x: x.view(6, 66).sort(0), x)


def test_infinities():
    x = torch.tensor([[1.0, float("inf"), -3.0], [float("-inf"), -5.0, -2.0]])
    for dtype in FLOATS:
        agrees(lambda x: x.sort(1), x.to(dtype))
        agrees(lambda x: x.max(1), x.to(dtype))


def test_gradient_of_max():
    def gradient(x):
        x = x.clone().requires_grad_()
        x.max(1).values.sum().backward()
        return x.grad

    agrees(gradient, distinct((4, 9), 1, torch.float32), fallbacks=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_first_and_last_of_words(dtype):
    far = torch.randint(-(1 << 31) + 1, (1 << 31) - 1, (5, 70)).to(dtype)
    for x in (far, far.t(), numbers(4, 3, 65, dtype=dtype), torch.tensor(5, dtype=dtype)):
        for function in (torch.argmax, torch.argmin):
            agrees(function, x)
            agrees(partial(function, dim=-1, keepdim=True), x)
        for function in (torch.max, torch.min):
            agrees(function, x, 0)
            agrees(partial(function, dim=-1, keepdim=True), x)


@pytest.mark.parametrize("samples", [1, 3])
def test_drawing_by_weights(samples):
    weights = torch.rand(6, 50)
    for given in (weights, weights[0], weights.half()):
        torch.manual_seed(3)
        wanted = torch.multinomial(given, samples)
        before = torch.spyre.fallbacks()
        torch.manual_seed(3)
        assert torch.equal(torch.multinomial(given.to("spyre"), samples).cpu(), wanted)
        assert torch.spyre.fallbacks() == before


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0, float("nan")], [1.0]])
def test_wrong_weights_are_the_errors_of_the_cpu(weights):
    errors = []
    for device in ("cpu", "spyre"):
        with pytest.raises(RuntimeError) as raised:
            torch.multinomial(torch.tensor(weights, device=device), 2)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


MERGED = {
    "repeated rows": lambda x: x.repeat_interleave(2, 0),
    "repeated columns": lambda x: x.repeat_interleave(3, 1),
    "expanded": lambda x: x[:, None].expand(12, 2, 5).contiguous().view(24, 5),
    "swapped": lambda x: x.view(6, 2, 5).transpose(0, 1).reshape(12, 5),
    "channels last": lambda x: (
        x.view(1, 5, 6, 2).to(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(12, 5)
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("merged", MERGED.values(), ids=MERGED)
def test_positions_along_dims_stored_in_another_order(dtype, merged):
    x = distinct((60,), 0, dtype).view(12, 5)
    for dim in (0, 1):
        for position in (torch.argmax, torch.argmin):
            agrees(lambda x, k=dim, of=position: of(merged(x), k), x)
        for extreme in (torch.max, torch.min):
            agrees(lambda x, k=dim, of=extreme: of(merged(x), k), x)
        agrees(lambda x, k=dim: merged(x).topk(2, k).values, x)
        agrees(lambda x, k=dim: merged(x).sort(dim=k, stable=True), x)
