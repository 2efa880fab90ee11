"""Programs that find their way back to people: SPYRE_KEEP and TORCH_SPYRE_DEBUG."""

from __future__ import annotations

import pytest
import torch

from spyre.cli.run import main
from spyre.errors import LaunchError
from spyre.mlir.bundle import load_bundle
from spyre.torch_backend.eager import compile, launch
from tests.torch_backend import processes


@pytest.fixture
def compiled_anew(monkeypatch):
    """Nothing is known yet of programs compiled by other tests."""
    monkeypatch.setattr(compile, "_programs", type(compile._programs)(64))
    monkeypatch.setattr(launch, "_calls", type(launch._calls)(64))
    launch.launch_records.clear()


@pytest.fixture
def kept(compiled_anew, tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_programs_are_kept_in_order(kept):
    a = torch.rand(40, 70).half().to("spyre")
    a + a
    torch.softmax(a, -1)
    a + a
    assert sorted(p.name for p in kept.iterdir()) == ["0001-add", "0002-softmax"]
    assert len(load_bundle(kept / "0002-softmax").sdscs) == 5
    listing = (kept / "0002-softmax" / "operations.txt").read_text().splitlines()
    assert len(listing) == 5
    assert "= exp(" in listing[2]


def test_numbers_go_on_after_those_that_are_there(kept):
    (kept / "0041-mul").mkdir(parents=True)
    (kept / "notes").mkdir()
    a = torch.rand(4, 64).half().to("spyre")
    a + a
    assert (kept / "0042-add" / "bundle.mlir").is_file()


@pytest.mark.parametrize("name", ["add", "softmax", "matmul"])
def test_a_kept_program_runs_with_spyre_run(kept, capsys, name):
    a = torch.rand(64, 64).half().to("spyre")
    {"add": lambda: a + a, "softmax": lambda: torch.softmax(a, -1), "matmul": lambda: a @ a}[name]()
    (place,) = kept.iterdir()
    assert place.name == f"0001-{name}"
    assert main([str(place)]) == 0
    assert "64x64@float16: min" in capsys.readouterr().out


def test_a_place_that_cannot_be_written(compiled_anew, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path / "file"))
    a = torch.rand(4, 64).half().to("spyre")
    with pytest.raises(LaunchError, match="SPY951"):
        a + a


def test_nothing_is_written_by_default(compiled_anew, tmp_path, monkeypatch):
    monkeypatch.delenv("SPYRE_KEEP", raising=False)
    monkeypatch.chdir(tmp_path)
    a = torch.rand(4, 64).half().to("spyre")
    a + a
    assert not list(tmp_path.iterdir())


def test_the_debug_log_shows_programs():
    code = """
    a = torch.ones(4, 64, dtype=torch.float16).to("spyre")
    torch.softmax(a, -1)
    torch.softmax(a, -1)
    """
    printed = processes.run(code, TORCH_SPYRE_DEBUG="1")
    assert printed.count("compiled softmax:\n") == 1
    assert "  %1:[4, 1]@float16 = max(%0:[4, 64]@float16) over [1]\n" in printed
