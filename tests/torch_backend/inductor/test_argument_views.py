"""Arguments of compiled functions that are views with gaps, or whose elements overlap: read and
written elements have the bits of eager mode, and others do not change.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

WHOLE = torch.randint(-64, 64, (6, 66, 70)).half() / 16
VIEWS = {
    "a column": lambda x: x[0, :, 0],
    "columns": lambda x: x[0, :, 1:4],
    "whole sticks of rows": lambda x: x[0, :, :64],
    "a step": lambda x: x[1, 1:3, ::2],
    "columns of matrices": lambda x: x[:, 3:9, 65:],
    "every other matrix": lambda x: x[::2],
    "a transposed part": lambda x: x[2, :9, 5:20].t(),
    "permuted steps": lambda x: x[::2, :, ::3].permute(2, 0, 1),
    "a diagonal": lambda x: x[3].diagonal(),
    "a column of one element": lambda x: x[1, 4:5, 7:8],
    "repeated steps": lambda x: x[:2, 0, ::2].unsqueeze(1).expand(-1, 3, -1),
    "windows": lambda x: x.as_strided((12, 12), (1, 1), 5),
}
WRITABLE = [name for name in VIEWS if name not in ("repeated steps", "windows")]
DYNAMIC = ("columns", "permuted steps", "a column of one element")
WRITES = [
    (name, dynamic)
    for name in WRITABLE
    for dynamic in (False, True)
    if not dynamic or name in DYNAMIC or "SPYRE_TEST_EXAMPLES" in os.environ
]
"""Every view with fixed sizes; in the long form of the tests also with symbolic ones."""


def both(function, view, dynamic=False):
    """(whole tensor, results) of the function on a view, in eager mode and compiled."""
    found = []
    torch._dynamo.reset()
    for call in (function, torch.compile(function, fullgraph=True, dynamic=dynamic)):
        whole = WHOLE.to("spyre")
        results = call(*view(whole))
        found.append([whole, *results])
    return found


def agree(function, view, dynamic=False):
    for eager, compiled in zip(*both(function, view, dynamic), strict=True):
        strides = zip(compiled.stride(), eager.stride(), eager.shape, strict=True)
        assert all(one == other for one, other, extent in strides if extent > 1)
        assert compiled.storage_offset() == eager.storage_offset()
        assert torch.equal(compiled.cpu(), eager.cpu())


def added_in_place(x):
    x.add_(1)
    return (x * 2,)


def copied_into(x):
    y = x.flip(0)
    x.copy_(y * 3)
    return x, y


def part_written(x):
    x[1:].mul_(2.0)
    x[..., 0] = 0.3
    return x[..., :1], x.sum()


@pytest.mark.parametrize(("name", "dynamic"), WRITES)
def test_writes(name, dynamic):
    for function in (added_in_place, copied_into, part_written):
        if VIEWS[name](WHOLE).dim():
            agree(function, lambda x: (VIEWS[name](x),), dynamic)


def read(x):
    return x + 1, x.t() if x.dim() == 2 else x, x.flip(-1), x.max(), x.unsqueeze(0) * x


@pytest.mark.parametrize("name", VIEWS)
def test_reads(name):
    agree(read, lambda x: (VIEWS[name](x),))


def test_views_by_strides_count_from_the_start_of_the_memory():
    def function(x):
        return x.as_strided((3, 4), (70, 2), 11) + 1, x[1:].as_strided((5, 3), (1, 70)) * 2

    agree(function, lambda x: (x[1, :, 3:9],))


def flips(x):
    x[3].copy_(x[3].flip(0))
    x[1:6].copy_(x[1:6].flip(0))
    return (x,)


def steps(x):
    x[::2, ::3] = x[::2, ::3].roll(1, 0)
    x[1::2, 1::3] = x[1::2, 1::3].flip(0, 1)
    return x[1:].as_strided((3, 4), (70, 6), 4760) + 1, x, x[::2]


def diagonals(x):
    x[:9, :9].diagonal().copy_(x[:9, :9].diagonal().flip(0))
    x[::4, ::4][::2].copy_(x[::4, ::4][::2].flip(1))
    return x, x.sum()


@pytest.mark.parametrize(
    ("function", "dynamic"), [(flips, False), (flips, True), (steps, False), (diagonals, False)]
)
def test_several_writes_to_parts_of_steps(function, dynamic):
    """A scatter into an argument with gaps has gaps too, and the next kernel reads it."""
    agree(lambda x: function(x[..., ::2]), lambda x: (x[1, :9, ::2],), dynamic)


def test_copies_have_the_order_of_the_tensor_they_fill():
    def filled(x):
        y = x.new_empty_strided((5, 7), (1, 5))
        y.copy_(x[:5, :7])
        return y, y[::2], y.as_strided((3, 2), (2, 5)) + 1

    agree(filled, lambda x: (x[0],))


def test_sums_at_indices_keep_the_strides_of_the_tensor():
    def added(x):
        y = x * 2
        y.index_add_(1, torch.tensor([0, 2], device=x.device), x[:, :2])
        return y, y.as_strided((3, 4), (70, 3), 5) + 1

    agree(added, lambda x: (x[:2, :4].clone(),))


def test_several_views_at_once_are_results():
    def function(x):
        first, second = x.split(3, 1)
        return first, second, first + second

    agree(function, lambda x: (x[0, :, 4:10],))


def half_written(x):
    x.narrow(0, 43, 18).add_(-2.0)
    return x, x.chunk(2, -1)[0]


def whole_written(x):
    x.add_(-2.0)
    return x.view(x.shape), x[: x.shape[0] // 2], x.t()[x.shape[1] // 2 :], x.view(torch.int16)


def view_written(x):
    y = x.chunk(2, -1)[1]
    y.mul_(2.0)
    return y, x.view_as(x), y.t()


@pytest.mark.parametrize("function", [half_written, whole_written, view_written])
@pytest.mark.parametrize("view", [lambda x: x[1, 1:], lambda x: x[1, 2:, 1::2]])
def test_views_of_written_arguments_that_begin_at_an_offset(function, view):
    agree(function, lambda x: (view(x),), dynamic=True)


def second_written(x, y):
    torch.mul(x, 2.0, out=y)
    return y[: y.shape[0] // 2], x + y, x.chunk(2, -1)[1]


def test_views_of_several_arguments():
    agree(second_written, lambda x: (x[1, 2:40], x[2, 2:40]), dynamic=True)


def test_gradients_of_views_of_written_arguments():
    grads = []
    torch._dynamo.reset()
    for call in (whole_written, torch.compile(whole_written, fullgraph=True, dynamic=True)):
        leaf = WHOLE.to("spyre").requires_grad_()
        whole = leaf * 1
        same, rows, columns, _ = call(whole[1, 1:])
        (same.sum() + 2 * rows.sum() + 4 * columns.sum() + whole.sum()).backward()
        grads.append(leaf.grad.cpu())
    assert torch.equal(*grads)


def test_a_column_of_a_large_tensor():
    """Its memory has room for a stick per element, that of the whole tensor has not."""
    torch._dynamo.reset()
    whole = torch.zeros(140_000, 64, dtype=torch.float16, device="spyre")
    torch.compile(lambda x: x.add_(x + 1))(whole[:, 7])
    assert torch.equal(whole.sum(0).cpu(), (torch.arange(64) == 7).half() * whole.shape[0])


def both_written(x, y):
    z = x + y
    y.mul_(2.0)
    x.add_(1.0)
    return z, x - y


@pytest.mark.parametrize(
    "view",
    [
        lambda x: (x[0], x[0, :, :]),
        lambda x: (x[0, :, 0], x[0, :, 1]),
        lambda x: (x[0, :, 1:4], x[0, :, 2:5]),
        lambda x: (x[1, :3], x[1, 1:4]),
        lambda x: (x[2, :66, :66], x[2, :66, :66].t()),
        lambda x: (x[3, 0, ::2], x[3, 0, 1::2]),
    ],
)
def test_arguments_that_share_memory(view):
    agree(both_written, view)


def first_read(x, y):
    y.add_(1.0)
    return (x * 2,)


def test_arguments_that_share_memory_where_earlier_ones_did_not():
    """torch caches compiled code by a key that ignores shared memory."""
    for other in (2, 1):
        agree(first_read, lambda x, other=other: (x[1, :3], x[other, 1:4]))


def test_results_written_to_arguments():
    def function(x, y):
        torch.mul(x, 2, out=y)
        return (y + x,)

    agree(function, lambda x: (x[0, 1:3], x[1, 4:6]))


def test_buffers_of_modules():
    class Counted(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.register_buffer("column", whole[0, :, 3])
            self.register_buffer("part", whole[1, 2:5, ::2])

        def forward(self, x):
            self.column += 1
            self.part.mul_(2.0)
            return x + self.column.sum() + self.part[:, 0].sum()

    found = []
    torch._dynamo.reset()
    for wrap in (lambda module: module, lambda module: torch.compile(module, fullgraph=True)):
        whole = WHOLE.to("spyre")
        module = wrap(Counted(whole))
        results = [module(whole[2, 0]) for _ in range(2)]
        found.append([whole, *results])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled.cpu(), eager.cpu(), rtol=2**-8, atol=0)
    assert torch.equal(found[0][0].cpu(), found[1][0].cpu())


def test_gradients_of_views():
    def loss(x):
        return (x * x).sum()

    grads = []
    torch._dynamo.reset()
    for call in (loss, torch.compile(loss, fullgraph=True)):
        leaf = WHOLE.to("spyre").requires_grad_()
        call(leaf[0, :, 1:4]).backward()
        grads.append(leaf.grad.cpu())
    assert torch.equal(*grads)
