"""Notices while kernels are compiled."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from spyre.hw.kernels import machine_code, progress as module
from spyre.hw.kernels.progress import CompileProgress

HINT = "; spyre warm compiles those of all programs"


@pytest.fixture
def said(monkeypatch, capsys):
    """Return a function that returns the notices so far; waits are shortened."""
    wait_for(lambda: not is_watching(), "an earlier test compiles for ever")
    monkeypatch.setenv("SPYRE_PROGRESS", "1")
    for name, seconds in (("SILENT", 0.05), ("IDLE", 0.05), ("_TICK", 0.01)):
        monkeypatch.setattr(module, f"{name}_SECONDS", seconds)
    texts = []

    def text():
        texts.append(capsys.readouterr().err)
        return "".join(texts)

    return text


def compile_for(progress, seconds, until=lambda: True):
    with progress.compiling():
        time.sleep(seconds)
        wait_for(until, "no line is written")
    wait_for(lambda: not is_watching(), "it watches for ever")


def is_watching():
    return any(thread.name == "spyre-progress" for thread in threading.enumerate())


def wait_for(condition, otherwise):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(otherwise)


def test_a_long_wait_is_named_and_its_end(said):
    progress = CompileProgress()
    compile_for(progress, 0.0, until=said)
    first, last = said().splitlines()
    assert re.fullmatch("compiling kernels: [0-9]+ s", first)
    assert re.match("kernels compiled in [0-9]+ s, kept in ", last)
    assert last.endswith(HINT)


@pytest.mark.parametrize(
    ("done", "begun", "now", "left"),
    [
        (0, 0.0, 1.0, "about 19 s left"),  # of the machine that the times are of
        (1, 0.0, 4.0, "about 16 s left"),
        (1, 0.0, 24.0, "about 56 s left"),  # the third was to begin after 6 s
        (2, 12.0, 13.0, "about 27 s left"),
        (2, 3.0, 4.0, "about 6 s left"),
        (3, 40.0, 41.0, "about 39 s left"),
        (3, 20.0, 30.0, "about 10 s left"),
        (3, 20.0, 60.0, "about 0 s left"),
    ],
)
def test_the_time_that_is_left(done, begun, now, left):
    """Of four kernels that two processes begin after 0, 0, 6 and 10 s, and end after 20 s."""
    progress = CompileProgress()
    progress._begins, progress._done, progress._begun = (0.0, 0.0, 6.0, 10.0, 20.0), done, begun
    assert f"about {progress._left(now):.0f} s left" == left


def test_what_other_processes_compile_is_named(said):
    progress = CompileProgress()
    for _ in progress.kernels(["matmul", "topk"], [0.0, 0.0, 70.0, 90.0]):
        wait_for(said, "no line is written")
    wait_for(lambda: not is_watching(), "it watches for ever")
    first, last = said().splitlines()
    assert re.fullmatch(r"compiling kernels: 1 of 3 \(matmul\), \d+ s, about (90|89) s left", first)
    assert last.startswith("kernels compiled in ")


def test_a_terminal_has_one_line_that_is_erased_before_the_program_writes(monkeypatch, said):
    """No line is longer than the terminal: what wraps is not overwritten."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    progress = CompileProgress()
    for _ in progress.kernels(["matmul"], [0.0, 70.0]):
        wait_for(said, "no line is written")
    print("the program's own", file=sys.stderr)
    progress.wait()
    *shown, last = said().split("\r\033[K")
    lines = set(shown[1:-1])
    assert lines
    assert all(line.startswith("compiling kernels: 1 of 1 (matmul), ") for line in lines)
    assert max(map(len, lines)) < 40
    assert shown[-1] == "the program's own\n"
    assert re.match("kernels compiled in [0-9]+ s, kept in ", last)


def test_a_short_one_is_not(said, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 600.0)
    compile_for(CompileProgress(), 0.0)
    assert said() == ""


def test_nothing_is_said_where_nobody_wants_it(said, monkeypatch):
    monkeypatch.setenv("SPYRE_PROGRESS", "0")
    compile_for(CompileProgress(), 0.15)
    assert said() == ""


@pytest.mark.parametrize("closed", [None, "closed"])
def test_a_stream_that_cannot_be_written_harms_nothing(said, monkeypatch, closed):
    if closed is None:
        monkeypatch.setattr(sys, "stderr", None)
    else:
        stream = io.StringIO()
        stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
    progress = CompileProgress()
    compile_for(progress, 0.15)
    assert progress._watcher is None


def test_a_kernel_that_is_compiled_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    shown = []
    monkeypatch.setattr(CompileProgress, "_enter", lambda self: shown.append("begin"))
    monkeypatch.setattr(CompileProgress, "_leave", lambda self: shown.append("end"))
    monkeypatch.setattr(machine_code, "cache_directory", lambda module: tmp_path)
    for _ in range(2):
        assert machine_code.Entry("spyre.hw.kernels.transfer.run_transfer").address
    assert shown == ["begin", "end"]
