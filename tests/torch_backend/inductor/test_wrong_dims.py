"""Dims out of range, sizes and dtypes that do not fit, in compiled functions: torch's eager
errors.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

X = torch.arange(280.0).reshape(4, 70).half() / 64
INDEX = torch.zeros(2, 70, dtype=torch.int64)

WRONG = {
    **{f"softmax of {dim}": lambda x, _, dim=dim: x.softmax(dim) for dim in (2, -3)},
    "log_softmax": lambda x, _: x.log_softmax(2),
    "cumsum": lambda x, _: x.cumsum(2),
    "sum": lambda x, _: x.sum(2),
    "amax": lambda x, _: x.amax(-3),
    "gather": lambda x, i: x.gather(2, i),
    "scatter": lambda x, i: x.scatter(2, i, x),
    "index_select": lambda x, i: x.index_select(2, i[:, 0]),
    "index_copy": lambda x, i: x.index_copy(2, i[:, 0], x),
    "index_add": lambda x, i: x.index_add(2, i[:, 0], x),
    "topk": lambda x, _: x.topk(2, 2),
    "sort": lambda x, _: x.sort(2),
    "slice_scatter": lambda x, _: x.slice_scatter(x, 2),
    "slice_scatter of other sizes": lambda x, _: x.slice_scatter(x[:, :3], 1, 0, 4),
    "slice_scatter of one row": lambda x, _: x.slice_scatter(x[:1], 0, 0, 2),
    "slice_scatter of no step": lambda x, _: x.slice_scatter(x, 0, 3, 3),
    "slice_scatter of every second": lambda x, _: x.slice_scatter(x[:3], 0, 0, 4, 2),
    "select_scatter": lambda x, _: x.select_scatter(x[0], 2, 0),
    "select_scatter of an index": lambda x, _: x.select_scatter(x[0], 0, 4),
    "select_scatter of other sizes": lambda x, _: x.select_scatter(x[0, :9], 0, 1),
    "select_scatter of one element": lambda x, _: x.select_scatter(x[0, :1], 0, 1),
}
REPORTED_OTHERWISE = ("index_select", "sort")
"""Operations whose errors come from torch's meta functions, which have another text."""
Q = X.reshape(2, 2, 7, 10)
WRONG_ATTENTION = {
    "a mask of int32": lambda q: attention(q, q, q, (q[0, 0] @ q[0, 0].mT).int()),
    "keys of float32": lambda q: attention(q, q.float(), q),
    "values of float32": lambda q: attention(q, q, q.float()),
    "a query of rank 1": lambda q: attention(q[0, 0, 0], q, q),
    "other heads": lambda q: attention(q, *2 * [q.repeat(1, 2, 1, 1)[:, :3]]),
    "heads that are no groups": lambda q: attention(
        q, *2 * [q.repeat(1, 2, 1, 1)[:, :3]], enable_gqa=True
    ),
    "a mask of other sizes": lambda q: attention(q, q, q, q[0, 0] > 0),
    "keys of another width": lambda q: attention(q, q[..., :8], q),
    "keys of another batch": lambda q: attention(q, q[:1].repeat(3, 1, 1, 1), q),
}
SAID_IN_ATTENTION = ("int32", "float32", "rank", "groups")
"""Parts of names of errors that attention itself reports, with one text in every mode."""


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_eager_functions(name):
    function = WRONG[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(X, INDEX)
    with pytest.raises(expected.type) as found:
        torch.compile(function)(X.to("spyre"), INDEX.to("spyre"))
    if name not in REPORTED_OTHERWISE:
        assert str(expected.value).splitlines()[0] in str(found.value)


@pytest.mark.parametrize("name", WRONG_ATTENTION)
def test_errors_of_attention_are_those_of_eager_functions(name):
    function = WRONG_ATTENTION[name]
    with pytest.raises(RuntimeError) as expected:
        function(Q)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError) as found:
        torch.compile(function)(Q.to("spyre"))
    if any(part in name for part in SAID_IN_ATTENTION):
        assert str(expected.value).splitlines()[0] in str(found.value)
