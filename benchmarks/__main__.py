"""The suite: `python -m benchmarks all --json OUT`, or names of sections. See docs/performance.md.

Exits 0 however fast the machine is; 1 if a section failed; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sections import SECTIONS, Section

if TYPE_CHECKING:
    from benchmarks.comparison import Change
    from benchmarks.results import Measurement, Results

KTIR = "ktir"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: the process's)."""
    given = _parse(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("SPYRE_FALLBACK", "silent")
    previous = _previous(given)
    results = run(_chosen(given), given.quick)
    show(results)
    if given.json:
        results.write(Path(given.json))
    if previous is not None:
        show_comparison(previous, results)
    if given.plot:
        from benchmarks.plots import write_plots

        print("\n".join(map(str, write_plots(results, Path(given.plot)))))
    return 1 if results.errors else 0


def run(sections: Iterable[Section], quick: bool) -> Results:
    """Measure ``sections``; one that fails leaves an error, and the others go on."""
    from benchmarks.results import results_of

    found: dict[str, list[Measurement]] = {}
    errors: dict[str, str] = {}
    for section in sections:
        print(f"{section.name}: {section.title} ...", file=sys.stderr, end="", flush=True)
        begin = time.perf_counter()
        try:
            found[section.name] = list(section.measure(quick))
        except Exception as error:  # the results of other sections are not lost with it
            traceback.print_exc()
            errors[section.name] = f"{type(error).__name__}: {error}"
        print(f" {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    return results_of(found, errors, quick)


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
    parser.add_argument("--plot", metavar="DIR", help="write pictures (extra plot)")
    parser.add_argument("--quick", action="store_true", help="small sizes, less than a minute")
    parser.add_argument("--ktir", metavar="DIR", help="a checkout of ktir-cpu")
    given = parser.parse_args(arguments)
    if KTIR in given.sections and not given.ktir:
        parser.error("ktir needs --ktir DIR")
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


def _previous(given: argparse.Namespace) -> Results | None:
    """Read before anything is measured, so that a wrong name costs nothing."""
    from benchmarks.results import read_results

    return read_results(Path(given.compare)) if given.compare else None


def show(results: Results) -> None:
    """A table per section."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110)
    for section, rows in results.sections.items():
        table = Table(title=section)
        for heading in ("", "median", "unit", "deviation", "target"):
            table.add_column(heading, justify="left" if heading in ("", "unit") else "right")
        for row in rows:
            share = row.deviation / abs(row.median) if row.median else 0.0
            table.add_row(
                row.name,
                f"{row.median:,.4g}" if row.median < 1e6 else f"{row.median:,.0f}",
                row.unit,
                "" if row.exact else f"{share:.0%}",
                "" if row.target is None else f"{row.target:g}",
                style="yellow" if row.missed else "",
            )
        console.print(table)
    for section, text in results.errors.items():
        console.print(f"{section} failed: {text}", style="red", markup=False)


def show_comparison(before: Results, after: Results) -> None:
    """What changed beyond noise."""
    from benchmarks.comparison import compare, missing

    changes = compare(before, after)
    print(f"since {before.commit[:10]} of {before.started}:")
    if before.machine != after.machine:
        print("  another machine: times are not compared, ratios and computed values are")
    if before.quick != after.quick:
        print("  one of the two is a quick run: few quantities have the same sizes")
    for change in (change for change in changes if change.is_change):
        print(f"  {describe(change)}")
    changed = sum(change.is_change for change in changes)
    print(f"  {changed} of {len(changes)} quantities changed beyond noise")
    for line in missing(before, after):
        print(f"  {line}")


def describe(change: Change) -> str:
    """A line on a change."""
    factor = change.after / change.before if change.before else float("inf")
    return (
        f"{change.verdict:<7}{change.section}: {change.name}: {change.before:.4g} -> "
        f"{change.after:.4g} {change.unit} ({factor:.2f}x; noise {change.noise:.2g})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
