"""The sections of the suite, by name: what `python -m benchmarks NAME` measures.

A section is imported when it is asked for, so that those without torch run without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.figures import NO_TARGET, Figure
from benchmarks.results import Measurement

REPEATS = 3
"""How often sections are run whose figures are medians already, so that they have a deviation."""


@dataclass(frozen=True)
class Section:
    """``measure``: of quick. ``quick``: whether it is part of a quick run of all."""

    name: str
    title: str
    measure: Callable[[bool], Iterable[Measurement]]
    quick: bool = True


def repeated(once: Callable[[], Iterable[Measurement]], repeats: int) -> Iterator[Measurement]:
    """Quantities with the values of all repetitions."""
    runs = [list(once()) for _ in range(repeats)]
    for same in zip(*runs, strict=True):
        values = tuple(value for row in same for value in row.values)
        yield Measurement(**{**vars(same[0]), "values": values})


def of_figures(figures: Iterable[Figure]) -> Iterator[Measurement]:
    """Figures of the benchmarks that print them."""
    for figure in figures:
        target = None if figure.target == NO_TARGET else figure.target
        yield Measurement(figure.name, figure.unit, (figure.value,), target=target)


def _tiled(quick: bool) -> Iterable[Measurement]:
    from benchmarks.tiled import measure

    return measure(quick)


def _kernels(quick: bool) -> Iterator[Measurement]:
    import os

    os.environ.pop("OPENBLAS_CORETYPE", None)
    from benchmarks.results import ratio
    from benchmarks.timing import ROUNDS, samples
    from benchmarks.workloads import Workloads
    from spyre.hw.device import Device

    for number, workload in enumerate(Workloads(Device()).all()):
        if quick and number % 4:
            continue
        sides = {"card": workload.run, "reference": workload.reference}
        found = samples(sides, 3 if quick else ROUNDS)
        times = tuple(seconds * 1e3 for seconds in found["card"])
        rate = tuple(workload.bytes_moved / seconds / 1e9 for seconds in found["card"])
        title = f"{workload.name}: against {workload.against}"
        yield Measurement(f"{workload.name}: card", "ms", times)
        yield Measurement(f"{workload.name}: rate", "GB/s", rate, higher_is_better=True)
        yield ratio(title, found["reference"], found["card"], target=workload.target)


def _loops(quick: bool) -> Iterable[Measurement]:
    from benchmarks.overhead import measure_overheads
    from spyre.hw.device import Device

    def once() -> Iterator[Measurement]:
        found = measure_overheads(Device())
        yield Measurement("one-stick add in a loop, driver", "ns", (found.driver_ns,))
        yield Measurement("one-stick add, driven from Python", "ns", (found.python_ns,))

    return repeated(once, REPEATS)


def _reading(quick: bool) -> Iterable[Measurement]:
    from benchmarks.reading import ROUNDS, measure

    def once() -> Iterator[Measurement]:
        for found in measure(1 if quick else ROUNDS):
            yield Measurement(found.name, "ms", (found.seconds * 1e3,))

    return repeated(once, 1 if quick else REPEATS)


def _launching(quick: bool) -> Iterable[Measurement]:
    from benchmarks.launching import measure_all

    def once() -> Iterator[Measurement]:
        rows, batch = measure_all()
        for row in [*map(asdict, rows), {"name": f"batch of {batch.tiles}", **asdict(batch)}]:
            name = row.pop("name")
            for key, value in row.items():
                if key.endswith("_us"):
                    title = key.removesuffix("_us").replace("_", " ")
                    yield Measurement(f"{name}: {title}", "us", (value,))

    return repeated(once, 1 if quick else REPEATS)


def _figures(module: str, quick: bool) -> Iterable[Measurement]:
    """A benchmark module that has ``measure() -> list[Figure]``."""
    from importlib import import_module

    measure: Callable[[], Iterable[Figure]] = import_module(f"benchmarks.{module}").measure
    return repeated(lambda: of_figures(measure()), 1 if quick else REPEATS)


def _later(module: str, quick: bool) -> Iterable[Measurement]:
    from importlib import import_module

    found: Any = import_module(f"benchmarks.{module}")
    measured: Iterable[Measurement] = found.measure(quick)
    return measured


SECTIONS: tuple[Section, ...] = (
    Section("tiled", "tiled against untiled", _tiled),
    Section("kernels", "kernels against numpy and torch", _kernels),
    Section("loops", "overhead of an execute", _loops),
    Section("reading", "parse, lower, decode, plan", _reading),
    Section("launching", "link and launch", _launching),
    Section("streams", "what the runtime adds", partial(_figures, "streams"), quick=False),
    Section("counting", "what counting costs", partial(_figures, "counting"), quick=False),
    Section("startup", "whole processes", partial(_later, "startup")),
    Section("scaling", "with size and cores", partial(_later, "scaling")),
    Section("eager", "what PyTorch adds", partial(_figures, "eager"), quick=False),
    Section("compile", "what compiling costs", partial(_figures, "compile"), quick=False),
    Section("models", "eager and compiled models", partial(_later, "models")),
)
