"""A few operators of each kind on the device itself, in every way; the whole database takes hours.

The samples of the unsupported ones ask for float64 or complex results.
"""

from __future__ import annotations

import importlib.util

import pytest

from qa.opinfo import outcome as o
from qa.opinfo.run_op import run_op
from qa.opinfo.samples import load_database
from qa.opinfo.target import Target

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*runs on the CPU"),
    pytest.mark.skipif(
        importlib.util.find_spec("spyre.torch_backend") is None,
        reason="the PyTorch device is not there",
    ),
]

OPERATORS = {
    "add": o.PASSED,
    "mm": o.PASSED,
    "softmax": o.PASSED,
    "sort": o.PASSED,
    "cat": o.PASSED,
    "__getitem__": o.PASSED,
    "empty": o.PASSED,
    "empty_like": o.UNSUPPORTED,
    "zero_": o.PASSED,
    "double": o.UNSUPPORTED,
    "cfloat": o.PASSED,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_of_every_kind(op: str, dtype: str) -> None:
    result = run_op(load_database()[op], dtype, Target("spyre"), limit=8)
    assert result.outcome == OPERATORS[op], result.failures


IN_EVERY_WAY = {
    "backward": ("mul", "mm", "softmax", "cat", "nn.functional.layer_norm", "double"),
    "out": ("add", "mm", "cumsum", "cat", "topk"),
    "in_place": ("add", "masked_fill", "clamp", "tril"),
    "noncontiguous": ("add", "mm", "sum", "index_select"),
    "compiled": ("add", "softmax", "transpose"),
}


@pytest.mark.parametrize(
    ("way", "op"), [(way, op) for way, ops in IN_EVERY_WAY.items() for op in ops]
)
def test_every_way(way: str, op: str) -> None:
    limit = 1 if way == "compiled" else 6
    result = run_op(load_database()[op], "float32", Target("spyre"), limit, way=way)
    assert result.outcome == OPERATORS.get(op, o.PASSED), result.failures
