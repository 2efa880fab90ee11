"""Classes of outcome, and a file of tests made for every device."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.neighbour.runs import Outcome
from qa.opinfo import outcome as o
from qa.upstream.__main__ import classified, main

TESTS = """
import os
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestThings(TestCase):
    def test_sum(self, device):
        self.assertEqual(torch.ones(3, device=device).sum().item(), 3)
    def test_double(self, device):
        torch.ones(3, dtype=torch.float64, device=device)
    def test_sparse(self, device):
        torch.ones(3, device=device).to_sparse()
    def test_of_the_release(self, device):
        torch.ones(3, device=device).gone()
    def test_ours(self, device):
        on_card = torch.device(device).type == "spyre"
        self.assertEqual(torch.full((1,), 1.0 + on_card), torch.ones(1))

instantiate_device_type_tests(TestThings, globals())

class TestPlain(TestCase):
    def test_default(self):
        self.assertEqual(torch.ones(2).device.type, os.environ["UPSTREAM_DEVICE"])
"""


@pytest.mark.parametrize(
    ("why", "result"),
    [
        ("TypeError: Spyre backend does not support dtype float64 [SPY311]", o.UNSUPPORTED),
        ("UnsupportedError: error[SPY906]: tensors are strided", o.LAYOUT),
        ("InductorError: error[SPY930]: the cores cannot", o.REFUSED),
        ("AssertionError: 1 is not 2", "failed"),
        ("DeviceFault: error[SPY811]: out of range", "failed"),
    ],
)
def test_a_failure_has_the_class_its_error_names(why: str, result: str) -> None:
    assert classified(Outcome("failed", why)) == Outcome(result, why)
    assert classified(Outcome("passed", why)).result == "passed"


@pytest.mark.slow
def test_what_fails_on_the_cpu_too_is_not_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes: one for the device, one for the tests that fail there."""
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_things.py").write_text(TESTS)
    options = ["--default-device", "--pytorch", str(tmp_path), "test_things.py"]
    assert main(options) == 1
    shown = capsys.readouterr().out
    for part in ("2 passed", f"1 {o.UNSUPPORTED}", f"1 {o.LAYOUT}", "1 failed on the CPU too"):
        assert part in shown
    assert "Greatest absolute difference: 1.0 at index (0,)" in shown
    assert "1 failures that are not torch's" in shown


def test_without_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pytorch", str(tmp_path)]) == 2
    assert "no test folder" in capsys.readouterr().err
