"""where, masked_fill, tril and triu; elements not chosen have no effect, even infinite ones."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, agrees, numbers

SHAPES = [(4, 65), (), (2, 3, 5), (1,), (100,)]


def mask(*sizes: int) -> torch.Tensor:
    return numbers(*sizes, dtype=torch.int64, seed=7) > 0


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("dtype", MOVED)
def test_where(dtype, sizes):
    a, b = numbers(*sizes, dtype=dtype), numbers(*sizes, dtype=dtype, seed=1)
    agrees(torch.where, mask(*sizes), a, b)
    agrees(lambda c, a: torch.where(c, a, 2), mask(*sizes), a)
    agrees(lambda c, a: torch.where(c, a, a.new_tensor(1)), mask(*sizes), a)


def test_where_of_numbers_and_broadcasts():
    agrees(lambda c: torch.where(c, 2.5, -1.0), mask(4, 65))
    agrees(lambda c: torch.where(c, 2, 3), mask(4, 65))
    agrees(torch.where, mask(4, 1), numbers(65), numbers(3, 4, 65))
    agrees(lambda c, a, b: torch.where(c.t(), a[:, 3:9], b), mask(6, 4), numbers(4, 70), numbers(6))
    agrees(lambda c, a: torch.where(c, a, a, out=a.new_empty(0)), mask(4, 5), numbers(4, 5))


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("dtype", MOVED)
def test_masked_fill(dtype, sizes):
    x = numbers(*sizes, dtype=dtype)
    agrees(lambda x, m: x.masked_fill(m, 1), x, mask(*sizes))
    agrees(lambda x, m: x.clone().masked_fill_(m, 0), x, mask(*sizes))
    agrees(lambda x, m, v: x.masked_fill(m, v), x, mask(*sizes), torch.tensor(1).to(dtype))


def test_masked_fill_broadcasts_and_infinities():
    x = numbers(2, 4, 65)
    agrees(lambda x, m: x.masked_fill(m, float("-inf")), x, mask(4, 65))
    agrees(lambda x, m: x.clone().masked_fill_(m, float("inf")), x, mask(65))
    agrees(lambda x, m: x[0, :, 3:9].masked_fill(m[:6], 0.5), x, mask(65))
    agrees(lambda x, m: (x := x.clone(), x[0].t().masked_fill_(m, 3))[0], x, mask(65, 4))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("sizes", [(5, 5), (3, 7), (2, 65, 70), (1, 4), (4, 1)])
@pytest.mark.parametrize("diagonal", [0, 1, -1, 100, -100])
def test_triangles(dtype, sizes, diagonal):
    x = numbers(*sizes, dtype=dtype)
    if dtype.is_floating_point:
        x[..., 0, -1] = float("inf")
        x[..., -1, 0] = float("-inf")
    agrees(lambda x: x.tril(diagonal), x)
    agrees(lambda x: x.clone().triu_(diagonal), x)


def test_triangles_of_views():
    x = numbers(40, 70)
    agrees(lambda x: x.t().tril(), x)
    agrees(lambda x: x[:, 3:9].triu(), x)
    agrees(lambda x: x.expand(2, 40, 70).tril(2), x)


def test_no_elements():
    agrees(lambda x: x.tril(), torch.zeros(0, 3))
    agrees(lambda x, m: x.masked_fill(m, 1), torch.zeros(0, 3), torch.zeros(3, dtype=torch.bool))


def test_kept_triangles_do_not_count_as_tensors():
    gc.collect()
    before = torch.spyre.memory_allocated()
    found = torch.ones(33, 35).to("spyre").tril(3)
    found = torch.ones(33, 35).to("spyre").tril(3)
    assert torch.spyre.memory_allocated() > before
    del found
    gc.collect()
    assert torch.spyre.memory_allocated() == before


EXPANDED = [((4,), (3, 4)), ((3, 1), (3, 70)), ((), (3,)), ((1, 1), (3, 4)), ((2, 1, 4), (2, 3, 4))]


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize(("sizes", "expanded"), EXPANDED)
def test_fills_of_expanded_tensors_write_their_memory(dtype, sizes, expanded):
    def filled(x):
        x = x.clone()
        x.expand(expanded).fill_(1)
        return x

    def masked(x, chosen):
        x = x.clone()
        x.expand(expanded).masked_fill_(chosen, 1)
        return x

    x = numbers(*sizes, dtype=dtype)
    agrees(filled, x)
    with pytest.warns(UserWarning, match="masked_fill_ on expanded tensors"):
        agrees(masked, x, mask(*expanded))


def test_a_mask_does_not_change_the_sizes_of_what_it_fills():
    x, more = torch.ones(4, device="spyre"), mask(3, 4).to("spyre")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.masked_fill_(more, 2)
    agrees(lambda x, m: x.masked_fill(m, 2), numbers(4), mask(3, 4))


@pytest.mark.parametrize("dtype", MOVED)
def test_masked_scatter(dtype):
    x, source = numbers(2, 5, 70, dtype=dtype), numbers(2, 5, 70, dtype=dtype, seed=1)
    agrees(lambda x, m, s: x.masked_scatter(m, s), x, mask(2, 5, 70), source)
    agrees(lambda x, m, s: x.masked_scatter(m.expand_as(x), s), x, mask(2, 5, 1), source)
    agrees(lambda x, m, s: x.masked_scatter(m, s), x[0, 0, :1], mask(2, 5, 70), source)
    agrees(lambda x, m, s: x.masked_scatter(m, s), x[0, 0, 0], mask(), source)
    agrees(lambda x, m, s: x.clone().t().masked_scatter_(m, s), x[0], mask(70, 5), source)


def test_masked_scatter_of_too_few_elements_is_a_fault():
    x = torch.zeros(3, device="spyre")
    with pytest.raises(RuntimeError, match="SPY412"):
        x.masked_scatter(x == 0, x[:2]).cpu()
    with pytest.raises(RuntimeError, match="same dtypes"):
        x.masked_scatter(x == 0, x.half())
