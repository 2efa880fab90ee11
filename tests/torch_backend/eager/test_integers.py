"""Arithmetic and comparisons of words, exact over their whole range."""

from __future__ import annotations

import operator
from functools import partial

import pytest
import torch
from hypothesis import example, given, strategies as st

from spyre.torch_backend.eager import integers
from tests.examples import examples
from tests.torch_backend.eager.agreement import agrees, numbers

WORDS = (torch.int32, torch.int64)
LEAST, MOST = -(1 << 31), (1 << 31) - 1
EDGES = [LEAST, LEAST + 1, -(1 << 24) - 1, -1, 0, 1, (1 << 24) + 1, MOST - 1, MOST]
SHAPES = [(4, 65), (), (2, 3, 5), (1,), (100,)]
words = st.lists(st.integers(LEAST, MOST) | st.sampled_from(EDGES), min_size=70, max_size=70)


def pairs():
    """Every edge with every other."""
    edges = torch.tensor(EDGES, dtype=torch.int32)
    return edges.repeat_interleave(len(EDGES)), edges.repeat(len(EDGES))


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_arithmetic(name, dtype, sizes):
    a, b = numbers(*sizes, dtype=dtype), numbers(*sizes, dtype=dtype, seed=1)
    agrees(getattr(torch, name), a, b)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_arithmetic_wraps_at_the_edges(name):
    agrees(getattr(torch, name), *pairs())


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_at_the_edges(name):
    agrees(getattr(torch, name), *pairs())
    agrees(lambda a: getattr(torch, name)(a, 2), numbers(4, 65, dtype=torch.int64))
    agrees(lambda a: getattr(torch, name)(a, 1.5), numbers(4, 65, dtype=torch.int64))


@examples(10)
@given(words, words)
@example([LEAST] * 70, [MOST] * 70)
def test_arbitrary_words(left, right):
    a, b = torch.tensor(left, dtype=torch.int32), torch.tensor(right, dtype=torch.int32)
    for function in (torch.add, torch.sub, torch.mul, torch.lt, torch.eq, torch.maximum):
        agrees(function, a, b)


GREAT = 1 << 30
BEYOND = {
    "add": (lambda x: x + x, torch.full((40,), GREAT)),
    "add of one element": (lambda x: x + x, torch.tensor([*range(99), GREAT])),
    "add scaled": (lambda x: torch.add(x, x, alpha=3), torch.full((3,), GREAT)),
    "add in place": (lambda x: x.clone().add_(x), torch.full((3,), GREAT)),
    "sub": (lambda x: -x - x - x, torch.full((3, 33), GREAT)),
    "mul": (lambda x: x * 4, torch.full((5, 7), GREAT)),
    "neg": (torch.neg, torch.tensor([LEAST, 5])),
    "abs": (torch.abs, torch.tensor([LEAST, 5])),
    "sum": (torch.sum, torch.full((4,), GREAT)),
    "sum of int32": (torch.sum, torch.full((4,), GREAT, dtype=torch.int32)),
    "sum over rows": (lambda x: x.sum(0), torch.full((4, 40), GREAT)),
    "cumsum": (lambda x: x.cumsum(-1), torch.full((3, 4), GREAT)),
    "pow": (lambda x: x**2, torch.tensor([5, GREAT])),
    "prod": (torch.prod, torch.tensor([GREAT, 3, 1])),
    "divided": (lambda x: x // -1, torch.tensor([LEAST, 5])),
    "of floats": (lambda x: x.long(), torch.tensor([1.0, 3e9])),
    "of negative floats": (lambda x: x.long(), torch.tensor([[-3e9], [1.0]])),
}


@pytest.mark.parametrize("name", BEYOND)
def test_results_that_only_int64_has_are_refused(name):
    function, x = BEYOND[name]
    with pytest.raises(RuntimeError, match="SPY901"):
        function(x.to("spyre")).cpu()
    assert (torch.ones(3, dtype=torch.int64, device="spyre") + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["add", "mul", "sum", "cumsum", "of floats"])
def test_compiled_code_refuses_them_too(name):
    function, x = BEYOND[name]
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="SPY901"):
        torch.compile(function)(x.to("spyre")).cpu()


