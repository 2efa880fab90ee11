"""The runner for compiled functions finds defects."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from qa.conformance_compiled.__main__ import main
from qa.conformance_compiled.check import FunctionChecks
from qa.conformance_compiled.kernel_runs import KeptBundles, KeptRun
from qa.conformance_compiled.outcome import DIFFERENT, ROUNDED, SAME, Setting
from qa.conformance_compiled.real_functions import read_function
from tests.conftest import SHARED

BUNDLES = SHARED / "bundles"
NAME = "bmm_4x64x128x64"
FIRST, ONE_CORE = Setting("symbolic", 32), Setting("symbolic", 1)

pytestmark = pytest.mark.skipif(not BUNDLES.exists(), reason="the real bundles are not here")


@pytest.fixture
def function():
    return read_function(BUNDLES / NAME)


@pytest.fixture
def place(tmp_path):
    count = itertools.count()
    return lambda: tmp_path / str(next(count))


def test_other_values(function, place):
    wrong = replace(function, expected=(function.expected[0] + 1,))
    (found,) = FunctionChecks([wrong], place).outcomes([FIRST])
    assert found.worst > 1
    assert found.faults == (f"{found.worst:.3f} of what is allowed",)


def drifting(function, step):
    """Gives other results every time it is compiled."""
    calls = itertools.count()
    call = function.call

    def changed(*given):
        return call(*given) + step * next(calls)

    return replace(function, call=changed)


@pytest.mark.parametrize(
    ("settings", "step", "bits"),
    [
        ([FIRST, FIRST], 0.0, SAME),
        ([FIRST, FIRST], 0.125, DIFFERENT),
        ([FIRST, ONE_CORE], 0.125, ROUNDED),
        ([FIRST, ONE_CORE], 8.0, DIFFERENT),
    ],
)
def test_other_bits(function, place, settings, step, bits):
    """K is cut in two for 32 cores, and not for one."""
    loose = replace(drifting(function, step), tolerance={"atol": 0.5, "rtol": 0.0})
    first, second = FunctionChecks([loose], place).outcomes(settings)
    assert (first.sums, first.bits) == (((128, 2),), SAME)
    assert second.bits == bits
    assert bool(second.faults) == (bits == DIFFERENT)


def test_a_function_without_kernels(place):
    real = read_function(BUNDLES / "up_test_pointwise_unary_op_fp32_ceil_256")
    wrong = replace(real, call=lambda x: x.asin())
    (found,) = FunctionChecks([wrong], place).outcomes([FIRST])
    assert "no kernel" in found.faults
    assert "calls to the CPU: aten.asin" in found.faults


def test_findings_and_baked_bits(function, place, monkeypatch):
    outputs = iter([b"1", b"2"])

    def run(self, launched, *, symbolic):
        return KeptRun(("a finding",), (next(outputs),))

    monkeypatch.setattr(KeptBundles, "run", run)
    (found,) = FunctionChecks([function], place).outcomes([Setting("baked", 32)])
    first, second = found.faults
    assert first == "a finding"
    assert "baked addresses give other bits" in second


def test_a_function_that_cannot_be_compiled(function, place):
    def broken(*given):
        raise ValueError("broken")

    (found,) = FunctionChecks([replace(function, call=broken)], place).outcomes([FIRST])
    assert found.bits == DIFFERENT
    assert "broken" in found.faults[0]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "found.json"
    options = ["--filter", f"^{NAME}$", "--cores", "32", "--json", str(path)]
    assert main([str(BUNDLES), *options]) == 0
    assert "symbolic" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert (found["passed"], found["total"], found["functions"]) == (2, 2, 1)
    assert main([str(BUNDLES), "--filter", "nothing of this name"]) == 2
