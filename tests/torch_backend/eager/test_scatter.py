"""Writing through indices on the cores, eager and compiled: bit for bit as on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager import test_indexing
from tests.torch_backend.eager.agreement import FLOATS, MOVED, agrees, numbers
from tests.torch_backend.processes import run

places = test_indexing.places
COUNTS = (1, 5, 33)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("count", COUNTS)
def test_index_copy(dtype, count):
    order = torch.randperm(40)[:count]
    cache, rows = numbers(2, 3, 40, 16, dtype=dtype), numbers(2, 3, count, 16, dtype=dtype, seed=1)
    agrees(lambda x, i, s: x.index_copy(2, i, s), cache, order, rows)
    agrees(lambda x, i, s: x.clone().index_copy_(2, i, s), cache, order, rows)
    agrees(lambda x, i, s: x.index_copy(0, i, s), numbers(40), order, numbers(count, seed=1))


def test_the_last_of_equal_indices_counts():
    agrees(lambda x, i, s: x.index_copy(0, i, s), numbers(7, 65), places(7, 40), numbers(40, 65))
    agrees(lambda x, i, s: x.scatter(0, i, s), numbers(7, 65), places(7, 40, 65), numbers(40, 65))


def _put(x: torch.Tensor, values: torch.Tensor, *indices: object) -> torch.Tensor:
    changed = x.clone()
    changed[indices] = values
    return changed


@pytest.mark.parametrize("dtype", MOVED)
def test_index_put(dtype):
    i, j = torch.tensor([1, -2, 0]), torch.tensor([0, -1, 2])
    x, small = numbers(3, 7, 5, 65, dtype=dtype), numbers(7, 65, dtype=dtype)
    agrees(lambda x, i, v: _put(x, v, i), small, i, numbers(3, 65, dtype=dtype, seed=1))
    agrees(lambda x, i, v: _put(x, v, i), small, i, numbers(65, dtype=dtype, seed=1))
    agrees(lambda x, i: _put(x, 1, i), small, i)
    values = numbers(3, 3, 65, dtype=dtype, seed=1)
    agrees(lambda x, i, j, v: _put(x, v, slice(None), i, j), x, i, j, values)
    values = numbers(3, 7, 65, dtype=dtype, seed=1)
    agrees(lambda x, i, j, v: _put(x, v, i, slice(None), j), x, i, j, values)


def test_index_put_by_masks():
    x, mask = numbers(7, 65), numbers(7) > 0
    agrees(lambda x, m: _put(x, 2, m), x, mask)
    agrees(lambda x, m, v: _put(x, v, m), x, mask, numbers(int(mask.sum()), 65, seed=1))


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("kind", ["mask", "indices"])
def test_values_that_do_not_fit_what_is_indexed(kind, count):
    x = torch.ones(6).to("spyre")
    chosen = torch.tensor([True, False, True, True, True, False])
    place = (chosen if kind == "mask" else chosen.nonzero().squeeze(1)).to("spyre")
    with pytest.raises(RuntimeError, match=rf"shape mismatch: .* \[{count}\] .* of shape \[4\]"):
        x[place] = torch.zeros(count).to("spyre")
    assert torch.equal(x.cpu(), torch.ones(6))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_rows(dtype):
    x, i, rows = numbers(3, 7, 65, dtype=dtype), places(7, 9), numbers(3, 9, 65, dtype=dtype)
    agrees(lambda x, i, s: x.index_add(1, i, s), x, i, rows)
    agrees(lambda x, i, s: x.index_add(1, i, s, alpha=2), x, i, rows)
    i, j = torch.tensor([1, -2, 1]), torch.tensor([0, -1, 0])
    add = torch.ops.aten.index_put
    agrees(lambda x, i, j, v: add(x, (i, j), v, True), x, i, j, numbers(3, 65, dtype=dtype, seed=1))
    backward = torch.ops.aten.embedding_dense_backward
    grad, tokens = numbers(2, 9, 70, dtype=dtype), places(50, 2, 9)
    agrees(lambda g, i: backward(g, i, 50, 3, False), grad, tokens)


@pytest.mark.parametrize("dtype", MOVED)
def test_scatter(dtype):
    x, i = numbers(5, 70, dtype=dtype), places(70, 5, 4)
    agrees(lambda x, i, s: x.scatter(1, i, s), x, i, numbers(5, 6, dtype=dtype, seed=1))
    agrees(lambda x, i: x.scatter(1, i, 1), x, i)
    agrees(lambda x, i: x.scatter(1, i[:3], 1), x, i)
    agrees(lambda x, i: x.index_fill(1, i[:, 0] - 70, 1), x, i)
    if dtype.is_floating_point:
        agrees(lambda x, i, s: x.scatter_add(1, i, s), x, i, numbers(5, 6, dtype=dtype, seed=1))


def test_long_indices_are_done_in_pieces(monkeypatch):
    monkeypatch.setattr("spyre.torch_backend.eager.scatter.MOST_COMPARISONS", 1000)
    x, i, rows = numbers(70, 6), places(70, 40), numbers(40, 6, seed=1)
    agrees(lambda x, i, s: x.index_copy(0, i, s), x, i, rows)
    agrees(lambda x, i, s: x.index_add(0, i, s), x, i, rows)
    agrees(lambda x, i, s: x.scatter(0, i, s), x, places(70, 40, 6), rows)
    agrees(lambda x, i, s: x.scatter_add(0, i, s), x, places(70, 40, 6), rows)


def test_compiled_writes_are_those_of_eager_mode():
    def write(cache, place, part):
        cache.index_copy_(1, place, part)
        scores = torch.zeros_like(cache).scatter(2, place.view(1, -1, 1), 1.0)
        cache[:, place] += part
        return cache * 2 + scores.index_add(1, place, part)

    compiled = torch.compile(write)

    def by_device(cache, *given):
        return (write if cache.is_cpu else compiled)(cache.clone(), *given)

    agrees(by_device, numbers(1, 9, 70), torch.tensor([3, 1]), numbers(1, 2, 70, seed=1))


OUT_OF_RANGE = """
import torch
x = torch.zeros(5, 3, device="spyre")
for index in (5, -1):
    try:
        x.index_copy(0, torch.tensor([index, 1], device="spyre"), x[:2]).cpu()
    except RuntimeError as error:
        print("address" in str(error))
        torch.spyre.reset()
