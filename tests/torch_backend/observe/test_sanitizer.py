"""The sanitizer below the PyTorch device."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import LaunchError
from tests.torch_backend.processes import run


def test_cards_without_one(card):
    with pytest.raises(LaunchError, match="SPY995"):
        torch.spyre.sanitizer_findings()


def test_findings_are_told_once():
    code = """
        x = torch.ones(64, device="spyre") + 1
        print(torch.spyre.sanitizer_findings())
        x = torch.empty(1 << 20, device="spyre") + 1
        print({f.check.value for f in torch.spyre.sanitizer_findings()})
        print(torch.spyre.sanitizer_findings())
    """
    assert run(code, SPYRE_SANITIZE="1") == "()\n{'init'}\n()\n"
