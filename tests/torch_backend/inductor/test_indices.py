"""Indices in compiled functions: negative ones where torch counts them from the end, and those out
of range, as in eager mode on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from spyre.errors import DeviceFault

X = torch.randint(-64, 64, (5, 70)).half() / 16
INDEX = torch.tensor([-1, 0, -3])
ROWS = torch.randint(-64, 64, (3, 70)).half() / 16

WRAPPED = {
    "index_fill": lambda x, i, _: x.index_fill(0, i, 2.5),
    "index_fill of the last dim": lambda x, i, _: x.index_fill(-1, i, 2.5),
    "index_fill by a tensor": lambda x, i, v: x.index_fill(0, i, v[0, 0]),
    "index_fill of rank 0": lambda x, i, _: x[0, 0].index_fill(0, i[:1], 2.5),
    "index_fill of integers": lambda x, i, _: (x * 8).int().index_fill(1, i, -7),
    "index_fill of bools": lambda x, i, _: (x > 0).index_fill(1, i, True),
    "index_fill of a transposed tensor": lambda x, i, _: x.t().index_fill(1, i, 2.5),
    "index_fill_": lambda x, i, _: (x * 1).index_fill_(0, i, 2.5),
    "index_fill_ of a part": lambda x, i, _: (x * 1)[:, 2:9].index_fill_(1, i, 2.5),
    "index": lambda x, i, _: x[i],
    "index of the last dim": lambda x, i, _: x[:, i],
    "two indices": lambda x, i, _: x[i, i.flip(0)],
    "index_put": lambda x, i, v: x.index_put((i,), v),
    "index_put of a number": lambda x, i, v: x.index_put((i,), v[0, 0]),
    "index_put that adds": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "index_put of a transposed tensor": lambda x, i, v: x.t().index_put((i,), v[:, :5]),
    "setitem": lambda x, i, v: torch.cat([_set(x * 1, i, v), x]),
    "take": lambda x, i, _: x.take(i),
    "take_along_dim": lambda x, i, _: x.take_along_dim(i[:, None], 0),
    "put": lambda x, i, v: x.put(i, v[0, :3]),
    "select": lambda x, *_: (x.select(0, -1), x.select(-1, -70)),
    "slice": lambda x, *_: (x[-3:-1], x[:, -5:], x[-100:]),
    "narrow": lambda x, *_: x.narrow(0, -2, 2) + 1,
    "select_scatter": lambda x, i, v: x.select_scatter(v[0], 0, -2),
    "slice_scatter": lambda x, i, v: x.slice_scatter(v, 0, -3),
}


def _set(x, index, rows):
    x[index] = rows
    x[:, index] = 3.0
    x[-1, -2] = 1.0
    return x


def given(device, index=INDEX):
    return X.to(device), index.to(device), ROWS.to(device)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", WRAPPED)
def test_negative_indices_count_from_the_end(name):
    expected = as_tuple(WRAPPED[name](*given("cpu")))
    eager = as_tuple(WRAPPED[name](*given("spyre")))
    found = as_tuple(compiled(WRAPPED[name])(*given("spyre")))
    for one, other, same in zip(expected, found, eager, strict=True):
        assert other.stride() == same.stride()
        assert torch.equal(other.cpu(), same.cpu())
        torch.testing.assert_close(other.cpu(), one, rtol=2**-8, atol=2**-8)


REFUSED = {
    "index_select": lambda x, i, _: x.index_select(0, i),
    "gather": lambda x, i, _: x.gather(0, i[:, None].expand(3, 70)),
    "scatter": lambda x, i, v: x.scatter(0, i[:, None].expand(3, 70), v),
    "scatter of a number": lambda x, i, _: x.scatter(0, i[:, None].expand(3, 70), 2.0),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None].expand(3, 70), v),
    "index_copy": lambda x, i, v: x.index_copy(0, i, v),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "embedding": lambda x, i, _: F.embedding(i, x),
}
BEYOND = {
    **REFUSED,
    **{name: WRAPPED[name] for name in ("index_fill", "index", "index_put", "two indices")},
}


@pytest.mark.parametrize("name", BEYOND)
def test_indices_out_of_range_are_faults(name):
    wrong = [torch.tensor([0, 5, 1]), torch.tensor([0, -6, 1])]
    for index in wrong + ([INDEX] if name in REFUSED else []):
        with pytest.raises((DeviceFault, RuntimeError, IndexError)) as refusal:
            compiled(BEYOND[name])(*given("spyre", index)).cpu()
        with pytest.raises(type(refusal.value)):
            BEYOND[name](*given("spyre", index)).cpu()
        torch.spyre.synchronize()
