"""`spyre_hint(work_div=…)` decides how the operations of its block are divided among cores."""

from __future__ import annotations

import re

import pytest
import torch

import spyre
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint

SIZES = {"rows": 64, "columns": 256, "results": 128}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


def named(*names):
    for name in names:
        declare_tensor_dim(name, SIZES[name])
    generator = torch.Generator().manual_seed(len(names))
    sizes = [SIZES[name] for name in names]
    tensor = torch.randn(sizes, generator=generator).half().to("spyre")
    name_tensor_dims(tensor, names)
    return tensor


def hinted(function, **cores):
    def within_hint(*tensors):
        with spyre_hint(work_div=cores):
            return function(*tensors)

    return within_hint


def divisions(function, *tensors):
    """(operation, slices per dim) of every device operation."""
    text = str(spyre.explain(function, *tensors))
    found = re.findall(r"^\d+ (\w+): cores \d+; (.*); numbered", text, re.MULTILINE)
    return [(name, [int(n) for n in re.findall(r" in (\d+)", dims)]) for name, dims in found]


def test_dims_not_named_stay_whole():
    a, b = named("rows", "columns"), named("rows", "columns")
    assert divisions(torch.add, a, b) == [("add", [32, 1])]
    assert divisions(hinted(torch.add, columns=2), a, b) == [("add", [1, 2])]
    assert divisions(hinted(torch.add, rows=8, columns=4), a, b) == [("add", [8, 4])]


def test_all_operations_of_a_block():
    def softmax(a):
        return torch.softmax(a, -1)

    found = divisions(hinted(softmax, rows=4), named("rows", "columns"))
    assert [name for name, _ in found] == ["max", "sub", "exp", "sum", "realdiv"]
    assert {tuple(slices) for _, slices in found} == {(4, 1)}


def test_reductions_and_broadcasts_divide_the_dim_that_has_the_name():
    a, v = named("rows", "columns"), named("columns")
    assert divisions(hinted(lambda a: a.sum(0), columns=4), a) == [("sum", [1, 4])]
    assert divisions(hinted(torch.mul, columns=4), a, v) == [("mul", [1, 4])]


def test_copies_are_divided_as_usual():
    found = divisions(hinted(lambda a: (a.t() + 1).contiguous(), rows=4), named("rows", "columns"))
    slices = dict(found)
    assert slices["add"] == [1, 4]
    assert slices["ReStickifyOpHBM"] == [4, 1]


def test_matmuls_divide_k_too_with_equal_results():
    a, b = named("rows", "columns"), named("columns", "results")
    product = hinted(torch.mm, rows=2, results=2, columns=4)
    assert divisions(product, a, b) == [("batchmatmul", [2, 2, 4])]
    found, expected = torch.compile(product)(a, b).cpu(), a.cpu() @ b.cpu()
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-2)


def test_tiles_are_divided():
    def function(a, b):
        with spyre_hint({"columns": 2}, work_div={"rows": 4}):
            return (a + b) * 2

    a, b = named("rows", "columns"), named("rows", "columns")
    assert divisions(function, a, b) == [("add", [4, 1]), ("mul", [4, 1])]
    assert torch.equal(torch.compile(function)(a, b).cpu(), ((a + b) * 2).cpu())


@pytest.mark.parametrize(
    ("function", "cores", "found"),
    [
        (torch.exp, {"columns": 8}, "a divisor of 4"),
        (torch.exp, {"rows": 64}, "at most 32 cores"),
        (lambda a: a.sum(-1), {"columns": 2}, "dims of the result"),
    ],
    ids=["whole_sticks", "cores", "reduced"],
)
def test_what_cannot_be_is_refused(function, cores, found):
    with pytest.raises(Exception, match=f"(?s)SPY982.*{found}"):
        torch.compile(hinted(function, **cores))(named("rows", "columns"))


def test_programs_are_divided_as_usual_with_a_warning():
    with pytest.warns(UserWarning, match="work_div cannot divide"):
        found = divisions(hinted(lambda a: torch.topk(a, 4)[0], rows=4), named("rows", "columns"))
    assert ("topkvalue", [1, 1, 1]) in found
