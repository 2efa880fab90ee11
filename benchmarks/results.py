"""Results of the suite: measurements by section, with machine, versions and commit.

A result file is JSON; :mod:`.comparison` compares two. Benchmarks outside the suite print figures
with targets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from spyre.files import atomic_write

FORMAT = 2
TIMES = ("s", "ms", "us", "ns")
ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "numba", "llvmlite", "torch", "transformers")


@dataclass(frozen=True)
class Measurement:
    """One measured quantity. ``values``: all samples in order.

    ``compared``: false for another program's times, and for ratios of compared quantities.
    ``exact``: computed, not timed: bytes and simulated times, equal in every run. ``target``: upper
    bound, or lower bound if ``higher_is_better``. ``labels``: data for plots, such as the number of
    tiles.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    exact: bool = False
    higher_is_better: bool = False
    target: float | None = None
    compared: bool = True
    labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def deviation(self) -> float:
        """Median absolute deviation from the median."""
        return statistics.median(abs(value - self.median) for value in self.values)

    @property
    def is_time(self) -> bool:
        """True for times, which depend on the machine's speed."""
        return self.unit in TIMES and not self.exact

    @property
    def missed(self) -> bool:
        """True if there is a target that is not met."""
        if self.target is None:
            return False
        return self.median < self.target if self.higher_is_better else self.median > self.target

    @property
    def shown(self) -> str:
        """The median as text."""
        return f"{self.median:,.4g}" if self.median < 1e6 else f"{self.median:,.0f}"

    @property
    def shown_deviation(self) -> str:
        """The deviation as a share of the median; "" for one sample or an exact value."""
        if self.exact or len(self.values) == 1:
            return ""
        return f"{self.deviation / abs(self.median) if self.median else 0.0:.0%}"

    @property
    def shown_target(self) -> str:
        """The target as text, or ""."""
        return "" if self.target is None else f"{self.target:g}"


def ratio(name: str, upper: Sequence[float], lower: Sequence[float], **more: Any) -> Measurement:
    """Return the ratio of samples of the same rounds, ``upper`` / ``lower``; higher is better."""
    values = tuple(a / b for a, b in zip(upper, lower, strict=True))
    return Measurement(name, "x", values, higher_is_better=True, compared=False, **more)


@dataclass(frozen=True)
class Results:
    """A run of the suite. ``errors``: messages of sections that failed.

    ``reference``: seconds of the reference loops during each section.
    """

    sections: Mapping[str, Sequence[Measurement]]
    errors: Mapping[str, str]
    reference: Mapping[str, Mapping[str, Sequence[float]]]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    quick: bool
    ended: str

    def write(self, path: Path) -> None:
        """Write the results as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        with atomic_write(path) as place:
            place.write_text(text + "\n", encoding="utf-8")


def read_results(path: Path) -> Results:
    """Read a result file. ValueError for another file or format."""
    document = json.loads(path.read_text(encoding="utf-8"))
    problem: Exception | None = None
    try:
        if document.pop("format") == FORMAT:
            return _results(document)
    except (AttributeError, KeyError, TypeError) as error:
        problem = error
    raise ValueError(f"{path} is no result of the benchmarks, or of another version") from problem


def _results(document: dict[str, Any]) -> Results:
    sections = {
        name: tuple(Measurement(**{**row, "values": tuple(row["values"])}) for row in rows)
        for name, rows in document.pop("sections").items()
    }
    reference = {
        name: {loop: tuple(seconds) for loop, seconds in loops.items()}
        for name, loops in document.pop("reference").items()
    }
    return Results(sections=sections, reference=reference, **document)


def results_of(
    sections: Mapping[str, Sequence[Measurement]],
    errors: Mapping[str, str],
    reference: Mapping[str, Mapping[str, Sequence[float]]],
    quick: bool,
) -> Results:
    """Return the results of a run that ends now, on this machine."""
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    return Results(sections, errors, reference, machine(), versions(), commit(), quick, ended)


def machine() -> dict[str, Any]:
    """Return processor, usable CPUs, memory and system."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    """Return versions of Python, this package and the installed packages of PACKAGES."""
    import spyre

    found = {"python": platform.python_version(), "spyre": spyre.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Return the commit, followed by + if files differ from it; "unknown" without git."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


NO_TARGET = float("inf")


@dataclass(frozen=True)
class Figure:
    """One measured figure; ``target``: upper bound."""

    name: str
    value: float
    unit: str
    target: float = NO_TARGET

    def __str__(self) -> str:
        text = f"{self.name:<44}{self.value:>9.3f} {self.unit}"
        if self.target == NO_TARGET:
            return text
        missed = "" if self.value <= self.target else "  MISSED"
        return f"{text:<57}({self.target:g}){missed}"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the common options."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print a JSON list")
    return made


def show(figures: Sequence[Figure], as_json: bool) -> None:
    """Print the figures, as JSON or a line each."""
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        print("\n".join(map(str, figures)))


def run(description: str | None, measure: Callable[[], Sequence[Figure]]) -> int:
    """Run a benchmark with the common options; return 0, since a slow machine is not an error."""
    chosen = parser(description).parse_args()
    show(measure(), chosen.json)
    return 0
