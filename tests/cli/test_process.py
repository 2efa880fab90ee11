"""`spyre-run` as a process: what it imports, pipes, interrupts, tracebacks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spyre.cli.run import main
from spyre.hw.device.device import Executor
from spyre.hw.kernels import parallel_compile

ROOT = Path(__file__).resolve().parents[2]
SOFTMAX = str(ROOT / "examples" / "softmax")
RUN = [sys.executable, "-m", "spyre.cli.run"]


def imported(code: str) -> set[str]:
    """Top-level names in sys.modules after ``code``."""
    script = f"{code}\nimport sys; print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stderr.split())


def test_exports_are_lazy():
    modules = imported("import spyre; spyre.load_bundle; spyre.SpyreError; spyre.errors")
    assert "numba" not in modules


def test_unknown_export():
    import spyre

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = spyre.no_such_thing


@pytest.mark.parametrize("options", ["--help", "--version"])
def test_help_imports_nothing(options):
    code = f"from spyre.cli.run import main\ntry: main(['{options}'])\nexcept SystemExit: pass"
    assert not imported(code) & {"numpy", "numba", "lark", "rich"}


@pytest.mark.parametrize("option", ["--check", "--explain"])
def test_diagnosing_needs_no_numba(option):
    code = f"from spyre.cli.run import main\nassert main([{SOFTMAX!r}, '{option}']) == 0"
    assert not imported(code) & {"numba", "torch", "rich"}


def test_running_needs_no_torch():
    code = f"from spyre.cli.run import main\nassert main([{SOFTMAX!r}]) == 0"
    assert "torch" not in imported(code)


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        (">&-", 2),
        (">&- 2>&-", 2),
        (">/dev/full", 2),
        (">/dev/full 2>&1", 2),
        ("2>&-", 0),
        ("-q >&-", 0),
    ],
)
def test_output_that_cannot_be_written(redirection, code):
    """The output is lost, which the exit code shows; there is no traceback."""
    command = f"set -o pipefail; {sys.executable} -m spyre.cli.run {SOFTMAX} --check {redirection}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("both", [False, True])
def test_a_pipe_whose_reader_has_gone(both):
    """Gone before anything is written: ``| head`` may or may not be."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = writer if both else subprocess.PIPE
    done = subprocess.run(
        [*RUN, SOFTMAX, "--check"], stdout=writer, stderr=errors, text=True, cwd=ROOT
    )
    os.close(writer)
    assert done.returncode == 2
    assert not done.stderr


@pytest.mark.parametrize("program", ["cli.run", "cli.compile", "sweep"])
@pytest.mark.parametrize(
    ("option", "redirection"), [("--help", ">&-"), ("--version", ">/dev/full")]
)
def test_help_that_cannot_be_written(program, option, redirection):
    """argparse itself would say nothing and exit with 0."""
    option = "--help" if program == "sweep" else option
    command = f"{sys.executable} -m spyre.{program} {option} {redirection}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "cannot write the output" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_of_a_sweep_is_no_failed_point():
    code = (
        "import runpy, sys, spyre.sweep.run as run\nrun.run_sweep = None\n"
        f"sys.argv[1:] = ['--bundle', {SOFTMAX!r}, '--out', '/tmp/never.csv']\n"
        "runpy.run_module('spyre.sweep', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "TypeError" in done.stderr


def test_an_error_that_cannot_be_said():
    command = f"{sys.executable} -m spyre.cli.run /nonexistent 2>/dev/full"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode == 2


def test_a_bug_is_no_difference():
    code = "from spyre.cli.entry import run_process\nrun_process(lambda: 1 // 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("option", ["-q", "--check"])
def test_a_name_that_is_too_long(capsys, option):
    assert main(["x" * 5000, option]) == 2
    assert "error[SPY270]" in "".join(capsys.readouterr())


@pytest.mark.parametrize("path", ["", "bundle.mlir"])
@pytest.mark.parametrize("option", ["-q", "--check"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, option, path, capsys):
    os.mkfifo(tmp_path / "bundle.mlir")
    assert main([str(tmp_path / path), option]) == 2
    said = "".join(capsys.readouterr())
    assert "error[SPY274]" in said
    assert "no regular file" in said


def test_interrupt(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("spyre.cli.commands.run_and_report", interrupted)
    assert main([SOFTMAX]) == 130
    assert capsys.readouterr().err == "spyre-run: interrupted\n"


def test_bugs_are_not_hidden(monkeypatch):
    def broken(options):
        raise ZeroDivisionError

    monkeypatch.setattr("spyre.cli.commands.run_and_report", broken)
    with pytest.raises(ZeroDivisionError):
        main([SOFTMAX])


def test_errors_are_text():
    done = subprocess.run(
        [*RUN, "/nonexistent"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error[SPY270]: /nonexistent does not exist")
    assert "Traceback" not in done.stderr


WARM = """
import sys
from numba.core import caching
from spyre.cli.run import main
assert main({warm!r}) == 0
def load(*_):
    raise AssertionError("a kernel was not ready")
caching.IndexDataCacheFile.load = caching.IndexDataCacheFile.save = load
assert main({run!r}) == 0
"""


@pytest.mark.parametrize("sanitize", [[], ["--sanitize"]])
def test_after_warming_nothing_is_compiled_or_loaded(sanitize):
    code = WARM.format(warm=[SOFTMAX, "--warm", *sanitize], run=[SOFTMAX, "-q", *sanitize])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("processes", [1, 2])
def test_warming_everything(monkeypatch, capsys, processes):
    """In several processes: each takes some, and this one loads what they have compiled."""
    asked = []
    monkeypatch.setattr(parallel_compile, "compile_job", asked.append)
    monkeypatch.setenv("SPYRE_NUM_THREADS", str(processes))
    assert main(["--warm"]) == 0
    assert capsys.readouterr().out == f"{len(parallel_compile.JOBS)} kernels are ready\n"
    assert asked == [*parallel_compile.JOBS]


def test_warming_a_bundle_runs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(Executor, "run", None)
    monkeypatch.setattr(Executor, "run_timed", None)
    assert main(["--warm", SOFTMAX]) == 0
    assert capsys.readouterr().out == f"{SOFTMAX}: 2 kernels are ready\n"


@pytest.mark.parametrize(
    "wrong", [[], ["--warm", "--check", SOFTMAX], ["--warm", "--report", "x.html"]]
)
def test_a_path_or_warm_alone(wrong):
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2


def test_a_process_ends_with_what_was_registered_for_the_end():
    code = (
        "import atexit\nfrom spyre.cli.entry import run_process\n"
        "atexit.register(print, 'end')\nrun_process(lambda: 7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (7, "end\n")


def test_clearing_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    for name in ("kernels-0", "kernels-1", "plans", "sources", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100_000))
    assert main(["--clear-cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 0.4 MB removed\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert main(["--clear-cache", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_a_cache_that_cannot_be_cleared(tmp_path, monkeypatch, capsys):
    def refuse(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(shutil, "rmtree", refuse)
    (tmp_path / "plans").mkdir()
    assert main(["--clear-cache"]) == 2
    assert "SPY404" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--clear-cache", SOFTMAX])