def test_what_lies_behind_the_elements_is_no_result():
    """Sticks of one element, of five, and a last one of six: the rest of them may hold anything."""
    full = torch.full((64, 64), MOST, dtype=torch.int32)
    for _ in range(4):
        full.to("spyre")  # freed memory that later tensors take
        agrees(lambda x: x.sum(-1) + x.sum(-1) * 2, torch.arange(5 * 70).reshape(5, 70))
        agrees(lambda x: x.t() + x.t() * 3, torch.arange(5 * 70).reshape(5, 70))
        agrees(lambda x: (x + 1)[:, ::2] + (x * 2)[:, 1::2], torch.arange(350).reshape(5, 70))
        agrees(lambda x: x.float().long().cumsum(0), torch.arange(38))


@pytest.mark.parametrize("divisor", [1, 3, 7, 1000, (1 << 29) + 1])
def test_division_by_a_number(divisor):
    a, _ = pairs()
    agrees(lambda a: a % divisor, a)
    agrees(lambda a: a // divisor, a)
    for mode in ("floor", "trunc"):
        agrees(partial(torch.div, other=divisor, rounding_mode=mode), a)


@pytest.mark.parametrize("dtype", WORDS)
def test_division_by_words(dtype):
    a, b = (side.to(dtype) for side in pairs())
    fits = (b != 0) & (a != LEAST) & (b != LEAST)  # -LEAST is no int32
    odd = numbers(4, 65, dtype=dtype), numbers(65, dtype=dtype) * 2 + 1
    for x, y in ((a[fits], b[fits]), odd):
        for mode in ("floor", "trunc"):
            agrees(partial(torch.div, rounding_mode=mode), x, y)
        for function in (torch.floor_divide, torch.remainder, torch.fmod):
            agrees(function, x, y)
            agrees(function, x, -3)
    agrees(lambda x, y: x.t() // y, odd[0], odd[1][:4])


@pytest.mark.parametrize("divisor", [0, torch.tensor([1, 0, 2])])
def test_division_by_zero_is_the_error_of_the_cpu(divisor):
    for device in ("cpu", "spyre"):
        by = divisor.to(device) if isinstance(divisor, torch.Tensor) else divisor
        for function in (torch.floor_divide, torch.remainder, torch.fmod):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                function(torch.arange(3, device=device), by)


@pytest.mark.parametrize("dtype", WORDS)
def test_signs_powers_and_products(dtype):
    x = numbers(6, 70, dtype=dtype)
    agrees(torch.sign, x)
    agrees(torch.sgn, x.t())
    agrees(torch.sign, pairs()[0].to(dtype))
    for exponent in (0, 1, 2, 7):
        agrees(torch.pow, x, exponent)
    few = (x % 2 + 1)[:, :5]
    for function in (lambda x: x.prod(0), lambda x: x.prod(1, keepdim=True), torch.prod):
        agrees(function, few.t())
    agrees(lambda x: x[:, :0].prod(1), x)
    agrees(lambda x: (x > 0).prod(0), x)


def test_numbers_and_factors():
    a = numbers(4, 65, dtype=torch.int64)
    agrees(lambda a: a + 1, a)
    agrees(lambda a: 5 - a, a)
    agrees(lambda a: torch.add(a, a, alpha=3), a)
    agrees(lambda a: torch.sub(a, 2, alpha=-3), a)
    agrees(lambda a: a.clone().add_(2).mul_(3), a)
    agrees(operator.neg, a)
    agrees(torch.abs, a)
    agrees(lambda a: a.clamp(-1, 3), a)
    agrees(lambda a: a.clamp_min(2), a)
    agrees(lambda a: a.clamp(max=2), a)


def test_with_floats_and_bools():
    a = numbers(4, 65, dtype=torch.int64)
    agrees(lambda a: a + 1.5, a)
    agrees(lambda a: a / 4, a)
    agrees(lambda a: a * (a > 0), a)
    agrees(lambda a: (a > 0).sum(), a)
    agrees(lambda a: (a > 0).sum(1, keepdim=True), a)
    agrees(lambda a: a + a.half(), a)


def test_views():
    a = numbers(40, 70, dtype=torch.int64)
    agrees(lambda a: a.t() + a[:1].t(), a)
    agrees(lambda a: a[:, 3:9] == a[:, 10:16], a)
    agrees(lambda a: a[:, ::2].expand(2, 40, 35) - a[:, 1::2], a)


def test_what_is_no_word_falls_back():
    agrees(lambda a: a < (1 << 40), numbers(4, 5, dtype=torch.int64), fallbacks=True)
    agrees(lambda a: a // (1 << 40), numbers(4, 5, dtype=torch.int64), fallbacks=True)


@pytest.mark.parametrize("dims", [None, (0,), (1,), (0, 1)])
@pytest.mark.parametrize("keepdim", [True, False])
def test_reductions(dims, keepdim):
    edges = torch.cat([*pairs(), torch.arange(-18, 0, dtype=torch.int32)]).reshape(9, 20)
    parts = (edges, edges.t(), edges[:, 3:9], edges[2:3])
    for x in parts[:1] if keepdim else parts:
        agrees(lambda x: x.amax(dims or (), keepdim=keepdim), x)
        agrees(lambda x: x.amin(dims or (), keepdim=keepdim), x)
        agrees(lambda x: x.sum(dims, keepdim=keepdim, dtype=torch.int32), x)
    agrees(lambda x: x.sum(dims, keepdim=keepdim), numbers(9, 70, dtype=torch.int64))


def test_extremes_of_all():
    agrees(lambda a: a.max(), pairs()[0])
    agrees(lambda a: a.min(), pairs()[0])
    agrees(lambda a: a.max(), torch.tensor(-5))


def test_bits_with_bools():
    a, b = numbers(4, 65, dtype=torch.int64), numbers(65, dtype=torch.bool)
    agrees(lambda a, b: a & b, a, b)
    agrees(lambda a, b: b | a, a, b)
    agrees(lambda a, b: a ^ b, a, b)
    agrees(lambda a: a & (a > 0), pairs()[0])


def test_isin_refuses_a_result_of_another_dtype():
    x = torch.ones(3, device="spyre")
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype bool"):
        torch.isin(x, x, out=torch.empty(3, device="spyre"))


def test_isin():
    a = numbers(4, 65, dtype=torch.int64)
    agrees(torch.isin, a, torch.tensor([2, -3]))
    agrees(lambda a, b: torch.isin(a, b, invert=True), a, torch.tensor([2, -3]))


WRONG_OUT = {
    "neg": (lambda i, x, out: torch.neg(i, out=out), torch.float32),
    "abs": (lambda i, x, out: torch.abs(i, out=out), torch.float32),
    "argmax": (lambda i, x, out: torch.argmax(x, 0, out=out), torch.float32),
    "argmin": (lambda i, x, out: torch.argmin(x, out=out), torch.int32),
    "cat": (lambda i, x, out: torch.cat([x, x], out=out), torch.int64),
}


@pytest.mark.parametrize(("function", "dtype"), WRONG_OUT.values(), ids=WRONG_OUT)
def test_results_do_not_go_to_a_dtype_torch_refuses(function, dtype):
    integers = torch.arange(4)
    for device in ("cpu", "spyre"):
        i, x = integers.to(device), integers.to(device, torch.float32)
        with pytest.raises((RuntimeError, TypeError), match=r"dtype|cast"):
            function(i, x, torch.empty(0, dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (4, 0, 4), (5, -7, 30), (6, 0, 0)])
def test_histograms(dtype, bins, low, high, monkeypatch):
    x = torch.randint(-3, 9, (7, 5), dtype=dtype)
    wanted = torch.histc(x.float(), bins, low, high).to(dtype)

    def counted(x):
        return torch.histc(x, bins, low, high) if x.device.type == "spyre" else wanted

    agrees(counted, x)
    monkeypatch.setattr(integers, "MOST_COMPARISONS", 0)
    agrees(counted, x, fallbacks=True)


def test_histograms_in_compiled_code():
    x = torch.randint(0, 4, (40,), dtype=torch.int32)
    torch._dynamo.reset()
    found = torch.compile(lambda x: torch.histc(x, 4, 0, 3).cumsum(0))(x.to("spyre"))
    assert torch.equal(found.cpu(), torch.bincount(x, minlength=4).cumsum(0))
