"""Compiled reads of and writes to views that cores cannot walk: the bits of eager mode."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.inductor.compiled_code import compiled

torch.manual_seed(0)
X = torch.randn(5, 66, 66).half()


def written(view, write):
    """Return a function that writes to a view of an intermediate result."""

    def function(x):
        y = x * 2
        write(view(y))
        return y

    return function


def rows_of_a_transposed_result(x):
    """After a write to a part, a tensor keeps its strides, which the next view uses."""
    y = x @ x.mT
    turned = y.transpose(1, -1)
    turned.narrow(-2, 2, 2).relu_()
    return turned, y


def argument_written(x):
    x[..., ::2].mul_(3.0)
    x[0].diagonal().add_(1.0)
    return (x,)


def argument_written_by_strides(x):
    x.as_strided((4, 4), (9, 2), 1).mul_(2.0)
    return x + 1


def argument_written_after_a_sum_of_one(x):
    """A reduction over one element is a copy of it, not the same memory."""
    y = x.unsqueeze(-1).sum(-1)
    x[0].diagonal().clamp_(-1.0, 1.0)
    return x, y


def numbers_written(x):
    numbers, marks = (x[0] * 4).int(), x[0] > 0
    for y in (numbers, marks):
        y[:, ::2] = 1
        y.diagonal(1).fill_(0)
        y[3] = 1
    return numbers, marks


def results_that_are_views(x):
    y = x[1:] * 2
    turned = y.permute(2, 0, 1)
    return x.diagonal(0, 1, 2), y, turned.diagonal()[::2], y.unfold(1, 3, 2), strided(y), y[0] + 1


def repeated_elements_filled(x):
    """torch undoes an expand by adding up the changes of its repetitions."""
    rows = x[0, :5, :8].contiguous().expand(4, -1, -1)
    filled = rows.narrow(-1, 7, 1).fill_(0.7)
    rows[1:3].mT[0].zero_()
    marks = (x[0, 0] > 0)[:, None].expand(66, 3)
    marks[5:7].fill_(True)
    x[1].unsqueeze(1).expand(-1, 2, -1).permute(2, 1, 0)[::3].zero_()
    x[2, :4].chunk(2)[1][:, 0:1].expand(-1, 5).fill_(0.3)
    part = x[4].unsqueeze(0).expand(3, -1, -1).narrow(-1, 10, 3)
    part.masked_fill_(part > torch.arange(3, device=x.device)[:, None, None], value=2.0)
    largest = x[3].topk(1, 1).values
    largest.mT[..., ::2].fill_(0.5)
    return rows, filled + 1, marks, largest


def flipped_onto_a_diagonal(x):
    y = (x[:, :3, None, :7] * 1).contiguous()
    y.diagonal().copy_(y.diagonal().flip(0))
    return y


def strided(y):
    return y.as_strided((4, 4), (9, 2), 3)


FUNCTIONS = {
    "fill a diagonal": written(lambda y: y[0].diagonal(), lambda v: v.fill_(1.0)),
    "add to a diagonal": written(lambda y: y.diagonal(-2, 2, 1), lambda v: v.add_(1.0)),
    "copy to a diagonal": written(lambda y: y[0].t().diagonal(1), lambda v: v.copy_(v.flip(0))),
    "fill_diagonal_": lambda x: (x[0] * 2).fill_diagonal_(7.0),
    "fill_diagonal_ of a tall one": lambda x: (x[0, :, :9] * 2).fill_diagonal_(7.0, wrap=True),
    "multiply by strides": written(strided, lambda v: v.mul_(3.0)),
    "steps in two dims": lambda x: x[None, :, 1::4, ::5] + 1,
    "steps of a result": lambda x: (x[None, :3, :7] * 2)[:, 1:, 1::3, 2::4].sum(1),
    "write steps in two dims": written(lambda y: y[:, 1::4, ::5], lambda v: v.mul_(3.0)),
    "fill repeated elements": repeated_elements_filled,
    "fill with a number that is rounded twice": written(
        lambda y: y[:, 3:5], lambda v: v.fill_(0.3)
    ),
    "pad with one": lambda x: torch.nn.functional.pad(x[0], (1, 2), value=0.3),
    "every third row": written(lambda y: y[:, 1::3, ::2], lambda v: v.mul_(3.0)),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[0], x[0, 1] * 5),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0, :4, :4], (4, 4), (9, 2), 3),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[..., ::2] * 5, 2, step=2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 5, 2, 3),
    "results": results_that_are_views,
    "steps within an odd extent": lambda x: (x[None, :3, :9, :7] * 2)[..., ::2].clone(),
    "a diagonal of one row": flipped_onto_a_diagonal,
    "largest of repeated rows": lambda x: x[:2].repeat(3, 1, 1).topk(2, 0),
    "rows of a transposed result": rows_of_a_transposed_result,
    "an argument": argument_written,
    "an argument by strides": argument_written_by_strides,
    "an argument after a sum": argument_written_after_a_sum_of_one,
    "integers and bool": numbers_written,
    "as_strided": lambda x: strided(x) + 1,
    "as_strided of as_strided": lambda x: strided((x + 1)[2:].as_strided((8, 8), (9, 1), 5)) + 1,
    "as_strided of windows": lambda x: strided((x + 1).unfold(1, 4, 2)[1:]) * 2,
    "diagonal": lambda x: x.diagonal(2, 1, 2) * 2,
    "unfold": lambda x: x.unfold(1, 4, 2) * 2,
    "unfold of the last dim": lambda x: x.unfold(-1, 5, 3).sum(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_are_those_of_eager_mode(name):
    given = [X.to("spyre") for _ in range(2)]
    wanted = FUNCTIONS[name](given[0])
    found, _ = compiled(FUNCTIONS[name], given[1])
    several = not isinstance(wanted, torch.Tensor)
    pairs = zip(wanted, found, strict=True) if several else [(wanted, found)]
    for one, other in [*pairs, tuple(given)]:
        assert one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset()
        assert torch.equal(one.cpu(), other.cpu())
