"""The suite: `python -m benchmarks all --json OUT`, or names of sections. See docs/performance.md.

Exits 0 on a machine of any speed; 1 if a section failed; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.suite import SECTIONS, Section, SectionError

if TYPE_CHECKING:
    from benchmarks.results import Measurement, Results

KTIR = "ktir"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's)."""
    given = _parse(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("SPYRE_FALLBACK", "silent")
    os.environ.setdefault("SPYRE_MEANWHILE", "0")  # measure compiled kernels, not the interpreter
    results = run(_chosen(given), given.quick)
    if given.json:
        results.write(Path(given.json))
    from benchmarks.report import show, show_comparison

    show(results)
    if given.compare:
        show_comparison(given.compare, results)
    if given.report:
        from benchmarks.report import write_report

        print(write_report(results, Path(given.report), given.compare))
    if given.plot:
        from benchmarks.report import write_plots

        print("\n".join(map(str, write_plots(results, Path(given.plot)))))
    return 1 if results.errors else 0


def run(sections: Iterable[Section], quick: bool) -> Results:
    """Measure ``sections``; a section that fails leaves an error and does not stop the others."""
    from benchmarks.results import results_of
    from benchmarks.sampling import progress, reference

    found: dict[str, list[Measurement]] = {}
    errors: dict[str, str] = {}
    speeds: dict[str, Mapping[str, Sequence[float]]] = {}
    for section in sections:
        with progress.section(section.name, section.title):
            reference.tick(anyway=True)
            rows: list[Measurement] = []
            try:
                rows.extend(section.measure(quick))
            # the section's earlier results and those of other sections are kept
            except Exception as error:
                errors[section.name] = _told(error)
            if rows or section.name not in errors:
                found[section.name] = rows
            reference.tick(anyway=True)
        speeds[section.name] = reference.take()
    return results_of(found, errors, speeds, quick)


def _told(error: Exception) -> str:
    if isinstance(error, SectionError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [section.name for section in SECTIONS]
    listed = "\n".join(f"  {section.name:<12}{section.title}" for section in SECTIONS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure how fast the simulator is, and what it says the card would take.",
        epilog=f"sections:\n{listed}\n  {KTIR:<12}beside ktir-cpu, with --ktir",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections", metavar="SECTION", nargs="+", choices=["all", KTIR, *names],
        help="all, or names of sections",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the result")
    parser.add_argument("--compare", metavar="FILE", help="say what changed since this result")
    parser.add_argument("--report", metavar="FILE", help="write one page: .html, or tables: .md")
    parser.add_argument("--plot", metavar="DIR", help="write pictures as .svg")
    parser.add_argument("--quick", action="store_true", help="small sizes, less than a minute")
    parser.add_argument("--ktir", metavar="DIR", help="a checkout of ktir-cpu")
    given = parser.parse_args(arguments)
    if KTIR in given.sections and not given.ktir:
        parser.error("ktir needs --ktir DIR")
    if given.ktir and not Path(given.ktir).is_dir():
        parser.error(f"--ktir: there is no directory {given.ktir}")
    if given.report and Path(given.report).suffix not in (".html", ".md"):
        parser.error(f"--report: {given.report} ends neither in .html nor in .md")
    if given.compare:
        given.compare = _previous(parser, given.compare)
    return given


def _chosen(given: argparse.Namespace) -> list[Section]:
    every = "all" in given.sections
    chosen = [
        section
        for section in SECTIONS
        if section.name in given.sections or (every and (section.quick or not given.quick))
    ]
    if given.ktir and (every or KTIR in given.sections):
        chosen.append(Section(KTIR, "beside ktir-cpu", partial(_ktir, Path(given.ktir))))
    return chosen


def _ktir(checkout: Path, quick: bool) -> Iterable[Measurement]:
    from benchmarks.ktir import measure

    return measure(checkout, 1 if quick else 3)


def _previous(parser: argparse.ArgumentParser, name: str) -> Results:
    """Read the results to compare with; called before measuring, so that errors come early."""
    from benchmarks.results import read_results

    try:
        return read_results(Path(name))
    except (OSError, ValueError) as error:
        parser.error(f"--compare: {error}")


if __name__ == "__main__":
    raise SystemExit(main())
