"""``spyre example``: lists and copies the examples; the wheel carries all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import spyre
from spyre.__main__ import main
from spyre.cli import example

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_the_examples_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["example"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "softmax      spyre run softmax" in lines
    assert [line.split()[0] for line in lines] == [path.name for path in example.examples()]


def test_an_example_is_copied_and_runs(capsys: pytest.CaptureFixture[str]):
    assert main(["example", "softmax", "mine"]) == 0
    assert capsys.readouterr().out == "mine: spyre run mine\n"
    assert main(["run", "mine", "-q"]) == 0


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]):
    Path("softmax").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["example", "softmax"])
    assert "softmax exists; give another DIRECTORY" in capsys.readouterr().err
    assert not any(Path("softmax").iterdir())


def test_an_unknown_example_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["example", "sofmax"])
    assert "no example 'sofmax'; did you mean softmax?" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str]):
    assert main(["example", "add_loop", "nowhere/mine"]) == 2
    assert "SPY381" in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_caches_are_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("softmax", "__pycache__", ".idea"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(example, "_directory", lambda: tmp_path)
    assert [path.name for path in example.examples()] == ["softmax"]


def test_the_wheel_carries_all_examples():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    carried = project["tool"]["setuptools"]["data-files"]
    for path in example.examples():
        assert carried[f"share/spyre/examples/{path.name}"] == [f"examples/{path.name}/*.*"]


def test_the_oldest_versions_are_those_of_the_metadata():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tested = (ROOT / "tests" / "oldest.txt").read_text().splitlines()[1:]
    minima = [re.sub(r"(\.0)+$", "", line.replace("==", ">=")) for line in tested]
    declared = [re.sub(r"(\.0)+$", "", line) for line in project["project"]["dependencies"]]
    assert minima == declared


def test_installed_examples_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In an installation without a checkout, the list of installed files names them."""
    share = tmp_path / "share" / "spyre" / "examples" / "softmax"
    share.mkdir(parents=True)
    place = share / "bundle.mlir"
    place.touch()
    file = SimpleNamespace(match=lambda pattern: place.match(pattern), locate=lambda: place)
    monkeypatch.setattr(spyre, "__file__", str(tmp_path / "site-packages/spyre/__init__.py"))
    distributions = [SimpleNamespace(files=None), SimpleNamespace(files=[file])]
    monkeypatch.setattr(example.metadata, "distributions", lambda name: distributions)
    assert example.examples() == [share]
