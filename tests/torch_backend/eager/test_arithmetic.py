"""Elementwise operations, reductions, products and normalisation against float32 on the CPU."""

from __future__ import annotations

import os
from functools import cache, partial
from math import inf, pi, sqrt

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from spyre.dtypes import decode_dl16

BOUND = {torch.float16: 2**-7, torch.bfloat16: 2**-6, torch.float32: 2e-5}
"""Relative to the largest number: a few roundings to 10 bits, or to 24."""
FLOATS = [torch.float16, torch.float32]


def is_float(given):
    return isinstance(given, torch.Tensor) and given.is_floating_point()


def on_card(dtype, *given):
    """The operands as the card holds them, and where it does."""
    moved = [g.to(dtype) if is_float(g) else g for g in given]
    moved = [m.to("spyre") if isinstance(m, torch.Tensor) else m for m in moved]
    held = [m.cpu() if isinstance(m, torch.Tensor) else m for m in moved]
    return moved, [
        h.float() if isinstance(h, torch.Tensor) and h.is_floating_point() else h for h in held
    ]


def agrees(dtype, function, *given, bound=1.0):
    """No fallback, equal sizes, and numbers within the bound."""
    moved, held = on_card(dtype, *given)
    wanted = function(*held)
    before = torch.spyre.fallbacks()
    found = function(*moved)
    assert torch.spyre.fallbacks() == before
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = found if isinstance(found, tuple) else (found,)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        if not other.is_floating_point():
            assert torch.equal(one.cpu(), other)
            continue
        scale = max(other.abs().max().item(), 1e-3)
        worst = (one.cpu().float() - other).abs().max().item()
        assert worst <= bound * BOUND[dtype] * scale, f"{worst} of {scale}"


def randoms(*sizes, low=None):
    generator = torch.Generator().manual_seed(len(sizes))
    found = torch.randn(sizes, generator=generator)
    return found if low is None else found.abs() + low


UNARY = {
    "abs": torch.abs,
    "neg": torch.neg,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.25),
    "add number": lambda x: x + 1.5,
    "subtract from number": lambda x: 1.5 - x,
    "compare with number": lambda x: x > 0.5,
}
POSITIVE = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "log": torch.log,
    "root": lambda x: x**0.5,
    "inverse": lambda x: x**-1,
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "add scaled": lambda x, y: torch.add(x, y, alpha=0.5),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": lambda x, y: torch.where(x > y, x, y),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions(dtype, name):
    agrees(dtype, UNARY[name], randoms(5, 70))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(dtype, name):
    agrees(dtype, POSITIVE[name], randoms(5, 70, low=0.1))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
@pytest.mark.parametrize("name", BINARY)
def test_pairs(dtype, name):
    agrees(dtype, BINARY[name], randoms(3, 65), randoms(3, 65) * 0.5)


SHAPES = [
    ((), ()),
    ((7,), ()),
    ((1,), (5,)),
    ((64, 64), (64,)),
    ((2, 3, 100), (3, 1)),
    ((4, 1), (1, 70)),
    ((2, 1, 3, 1), (5, 1, 33)),
]


