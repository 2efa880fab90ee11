"""Figures with targets, and the command line of benchmarks that print them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

NO_TARGET = float("inf")


@dataclass(frozen=True)
class Figure:
    """One measured figure and what it should stay below."""

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
    """Options that all of them have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print a JSON list")
    return made


def show(figures: Sequence[Figure], as_json: bool) -> None:
    """Print them, as JSON or a line each."""
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        print("\n".join(map(str, figures)))


def run(description: str | None, measure: Callable[[], Sequence[Figure]]) -> int:
    """A benchmark without options of its own; 0, since a slow machine is not an error."""
    chosen = parser(description).parse_args()
    show(measure(), chosen.json)
    return 0
