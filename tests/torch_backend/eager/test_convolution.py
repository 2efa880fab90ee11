"""Convolutions, pooling and batch norm on the cores: results and gradients of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.torch_backend.eager.agreement import PLAIN_FLOATS, agrees, numbers


def whole(*sizes: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers whose products and their sums every format holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, sizes, generator=generator).to(dtype)


def with_gradients(function: Callable[..., torch.Tensor]) -> Callable[..., tuple[Any, ...]]:
    """The result, and gradients of every argument for a gradient of -1, 0 and 1."""

    def run(*given: torch.Tensor) -> tuple[Any, ...]:
        given = tuple(t.detach().clone().requires_grad_() for t in given)
        result = function(*given)
        grad = (torch.arange(result.numel()) % 3 - 1).reshape(result.shape)
        grads = torch.autograd.grad(result, given, grad.to(result.dtype).to(result.device))
        return result.detach(), *grads

    return run


CASES = {
    "1x1": ((2, 70, 5, 6), (9, 70, 1, 1), {}),
    "3x3": ((1, 64, 8, 9), (70, 64, 3, 3), {"padding": 1}),
    "3x3, stride 2": ((2, 40, 9, 8), (33, 40, 3, 3), {"padding": 1, "stride": 2}),
    "few channels": ((2, 3, 20, 22), (10, 3, 7, 7), {"padding": 3, "stride": 2}),
    "dilated": ((1, 70, 12, 12), (9, 70, 3, 3), {"dilation": 2}),
    "patches": ((2, 3, 16, 16), (20, 3, 4, 4), {"stride": 4}),
    "one dim": ((2, 80, 30), (20, 80, 3), {"padding": 1}),
    "one dim, few channels": ((2, 2, 30), (20, 2, 3), {"padding": 1, "stride": 2}),
    "three dims": ((1, 3, 6, 7, 8), (5, 3, 2, 3, 2), {"padding": (1, 0, 1)}),
    "groups": ((2, 12, 7, 7), (8, 3, 3, 3), {"groups": 4, "padding": 1}),
    "channels": ((2, 70, 9, 9), (70, 1, 3, 3), {"groups": 70, "padding": 1, "stride": 2}),
    "channels in one dim": ((2, 70, 19), (70, 1, 4), {"groups": 70, "padding": 3}),
    "one of each": ((1, 1, 5, 5), (1, 1, 3, 3), {}),
}
PLAIN = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
@pytest.mark.parametrize("case", CASES)
def test_convolution(case, dtype):
    sizes, weight_sizes, options = CASES[case]
    convolve = PLAIN[len(sizes)]
    x, weight = whole(*sizes, dtype=dtype), whole(*weight_sizes, dtype=dtype, seed=1)
    bias = whole(weight_sizes[0], dtype=dtype, seed=2)
    agrees(lambda x, w: convolve(x, w, **options), x, weight)
    agrees(with_gradients(lambda x, w, b: convolve(x, w, b, **options)), x, weight, bias)


@pytest.mark.parametrize("case", CASES)
def test_transposed_convolution(case):
    sizes, weight_sizes, options = CASES[case]
    convolve = TRANSPOSED[len(sizes)]
    x = whole(sizes[0], weight_sizes[0], *sizes[2:], dtype=torch.float16)
    weight = whole(*weight_sizes, dtype=torch.float16, seed=1)
    bias = whole(weight_sizes[1] * options.get("groups", 1), dtype=torch.float16, seed=2)
    agrees(with_gradients(lambda x, w, b: convolve(x, w, b, **options)), x, weight, bias)


def test_views_and_layouts():
    x, weight = whole(2, 9, 8, 40, dtype=torch.float16), whole(9, 40, 3, 3, dtype=torch.float16)
    agrees(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w), x, weight)
    agrees(
        lambda x, w: F.conv2d(F.hardtanh(F.conv2d(x.permute(0, 3, 1, 2), w)), w[:, :9]), x, weight
    )
    agrees(lambda x, w: F.conv2d(x[:1].expand(3, 9, 8, 40), w[:, :9, :, :2]), x, weight)


def test_second_gradients():
    def second(x, w):
        x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        y = F.conv2d(x, w)
        (grad,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), (x, w))

    given = whole(1, 2, 5, 5, dtype=torch.float32), whole(3, 2, 2, 2, dtype=torch.float32, seed=1)
    agrees(second, *given)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: F.max_pool2d(x, 2, 3, 1, dilation=2, ceil_mode=True),
    "max without batch": lambda x: F.max_pool2d(x[0], 2),
    "max in one dim": lambda x: F.max_pool1d(x[:, :, 0], 3, 2),
    "max in three dims": lambda x: F.max_pool3d(x.unflatten(1, (1, 5)), 2, 2, 1),
    "mean": lambda x: F.avg_pool2d(x, 2),
    "mean in one dim": lambda x: F.avg_pool1d(x[:, :, 0], 4, 2),
    "mean to sizes": lambda x: F.adaptive_avg_pool2d(x, (13, 7)),
}


@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool, dtype):
    agrees(with_gradients(POOLS[pool]), numbers(2, 5, 13, 14, dtype=dtype))


def test_places_of_the_largest():
    agrees(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), numbers(2, 70, 13, 14))
    nan = numbers(1, 2, 6, 6, dtype=torch.float32)
    nan[0, 0, 2, 2] = float("nan")
    agrees(lambda x: F.max_pool2d(x, 3).isnan(), nan)


@pytest.mark.parametrize("counts", [True, False])
def test_means_at_the_edges(counts):
    def pool(x):
        return F.avg_pool2d(x, 4, 3, 2, ceil_mode=True, count_include_pad=counts)

    x = numbers(2, 5, 13, 14, dtype=torch.float32)
    agrees(with_gradients(pool), x, exact=False)
    agrees(lambda x: F.avg_pool2d(x, 2, divisor_override=8), x)
    agrees(with_gradients(lambda x: F.avg_pool3d(x.unsqueeze(1), 2, 2, 1)), x, exact=False)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training):
    def norm(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()

        def apply(x, weight, bias):
            return F.batch_norm(x, mean, variance, weight, bias, training)

        return *with_gradients(apply)(x, weight, bias), mean, variance

    x = numbers(4, 70, 9, 7, dtype=torch.float32)
    rows = [numbers(70, dtype=torch.float32, seed=seed) for seed in range(4)]
    agrees(norm, x, *rows[:3], rows[3].abs() + 0.5, exact=False)


def test_compiled_convolutions_are_those_of_eager_mode():
    def block(x, weight, bias):
        return F.max_pool2d(F.conv2d(x, weight, bias, padding=1), 2)

    compiled = torch.compile(block)

    def by_device(*given):
        return with_gradients(block if given[0].is_cpu else compiled)(*given)

    x = whole(2, 40, 9, 8, dtype=torch.float16)
    weight, bias = whole(33, 40, 3, 3, dtype=torch.float16, seed=1), numbers(33)
    agrees(by_device, x, weight, bias)


def test_what_follows_a_convolution_keeps_its_sticks():
    x, weight = whole(1, 70, 6, 7, dtype=torch.float16), whole(70, 70, 1, 1, dtype=torch.float16)
    y = F.conv2d(x.to("spyre"), weight.to("spyre"))
    layout = y.device_tensor_layout()
    assert layout.stride_map[-1] == y.stride(1)
    assert F.relu(y).device_tensor_layout() == layout
    assert (y + y).device_tensor_layout() == layout


@pytest.mark.parametrize("shape", [(0,), (1, 3, 9, 9), (2,)])
def test_pooling_into_tensors_of_any_size(shape):
    x = torch.randperm(243).view(1, 3, 9, 9).half()
    out = torch.empty(shape, dtype=x.dtype, device="spyre")
    torch.ops.aten.avg_pool2d.out(x.to("spyre"), [3, 3], [2, 2], out=out)
    torch.testing.assert_close(
        out.cpu().float(), F.avg_pool2d(x.float(), 3, 2), atol=0.5, rtol=0.01
    )
    indices = torch.empty(0, dtype=torch.int64, device="spyre")
    torch.ops.aten.max_pool2d_with_indices.out(x.to("spyre"), [3, 3], out=out, indices=indices)
    expected = F.max_pool2d(x, 3, return_indices=True)
    assert torch.equal(out.cpu(), expected[0])
    assert torch.equal(indices.cpu(), expected[1])


WINDOWS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "padding": 1, "stride": 2},
    {"kernel_size": 2, "dilation": 2, "padding": (1, 0)},
]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_windows_as_columns(dtype, windows):
    x = numbers(2, 3, 9, 8, dtype=dtype)
    before = torch.spyre.fallbacks()
    for part in (x, x[0]):
        wanted = F.unfold(part, **windows)
        found = F.unfold(part.to("spyre"), **windows)
        assert torch.equal(found.cpu(), wanted)
    assert torch.spyre.fallbacks() == before
