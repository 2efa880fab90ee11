"""The command that makes a checkout importable, and its undoing."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spyre.errors import LaunchError
from spyre.frontend.__main__ import main
from spyre.frontend.install import check, install, uninstall


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "checkout" / "torch_spyre"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text('__version__ = "0.7"\n')
    return package.parent


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def test_installs_links_and_undoes(checkout, site):
    done, _ = install(checkout, site)
    assert (site / "torch_spyre").resolve() == checkout / "torch_spyre"
    (found,) = importlib.metadata.distributions(path=[str(site)])
    assert (found.name, found.version) == ("torch-spyre", "0.7")
    assert not found.entry_points
    assert "nothing of torch-spyre was copied or changed" in done
    assert "version 0.7" in check(site)[0][0]
    assert len(uninstall(site)[0]) == 3
    assert not list(site.iterdir())
    assert sorted(p.name for p in (checkout / "torch_spyre").iterdir()) == [
        "__init__.py",
        "version.py",
    ]


def test_replaces_its_own_link(checkout, site, tmp_path):
    install(checkout, site)
    moved = checkout.rename(tmp_path / "moved")
    install(moved, site)
    assert (site / "torch_spyre" / "version.py").is_file()
    assert uninstall(site)[0]
    assert uninstall(site)[0] == ("torch-spyre is not installed",)


def test_leaves_others_alone(checkout, site):
    (site / "torch_spyre").mkdir()
    for change in (lambda: install(checkout, site), lambda: uninstall(site)):
        with pytest.raises(LaunchError, match="SPY994"):
            change()
    assert (site / "torch_spyre").is_dir()


@pytest.mark.parametrize("frontend", ["torch-spyre", "spyre", ""])
def test_a_process_without_autoload_finds_the_extension(checkout, site, frontend):
    """From the start of Python, at the cost of no large import, and only where it is asked for."""
    install(checkout, site)
    code = f"""
import site, sys
site.addsitedir({str(site)!r})
import importlib.util
print([name for name in ("torch", "numba", "numpy", "torch_spyre") if name in sys.modules])
spec = importlib.util.find_spec("torch_spyre._C")
print(spec.origin if spec else None, "spyre" in sys.modules)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "SPYRE_FRONTEND": frontend,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found = "spyre.frontend True" if frontend == "torch-spyre" else "None False"
    assert printed.stdout.splitlines() == ["[]", found]
    assert not printed.stderr


def test_check_misses_what_python_runs_at_its_start(checkout, site):
    install(checkout, site)
    assert not [text for text in check(site)[1] if "spyre_frontend.pth" in text]
    (site / "spyre_frontend.pth").unlink()
    assert [text for text in check(site)[1] if "spyre_frontend.pth" in text]
    install(checkout, site)
    assert (site / "spyre_frontend.pth").is_file()


def test_pip_knows_all_that_was_installed(checkout, site):
    install(checkout, site)
    (found,) = importlib.metadata.distributions(path=[str(site)])
    listed = {Path(str(path)).parts[0] for path in found.files}
    assert listed == {path.name for path in site.iterdir()}


def test_no_checkout(tmp_path, capsys):
    assert main(["install", str(tmp_path)]) == 2
    assert "SPY993" in capsys.readouterr().err


def test_says_what_is_missing(checkout, site, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    warnings = " ".join(install(checkout, site)[1])
    assert "torch 2.13, and no torch" in warnings
    assert "pip install regex psutil numpy" in warnings


PYPROJECT = '[project]\nname = "torch_spyre"\ndependencies = ["numpy", "torch~={}.0"]\n'


def test_refuses_a_checkout_for_another_torch(checkout, site):
    (checkout / "pyproject.toml").write_text(PYPROJECT.format("2.11"))
    with pytest.raises(LaunchError, match=r"(?s)SPY997.*2026-08-19.*torch~=2\.11\.0"):
        install(checkout, site)
    assert not list(site.iterdir())
    (checkout / "pyproject.toml").write_text(PYPROJECT.format("2.13"))
    install(checkout, site)
    (checkout / "pyproject.toml").write_text(PYPROJECT.format("2.14"))
    assert any("torch~=2.14.0" in warning for warning in check(site)[1])


def commit_of(folder, date):
    """Make a folder a repository with one commit; its short hash."""
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example"]
    dated = {**os.environ, "GIT_COMMITTER_DATE": f"{date}T12:00:00+0000"}
    for arguments in (["init"], ["add", "."], ["commit", "-m", "all"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True, env=dated)
    number = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True)
    return number.stdout.decode().strip()


def test_names_the_commit(checkout, site):
    number = commit_of(checkout, "2026-08-10")
    done, warnings = install(checkout, site)
    assert any(f"torch-spyre 0.7, commit {number} of 2026-08-10" in sentence for sentence in done)
    assert not any("was not run" in warning for warning in warnings)


def test_names_a_commit_that_was_not_run(checkout, site):
    number = commit_of(checkout, "2026-09-01")
    warnings = install(checkout, site)[1]
    assert any(f"commit {number} of 2026-09-01 was not run" in warning for warning in warnings)


USES = """
import torch
from torch_spyre import _C
from torch_spyre._C import SpyreTensorLayout, launch_kernel as launch
import torch_spyre._C as native

def run(impl, tensor):
    torch._C._get_tracing_state()
    launch(tensor)
    _C.get_elem_in_stick(tensor, 1, 2)
    _C.copy_tensor(tensor, tensor, non_blocking=True)
    _C.fill_tensor(*tensor)
    native.set_device(index=3)
    impl._C.new_name
    return "from torch_spyre._C import reinterpret_tensor as a, of_generated_code as b"
"""


def test_names_what_the_extension_lacks(checkout, site):
    (checkout / "torch_spyre" / "uses.py").write_text(USES)
    (checkout / "tests").mkdir()
    (checkout / "tests" / "conftest.py").write_text("from torch_spyre._C import of_tests\n")
    found = [w for w in install(checkout, site)[1] if "torch_spyre._C" in w]
    at = "torch_spyre/uses.py"
    assert found == [
        f"torch_spyre._C has no launch_kernel: {at}:4",
        f"torch_spyre._C does not take _C.get_elem_in_stick(tensor, 1, 2): {at}:10",
        f"torch_spyre._C does not take native.set_device(index=3): {at}:13",
        f"torch_spyre._C has no new_name: {at}:14",
        f"torch_spyre._C has no of_generated_code: {at}:15",
        "its tests: torch_spyre._C has no of_tests: tests/conftest.py:1",
    ]
