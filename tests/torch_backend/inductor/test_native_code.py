"""Calls that would build a native library of a graph on the card are refused by name."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import UnsupportedError


@pytest.fixture
def exported():
    layer = torch.nn.Linear(64, 64).to("spyre", torch.float16)
    return torch.export.export(layer, (torch.ones(2, 64, device="spyre", dtype=torch.float16),))


def test_packages_are_refused(exported, tmp_path):
    with pytest.raises(UnsupportedError, match="AOTInductor") as caught:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "a.pt2"))
    assert caught.value.code == "SPY996"
    assert not (tmp_path / "a.pt2").exists()


def test_libraries_are_refused(exported):
    with pytest.raises(UnsupportedError, match="SPY996"):
        torch._inductor.aot_compile(exported.module(), exported.example_inputs[0])


def test_an_exported_program_is_compiled_where_it_runs(exported):
    (x,) = exported.example_inputs[0]
    layer = exported.module()
    assert torch.equal(torch.compile(layer)(x).cpu(), layer(x).cpu())


def test_cpp_wrappers_are_refused():
    x = torch.ones(2, 64, device="spyre", dtype=torch.float16)
    with pytest.raises(Exception, match="SPY996"):
        torch.compile(torch.exp, options={"cpp_wrapper": True})(x)
