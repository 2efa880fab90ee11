"""SPYRE_FRONTEND decides about the device, independently of installed packages and their order."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from spyre.errors import LaunchError
from spyre.frontend import activation
from tests.torch_backend.processes import run_anew

ROOT = Path(__file__).parents[2]
PACKAGE = """
import torch

def _autoload():
    torch.utils.rename_privateuse1_backend("spyre")
    torch._register_device_module("spyre", torch)
    import torch_spyre._C
    copy = lambda source, dst, non_blocking=False: torch_spyre._C.copy_tensor(source, dst)
    torch.library.register_kernel("aten::_copy_from", ["spyre"])(copy)
"""
"""A package like torch-spyre, with the parts of its import that these tests need."""
AUTOLOAD = "import torch\nfrom spyre.frontend import autoload\nautoload()\n"
RUN_CHECKS = f"""{AUTOLOAD}
import pytest, sys
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
TORCH_SPYRE = {"SPYRE_FRONTEND": "torch-spyre", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
SPYRE = {**TORCH_SPYRE, "SPYRE_FRONTEND": "spyre"}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> str:
    """A folder for PYTHONPATH with a package torch_spyre."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "torch_spyre").mkdir()
    (folder / "torch_spyre" / "__init__.py").write_text(PACKAGE)
    return os.pathsep.join([str(folder), str(ROOT)])


def test_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch.backends"] == {"spyre": "spyre.frontend:autoload"}


@pytest.mark.parametrize("checks", ["device_checks.py", "collective_checks.py"])
def test_device(package, checks):
    """Runs a file of `qa/frontend` where torch-spyre has the device."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_CHECKS, str(ROOT / "qa" / "frontend" / checks)],
        env={**os.environ, **TORCH_SPYRE, "PYTHONPATH": package},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_own_device_unless_asked(package):
    """Requesting both is an error."""
    code = """
        import sys
        from spyre.frontend import activate, is_active
        print(torch.ones(2, device="spyre").sum().item(), is_active())
        assert "torch_spyre" not in sys.modules
        try:
            activate()
        except RuntimeError as error:
            print(error)
    """
    printed = run_anew(code, AUTOLOAD, PYTHONPATH=package, **SPYRE)
    assert printed.startswith("2.0 False\n")
    assert "SPY992" in printed


def test_own_device_is_silent_where_torch_spyre_has_it(package):
    code = """
        from spyre.torch_backend import autoload as own
        own()
        from spyre.frontend import is_active
        import torch_spyre._C
        print(is_active(), torch_spyre._C.device_count())
    """
    assert run_anew(code, AUTOLOAD, PYTHONPATH=package, **TORCH_SPYRE) == "True 1\n"


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
def test_a_fill_is_in_the_number_mode_of_the_card(package, mode):
    code = """
        from torch_spyre._C import fill_tensor
        tensors = [torch.empty(2, 3, dtype=torch.float16, device="spyre") for _ in range(2)]
        for tensor, value in zip(tensors, (12.0, -65504.0)):
            fill_tensor(tensor, value)
            copied = torch.full((2, 3), value, dtype=torch.float16).to("spyre")
            print(torch.equal(tensor.cpu(), copied.cpu()), tensor.cpu()[1, 2].item())
    """
    printed = run_anew(code, AUTOLOAD, PYTHONPATH=package, **TORCH_SPYRE, SPYRE_NUMERICS=mode)
    smallest = {"dl16": -65472.0, "ieee": -65504.0}[mode]
    assert printed == f"True 12.0\nTrue {smallest}\n"


def test_the_device_without_an_index_is_the_current_card(package):
    code = """
        import torch_spyre._C
        torch_spyre._C.set_device(1)
        there = torch.ones(2, 64, dtype=torch.float16).to("spyre")
        model = torch.nn.Linear(2, 2, dtype=torch.float16).to("spyre")
        made = torch.tensor([1.0, 2.0], dtype=torch.float16, device="spyre")
        tensors = (there, model.weight, made, torch.empty(2, device="spyre"), there.to("cpu"))
        print(*[tensor.device for tensor in tensors])
    """
    printed = run_anew(code, AUTOLOAD, PYTHONPATH=package, **TORCH_SPYRE, AIU_WORLD_SIZE="2")
    assert printed == "spyre:1 spyre:1 spyre:1 spyre:1 cpu\n"


@pytest.mark.skipif(find_spec("torch_spyre") is not None, reason="torch-spyre is installed here")
def test_what_cannot_be_had():
    lines = """
        for frontend in ("torch_spyre", "torch-spyre"):
            os.environ["SPYRE_FRONTEND"] = frontend
            try:
                autoload()
            except RuntimeError as error:
                print(str(error).replace(chr(10), " "))
    """
    prologue = "import os\nimport torch\nfrom spyre.frontend import autoload\n"
    unknown, missing = run_anew(
        lines, prologue, **{**TORCH_SPYRE, "PYTHONPATH": str(ROOT)}
    ).splitlines()
    assert "SPY990" in unknown
    assert "SPY991" in missing


def test_why_a_frontend_is_not_loaded(monkeypatch):
    """In this process, whose device is this package's."""
    pytest.importorskip("torch")
    monkeypatch.setenv("SPYRE_FRONTEND", "spire")
    with pytest.raises(LaunchError, match=r"SPY990.*'spire'"):
        activation.autoload()
    monkeypatch.setitem(sys.modules, "torch_spyre", None)
    with pytest.raises(LaunchError, match=r"SPY991.*not installed"):
        activation._imported_package()
    monkeypatch.setenv("SPYRE_FRONTEND", "torch-spyre")
    with pytest.raises(LaunchError, match=r"SPY992(.|\n)*the device 'spyre'"):
        activation.autoload()
