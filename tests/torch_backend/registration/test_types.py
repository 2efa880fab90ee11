"""Types of `torch.spyre`: stubs beside those of torch, for all names it has."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.spyre

from spyre.torch_backend.registration.device_module import EXPORTS

ROOT = Path(__file__).parents[3]
STUBS = ROOT / "torch-stubs"
USE = """
import torch_spyre_types as card
reveal_type(card.device_count())
reveal_type(card.fallback_seconds())
card.nothing
"""


def test_the_stubs_have_every_name():
    imports = ast.parse((STUBS / "spyre.pyi").read_text()).body[1:]
    found = {node.module: {a.name for a in node.names} for node in imports}
    assert found == {module: set(names) for module, names in EXPORTS.items()}
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    assert (STUBS / "py.typed").read_text() == "partial\n"
    assert torch.spyre.device_count() > 0


def test_a_type_checker_knows_them(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "torch_spyre_types.pyi").write_text((STUBS / "spyre.pyi").read_text())
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", str(tmp_path / "use.py")]
    variables = {**os.environ, "MYPYPATH": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    notes = run.stdout.splitlines()
    assert "int" in notes[0]
    assert "dict[str, float]" in notes[1]
    assert 'has no attribute "nothing"' in notes[2]
