"""Operations no program can be written for run on the CPU, with a warning, and are right."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import UnsupportedError
from spyre.torch_backend.eager import compile
from spyre.torch_backend.program.op_spec import LoweringError


@pytest.fixture
def inexpressible(monkeypatch):
    """Make the compilation of every new operation fail, as if no pitches expressed it."""

    def refuse(*_):
        raise LoweringError("made up by a test")

    monkeypatch.setattr(compile, "_compile", refuse)


def test_the_cpu_does_it(inexpressible):
    x = torch.randn(3, 77).half().to("spyre")
    torch.spyre.reset_fallbacks()
    y = torch.sigmoid(x)
    assert torch.spyre.fallbacks() == {"aten.sigmoid": 1}
    assert torch.allclose(y.cpu().float(), torch.sigmoid(x.cpu().float()), atol=2e-3)


def test_in_place(inexpressible):
    x = torch.ones(5, 79).half().to("spyre")
    x[1:3].mul_(3)
    assert x.cpu()[:, 0].tolist() == [1, 3, 3, 1, 1]


def test_it_is_an_error_where_nothing_may_fall_back(inexpressible, monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
    x = torch.ones(5, 81).half().to("spyre")
    with pytest.raises(UnsupportedError, match="SPY900"):
        x + x


def test_the_error_names_what_it_found():
    with pytest.raises(UnsupportedError, match="SPY930") as caught:
        raise LoweringError("7 dims besides the stick")
    assert "7 dims" in str(caught.value)
