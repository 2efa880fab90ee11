"""A few operators of each kind on the device itself; the whole database takes minutes.

The samples of the refused ones ask for float64 or complex results.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.opinfo import outcome as o
from tests.opinfo.run_op import run_op
from tests.opinfo.samples import load_database
from tests.opinfo.target import Target

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
    "empty_like": o.REFUSED,
    "zero_": o.PASSED,
    "double": o.REFUSED,
    "cfloat": o.REFUSED,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_of_every_kind(op: str, dtype: str) -> None:
    result = run_op(load_database()[op], dtype, Target("spyre"), limit=8)
    assert result.outcome == OPERATORS[op], result.failures
