"""embedding, index_select, indexing with a tensor, gather: bit for bit, on the cores."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, agrees, numbers
from tests.torch_backend.processes import run

COUNTS = (1, 5, 32, 33, 100)


def places(below: int, *sizes: int, least: int = 0, dtype: torch.dtype = torch.int64):
    return torch.randint(least, below, sizes, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("count", COUNTS)
def test_embedding(dtype, count):
    table = numbers(7, 65, dtype=dtype)
    embed = torch.ops.aten.embedding
    agrees(embed, table, places(7, count))
    agrees(embed, table, places(7, 3, count))
    agrees(embed, table[:, :1], places(7, count))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("sizes", "dim"), [((7, 3, 65), 0), ((3, 7, 65), 1), ((3, 65, 7), 2), ((7,), 0)]
)
def test_index_select(dtype, count, sizes, dim):
    agrees(lambda x, i: x.index_select(dim, i), numbers(*sizes, dtype=dtype), places(7, count))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("count", COUNTS)
def test_index(dtype, count):
    agrees(lambda x, i: x[i], numbers(7, 65, dtype=dtype), places(7, count, least=-7))
    agrees(lambda x, i: x[:, i], numbers(3, 7, 65, dtype=dtype), places(7, 2, count, least=-7))
    agrees(lambda x, i: x[i], numbers(7, 65, dtype=dtype), torch.tensor(-3))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("count", COUNTS)
def test_gather(dtype, count):
    def gather(dim):
        return lambda x, i: x.gather(dim, i)

    agrees(gather(0), numbers(7, count + 3, dtype=dtype), places(7, 4, count))
    agrees(gather(1), numbers(4, 7, dtype=dtype), places(7, 4, count))
    agrees(gather(1), numbers(2, 40, count, dtype=dtype), places(40, 2, 3, count))
    agrees(gather(2), numbers(2, 3, count, dtype=dtype), places(count, 2, 3, 4))
    agrees(gather(0), numbers(7, dtype=dtype), places(7, count))


def test_take_along_dim_and_int32_indices():
    agrees(lambda x, i: x.take_along_dim(i, 1), numbers(4, 7), places(7, 4, 9))
    agrees(lambda x, i: x.index_select(0, i), numbers(7, 65), places(7, 9, dtype=torch.int32))


def test_views():
    x, i = numbers(9, 7, 65), places(7, 5, 4)
    agrees(lambda x, i: x.transpose(0, 1)[i.t()], x, i)
    agrees(lambda x, i: x[::2].index_select(1, i[:, 1]), x, i)
    agrees(lambda x, i: x[0].gather(0, i[:1].expand(3, 4)), x, i)
    agrees(lambda x, i: x[:, 0, 3:9].gather(1, (i[:, :3] - 1).clamp(0).float().int().long()), x, i)


def test_large_table():
    agrees(torch.ops.aten.embedding, numbers(3000, 130), places(3000, 2, 70))


def test_several_indices():
    x = numbers(5, 7, 6, 9)
    i, j = places(5, 4, 3, least=-5), places(7, 3, least=-7)
    agrees(lambda x, i, j: x[i, j], x, i, j)
    agrees(lambda x, i, j: x[:, j, i], x, i, j)
    agrees(lambda x, i, j: x[i, j, j - j, i.abs()], x, i.clamp(-4), j)
    agrees(lambda x, i, j: x[0, :, 0][j, i], x, i, j)
    agrees(lambda x, i, j: x[i[:, :1, None], j[None, None, :]], x, i, j)
    agrees(lambda x, i, j: x[i, :, i], x, i, j, fallbacks=True)
    agrees(lambda x: x[x > 0], x, fallbacks=True)


@pytest.mark.parametrize("dtype", MOVED)
def test_flip_and_roll(dtype):
    x = numbers(3, 5, 70, dtype=dtype)
    for dims in ((0,), (1,), (2,), (0, -1), ()):
        agrees(lambda x, d=dims: x.flip(d), x)
    agrees(lambda x: x.roll(3), x)
    agrees(lambda x: x.roll((1, -2), (0, 2)), x)
    agrees(lambda x: x[:, :, 3:9].roll(7, 1), x)


def test_no_indices():
    agrees(lambda x, i: x[i], numbers(7, 5), torch.zeros(0, dtype=torch.int64))


def test_embedding_gradient():
    def gradient(weight, i):
        weight = weight.clone().requires_grad_()
        torch.nn.functional.embedding(i, weight).sum().backward()
        return weight.grad

    agrees(gradient, numbers(7, 65), places(7, 12), fallbacks=True)


@pytest.mark.parametrize(
    ("call", "index"),
    [
        ("x.index_select(0, torch.tensor([0, 7]).to('spyre'))", 7),
        ("x.index_select(1, torch.tensor([7]).to('spyre'))", 7),
        ("x.index_select(1, torch.tensor([-1, 0]).to('spyre'))", -1),
        ("x.index_select(0, torch.tensor([1 << 24]).to('spyre'))", 1 << 24),
        ("x.index_select(1, torch.tensor([-(1 << 31)]).to('spyre'))", -(1 << 31)),
        ("x[:, torch.tensor([-8]).to('spyre')]", -8),
        ("torch.gather(x, 1, torch.full((7, 2, 130), 9).to('spyre'))", 9),
        ("torch.compile(lambda x, i: x[:, i] * 2)(x, torch.tensor([1, 8]).to('spyre'))", 8),
        ("x[torch.tensor([0, 0]).to('spyre'), torch.tensor([8, 0]).to('spyre')]", 8),
        ("x[torch.tensor([[0], [-9]]).to('spyre'), torch.tensor([3, 0]).to('spyre')]", -9),
        (
            "x.index_put((torch.tensor([7]).to('spyre'), torch.tensor([1]).to('spyre')), x[0, 0])",
            7,
        ),
        (
            "torch.compile(lambda x, i: x[:, i, i] * 2)(x[None], torch.tensor([1, 8]).to('spyre'))",
            8,
        ),
    ],
)
def test_an_index_out_of_range_is_a_fault(call, index):
    found = run(
        f"""
        import torch
        x = torch.ones(7, 7, 130).to("spyre")
        try:
            ({call}).cpu()
        except Exception as error:
            print(type(error).__name__, error)
        """
    )
    assert "SPY412" in found
    assert "is out of bounds for dimension" in found
    assert "expected: 0 to 6" in found
    assert f"found: {index}\n" in found + "\n"
