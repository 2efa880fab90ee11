"""`dxp_standalone`, as torch-spyre's frontends call it: both forms, exit codes, written files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spyre.cli.compile import main as spyre_compile
from spyre.cli.standalone import compile_in_this_process, main
from spyre.runtime.spyrecode.code_directory import read_code_directory
from tests.cli.conftest import ROOT, Ran, runner_of
from tests.runtime import bundles


@pytest.fixture
def dxp(capsys: pytest.CaptureFixture[str]):
    """``dxp(*arguments)`` runs dxp_standalone."""
    return runner_of(main, capsys)


@pytest.fixture
def softmax(tmp_path: Path, examples: Path) -> Path:
    return shutil.copytree(examples / "softmax", tmp_path / "softmax")


@pytest.mark.parametrize("words", [(), ("--bundle",)])
def test_both_forms_write_what_spyre_compile_writes(dxp, softmax: Path, words) -> None:
    assert dxp(*words, "-d", softmax) == Ran(0, "", "")
    written = {p.name: p.read_bytes() for p in (softmax / "spyreCodeDir").iterdir()}
    assert {"spyrecode.json", "init_binary.bin"} <= written.keys()
    spyre_compile(["--bundle", "-d", str(softmax), "-q"])
    again = {p.name: p.read_bytes() for p in (softmax / "spyreCodeDir").iterdir()}
    assert written == again


def test_no_launch_spec_is_derived(dxp, tmp_path: Path) -> None:
    bundle = bundles.abs_of_sum(tmp_path / "b", spec=False)
    assert dxp("-d", bundle) == Ran(0, "", "")
    written = {p.name for p in (bundle / "spyreCodeDir").iterdir()}
    assert written == {"spyrecode.json", "init_binary.bin"}
    assert read_code_directory(bundle / "spyreCodeDir").code.execution


def test_a_wrong_bundle_fails_here_and_names_the_place(dxp, softmax: Path) -> None:
    module = softmax / "bundle.mlir"
    module.write_text(module.read_text().replace("-24]", "-25]"))
    ran = dxp("-d", softmax)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[SPY275]: ")
    assert f"\n --> {module}:" in ran.err
    assert not (softmax / "spyreCodeDir").exists()


def test_what_is_not_there(dxp, tmp_path: Path) -> None:
    ran = dxp("-d", tmp_path / "missing")
    assert ran.code == 2
    assert ran.err.startswith("error[SPY270]")
    assert "usage: dxp_standalone" in dxp().err


def test_it_loads_little(softmax: Path) -> None:
    """It is run for every kernel of a program, and imports take most of its time."""
    code = (
        "import sys\nfrom spyre.cli.standalone import main\n"
        f"assert main(['-d', {str(softmax)!r}]) == 0\n"
        "assert not {'numpy', 'numba', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """``run(*arguments)`` is torch-spyre's call, in a process that compiles by itself."""
    started = subprocess.run
    monkeypatch.setattr(subprocess, "run", started)  # its replacement is undone with the test
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + "/none")
    compile_in_this_process()
    return lambda *words: subprocess.run(["dxp_standalone", *map(str, words)], check=True)


def test_in_the_process_that_asks(run, dxp, softmax: Path, tmp_path: Path) -> None:
    run("-d", softmax)
    other = tmp_path / "other"
    shutil.copytree(softmax, other, ignore=lambda *_: ["spyreCodeDir"])
    assert dxp("-d", other) == Ran(0, "", "")
    for path in (softmax / "spyreCodeDir").iterdir():
        assert path.read_bytes() == (other / "spyreCodeDir" / path.name).read_bytes()


@pytest.mark.parametrize(("words", "said"), [(("-d", "missing"), "SPY270"), (("-x",), "usage")])
def test_failures_in_the_process_that_asks(run, capfd, words, said) -> None:
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        run(*words)
    assert said in capfd.readouterr().err


def test_other_programs_are_started(run) -> None:
    echo = [sys.executable, "-c", "print(3)"]
    assert subprocess.run(echo, capture_output=True, check=True).stdout == b"3\n"
    with pytest.raises(FileNotFoundError):
        subprocess.run(["dxp_standalone", "--version"], capture_output=True, check=True)
