"""Everything ``spyre-run`` prints for people: results on stdout, warnings on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.cli.options import Options
from spyre.errors import Finding, Severity
from spyre.runtime.units import format_ns

if TYPE_CHECKING:
    from rich.table import Table

    from spyre.cli.outcomes import ComparedRun, Diagnosis
    from spyre.runtime.run_result import RunResult

MAX_WARNINGS = 10
"""Warnings a run prints unless ``-v`` is given."""
MIN_WIDTH = 120
FILE_WIDTH = 200
"""Columns of tables: at least MIN_WIDTH on a terminal, FILE_WIDTH elsewhere."""


def print_diagnosis(diagnosis: Diagnosis, options: Options) -> None:
    """Findings, the explanations asked for, and a summary."""
    for finding in diagnosis.findings:
        if not (options.quiet and finding.severity is Severity.WARNING):
            print(finding)
    for name, text in diagnosis.explanations:
        print(f"{name}\n{text}")
    if options.check and not options.quiet:
        print(f"{diagnosis.path}: {_count_findings(diagnosis.findings)}")


def _count_findings(findings: Sequence[Finding]) -> str:
    errors = sum(f.severity is Severity.ERROR for f in findings)
    warnings = len(findings) - errors
    if not findings:
        return "nothing found"
    return f"{_plural(errors, 'error')}, {_plural(warnings, 'warning')}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_run(compared: ComparedRun) -> None:
    """Findings, the table of executes, outputs, comparisons, and how many the sanitizer found."""
    result, options = compared.result, compared.options
    errors = [f for f in result.findings if f.severity is Severity.ERROR]
    for finding in errors:
        print(finding, file=sys.stderr)
    if not options.quiet:
        print_warnings([f for f in result.findings if f not in errors], options.verbose)
        if options.verbose:
            _print_arguments(result)
        _print_executes(result, options)
        for line in output_lines(result):
            print(line)
    for line in comparison_lines(compared):
        print(line)
    if options.sanitize is not None and not options.quiet:
        found = [finding.to_finding() for finding in result.sanitizer]
        print(f"sanitizer: {_count_findings(found)}")
    _print_verification(result, options)


def _print_verification(result: RunResult, options: Options) -> None:
    """How many executes agree; with ``-q`` only where some were left out."""
    checked = result.verification
    if checked is not None and (checked.not_verified or not options.quiet):
        print(f"verified: {checked}")


def print_warnings(findings: Sequence[Finding], show_all: bool) -> None:
    """Findings on stderr: all, or the first MAX_WARNINGS and how many more there are."""
    shown = findings if show_all else findings[:MAX_WARNINGS]
    for finding in shown:
        print(finding, file=sys.stderr)
    if len(shown) < len(findings):
        print(f"… {len(findings) - len(shown)} more warnings (-v shows all)", file=sys.stderr)


def output_lines(result: RunResult) -> list[str]:
    """A line per output: where it was, and what it holds."""
    pairs = zip(result.output_tensors, result.outputs, strict=True)
    return [f"{tensor.name} {tensor.spec}: {_statistics(v)}" for tensor, v in pairs]


def _statistics(values: npt.NDArray[Any]) -> str:
    if not values.size:
        return "no elements"
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    odd = numbers.size - finite.size
    text = f"{_plural(odd, 'element')} not finite" if odd else ""
    if not finite.size:
        return text
    extremes = f"min {finite.min():.6g}, max {finite.max():.6g}, mean {finite.mean():.6g}"
    return f"{extremes}, {text}" if text else extremes


def comparison_lines(compared: ComparedRun) -> list[str]:
    """The report of each comparison; with ``-q`` only of those that failed."""
    from spyre.runtime.verify import format_comparison

    lines = []
    for k, comparison in enumerate(compared.comparisons):
        if comparison.ok and compared.options.quiet:
            continue
        name, place = compared.result.output_tensors[k].name, compared.result.places[k]
        lines.append(format_comparison(comparison, name, place))
    return lines


def _print_executes(result: RunResult, options: Options) -> None:
    from spyre.cli.execute_table import make_table, rows_of

    print_table(make_table(rows_of(result.executes, options.verbose)))


def print_table(table: Table) -> None:
    """A rich table as plain text, as wide as the terminal."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=_table_width(), highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))


def _table_width() -> int:
    if not sys.stdout.isatty():
        return FILE_WIDTH
    return max(shutil.get_terminal_size().columns, MIN_WIDTH)


def _print_arguments(result: RunResult) -> None:
    for placed in result.arguments:
        spec = placed.spec
        print(
            f"{spec.name} {spec.role.value} {spec.host_spec} at {placed.address_bytes:#x}, "
            f"device {'x'.join(map(str, spec.layout.device_size))} {spec.layout.device_dtype}"
        )
    print(f"all executes: {format_ns(result.host_ns)}")
