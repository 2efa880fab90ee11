"""Interpreted programs, compilation meanwhile, and the report of a run on it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spyre.cli.run import main
from spyre.errors import DeviceFault
from spyre.hw import plan_table as tb
from spyre.hw.device.device import Device
from spyre.hw.interpreter import background as background_module
from spyre.hw.interpreter.background import (
    MAX_SECONDS,
    BackgroundCompiler,
    interpreted_seconds,
)
from spyre.hw.kernels import machine_code, parallel_compile
from spyre.hw.kernels.machine_code import TRANSFER, Entry
from spyre.runtime.run.session import RunOptions, Session
from tests.hw.harness import engine
from tests.hw.plans.test_pages import linked, table_of_pages

SOFTMAX = Path(__file__).resolve().parents[3] / "examples" / "softmax"


class Compiling:
    """In place of a process: ``code`` is None while it runs."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -15


class Background:
    """Nothing is compiled: ``started`` is asked for, ``ready`` is there."""

    def __init__(self) -> None:
        self.started: list[frozenset[str]] = []
        self.processes: list[Compiling] = []
        self.ready: set[str] = set()

    def start(self, names: frozenset[str]) -> Compiling:
        self.started.append(names)
        self.processes.append(Compiling())
        return self.processes[-1]

    def missing_of(self, names: frozenset[str]) -> list[str]:
        return [name for name in names if name not in self.ready]


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Background:
    fake = Background()
    monkeypatch.setenv("SPYRE_MEANWHILE", "1")
    monkeypatch.setattr(background_module, "_start", fake.start)
    monkeypatch.setattr(parallel_compile, "missing_of", fake.missing_of)
    return fake


def test_what_is_missing_is_compiled_once(background: Background) -> None:
    subject = BackgroundCompiler()
    background.ready = {"reduction"}
    assert subject.should_interpret(["elementwise", "reduction"], 0.1)
    assert subject.should_interpret(["elementwise"], 0.1)
    assert background.started == [{"elementwise", "driver"}]
    assert subject.should_interpret(["copying"], 0.1)
    assert background.started[1:] == [{"copying"}]
    background.processes[0].code = 0
    background.processes[1].code = 0
    background.ready |= {"elementwise", "driver", "copying"}
    assert not subject.should_interpret(["elementwise"], 0.1)
    assert subject.should_interpret(["elementwise", "matmul"], 0.1)
    assert background.started[2:] == [{"matmul"}]


def test_what_the_background_cannot_compile_is_compiled_here(background: Background) -> None:
    subject = BackgroundCompiler()
    assert subject.should_interpret(["elementwise"], 0.1)
    background.processes[0].code = 1
    assert not subject.should_interpret(["elementwise"], 0.1)
    assert len(background.started) == 1


