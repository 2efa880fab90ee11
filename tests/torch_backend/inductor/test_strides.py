"""Results of compiled functions have the strides of eager mode, and the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F

from spyre.torch_backend.inductor.hints import spyre_hint
from spyre.torch_backend.inductor.lowering.decompositions import results_of
from tests.examples import examples
from tests.torch_backend.inductor.compiled_code import compiled, named

torch.manual_seed(0)
X = torch.randn(4, 6, 70).half()


def in_place(x):
    y = x.permute(2, 0, 1) * 2
    y.add_(1)
    return y, y.sum(1)


FUNCTIONS = {
    "one operation": lambda x: x.permute(2, 0, 1) + 1,
    "a chain": lambda x: (x.permute(2, 0, 1) + 1) * 2 - x.permute(2, 0, 1),
    "two results": lambda x: (x.permute(2, 0, 1) + 1, (x.permute(2, 0, 1) + 1).exp()),
    "softmax": lambda x: (x.permute(2, 0, 1) * 2).softmax(0),
    "reductions": lambda x: ((x.permute(2, 0, 1) * 2).sum(0), (x.permute(2, 0, 1) * 2).amax(1)),
    "broadcast": lambda x: (x.permute(2, 0, 1) * 2).sum(1, keepdim=True) + x.permute(2, 0, 1),
    "matmul": lambda x: (x.permute(1, 0, 2) * 2) @ (x.permute(1, 2, 0) + 0),
    "reshape": lambda x: (x.permute(1, 0, 2) * 2).reshape(24, 70) + 1,
    "slice": lambda x: (x.permute(2, 1, 0) * 2)[:, 1:3] * 3,
    "clone": lambda x: x.permute(1, 0, 2).clone(),
    "contiguous": lambda x: (x.permute(1, 0, 2) + 1).contiguous(),
    "conversion": lambda x: x.permute(2, 0, 1).float(),
    "comparison": lambda x: x.permute(2, 0, 1) > 0,
    "where": lambda x: torch.where(x.permute(2, 0, 1) > 0, x.permute(2, 0, 1), 0.0),
    "transposed": lambda x: x[0].t() + x[1].t(),
    "join": lambda x: torch.cat([x.permute(1, 0, 2) * 2, x.permute(1, 0, 2)], 1),
    "layer norm": lambda x: F.layer_norm(x.permute(1, 0, 2) * 2, (70,)),
    "sort": lambda x: torch.sort(x.permute(1, 0, 2) * 2, -1)[0],
    "flip": lambda x: x.permute(2, 0, 1).flip(0),
    "absolute": lambda x: x.permute(2, 0, 1).abs(),
    "logic": lambda x: (x.permute(2, 0, 1) > 0).logical_not(),
    "a dim of one element": lambda x: x[:1].permute(2, 0, 1) * 2,
    "in place": in_place,
}


def both(function, *given):
    """(eager, compiled) results, in pairs."""
    found, _ = compiled(function, *given)
    wanted = function(*given)
    if isinstance(wanted, torch.Tensor):
        return [(wanted, found)]
    return list(zip(wanted, found, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_are_those_of_eager_mode(name):
    for wanted, found in both(FUNCTIONS[name], X.to("spyre")):
        assert found.stride() == wanted.stride()
        assert torch.equal(found.cpu(), wanted.cpu())


@st.composite
def programs(draw):
    """Elementwise steps over views of one tensor of three dims."""
    order = draw(st.permutations(range(3)))
    steps = draw(st.lists(st.sampled_from(["add", "permute", "sum", "exp", "mean"]), max_size=5))
    turns = [draw(st.permutations(range(3))) for _ in steps]
    return order, tuple(zip(steps, turns, strict=True))


@examples(12)
@given(programs())
def test_programs_of_permuted_steps(program):
    order, steps = program

    def function(x):
        y = x.permute(*order) * 0.5
        kept = [y]
        for step, turn in steps:
            if step == "permute":
                y = y.permute(*turn) + 0.25
            elif step in ("sum", "mean"):
                y = y - getattr(y, step)(turn[0], keepdim=True) * 0.125
            else:
                y = y.exp().clamp(max=2.0) if step == "exp" else y + 1
            kept.append(y)
        return kept[0], kept[-1]

    for wanted, found in both(function, X[:2, :3].to("spyre")):
        assert found.stride() == wanted.stride()
        assert torch.equal(found.cpu(), wanted.cpu())


def test_tiles_of_permuted_results():
    x = named(torch.randn(64, 8, 128).half(), "A", "B", "C")

    def plain(x):
        y = x.permute(1, 0, 2) + 1
        return y * 2, y.sum(-1)

    def tiled(x):
        with spyre_hint(slices={"A": 4}):
            return plain(x)

    found, (kernel,) = compiled(tiled, x)
    assert any(int(getattr(spec, "count", 0)) == 4 for spec in kernel.specs)
    for one, other in zip(found, plain(x), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one.cpu(), other.cpu())


def test_gradients_of_permuted_results():
    w = torch.randn(70, 70).half()

    def loss(x, w):
        y = (x @ w).permute(1, 0, 2) * 2
        return y.relu().sum()

    grads = []
    for call in (loss, torch.compile(loss)):
        leaf = w.to("spyre").requires_grad_()
        call(X.to("spyre"), leaf).backward()
        grads.append(leaf.grad)
    assert grads[0].stride() == grads[1].stride()
    torch.testing.assert_close(*(g.cpu() for g in grads), atol=0.1, rtol=0.02)


IMAGES = {
    "conv": lambda x: F.conv2d(x, x[:, :, :2, :2]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "copy": lambda x: x.contiguous().contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_channels_last(name):
    x = X.reshape(4, 6, 7, 10)[:, :4].contiguous(memory_format=torch.channels_last).to("spyre")
    ((wanted, found),) = both(IMAGES[name], x)
    assert found.stride() == wanted.stride()
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.cpu(), wanted.cpu(), atol=0.01, rtol=0.01)


def test_eager_operations_whose_strides_are_not_those_of_the_meta_function():
    x = X.reshape(4, 6, 7, 10).contiguous(memory_format=torch.channels_last)
    grads = []
    for device, call in (("cpu", F.pad), ("spyre", torch.compile(F.pad))):
        leaf = x.to(device).requires_grad_()
        y = call(leaf, (1, 1, 1, 1), "replicate")
        grads += torch.autograd.grad(y, leaf, torch.ones_like(y))
    torch.testing.assert_close(grads[1].cpu(), grads[0])


def test_results_as_text():
    found = results_of("float16[2,3];bool[4];float32[2,3,1]@[1,2,6];int64[]")
    assert found == [
        (torch.float16, (2, 3), (3, 1)),
        (torch.bool, (4,), (1,)),
        (torch.float32, (2, 3, 1), (1, 2, 6)),
        (torch.int64, (), ()),
    ]


REPEATED = {
    "left": lambda x: (x.expand(3, 4, -1), torch.stack([x.expand(4, -1)] * 3).mT),
    "right": lambda x: (torch.stack([x.expand(4, -1)] * 3), x.expand(3, 4, -1).mT),
    "both": lambda x: (x.expand(3, 4, -1), x.expand(3, 4, -1).mT),
    "their matrices": lambda x: (x.expand(3, 4, -1), torch.stack([x] * 3).expand(3, 4, -1).mT),
    "one row each": lambda x: (x.expand(3, 1, -1), x.expand(3, 1, -1).mT),
    "whole matrices": lambda x: tuple(
        torch.cat([x, -x]).expand(3, 2, -1).transpose(1, k) for k in (1, 2)
    ),
}
"""Factors with one row, and one matrix, in memory."""


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("width", [1, 2, 64, 70])
def test_products_of_repeated_factors(name, width):
    row = torch.arange(1.0, width + 1).half().reshape(1, width) / width
    wanted = torch.matmul(*REPEATED[name](row))
    left, right = REPEATED[name](row.to("spyre"))
    for made in (left @ right, torch.bmm(left, right), compiled(torch.bmm, left, right)[0]):
        torch.testing.assert_close(made.cpu(), wanted, rtol=2e-3, atol=0)


def test_inputs_whose_elements_have_several_indices():
    windows = [
        x.reshape(5, 8).as_strided((4, 3, 4), (4, 4, 1))
        for x in (torch.arange(40.0).half(), torch.arange(40.0).half().to("spyre"))
    ]
    wanted, made = windows[0].sum(-1), compiled(lambda x: x.sum(-1), windows[1])[0]
    assert torch.equal(made.cpu(), wanted)