"""


def test_an_index_out_of_range_is_a_fault():
    assert run(OUT_OF_RANGE, TORCH_SPYRE_DOWNCAST_WARN="0").split()[:2] == ["True", "True"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_of_words(dtype):
    x = torch.arange(350).reshape(5, 70).to(dtype)
    far = torch.randint(-(1 << 23), 1 << 23, (5, 90)).to(dtype)
    index = torch.randint(0, 70, (5, 90))
    agrees(lambda x, i, s: x.scatter_add(1, i, s), x, index, far)
    agrees(lambda x, i, s: x.t().scatter_add(0, i.t(), s.t()), x, index, far)
    agrees(lambda x, i, s: x.clone().scatter_add_(0, i % 5, s), x, index[:3, :66], far)
    agrees(lambda x, i, s: x.scatter_add(0, i, s), x[0, 0], index[0, 0] * 0, far[0, 0])
    first = torch.zeros(2, dtype=torch.int64, device="spyre")
    sums = first[:1].scatter_add(0, first, torch.full((2,), 1 << 30).to("spyre"))
    with pytest.raises(RuntimeError, match="SPY901"):
        sums.cpu()


@pytest.mark.parametrize("index", [1000, -1000, 1, -2])
@pytest.mark.parametrize("name", ["index_copy", "index_add"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_wrong_rows_of_scalars(name, index, is_compiled):
    """A tensor of rank 0 has one row."""

    def write(x, places, source):
        return getattr(x, name)(0, places, source)

    operands = torch.tensor(1.0), torch.tensor([index]), torch.tensor(2.0)
    with pytest.raises(IndexError):
        write(*operands)
    call = torch.compile(write) if is_compiled else write
    with pytest.raises((IndexError, RuntimeError), match=f"index {index} is out of bounds"):
        call(*(t.to("spyre") for t in operands)).cpu()


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
@pytest.mark.parametrize("ranks", [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_a_scalar_counts_as_a_row_of_one(name, ranks):
    x, index, source = (
        torch.tensor([n]).reshape((1,) * k) for n, k in zip((3, 0, 2), ranks, strict=True)
    )
    agrees(lambda x, i, s: getattr(x, name)(0, i, s), x.float(), index, source.float())


def test_two_values_added_to_a_scalar():
    agrees(lambda x, i, s: x.scatter_add(0, i, s), *map(torch.tensor, (1.0, [0, 0], [2.0, 3.0])))


def test_two_values_copied_to_a_scalar():
    agrees(lambda x, i, s: x.index_copy(0, i, s), *map(torch.tensor, (1.0, [0, 0], [2.0, 3.0])))
