"""Costs of imports: light modules stay light, layers import downwards only."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import spyre

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numba", "llvmlite", "torch", "lark", "numpy", "rich")


def loaded_after(statement: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter has after ``statement``."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.partition(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}


def spyre_modules(package: str) -> list[str]:
    """Dotted names of all modules of a subpackage."""
    paths = sorted((ROOT / "spyre" / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def test_import_spyre_is_light():
    assert loaded_after("import spyre").isdisjoint(HEAVY)


@pytest.mark.parametrize("package", ["mlir", "layout", "dtypes"])
def test_no_numba_and_no_torch(package):
    statement = "\n".join(f"import {name}" for name in spyre_modules(package))
    assert loaded_after(statement).isdisjoint(("numba", "llvmlite", "torch"))


def test_reading_and_checking_need_no_numba():
    statement = "import spyre\nspyre.load_bundle('examples/softmax').check()"
    assert loaded_after(statement).isdisjoint(("numba", "llvmlite", "torch"))


def test_running_needs_no_torch():
    statement = "import spyre\nspyre.run('examples/softmax')"
    assert "torch" not in loaded_after(statement)


def test_every_export_exists():
    for name in spyre.__all__:
        assert getattr(spyre, name) is not None
    assert set(spyre.__all__) <= set(dir(spyre))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = spyre.no_such_name


def test_a_public_class_name_stands_for_one_thing():
    classes = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)
    paths = (ROOT / "spyre").rglob("*.py")
    names = Counter(name for path in paths for name in classes.findall(path.read_text()))
    assert names
    assert [name for name, count in names.items() if count > 1] == []


def test_layers(monkeypatch):
    """The import-linter contracts of pyproject.toml."""
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed (extra dev)")
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0
