"""Notices while kernels are compiled."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from spyre.hw.kernels import machine_code, progress as module
from spyre.hw.kernels.progress import CompileProgress

HINT = "(spyre warm compiles those of all programs)"


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
    for number in progress.numbered([7, 9]):
        if number == 9:
            compile_for(progress, 0.0, until=said)
    first, last = said().splitlines()
    assert first == f"compiling kernels: 2 of 2, 0 s {HINT}"
    assert last.startswith("kernels compiled in 0 s, kept in ")


def test_the_time_that_is_left():
    progress = CompileProgress()
    for _ in progress.numbered([7, 8, 9]):
        shown = progress._text(20.0)
    assert shown == f"compiling kernels: 3 of 3, 20 s, about 10 s left {HINT}"
    assert progress._text(20.0) == f"compiling kernels: 20 s {HINT}"


def test_what_other_processes_compile_is_named(said):
    progress = CompileProgress()
    for _ in progress.elsewhere(["matmul", "topk"], 3):
        wait_for(said, "no line is written")
    wait_for(lambda: not is_watching(), "it watches for ever")
    first, last = said().splitlines()
    assert first == f"compiling kernels: 1 of 3 (matmul), 0 s {HINT}"
    assert last.startswith("kernels compiled in 0 s, kept in ")


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
    assert not progress._is_watched


def test_a_kernel_that_is_compiled_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    shown = []
    monkeypatch.setattr(CompileProgress, "_enter", lambda self: shown.append("begin"))
    monkeypatch.setattr(CompileProgress, "_leave", lambda self: shown.append("end"))
    monkeypatch.setattr(machine_code, "cache_directory", lambda module: tmp_path)
    for _ in range(2):
        assert machine_code.Entry("spyre.hw.kernels.transfer.run_transfer").address
    assert shown == ["begin", "end"]
