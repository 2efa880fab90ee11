"""Kernels compiled by several processes: their selection, and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from spyre.errors import LaunchError
from spyre.hw.device import Device, warm_program
from spyre.hw.kernels import machine_code, parallel_compile
from spyre.hw.kernels.machine_code import Entry, entry_of
from spyre.hw.plan_table import KERNEL_NAMES
from tests.interrupts import interruptible

ECHO = """
import os
while number := os.read(0, 1):
    os.write(1, f"job-{number[0]}\\n".encode())
"""


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Two processes; those that were started."""
    monkeypatch.setenv("SPYRE_NUM_THREADS", "2")
    started: list[subprocess.Popen[bytes]] = []
    begin = parallel_compile._worker

    def noted(numbers: int, tell: int) -> subprocess.Popen[bytes]:
        started.append(begin(numbers, tell))
        return started[-1]

    monkeypatch.setattr(parallel_compile, "_worker", noted)
    return started


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the kernels requested from other processes; only the copies are compiled yet."""
    asked: list[list[str]] = []

    def compiled(names: list[str]) -> list[str]:
        asked.append(names)
        return names

    for module in (machine_code, parallel_compile):
        monkeypatch.setattr(
            module, "entry_of", lambda name: SimpleNamespace(is_ready=name == "copying")
        )
    monkeypatch.setattr(parallel_compile, "compiled_elsewhere", compiled)
    monkeypatch.setattr(parallel_compile, "compile_job", lambda name: None)
    monkeypatch.setenv("SPYRE_NUM_THREADS", "2")
    return asked


def test_what_is_missing_is_compiled_together(elsewhere: list[list[str]]) -> None:
    parallel_compile.compile_together(["elementwise", "copying", "reduction"])
    assert elsewhere == [["elementwise", "reduction", "driver"]]


@pytest.mark.parametrize("names", [[], ["copying"], ["copying", "matmul"]])
def test_a_single_kernel_is_compiled_here(elsewhere: list[list[str]], names: list[str]) -> None:
    parallel_compile.compile_together(names)
    assert not elsewhere


def test_one_cpu_compiles_here(elsewhere: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_NUM_THREADS", "1")
    parallel_compile.compile_together(["elementwise", "reduction"])
    assert not elsewhere


@pytest.mark.parametrize("executable", ["/opt/app/server", "", None])
def test_a_program_that_embeds_python_is_not_started_again(
    elsewhere: list[list[str]], monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    parallel_compile.compile_together(["reduction", "elementwise"])
    assert not elsewhere


def test_what_cannot_be_kept_is_compiled_here(
    elsewhere: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_compile, "cache_directory", lambda module: None)
    parallel_compile.compile_together(["elementwise", "reduction"])
    assert not elsewhere


def test_a_program_is_compiled_together_with_the_copies(elsewhere: list[list[str]]) -> None:
    kinds = [KERNEL_NAMES.index("reduction"), KERNEL_NAMES.index("copying")]
    linked = SimpleNamespace(code=SimpleNamespace(kinds=kinds), host_dispatch=None)
    warm_program(Device(threads=1), lambda: linked, is_interpreted=False)  # type: ignore[arg-type,return-value]
    assert elsewhere == [["transfer", "reduction", "driver"]]


def test_a_program_that_cannot_be_linked_fails_when_it_runs(elsewhere: list[list[str]]) -> None:
    def fail() -> None:
        raise LaunchError("SPY362", "no value for a parameter")

    warm_program(Device(threads=1), fail)  # type: ignore[arg-type]
    assert not elsewhere


def test_kernels_that_are_kept_are_ready(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry_of("copying").address
    again = Entry(entry_of("copying").place)
    assert entry_of("copying").is_ready
    assert again.is_ready
    for directory in (tmp_path, None):
        monkeypatch.setattr(
            machine_code, "cache_directory", lambda _, directory=directory: directory
        )
        assert not again.is_ready


def test_when_each_compilation_begins() -> None:
    names = ["elementwise", "transfer", "reduction", "fusion"]
    assert parallel_compile._begins(names, 2) == pytest.approx([0.0, 0.0, 6.5, 11.0, 12.4])
    assert parallel_compile._begins(names[2:], 1) == pytest.approx([0.0, 5.2, 6.6])


def test_every_job_is_begun_once(
    two: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_compile, "_WORKER", ECHO)
    names = ["reduction", "driver", "elementwise", "matmul"]
    expected = sorted(f"job-{parallel_compile.JOBS.index(name)}" for name in names)
    assert sorted(parallel_compile.compiled_elsewhere(names)) == expected
    assert [process.returncode is not None for process in two] == [True, True]


def test_processes_that_fail_leave_the_work(
    two: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(parallel_compile, "_WORKER", "raise ValueError")
    assert not list(parallel_compile.compiled_elsewhere(parallel_compile.JOBS))
    assert capfd.readouterr().err == ""


def test_an_interrupt_ends_the_processes(
    two: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_compile, "_WORKER", "import time; time.sleep(60)")
    monkeypatch.setenv("SPYRE_PROGRESS", "0")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with interruptible(), pytest.raises(KeyboardInterrupt):
        list(parallel_compile.compiled_elsewhere(parallel_compile.JOBS))
    assert [process.returncode for process in two] == [-signal.SIGKILL] * 2


def test_a_job_for_every_function_that_runs_programs() -> None:
    """After `spyre warm` a sanitized or watched run compiles nothing either."""
    jobs = {
        each
        for name in parallel_compile.JOBS
        for each in (machine_code.DRIVER if name == "driver" else (name,))
    }
    assert jobs == set(machine_code.PLACES)
