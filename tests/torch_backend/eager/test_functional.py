"""Functional variants that make their result themselves give what ATen's way gives: results, sizes,
strides, dtypes and errors.
"""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager.dispatch import plain_dtype
from spyre.torch_backend.eager.registry import FUNCTIONAL_VARIANTS

WRONG = {
    "add": (torch.add, (2, 3), (4,)),
    "maximum": (torch.maximum, (2, 3), (4,)),
    "mm": (torch.mm, (2, 3), (4, 5)),
    "mm of other ranks": (torch.mm, (2, 3, 4), (2, 4, 3)),
    "bmm": (torch.bmm, (2, 3, 4), (3, 4, 5)),
    "bmm inside": (torch.bmm, (2, 3, 4), (2, 5, 6)),
    "addmm bias": (torch.addmm, (4,), (2, 3), (3, 5)),
    "addmm": (torch.addmm, (2, 5), (2, 3), (4, 5)),
    "softmax": (lambda x: torch.softmax(x, 5), (2, 3)),
    "gelu": (lambda x: torch.nn.functional.gelu(x, approximate="no"), (2, 3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_atens_errors(name):
    function, *shapes = WRONG[name]
    host = [torch.rand(shape).half() for shape in shapes]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*host)
    with pytest.raises(type(expected.value)) as found:
        function(*(t.to("spyre") for t in host))
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


NUMBERS = {
    "sum": lambda t: t + 1,
    "product": lambda t: t * 2.5,
    "quotient": lambda t: t / 3,
    "reciprocal": lambda t: 1 / (t + 1),
    "truth": lambda t: t * True,
    "scaled": lambda t: torch.add(t, 2, alpha=3),
    "CPU number": lambda t: t + torch.tensor(1.5),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.half,
        torch.Tensor.float,
        torch.Tensor.int,
        torch.Tensor.long,
        lambda t: t.half().t(),
        lambda t: t.float()[:, ::2],
        lambda t: t.half()[1, 1],
    ],
    ids=["half", "float", "int", "long", "transposed", "sliced", "rank 0"],
)
def test_numbers_promote_as_on_the_host(name, make):
    host = make(torch.arange(12).reshape(3, 4))
    expected, found = NUMBERS[name](host), NUMBERS[name](host.to("spyre"))
    assert (found.dtype, found.shape, found.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=2**-8, atol=2**-8)


def test_plain_operands():
    half, wide = torch.rand(2, 3).half().to("spyre"), torch.rand(2, 3).to("spyre")
    assert plain_dtype((half, half)) is torch.float16
    assert plain_dtype((half, 2)) is torch.float16
    assert plain_dtype((half, torch.tensor(2.0))) is torch.float16
    assert plain_dtype((half, wide)) is None
    assert plain_dtype((half, half.t())) is None
    assert plain_dtype((half, 2j)) is None
    assert plain_dtype((half[0, 0], torch.tensor(2.0, dtype=torch.float64))) is None
    assert plain_dtype((half.int(),)) is None
    assert plain_dtype((half[:0],)) is None


def test_results_need_no_fallback_and_are_contiguous():
    torch.spyre.reset_fallbacks()
    a, b = torch.rand(1, 70).half(), torch.rand(5, 1).half()
    found = a.to("spyre") + b.to("spyre")
    assert found.is_contiguous()
    torch.testing.assert_close(found.cpu(), a + b, rtol=2**-8, atol=2**-8)
    assert not torch.spyre.fallbacks()


def test_every_variant_is_an_operation():
    from spyre.torch_backend.compat import operator

    assert all(operator(name) and operator(out) for name, out in FUNCTIONAL_VARIANTS.items())
