"""`spyre-compile`: exit codes, output, and that `spyre-run` answers as before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spyre.cli.compile import main, make_parser
from spyre.runtime.spyrecode.code_directory import read_code_directory
from tests.cli.conftest import ROOT, Ran, runner_of
from tests.runtime import bundles


@pytest.fixture
def compiler(capsys: pytest.CaptureFixture[str]):
    """``compiler(*arguments)`` runs spyre-compile."""
    return runner_of(main, capsys)


@pytest.fixture
def softmax(tmp_path: Path, examples: Path) -> Path:
    return shutil.copytree(examples / "softmax", tmp_path / "softmax")


def test_compiled(compiler, softmax: Path) -> None:
    ran = compiler("--bundle", "-d", softmax)
    code = read_code_directory(softmax / "spyreCodeDir").code
    size = code.allocation_bytes
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{softmax}/spyreCodeDir: {size} bytes of program memory, 2 symbols\n"


def test_quiet(compiler, tmp_path: Path) -> None:
    bundle = bundles.abs_of_sum(tmp_path / "b", spec=False)
    assert compiler("--bundle", "-d", bundle, "-q") == Ran(0, "", "")
    loud = compiler("--bundle", "-d", bundle)
    assert "warning[SPY364]" in loud.err
    assert loud.code == 0


def test_errors_are_those_of_spyre_run(compiler, cli, softmax: Path) -> None:
    module = softmax / "bundle.mlir"
    module.write_text(module.read_text().replace("-24]", "-25]"))
    ran = compiler("--bundle", "-d", softmax)
    same = cli(softmax)
    assert ran.code == same.code == 2
    assert ran.err == same.err.replace("spyre-run:", "spyre-compile:")
    assert "SPY275" in ran.err
    assert not (softmax / "spyreCodeDir").exists()


def test_check(compiler, cli, softmax: Path) -> None:
    (softmax / "sdsc_9.json").write_text("{}")
    ran = compiler("--bundle", "-d", softmax, "--check")
    assert ran == cli(softmax, "--check")
    assert "SPY277" in ran.out
    assert not (softmax / "spyreCodeDir").exists()


@pytest.mark.parametrize("words", [(), ("--bundle",), ("-d", "x")])
def test_usage(compiler, words) -> None:
    ran = compiler(*words)
    assert ran.code == 2
    assert "usage: spyre-compile" in ran.err


def test_not_there(compiler, tmp_path: Path) -> None:
    ran = compiler("--bundle", "-d", tmp_path / "missing")
    assert ran.code == 2
    assert ran.err.startswith("error[SPY270]")


def test_runs_are_the_same_afterwards(compiler, cli, tmp_path: Path) -> None:
    """Also where the launch spec was derived: its warning and --shape stay."""
    bundle = bundles.abs_of_sum(tmp_path / "b", spec=False)
    words = (bundle, "--json", "--shape", "32x100@fp16", "--shape", "32x100@fp16")
    before = cli(*words)
    compiler("--bundle", "-d", bundle)
    after = cli(*words)
    assert before.code == after.code == 0
    assert steady(before.out) == steady(after.out)


def steady(text: str) -> list[str]:
    return [line for line in text.splitlines() if "_ns" not in line]


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = text[text.index("## spyre-compile") : text.index("## dxp_standalone")]
    for action in make_parser()._actions:
        assert any(flag in section for flag in action.option_strings), action


def test_help_imports_nothing() -> None:
    code = (
        "import sys\nfrom spyre.cli.compile import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'numba', 'lark'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_compiling_needs_no_numba(softmax: Path) -> None:
    code = (
        "import sys\nfrom spyre.cli.compile import main\n"
        f"assert main(['--bundle', '-d', {str(softmax)!r}]) == 0\n"
        "assert not {'numba', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)