@pytest.mark.parametrize(("first", "second"), SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_broadcasting(dtype, first, second):
    agrees(dtype, torch.add, randoms(*first), randoms(*second))
    agrees(dtype, lambda x, y: torch.where(x > y, x, y), randoms(*second), randoms(*first))


VIEWS = {
    "transposed": lambda x: x.t() + x.t(),
    "one of two": lambda x: x.t()[:4, :4] * x[:4, :4],
    "rows": lambda x: x[2:5] + x[3:6],
    "columns by sticks": lambda x: x[:, 64:] + x[:, :36],
    "columns": lambda x: x[:, 3:9] - x[:, 4:10],
    "steps": lambda x: x[::2] + x[1::2],
    "flat": lambda x: x.view(-1) + x.reshape(-1),
    "diagonal": lambda x: x.diagonal() + 1,
    "expanded": lambda x: x[:1].expand(4, 100) + x[:, :1].expand(6, 100)[:4],
    "unfolded": lambda x: x.unfold(1, 10, 5) * 2,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", VIEWS)
def test_views(dtype, name):
    agrees(dtype, VIEWS[name], randoms(6, 100))


def in_place(x, y):
    x = x.clone()
    x.add_(y).mul_(2)
    x[1:3].sub_(1)
    x[:, 5:9] = y[:, :4]
    x.t().add_(1)
    return x.relu_()


def out_variants(x, y):
    out = torch.empty(0, dtype=x.dtype, device=x.device)
    torch.mul(x, y, out=out)
    torch.add(out, y, out=out)
    rows = torch.zeros(8, x.shape[1], dtype=x.dtype, device=x.device)
    torch.sub(x, y, out=rows[1:7])
    return out, rows


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("function", [in_place, out_variants])
def test_into_given_memory(dtype, function):
    agrees(dtype, function, randoms(6, 100), randoms(6, 100) * 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "var", "std"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(dtype, name, keepdim):
    function = getattr(torch, name)
    for dim in (0, 1, -1, (0, 2), (1, 2), (0, 1, 2)):
        agrees(dtype, lambda x, d=dim: function(x, dim=d, keepdim=keepdim), randoms(2, 3, 70))


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_of_negative_numbers_do_not_see_the_padding(dtype):
    x = -randoms(3, 33, low=1.0)
    agrees(dtype, lambda t: (t.amax(1), (t < 0).all(1), (t > 0).any(1)), x)
    agrees(dtype, lambda t: (t / t * 1.25).prod(1), x, bound=8)
    agrees(dtype, lambda t: (-t).amin(1), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [0, 1, 2, 3, float("inf"), float("-inf")])
def test_norms(dtype, order):
    agrees(
        dtype, lambda x: torch.linalg.vector_norm(x, order, dim=1), randoms(4, 50, low=0.1), bound=3
    )


PRODUCTS = [
    ((64, 64), (64, 64)),
    ((5, 7), (7, 9)),
    ((1, 130), (130, 1)),
    ((3, 1), (1, 4)),
    ((2, 3, 5, 40), (2, 3, 40, 70)),
    ((4, 5, 64), (1, 64, 70)),
    ((6, 65), (65,)),
    ((65,), (65, 3)),
    ((70,), (70,)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products(dtype, left, right):
    agrees(dtype, torch.matmul, randoms(*left), randoms(*right))


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_transposed_operands(dtype):
    a, b = randoms(40, 100), randoms(40, 70)
    agrees(dtype, lambda x, y: x.t() @ y, a, b)
    agrees(dtype, lambda x, y: y.t() @ x, a, b)
    agrees(dtype, lambda x, y: x @ y.t(), a.t().contiguous(), b.t().contiguous())
    agrees(dtype, lambda x, w, c: F.linear(x, w, c), randoms(2, 3, 100), a, randoms(40))
    agrees(dtype, lambda c, x, w: torch.addmm(c, x, w, beta=0.5, alpha=2), randoms(70), a.t(), b)


def test_an_empty_product_is_added_in_place():
    def function(c, x, w):
        return c.clone().addmm_(x, w, beta=0.25), c.clone().addmm_(x, w, beta=0)

    for one in range(2):
        agrees(
            torch.float32,
            lambda *given, one=one: function(*given)[one],
            *(randoms(4, 6), torch.empty(4, 0), torch.empty(0, 6)),
        )


TALL = {
    "linear": (lambda x, w: F.linear(x, w), (40_000, 3), (64, 3)),
    "narrow linear": (lambda x, w: F.linear(x, w), (300_000, 2), (8, 2)),
    "linear of four dims": (lambda x, w: F.linear(x, w), (20, 50, 40, 3), (64, 3)),
    "gradient of a weight": (lambda x, w: x.t() @ w, (90_000, 2), (90_000, 64)),
    "outer product": (torch.outer, (40_000,), (64,)),
    "einsum": (lambda x, w: torch.einsum("nk,mk->nm", x, w), (40_000, 3), (64, 3)),
    "batches": (lambda x, w: x @ w.mT, (2, 20_000, 3), (2, 64, 3)),
    "attention": (lambda x, w: F.scaled_dot_product_attention(x, w, w), (1, 2, 900, 3),
                  (1, 2, 2000, 3)),
}  # fmt: skip


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", TALL)
def test_float32_products_of_many_rows_and_few_features(name, compiles):
    """Sticks along the few features would be mostly empty, and the terms too many of them."""
    function, *sizes = TALL[name]
    given = [torch.randn(size, generator=torch.Generator().manual_seed(1)) for size in sizes]
    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, dynamic=False) if compiles else function
    torch.spyre.reset_fallbacks()
    found = run(*(x.to("spyre") for x in given)).cpu()
    assert not torch.spyre.fallbacks()
    torch.testing.assert_close(found, function(*given), rtol=1e-4, atol=2e-3)


def test_what_a_core_cannot_address_runs_on_the_cpu(monkeypatch):
    """A core reaches 256 MiB of one tensor (SPY235); here the rules allow it 1 KiB."""
    monkeypatch.setattr("spyre.mlir.sdsc.meaning_rules.MAX_SPAN_BYTES", 1 << 10)
    monkeypatch.setenv("SPYRE_FALLBACK", "silent")
    x = torch.randn(3, 5, 2048)
    torch.spyre.reset_fallbacks()
    assert torch.equal(x.to("spyre").amax(2).cpu(), x.amax(2))
    assert torch.spyre.fallbacks()


def test_padding_of_an_operand_does_not_matter():
    """Lanes beyond the columns of x hold the exponential of garbage."""
    agrees(
        torch.float16, lambda x, y: torch.exp(x * 2) @ y, randoms(3, 40), randoms(40, 5), bound=4
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_normalisation(dtype):
    x, w, b = randoms(3, 4, 70), randoms(70), randoms(70)
    for dim in (0, 1, 2):
        agrees(dtype, lambda t, d=dim: F.softmax(t, d), x)
        agrees(dtype, lambda t, d=dim: F.log_softmax(t, d), x)
    agrees(dtype, lambda t, u, v: F.layer_norm(t, (70,), u, v), x, w, b, bound=2)
    agrees(dtype, lambda t: F.layer_norm(t, (4, 70)), x, bound=2)
    agrees(dtype, lambda t, u: F.rms_norm(t, (70,), u), x, w, bound=2)


@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_the_result_of_a_layer_norm_is_rounded_once(spread):
    """Also where elements differ less from each other than their mean would from a rounded one."""
    torch.manual_seed(0)
    x, w, b = 1 + spread * torch.randn(64, 96), torch.randn(96), torch.randn(96)
    given = [t.half().to("spyre") for t in (x, w, b)]
    found = F.layer_norm(given[0], (96,), *given[1:]).cpu().double()
    # Values on the card have 9 bits of fraction, and are read back exactly.
    x, w, b = (t.cpu().double() for t in given)
    exact = F.layer_norm(x, (96,), w, b)
    assert bool(((found - exact).abs() <= exact.abs() * 2**-10 + 2**-16).all())


EDGES = (
    *(0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.3, 8388607.5, 8388609.0, -8388608.5),
    *(1e30, -1e30, 1e-40, float("inf"), float("-inf"), float("nan"), 4.2, -4.2, 0.7, 60.0),
)
INTEGRAL = {
    "trunc": torch.trunc,
    "round": torch.round,
    "round to no decimals": lambda t: torch.round(t, decimals=0),
    "div by a number": lambda t: torch.div(t, 0.7, rounding_mode="trunc"),
    "div by a tensor": lambda t: torch.div(t, t.flip(0) + 0.25, rounding_mode="trunc"),
    "aminmax": lambda t: torch.stack(torch.aminmax(t[2:12])),
    "aminmax of a dim": lambda t: torch.stack(torch.aminmax(t[2:12].view(5, 2), dim=1)),
}
NUMBERS_ONLY = {
    "nan_to_num": torch.nan_to_num,
    "nan_to_num to others": lambda t: torch.nan_to_num(t, 1.0, 2.0, -3.0),
    "aminmax with NaN": lambda t: torch.stack(torch.aminmax(t)),
}


@pytest.mark.parametrize("compiles", [False, True])
def test_integral_parts_and_extremes_are_exact(compiles):
    x = torch.tensor(EDGES)
    halves = x[x.abs() < 1e4].half().to("spyre").cpu()
    for given, functions in ((x, INTEGRAL | NUMBERS_ONLY), (halves, INTEGRAL)):
        before = torch.spyre.fallbacks()
        wanted = [function(given) for function in functions.values()]
        on_the_card = torch.compile(_each, dynamic=False) if compiles else _each
        found = on_the_card(given.to("spyre"), tuple(functions.values()))
        assert torch.spyre.fallbacks() == before
        for name, one, other in zip(functions, found, wanted, strict=True):
            one = one.cpu()
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=name)
            assert bool(((one.signbit() == other.signbit()) | other.isnan()).all()), name


def _each(x, functions):
    return [function(x) for function in functions]


def test_norms_of_numbers_whose_squares_leave_the_format():
    x, w = randoms(4, 96) * 2e5, randoms(96)
    agrees(torch.bfloat16, lambda t, u: F.layer_norm(t, (96,), u, u), x, w, bound=2)
    agrees(torch.bfloat16, lambda t, u: F.group_norm(t, 3, u, u), x, w, bound=2)


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(dtype, name):
    heads = 2 if name == "grouped" else 4
    q, k, v = randoms(2, 4, 17, 32), randoms(2, heads, 17, 32), randoms(2, heads, 17, 24)
    agrees(
        dtype,
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c, **ATTENTION[name]),
        *(q, k, v),
        bound=2,
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_attention_keeps_the_order_of_dims_in_memory(order):
    sizes, width = (2, 3, 5, 64), 32
    back = [order.index(k) for k in range(4)]
    q = torch.randn([sizes[k] for k in order]).permute(back)
    v = torch.randn(*sizes[:-1], width)
    found = F.scaled_dot_product_attention(*(t.to("spyre") for t in (q, q, v)))
    wanted = F.scaled_dot_product_attention(q, q, v)
    assert found.permute(order).is_contiguous()
    assert torch.allclose(found.cpu(), wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_under_masks(dtype):
    q, k, v = randoms(2, 4, 5, 64), randoms(2, 4, 70, 64), randoms(2, 4, 70, 16)
    hidden = randoms(2, 1, 5, 70) > 0
    hidden[0, 0, 2] = False

    def attend(a, b, c, mask):
        return F.scaled_dot_product_attention(a, b, c, attn_mask=mask)

    agrees(dtype, attend, q, k, v, hidden, bound=2)
    agrees(dtype, attend, q, k, v, randoms(5, 70), bound=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_attention(dtype):
    def gradients(*given):
        leaves = [g.clone().requires_grad_() for g in given]
        F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True).sum().backward()
        return tuple(leaf.grad for leaf in leaves)

    agrees(
        dtype, gradients, randoms(2, 4, 9, 32), randoms(2, 2, 9, 32), randoms(2, 2, 9, 32), bound=8
    )


@pytest.mark.parametrize("source", [torch.float16, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "target", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool]
)
@pytest.mark.parametrize("sizes", [(), (20,), (3, 40), (2, 70)])
def test_conversions(source, target, sizes):
    x = torch.arange(max(torch.Size(sizes).numel(), 1)).reshape(sizes) - 3
    x = x.to(source).to("spyre")
    before = torch.spyre.fallbacks()
    found = x.to(target)
    assert torch.spyre.fallbacks() == before
    assert torch.equal(found.cpu(), x.cpu().to(target))


@cache
def every_binade() -> torch.Tensor:
    """A million float32: 2,048 patterns of every sign and exponent, and zones that matter.
    In the long form four million.

    Among the patterns are both ends of every binade, infinities, zeros and NaN with payloads.
    """
    count = 8192 if "SPYRE_TEST_EXAMPLES" in os.environ else 2048
    fractions = torch.randint(0, 1 << 23, (count,), generator=torch.Generator().manual_seed(1))
    ends = [0, 1, 2, 0x3504F2, 0x3504F3, 0x3504F4, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF]
    fractions[: len(ends)] = torch.tensor(ends)
    bits = (torch.arange(256)[:, None] << 23) | fractions
    magnitudes = bits.flatten().to(torch.int32).view(torch.float32)
    zones = (torch.linspace(-110.0, 110.0, 40001), torch.linspace(0.2, 4.0, 40001))
    return torch.cat((magnitudes, -magnitudes, *zones))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """x · Φ(x) without the cancellation of 1 + erf(x / √2)."""
    return x * torch.special.erfc(-x / sqrt(2)) / 2


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · σ(2u), which is x · (1 + tanh u) / 2 without its cancellation."""
    return x * torch.sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))


FLOAT32_FUNCTIONS = {
    "log": (torch.log, 2, 0.0),
    "exp": (torch.exp, 1.1, 0.0),
    "sqrt": (torch.sqrt, 0.51, 0.0),
    "rsqrt": (torch.rsqrt, 1.5, 0.0),
    "reciprocal": (torch.reciprocal, 0.51, 0.0),
    "sigmoid": (torch.sigmoid, 2.5, 0.0),
    "tanh": (torch.tanh, 2, 0.0),
    "silu": (F.silu, 4, 1e-43),
    "mish": (F.mish, 8, 3e-43),
    "softplus": (F.softplus, 2, 2.5e-9),
    "elu": (F.elu, 1.1, 0.0),
    "selu": (F.selu, 2, 0.0),
    "celu": (partial(F.celu, alpha=0.7), 4, 0.0),
    "celu_rising": (partial(F.celu, alpha=-1.0), 5, 0.0),
    "erf": (torch.erf, 2, 0.0),
    "gelu": (F.gelu, 8, 0.0, _gelu),
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), 250, 0.0, _tanh_gelu),
    "hardswish": (F.hardswish, 3, 0.0),
    "hardsigmoid": (F.hardsigmoid, 2, 0.0),
    "sin": (torch.sin, 1, 0.0),
    "cos": (torch.cos, 1, 0.0),
    "square": (torch.square, 0.51, 0.0),
    "cube": (lambda x: x**3, 1.6, 0.0),
    **{f"power{n}": (partial(torch.pow, exponent=n), 2, 0.0) for n in (5, 7, 16, -2, -3, -16)},
    "floor": (torch.floor, 0, 0.0),
    "ceil": (torch.ceil, 0, 0.0),
    "neg": (torch.neg, 0, 0.0),
    "abs": (torch.abs, 0, 0.0),
    "relu": (F.relu, 0, 0.0),
}
"""Function, bound in units of the last place, additional absolute bound, and the exact function in
float64 if it is another one.

σ(x) and tanh of the smallest numbers have few bits, which x · σ(x) multiplies. The argument of the
tanh form's σ is rounded, which counts as often as it is large."""


def agree_in_ulp(x, found, exact, bound, absolute):
    """``found`` within ``bound`` float32 ulp or ``absolute`` of ``exact`` (float64) at every x."""
    rounded = exact.float()
    smallest = torch.finfo(torch.float32).tiny
    magnitude = rounded.abs().clamp(smallest, 2.0**127)
    ulp = (torch.nextafter(magnitude, torch.tensor(inf)) - magnitude).double()
    near = (found.double() - exact).abs() <= torch.clamp(bound * ulp, min=absolute)
    good = torch.where(torch.isfinite(rounded), near, found == rounded)
    good |= torch.isnan(found) & torch.isnan(rounded)
    wrong = torch.stack((x, found, rounded))[:, ~good]
    assert good.all(), f"{wrong.shape[1]} wrong; x, found, expected: {wrong[:, :5].T.tolist()}"


@pytest.mark.parametrize("name", FLOAT32_FUNCTIONS)
def test_float32_functions_in_every_binade(name):
    function, bound, absolute, *exact = FLOAT32_FUNCTIONS[name]
    x = every_binade()
    before = torch.spyre.fallbacks()
    found = function(x.to("spyre")).cpu()
    assert torch.spyre.fallbacks() == before
    agree_in_ulp(x, found, (exact[0] if exact else function)(x.double()), bound, absolute)


@cache
def near_zeros() -> torch.Tensor:
    """float32 next to multiples of π/2, from 1 to the largest: multiples of the denominators of
    2^n / (π/2) as a continued fraction."""
    found = []
    with mpmath.workprec(300):
        for exponent in range(-23, 105):
            rest = mpmath.mpf(2) ** (exponent + 1) / mpmath.pi % 1
            before, significand = 0, 1
            while significand < 1 << 24:
                found.append(((1 << 24) - 1) // significand * significand * 2.0**exponent)
                quotient = int(1 / rest)
                rest = 1 / rest - quotient
                before, significand = significand, quotient * significand + before
    x = torch.tensor(found, dtype=torch.float64)
    assert torch.equal(x, x.float().double())
    return torch.cat((x, -x)).float()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_near_their_zeros(name):
    x = near_zeros()
    with mpmath.workprec(300):
        exact = torch.tensor(
            [float(getattr(mpmath, name)(number)) for number in x.tolist()], dtype=torch.float64
        )
    assert exact.abs().min() < 2.0**-27  # in the long list of both functions: 2^-29
    agree_in_ulp(x, getattr(torch, name)(x.to("spyre")).cpu(), exact, 1, 0.0)


def test_sines_of_zeros_and_infinities():
    x = torch.tensor([0.0, -0.0, inf, -inf])
    found = x.to("spyre").sin().cpu()
    for y in (found, x.to("spyre").cos()):
        assert y.isnan().tolist() == [False, False, True, True]
    assert torch.signbit(found[:2]).tolist() == [False, True]


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_sines_of_every_16_bit_number(function):
    x = torch.from_numpy(decode_dl16(np.arange(1 << 16).astype(np.uint16)))
    x = x[x.abs() <= 2.0**33]
    halves = x.to("spyre").bfloat16()
    assert torch.equal(halves.float().cpu(), x)
    exact = function(x.double())
    away = (function(halves).float().cpu() - exact).abs()
    # half a unit of the result, which has nothing below 2^-31
    assert (away <= (exact.abs() * 2.0**-9.98).clamp(min=2.0**-31)).all()


@pytest.mark.parametrize("order", [0.5, 1.5, 3, 4])
def test_norms_of_small_and_large_numbers(order):
    x = torch.tensor([[1e-9, 2e-9, 0.0], [1e-9, 0.5, 1e-3], [1e9, 2e9, 1e3]])
    found = torch.linalg.vector_norm(x.to("spyre"), order, dim=1).cpu()
    wanted = torch.linalg.vector_norm(x.double(), order, dim=1).float()
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=0)


def test_kernels_are_compiled_once():
    from spyre.torch_backend.eager import compile

    x = torch.randn(9, 77).half().to("spyre")
    y = x[1:4] + x[2:5]
    count = len(compile._programs)
    for k in range(4):
        y = x[k : k + 3] + x[k + 1 : k + 4]
    assert len(compile._programs) == count
    assert torch.equal(y.cpu(), (x[3:6] + x[4:7]).cpu())


SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -1.5, 1e-40, 3e38, 2.0**24 + 2),
    *(inf, -inf, float("nan")),
]


def test_powers_of_special_numbers_are_those_of_the_cpu():
    x = torch.tensor(SPECIAL)
    base, exponent = x.repeat_interleave(len(x)), x.repeat(len(x))
    wanted = torch.pow(base, exponent)
    found = torch.pow(base.to("spyre"), exponent.to("spyre")).cpu()
    torch.testing.assert_close(found, wanted, rtol=3e-7, atol=1e-37, equal_nan=True)
    zeros = wanted == 0
    assert torch.equal(torch.signbit(found[zeros]), torch.signbit(wanted[zeros]))


@pytest.mark.parametrize("spread", [1e-3, 0.5, 8.0])
def test_powers_are_accurate_to_some_units(spread):
    base = torch.exp(randoms(40, 500) * spread)
    exponent = randoms(500) * (4 / spread)
    exact = np.power(base.double().numpy(), exponent.double().numpy())
    found = torch.pow(base.to("spyre"), exponent.to("spyre")).cpu().double().numpy()
    is_normal = (exact > 1.2e-38) & (exact < 3e38)
    assert (np.abs(found - exact) <= exact * 5 * 2.0**-24)[is_normal].all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers(dtype):
    base, exponent = randoms(4, 70, low=0.1), randoms(70)
    agrees(dtype, torch.pow, base, exponent, bound=2)
    agrees(dtype, lambda x, y: x.t() ** y, base, exponent[:4], bound=2)
    agrees(dtype, lambda y: 10.0**y, exponent, bound=4)
    agrees(dtype, lambda x: x**1.7, base, bound=2)
    agrees(dtype, lambda x: x.clone().pow_(-0.3), base, bound=2)
    agrees(dtype, lambda x: x ** torch.tensor(1.5), base, bound=2)
    agrees(torch.float32, lambda n: 10000.0 ** (n / 64), torch.arange(0, 64, 2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_gated_units(dtype):
    x = randoms(3, 6, 66)
    for dim in (1, 2):
        agrees(dtype, partial(F.glu, dim=dim), x)

    def gradient(x):
        x = x.detach().requires_grad_()
        F.glu(x, 1).sum().backward()
        return x.grad

    agrees(dtype, gradient, x, bound=2)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    weight = randoms(8, 4, 16)
    length = weight.amax([k for k in range(3) if k != dim], keepdim=True)
    agrees(torch.float32, lambda v, g: torch._weight_norm_interface(v, g, dim), weight, length)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("extent", [1, 5, 16])
def test_triangular_systems(extent, upper, left):
    a, b = randoms(2, 3, extent, extent) * 0.3 + 2 * torch.eye(extent), randoms(3, extent, 7)
    b = b if left else b.mT
    for given in (a, a[0, 0]):
        solved = partial(torch.linalg.solve_triangular, upper=upper, left=left)
        agrees(torch.float32, solved, given, b)
        agrees(torch.float32, partial(solved, unitriangular=True), given, b, bound=4)


def test_wrong_triangular_systems_are_the_errors_of_the_cpu():
    for device in ("cpu", "spyre"):
        x = torch.ones(3, 3, device=device)
        with pytest.raises(RuntimeError, match="square"):
            torch.linalg.solve_triangular(x[:, :2], x, upper=True)


def test_solutions_have_the_strides_of_the_cpu():
    a, b = torch.eye(3), torch.ones(3, 4)
    for device in ("cpu", "spyre"):
        given = torch.empty(0, device=device)
        solved = torch.linalg.solve_triangular(a.to(device), b.to(device), upper=True, out=given)
        assert solved.stride() == given.stride() == (1, 3)


@pytest.mark.parametrize("sizes", [(33, 256, 128), (1, 130, 70), (5, 64, 48), (2, 101, 1)])
@pytest.mark.parametrize("kind", ["tensor", "rows"])
def test_products_of_eight_bit_floats(kind, sizes):
    rows, inner, columns = sizes
    a = randoms(rows, inner).to(torch.float8_e4m3fn)
    b = randoms(columns, inner, 1)[..., 0].to(torch.float8_e4m3fn).t()
    first, second = torch.tensor(0.5), torch.tensor([[2.0]])
    if kind == "rows":
        first, second = randoms(rows, 1, low=0.5), randoms(1, columns, low=0.5)
    wanted = (a.float() * first) @ (b.float() * second) + 1
    given = [t.to("spyre") for t in (a, b, first, second, torch.ones(columns))]
    before = torch.spyre.fallbacks()
    for weight in (given[1], given[1].contiguous()):
        operands = (given[0], weight, *given[2:])
        found = torch._scaled_mm(*operands, out_dtype=torch.float16)
        assert found.shape == wanted.shape
        assert (found.cpu().float() - wanted).abs().max() <= 2**-7 * wanted.abs().max()
    assert torch.spyre.fallbacks() == before


def test_wrong_products_of_eight_bit_floats_are_the_errors_of_the_cpu():
    errors = []
    for device in ("cpu", "spyre"):
        a, b = (torch.ones(4, n, device=device).to(torch.float8_e4m3fn) for n in (64, 32))
        one = torch.ones((), device=device)
        with pytest.raises(RuntimeError) as raised:
            torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float16)
        errors.append(str(raised.value).splitlines()[0])
    assert errors[0] == errors[1]
