"""cat and stack: every dim, dtypes, views, empty pieces."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, agrees, numbers

EIGHT_BITS = (torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", [*MOVED, *EIGHT_BITS])
@pytest.mark.parametrize(
    ("sizes", "dim"),
    [
        (((3, 65), (1, 65), (4, 65)), 0),
        (((3, 65), (3, 7)), 1),
        (((3, 64), (3, 7)), 1),
        (((1, 5), (1, 1)), -1),
        (((5,), (0,), (100,)), 0),
        (((1,), (1,)), 0),
        (((2, 3, 5), (2, 1, 5)), 1),
        (((2, 1, 3, 33), (2, 4, 3, 33)), 1),
        (((2, 4, 1, 64), (2, 4, 2, 64)), 2),
    ],
)
def test_cat(dtype, sizes, dim):
    pieces = [numbers(*s, dtype=dtype, seed=k) for k, s in enumerate(sizes)]
    agrees(lambda *x: torch.cat(x, dim), *pieces)


@pytest.mark.parametrize(("count", "dim"), [(1, 1), (2, -5)])
def test_any_dim_will_do_for_tensors_of_shape_0(count, dim):
    agrees(lambda *x: torch.cat(x, dim), *[torch.zeros(0)] * count)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_stack(dim):
    agrees(lambda *x: torch.stack(x, dim), numbers(3, 5), numbers(3, 5, seed=1))


def test_stack_of_numbers():
    agrees(lambda *x: torch.stack(x), torch.tensor(1.0), torch.tensor(2.0))


@pytest.mark.parametrize("dtype", MOVED)
def test_views(dtype):
    x = numbers(4, 100, dtype=dtype)
    agrees(lambda x: torch.cat([x[:, 3:9], x[:, 64:]], 1), x)
    agrees(lambda x: torch.cat([x.t()[3:9], x[:, 64:].t()], 0), x)
    agrees(lambda x: torch.cat([x[:1].expand(3, 100), x]), x)
    agrees(lambda x: torch.cat([x, x], 1)[:, ::3], x)


def test_mixed_dtypes_promote():
    pieces = numbers(3, 5), numbers(3, 7, dtype=torch.float32), numbers(3, 2, dtype=torch.int64)
    agrees(lambda *x: torch.cat(x, 1), *pieces)
    agrees(lambda *x: torch.cat(x, 0), numbers(3, 5, dtype=torch.int32), numbers(1, 5))


def test_into_a_given_tensor():
    pieces = numbers(3, 5), numbers(3, 7)
    agrees(lambda a, b: torch.cat([a, b], 1, out=a.new_empty(3, 12)), *pieces)
    agrees(lambda a, b: torch.cat([a, b], 1, out=a.new_empty(0)), *pieces)
    agrees(lambda a, b: torch.cat([a, b], 1, out=a.new_empty(12, 3).t()), *pieces)


def test_into_a_part_of_a_stick():
    def joined(a, b):
        whole = a.new_ones(3, 40)
        torch.cat([a, b], 1, out=whole[:, 5:17])
        return whole

    agrees(joined, numbers(3, 5), numbers(3, 7))


def test_large_rows_go_by_dma():
    agrees(lambda *x: torch.cat(x), numbers(1 << 20), numbers((1 << 20) + 5))


def test_gradients():
    a, b = numbers(3, 5), numbers(3, 7)

    def gradient(a, b):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        (torch.cat([a, b], 1) * 2).backward(torch.cat([a, b], 1).detach())
        return a.grad, b.grad

    agrees(gradient, a, b)