def test_who_does_not_interpret(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not BackgroundCompiler().should_interpret(["elementwise"], 2 * MAX_SECONDS)
    with monkeypatch.context() as changed:
        changed.setattr(sys, "executable", "/usr/bin/embedding")
        assert not BackgroundCompiler().should_interpret(["elementwise"], 0.1)
    monkeypatch.setenv("SPYRE_MEANWHILE", "0")
    assert not BackgroundCompiler().should_interpret(["elementwise"], 0.1)
    assert not background.started


def test_where_nothing_can_be_kept_small_programs_are_interpreted(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process compiles what takes longer to interpret than to compile, once."""
    monkeypatch.setattr(parallel_compile, "cache_directory", lambda module: None)
    subject = BackgroundCompiler()
    assert subject.should_interpret(["elementwise"], 0.1)
    assert not subject.should_interpret(["elementwise"], 2 * MAX_SECONDS)
    subject.spent_seconds = 100.0
    assert not subject.should_interpret(["elementwise"], 0.1)
    subject.spent_seconds = 0.0
    background.ready = {"elementwise", "driver"}  # compiled since, or of the wheel
    assert not subject.should_interpret(["elementwise"], 0.1)
    assert not background.started


def test_who_has_interpreted_for_long_waits(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does a large program whose kernels are being compiled: not for those of others."""
    subject = BackgroundCompiler()
    assert subject.should_interpret(["elementwise"], 0.1)
    assert subject.should_interpret(["matmul"], 0.1)
    first, second = background.processes
    monkeypatch.setattr(first, "poll", iter([None, None, None, 0, 0]).__next__)
    monkeypatch.setattr(background_module, "_POLL_SECONDS", 0.0)
    background.ready |= {"elementwise", "driver"}
    assert not subject.should_interpret(["elementwise"], 2 * MAX_SECONDS)
    assert first.poll() == 0
    assert second.poll() is None
    subject.spent_seconds = 100.0
    second.code = 0
    monkeypatch.setattr(first, "poll", lambda: 0)
    assert not subject.should_interpret(["matmul"], 0.1)


def test_nobody_waits_for_long(background: Background) -> None:
    """For one that gets no time beside other work: then it is compiled here."""
    subject = BackgroundCompiler()
    assert subject.should_interpret(["elementwise"], 0.1)
    subject.wait_budget_seconds = 0.01
    assert not subject.should_interpret(["elementwise"], 2 * MAX_SECONDS)
    assert subject.wait_budget_seconds <= 0
    assert background.processes[0].code == -15


def test_every_kernel_has_an_estimate() -> None:
    assert set(background_module._COST_NS) == set(tb.KERNEL_NAMES)


def test_large_programs_are_too_slow() -> None:
    tables = np.zeros((2, tb.WORDS), np.int64)
    tables[:, tb.KIND] = tb.ELEMENTWISE_KIND, tb.CHUNK_REDUCTION_KIND
    tables[:, tb.UNITS] = 100
    small = interpreted_seconds(tables, np.zeros(10, np.int64))
    assert 0.001 < small < 0.1
    assert interpreted_seconds(tables, np.zeros(100_000, np.int64)) > MAX_SECONDS
    assert interpreted_seconds(tables, np.array([0, 1])) > MAX_SECONDS


@pytest.fixture
def cold(background: Background, monkeypatch: pytest.MonkeyPatch) -> Background:
    """No copies are loaded either."""
    monkeypatch.setattr(background_module, "background_compiler", BackgroundCompiler())
    known = parallel_compile.entry_of

    class Copies(Entry):
        is_ready = property(lambda self: TRANSFER in background.ready)

    copies = Copies(known(TRANSFER).place)

    def entry_of(name: str) -> SimpleNamespace:
        return SimpleNamespace(is_ready=name in background.ready, address=known(name).address)

    monkeypatch.setattr(parallel_compile, "entry_of", entry_of)
    monkeypatch.setattr(
        machine_code, "entry_of", lambda name: copies if name == TRANSFER else known(name)
    )
    return background


@pytest.mark.parametrize("timed", [False, True])
def test_a_run_has_the_same_bits_and_tells(cold: Background, timed: bool) -> None:
    found = Session(Device(threads=1)).run(SOFTMAX, options=RunOptions(timed=timed))
    assert found.interpreted == 5
    assert cold.started == [{"elementwise", "reduction", "transfer", "driver"}]
    cold.ready |= cold.started[0]
    cold.processes[0].code = 0
    expected = Session(Device(threads=1)).run(SOFTMAX, options=RunOptions(timed=timed))
    assert not expected.interpreted
    assert np.array_equal(found.outputs[0], expected.outputs[0])
    assert found.counters == expected.counters


def test_kernels_are_taken_when_they_are_there(cold: Background) -> None:
    session = Session(Device(threads=1))
    assert session.run(SOFTMAX).interpreted == 5
    cold.ready |= cold.started[0]
    cold.processes[0].code = 0
    assert not session.run(SOFTMAX).interpreted


def test_a_bad_index_is_the_same_fault(cold: Background) -> None:
    """Also where it is and who has it."""
    picked = [0] * 128
    picked[100] = 6
    before = engine().executor.interpreted
    faults = []
    for _ in range(2):
        with pytest.raises(DeviceFault, match=r"SPY412.*at x 100") as caught:
            engine().executor.run(linked(table_of_pages(128), picked))
        faults.append(str(caught.value))
        cold.ready |= cold.started[0]
        cold.processes[0].code = 0
    assert faults[0] == faults[1]
    assert engine().executor.interpreted == before + 1


def test_verified_and_sanitized_runs_are_compiled(cold: Background) -> None:
    cold.ready.add("transfer")  # else it is what is interpreted
    verified = Session(Device(threads=1)).run(SOFTMAX, options=RunOptions(verify=True))
    sanitized = Session(Device(threads=1, sanitize=True)).run(SOFTMAX)
    assert verified.interpreted == sanitized.interpreted == 0
    assert verified.verification is not None
    assert verified.verification.verified == 5


def test_the_command_line_tells(cold: Background, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SOFTMAX)]) == 0
    assert "interpreted while kernels are compiled" in capsys.readouterr().out
    assert main([str(SOFTMAX), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interpreted"] == 5


def test_the_background_compiles_what_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty cache, and nothing else."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    process = background_module._start(["copying"])
    assert process.wait(timeout=300) == 0
    names = {path.name.partition("-")[0] for path in tmp_path.rglob("*.o")}
    assert "movement.run_copy" in names
    assert not any("elementwise" in name for name in names)


def test_the_background_ends_with_those_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SPYRE_NUM_THREADS", "2")
    process = background_module._start(["matmul", "elementwise"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(started := children.read_text().split()) < 2:
        time.sleep(0.01)
    time.sleep(0.3)  # it knows of both by then
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_the_background_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not begun while another one holds the cache directory."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    process = background_module._start(["copying"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.kill()
    process.wait()
    os.close(directory)
    assert not list(tmp_path.iterdir())


COMPILE_LATER = """
import os, sys, time
def compile_missing(names):
    with open(os.environ["LOG"], "a", buffering=1) as log:
        log.write("begin\\n")
        time.sleep(float(os.environ["SECONDS"]))
        log.write("end\\n")
"""
"""In place of the module that compiles: says when it does."""


def test_one_process_at_a_time_compiles_for_a_cache(tmp_path: Path) -> None:
    """Six at once, one of them killed: the lock ends with its process."""
    package = tmp_path / "spyre" / "hw" / "kernels"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "parallel_compile.py").write_text(COMPILE_LATER)
    log, cache = tmp_path / "log", tmp_path / "cache"
    cache.mkdir()
    command = [sys.executable, "-P", "-c", background_module._COMPILE, str(cache), "copying"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LOG": str(log)}
    first = subprocess.Popen(command, env=environment | {"SECONDS": "600"})
    while not (log.exists() and log.read_text() == "begin\n"):
        assert first.poll() is None
        time.sleep(0.005)
    first.kill()
    first.wait()
    killed = log.read_text()
    log.write_text("")
    environment["SECONDS"] = "0.1"
    processes = [subprocess.Popen(command, env=environment) for _ in range(6)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 6
    assert killed == "begin\n"
    assert log.read_text() == "begin\nend\n" * 6


def test_a_second_process_waits_for_the_first_of_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    commands = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    background_module._start(["copying"])
    background_module._start(["matmul"])
    assert [command[-2:] for command in commands] == [
        [str(tmp_path), "copying"],
        [str(tmp_path), "matmul"],
    ]
