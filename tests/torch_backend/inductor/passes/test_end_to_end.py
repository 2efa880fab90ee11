"""Compiled functions with the passes and without: the same bits, fewer restickifies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F

from tests.examples import examples
from tests.torch_backend.inductor.passes.graphs import run, same_bits


def half(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).half()


def heads(x, w):
    y = F.linear(x, w).view(2, 5, 4, 16).transpose(1, 2) * 2
    return y.transpose(1, 2).reshape(2, 5, 64) + 1


def shared(a, b, c):
    """b.T is read twice, by operations whose lane is a's."""
    u = a + b.t()
    return u, c * b.t()


def in_place(a, b):
    """b.T is wanted before and after b is written."""
    before = a + b.t()
    b.mul_(2)
    return before, a - b.t(), b + 0


CASES = {
    "elementwise": (lambda a, b: (a + b) * b, (half(7, 100), half(7, 100))),
    "transposed": (lambda a, b: a + b.t(), (half(70, 100), half(100, 70))),
    "heads": (heads, (half(2, 5, 64), half(64, 64))),
    "views": (lambda a: (a.t() * 2)[2:5, ::2].reshape(-1) + 1, (half(8, 16),)),
    "slice within a stick": (lambda a: a[:, 3:10] * 2, (half(10, 128),)),
    "matmul": (lambda a, b: (a @ b.t()).relu(), (half(33, 70), half(45, 70))),
    "softmax of a transpose": (lambda a: torch.softmax(a.t(), -1), (half(70, 100),)),
    "sums": (lambda a, b: ((a + b.t()).sum(0), (a * b.t()).sum(1)), (half(70, 96), half(96, 70))),
    "float32": (lambda a: a.t().float().exp().sum(0) + 1, (half(70, 100),)),
    "layer_norm": (
        lambda a, w: F.layer_norm(a.transpose(0, 1), (64,), w),
        (half(6, 10, 64), half(64)),
    ),
    "broadcast": (lambda a, b: a[:, None] * b[None] + b, (half(8), half(16))),
    "attention": (F.scaled_dot_product_attention, (half(1, 2, 8, 64),) * 3),
    "shared": (shared, (half(70, 100), half(100, 70), half(70, 100))),
    "in place": (in_place, (half(70, 100), half(100, 70))),
    "a fallback between": (
        lambda a, b: (a + b.t()).sort(0)[0].t() * b,
        (half(70, 100), half(100, 70)),
    ),
    "comparisons": (
        lambda a, b: (a > b.t(), torch.where(a > 0, a, b.t())),
        (half(8, 9), half(9, 8)),
    ),
    "ints": (lambda a: (a + 1).t() * 2, (torch.arange(80, dtype=torch.int32).view(8, 10),)),
}


@pytest.mark.parametrize("name", CASES)
def test_same_bits_with_no_more_restickifies(name):
    function, inputs = CASES[name]
    on, off = same_bits(function, *inputs)
    assert on.emitted <= off.emitted


@pytest.mark.parametrize("name", ["transposed", "heads", "matmul", "shared", "attention"])
def test_kernels_restickify_what_the_graph_says(name):
    function, inputs = CASES[name]
    _, seen = run(function, *inputs)
    assert seen.emitted == len(seen.restickified)


def chain(a, b, c, d):
    return ((a + b.t()) * c.t() - d.t()).t().contiguous()


def chain_inputs():
    return half(128, 192), half(192, 128), half(192, 128), half(192, 128)


def test_a_chain_is_placed_as_a_whole():
    """One by one a's lane stays, and b, c, d are moved, and the result; at once only a is."""
    on, off = same_bits(chain, *chain_inputs())
    assert (on.emitted, off.emitted) == (1, 4)
    assert "size=[128, 192], stride=[192, 1]" in on.text.splitlines()[1]
    assert on.text.splitlines()[1].endswith("lane=0)")


def test_one_by_one(monkeypatch):
    monkeypatch.setenv("GLOBAL_STICK_OPTIMIZER", "0")
    on, off = same_bits(chain, *chain_inputs())
    assert off.emitted >= on.emitted > 1


def test_readers_share_a_copy():
    on, off = same_bits(shared, *CASES["shared"][1])
    assert (on.emitted, off.emitted) == (1, 2)


def test_what_is_written_is_copied_anew():
    on, _ = same_bits(in_place, *CASES["in place"][1])
    assert on.emitted == 2


SIZES = (8, 70)


@st.composite
def programs(draw):
    """Steps of a function of two [8, 70] tensors and two [70, 8] ones, by number."""
    return draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=2, max_size=6))


def function_of(steps):
    def function(*tensors):
        found = list(tensors)
        for how, which in steps:
            x, y = found[-1], found[which % len(found)]
            y = y if y.shape == x.shape else y.t()
            if how < 3:
                found.append((x + y, x * y, x - y)[how])
            elif how == 3:
                found.append(x.t() * 0.5)
            elif how == 4:
                found.append(x - x.amax(0, keepdim=True))
            else:
                found.append((x * 0.1) + x.sum(1, keepdim=True) * 0.01)
        return found[-1], found[len(found) // 2] + 1

    return function


@examples(12)
@given(programs())
def test_random_functions_have_the_same_bits(steps):
    inputs = half(*SIZES), half(*SIZES), half(*SIZES[::-1]), half(*SIZES[::-1])
    on, off = same_bits(function_of(steps), *inputs)
    assert on.emitted <= off.emitted
