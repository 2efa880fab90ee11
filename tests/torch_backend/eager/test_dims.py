"""Dims of operations: wrong ones are refused as on the CPU; an omitted dim is torch's default."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import PLAIN_FLOATS, agrees, numbers

OVER_ONE = {
    "max": lambda x, dim: x.max(dim),
    "min": lambda x, dim: x.min(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "sort": lambda x, dim: x.sort(dim),
    "topk": lambda x, dim: x.topk(1, dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "index_select": lambda x, dim: x.index_select(
        dim, torch.zeros(1, dtype=torch.int32, device=x.device)
    ),
    "roll": lambda x, dim: x.roll(1, dim),
}
OVER_SEVERAL = {
    "flip": lambda x, dims: x.flip(dims),
    "sum": lambda x, dims: x.sum(dims),
    "var": lambda x, dims: x.var(dims),
    "var_mean": lambda x, dims: torch.var_mean(x, dims),
    "std": lambda x, dims: x.std(dims),
    "amax": lambda x, dims: x.amax(dims),
    "norm": lambda x, dims: torch.linalg.vector_norm(x, dim=dims),
    "any": lambda x, dims: x.any(dims),
}


def refuses_as_the_cpu(function, *args):
    x = numbers(2, 3)
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        function(x, *args)
    with pytest.raises(wanted.type) as found:
        function(x.to("spyre"), *args)
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


@pytest.mark.parametrize("dim", [2, -3])
@pytest.mark.parametrize("function", OVER_ONE.values(), ids=OVER_ONE)
def test_a_dim_out_of_range(function, dim):
    refuses_as_the_cpu(function, dim)


@pytest.mark.parametrize("dims", [(2,), (0, -3), (0, 0), (1, -1)])
@pytest.mark.parametrize("function", OVER_SEVERAL.values(), ids=OVER_SEVERAL)
def test_dims_out_of_range_or_given_twice(function, dims):
    refuses_as_the_cpu(function, dims)


@pytest.mark.parametrize("dtype", [*PLAIN_FLOATS, torch.bool, torch.int64])
@pytest.mark.parametrize("keepdim", [True, False])
def test_any_and_all_over_no_dims_are_the_truth_of_each(dtype, keepdim):
    x = numbers(3, 5, dtype=dtype)
    agrees(lambda x: torch.any(x, dim=[], keepdim=keepdim), x)
    agrees(lambda x: torch.all(x, dim=[], keepdim=keepdim), x)


@pytest.mark.parametrize("sizes", [(0,), (), (3,)])
def test_cumsum_of_a_number_has_its_sizes(sizes):
    out = torch.empty(sizes, device="spyre")
    assert torch.cumsum(torch.tensor(3.0, device="spyre"), 0, out=out).cpu() == torch.tensor(3.0)
    assert out.shape == ()


def test_hardtanh_of_integers_has_integer_bounds():
    x = torch.arange(-4, 5)
    for bounds in ((-0.5, 0.5), (-1.5, 2.5), (-1, 1)):
        agrees(lambda x, bounds=bounds: torch.nn.functional.hardtanh(x, *bounds), x)
        agrees(lambda x, bounds=bounds: torch.nn.functional.hardtanh_(x.clone(), *bounds), x)


def test_squares_leave_the_range_of_halves_and_their_roots_do_not():
    """float32 within, as torch computes: DL16 ends at 2^-31."""
    tiny = torch.full((3, 64), 2.0**-17).half()
    agrees(lambda x: torch.linalg.vector_norm(x, dim=1), tiny)
    agrees(lambda x: x.std(1, correction=0), tiny * torch.tensor([1.0, -1.0]).repeat(32).half())


def test_variance_and_mean_together():
    agrees(lambda x: torch.var_mean(x, (0, 2), keepdim=True), numbers(4, 3, 8), exact=False)
    agrees(lambda x: torch.var_mean(x, 1, correction=0), numbers(4, 8), exact=False)
