"""The sections of the suite by name, which `python -m benchmarks NAME` measures.

A section is imported when it is selected, so that some run without torch installed. The speed of a
loop over one-stick executes depends on the addresses of a process's memory: the same code takes
130 ns in one process and 220 in the next, steadily. So some sections are measured once in each of
several processes (`python -m benchmarks.suite loops|launching`), which print their results as
JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.results import NO_TARGET, ROOT, Figure, Measurement
from benchmarks.sampling import progress

if TYPE_CHECKING:
    from benchmarks.workloads import Workload

REPEATS = 3
"""Repetitions of sections that measure one quantity after another."""
QUICK_KERNELS = ("add", "exp", "row sum", "softmax", "restickify", "matmul 512x512x512 split 8x4")


class SectionError(Exception):
    """A section cannot be measured, for the reason in the message; not a defect of the suite."""


@dataclass(frozen=True)
class Section:
    """A part of the suite. ``measure(quick)`` takes its measurements. ``quick``: it is part of a
    quick run of all. ``one_cpu``: its work uses hardly more than one CPU.
    """

    name: str
    title: str
    measure: Callable[[bool], Iterable[Measurement]]
    quick: bool = True
    one_cpu: bool = False


def repeated(once: Callable[[], Iterable[Measurement]], repeats: int) -> Iterator[Measurement]:
    """Measure ``repeats`` times; yield quantities with the values of all repetitions."""
    from benchmarks.sampling import reference

    runs = []
    for number in range(repeats):
        progress.at(f"repetition {number + 1} of {repeats}")
        reference.tick()
        runs.append(list(once()))
    for same in zip(*runs, strict=True):
        values = tuple(value for row in same for value in row.values)
        yield Measurement(**{**vars(same[0]), "values": values})


def of_figures(figures: Iterable[Figure]) -> Iterator[Measurement]:
    """Convert figures to measurements."""
    for figure in figures:
        target = None if figure.target == NO_TARGET else figure.target
        yield Measurement(figure.name, figure.unit, (figure.value,), target=target)


def _tiled(quick: bool) -> Iterable[Measurement]:
    from benchmarks.tiled import measure

    return measure(quick)


def _kernels(quick: bool) -> Iterable[Measurement]:
    import os

    os.environ.pop("OPENBLAS_CORETYPE", None)
    from benchmarks.sampling import PAUSE_SECONDS, QUICK_PAUSE_SECONDS, ROUNDS, sweeps
    from benchmarks.workloads import Workloads
    from spyre.hw.device.device import Device

    workloads = Workloads(Device())
    rounds, pause = (2, QUICK_PAUSE_SECONDS) if quick else (ROUNDS // REPEATS, PAUSE_SECONDS)

    def once() -> Iterator[Measurement]:
        for workload in workloads.all():
            if not quick or workload.name in QUICK_KERNELS:
                sides = {"card": workload.run, "reference": workload.reference}
                found = sweeps({workload.name: sides}, rounds, pause)
                yield from _against(workload, found[workload.name])

    return repeated(once, REPEATS)


def _against(workload: Workload, found: Mapping[str, Sequence[float]]) -> Iterator[Measurement]:
    from benchmarks.results import ratio

    times = tuple(seconds * 1e3 for seconds in found["card"])
    rate = tuple(workload.bytes_moved / seconds / 1e9 for seconds in found["card"])
    title = f"{workload.name}: against {workload.against}"
    yield Measurement(f"{workload.name}: card", "ms", times)
    yield Measurement(f"{workload.name}: rate", "GB/s", rate, higher_is_better=True, compared=False)
    yield ratio(title, found["reference"], found["card"], target=workload.target)


def _apart(name: str, quick: bool) -> Iterable[Measurement]:
    return repeated(lambda: measured_per_process(name), QUICK_PROCESSES if quick else PROCESSES)


def _reading(quick: bool) -> Iterable[Measurement]:
    from benchmarks.parsing import EXECUTES, QUICK_EXECUTES, ROUNDS, measure

    rounds, executes = (1, QUICK_EXECUTES) if quick else (ROUNDS // REPEATS, EXECUTES)

    def once() -> Iterator[Measurement]:
        for found in measure(rounds, executes):
            yield Measurement(found.name, "ms", (found.seconds * 1e3,))

    return repeated(once, REPEATS + 1 if quick else REPEATS)


def _figures(module: str, quick: bool) -> Iterable[Measurement]:
    """Measure with a benchmark module that has ``measure() -> list[Figure]``."""
    from importlib import import_module

    measure: Callable[[], Iterable[Figure]] = import_module(f"benchmarks.{module}").measure
    return repeated(lambda: of_figures(measure()), 1 if quick else REPEATS)


def _compile(quick: bool) -> Iterable[Measurement]:
    from benchmarks.compile import ROUNDS, measure

    return repeated(lambda: of_figures(measure(1)), 1 if quick else ROUNDS)


def _later(module: str, quick: bool) -> Iterable[Measurement]:
    from importlib import import_module

    found: Any = import_module(f"benchmarks.{module}")
    measured: Iterable[Measurement] = found.measure(quick)
    return measured


SECTIONS: tuple[Section, ...] = (
    Section("tiled", "tiled against untiled", _tiled),
    Section("kernels", "kernels against numpy and torch", _kernels),
    Section("loops", "overhead of an execute", partial(_apart, "loops"), one_cpu=True),
    Section("reading", "parse, lower, decode, plan", _reading, one_cpu=True),
    Section("launching", "link and launch", partial(_apart, "launching"), one_cpu=True),
    Section("streams", "overhead of the runtime", partial(_figures, "streams"), quick=False),
    Section("observers", "overhead of observers", partial(_figures, "observers"), quick=False),
    Section("startup", "whole processes", partial(_later, "startup"), one_cpu=True),
    Section("scaling", "with size and cores", partial(_later, "scaling")),
    Section("growth", "exponents of curves", partial(_later, "growth"), quick=False, one_cpu=True),
    Section("eager", "overhead of PyTorch", partial(_figures, "eager"), quick=False),
    Section("beside", "next to torch's own threads", partial(_later, "contention"), quick=False),
    Section("distributed", "collectives of two ranks", partial(_later, "distributed"), quick=False),
    Section("compile", "times of compilation", _compile, quick=False, one_cpu=True),
    Section("models", "eager and compiled models", partial(_later, "models")),
    Section("decode", "one token after the other", partial(_later, "decode"), quick=False),
)

PROCESSES, QUICK_PROCESSES = 7, 5


def loops() -> Iterator[Measurement]:
    """Measure nanoseconds per execute."""
    from benchmarks.launching import measure_overheads
    from spyre.hw.device.device import Device

    found = measure_overheads(Device())
    yield Measurement("one-stick add in a loop, driver", "ns", (found.driver_ns,))
    yield Measurement("one-stick add, driven from Python", "ns", (found.python_ns,))


def launching() -> Iterator[Measurement]:
    """Measure microseconds of linking, launching and running."""
    from benchmarks.launching import measure_all

    rows, batch = measure_all()
    for row in [*map(asdict, rows), {"name": f"batch of {batch.tiles}", **asdict(batch)}]:
        name = row.pop("name")
        for key, value in row.items():
            if key.endswith("_us"):
                title = key.removesuffix("_us").replace("_", " ")
                yield Measurement(f"{name}: {title}", "us", (value,))


PER_PROCESS: dict[str, Callable[[], Iterator[Measurement]]] = {
    "loops": loops,
    "launching": launching,
}


def measured_per_process(name: str) -> list[Measurement]:
    """Measure section ``name`` in a new process."""
    command = [sys.executable, "-m", "benchmarks.suite", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return [
        Measurement(**{**row, "values": tuple(row["values"])}) for row in json.loads(done.stdout)
    ]


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in PER_PROCESS[sys.argv[1]]()]))
