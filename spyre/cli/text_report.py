"""The text reports of ``spyre-run``: results on stdout, warnings on stderr."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from operator import add, itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.cli.entry import more_text, print_coloured, terminal_of
from spyre.cli.options import DiagnoseOptions, ExecuteOptions
from spyre.errors import Finding, Severity, printable
from spyre.runtime.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Column, Table

    from spyre.cli.commands import ComparedRun
    from spyre.cli.diagnose import Diagnosis
    from spyre.diagnose import Breakpoint, FirstDivergence
    from spyre.hw.counters import Counters
    from spyre.runtime.run import ExecuteReport, RunResult

Texts = Sequence[str]

DELAY_S = 2.0


class ProgressBar:
    """A progress bar as a context manager; ``label``: name of the items that are counted."""

    def __init__(self, enabled: bool = True, label: str = "executes") -> None:
        self._label = label
        self._enabled = enabled and sys.stderr.isatty()
        self._start = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> ProgressBar:
        self._start = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def update(self, done: int, total: int) -> None:
        """Move the bar; it appears when the run has gone on for DELAY_S seconds."""
        if not self._enabled or time.monotonic() - self._start < DELAY_S:
            return
        if self._shown is None:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(file=terminal_of(sys.stderr)), transient=True)
            self._shown = bar, bar.add_task(self._label, total=total)
            bar.start()
        progress, task = self._shown
        progress.update(task, completed=done)


MAX_ROWS = 24
"""More execute statements than this are shown by kind, unless ``-v`` is given."""


def rows_of(reports: Sequence[ExecuteReport], every: bool) -> tuple[tuple[str, ExecuteReport], ...]:
    """Labels and reports in program order; sums by operation, shape and cores if there are many.

    The label is the execute's index, or the number of statements that the row sums.
    """
    if every or len(reports) <= MAX_ROWS:
        return tuple((str(report.index), report) for report in reports)
    kinds: dict[tuple[str, str, int], list[ExecuteReport]] = {}
    for report in reports:
        kinds.setdefault((report.op, report.shape, report.cores), []).append(report)
    return tuple((f"{len(same)} of", _sum(same)) for same in kinds.values())


TITLES = (
    "#", "operation", "shape", "cores", "runs", "HBM in", "HBM out", "LX in", "LX out", "work",
    "host time",
)  # fmt: skip
_LEFT = ("operation", "shape")


def cells_of(rows: Sequence[tuple[str, ExecuteReport]]) -> tuple[list[tuple[str, ...]], Texts]:
    """The lines of the table of executes, and its line of totals."""
    lines = [(label, r.op, r.shape, str(r.cores), *_numbers(r)) for label, r in rows]
    totals = _numbers(_sum([report for _, report in rows])) if rows else [""] * 7
    return lines, ("", "total", "", "", *totals)


def make_table(lines: Sequence[Texts], totals: Texts) -> Table:
    """The rich table of `cells_of`, with a line of totals."""
    from spyre.runtime.drawing import Column, text_table

    columns: list[Column[Texts]] = [
        Column(title, itemgetter(k), None if title in _LEFT else len)
        for k, title in enumerate(TITLES)
    ]
    return text_table(columns, lines, {"shape"}, totals if len(lines) > 1 else None)


def print_executes(lines: Sequence[Texts], totals: Texts) -> None:
    """Print the table of executes; without rich, whose import takes 20 ms, where the lines are not
    too long and their names are ASCII.
    """
    footer = [totals] if len(lines) > 1 else []
    texts = [TITLES, *lines, *footer]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    length = sum(widths) + 3 * len(widths) - 3
    names = "".join(name for line in lines for name in line[:3])
    if length + 2 > _table_width() or not (names.isascii() and names.isprintable() and lines):
        print_table(make_table(lines, totals))
        return
    rule = " " + "─" * length
    head, *shown = [_line(line, widths) for line in texts]
    end = [rule, shown.pop()] if footer else []
    print("\n".join(["", head, rule, *shown, *end, ""]), file=terminal_of(sys.stdout))


def _line(cells: Texts, widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if title in _LEFT else cell.rjust(width)
        for title, cell, width in zip(TITLES, cells, widths, strict=True)
    )
    return f" {'   '.join(padded)}".rstrip()


def _sum(reports: Sequence[ExecuteReport]) -> ExecuteReport:
    """The first report with the sums of all."""
    times = [report.host_ns for report in reports]
    return replace(
        reports[0],
        executions=sum(report.executions for report in reports),
        counters=reduce(add, (report.counters for report in reports)),
        host_ns=None if None in times else sum(t for t in times if t is not None),
    )


def _numbers(report: ExecuteReport) -> tuple[str, ...]:
    c = report.counters
    sizes = (c.hbm_read_bytes, c.hbm_written_bytes, c.lx_read_bytes, c.lx_written_bytes)
    return (
        str(report.executions),
        *(format_bytes(size) for size in sizes),
        _work(c),
        format_ns(report.host_ns),
    )


def _work(counters: Counters) -> str:
    parts = []
    if counters.multiply_adds:
        parts.append(f"{format_count(counters.multiply_adds)} mac")
    if counters.element_operations or not parts:
        parts.append(f"{format_count(counters.element_operations)} el")
    return " + ".join(parts)


MAX_WARNINGS = 10
"""Warnings a run prints unless ``-v`` is given."""
MIN_WIDTH = 60
FILE_WIDTH = 200
"""Columns of tables: at least MIN_WIDTH on a terminal, FILE_WIDTH elsewhere."""


def print_diagnosis(diagnosis: Diagnosis, options: DiagnoseOptions) -> None:
    """Findings, the explanations asked for, and a summary."""
    for finding in diagnosis.findings:
        if not options.quiet or finding.severity in (Severity.ERROR, options.fail_on):
            print_coloured(finding, sys.stdout)
    for name, text in diagnosis.explanations:
        print(f"{name}\n{text}")
    if diagnosis.pictures and not options.quiet:
        print(f"{len(diagnosis.pictures) - 1} pictures, all of them in {diagnosis.pictures[0]}")
    if diagnosis.findings and not options.quiet:
        print(more_text(diagnosis.findings[0].code))
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
    if compared.differs or not options.quiet:
        print_causes(compared.causes)
    errors = [f for f in result.findings if f.severity is Severity.ERROR]
    for finding in errors:
        print_coloured(finding, sys.stderr)
    if not options.quiet:
        known = (*errors, *compared.causes)
        print_warnings([f for f in result.findings if f not in known], options.verbose)
        _print_executes(result, options)
    for line in comparison_lines(compared):
        print(line)
    if options.sanitize is not None and not options.quiet:
        findings = [finding.to_finding() for finding in result.sanitizer]
        print(f"sanitizer: {_count_findings(findings)}")
    checked = result.verification
    if checked is not None and (checked.not_verified or not options.quiet):
        print(f"verified: {checked}")


def _print_executes(result: RunResult, options: ExecuteOptions) -> None:
    """Print the table of executes, unless a profile with a row per execute follows, and outputs."""
    if options.verbose:
        _print_arguments(result)
    if options.verbose or not options.profile:
        print_executes(*cells_of(rows_of(result.executes, options.verbose)))
    if result.interpreted:
        print("interpreted while kernels are compiled: host times are not those of later runs\n")
    for tensor, values in zip(result.output_tensors, result.outputs, strict=True):
        print(f"{tensor.name} {tensor.spec}: {_statistics(values)}")


def print_deviation(search: FirstDivergence) -> None:
    """Print the first execute that deviates."""
    from spyre.diagnose import map_lines, verdict_lines

    if search.found is None:
        print("no execute deviates from a value that the function has", file=sys.stderr)
        return
    print_coloured(search.found.to_finding(), sys.stderr)
    for line in (*map_lines(search.found), *verdict_lines(search)):
        print(line)


def print_tensors(point: Breakpoint) -> None:
    """Print the operands at the breakpoint."""
    for name, tile in point.tensors.items():
        head = f"execute {point.number}, {name}"
        if tile is None:
            print(f"{head}: its elements cannot be located by addresses alone")
            continue
        extents = zip(tile.dims, tile.values.shape, strict=True)
        shape = " x ".join(f"{d} {n}" for d, n in extents) or "one element"
        print(f"{head}: {shape}")
        with np.printoptions(threshold=64, edgeitems=3, linewidth=100, precision=6):
            print(tile.values)


def print_causes(causes: Sequence[Finding]) -> None:
    """Print causes of a difference on stderr, also with ``-q``: the first in full, a line for each
    of the others.
    """
    for finding in causes[:1]:
        print_coloured(finding, sys.stderr)
    for finding in causes[1:]:
        print(finding.in_one_line, file=sys.stderr)


def print_warnings(findings: Sequence[Finding], show_all: bool) -> None:
    """Findings on stderr: all, or the first MAX_WARNINGS and how many more there are."""
    shown = findings if show_all else findings[:MAX_WARNINGS]
    for finding in shown:
        print_coloured(finding, sys.stderr)
    if len(shown) < len(findings):
        print(f"… {len(findings) - len(shown)} more warnings (-v shows all)", file=sys.stderr)


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
    from spyre.runtime.compare import format_comparison

    lines = []
    for k, comparison in compared.result.comparisons.items():
        if comparison.ok and compared.options.quiet:
            continue
        name, location = compared.result.output_tensors[k].name, compared.result.places[k]
        lines.append(format_comparison(comparison, name, location))
    return lines


def print_table(table: Table) -> None:
    """Print a rich table as plain text. A table wider than the terminal is split by columns; every
    part repeats the first KEY_COLUMNS.
    """
    from rich.console import Console

    for column in table.columns:
        column.header = printable(str(column.header))
        column._cells = [printable(str(cell)) for cell in column._cells]
    terminal = terminal_of(sys.stdout)
    console = Console(file=terminal, width=_table_width(), highlight=False, markup=False)
    with console.capture() as captured:
        for part in _fitting(table, console.width):
            console.print(part)
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    # One empty line between parts, where each ends and begins with one.
    kept = [line for line, last in zip(lines, ["-", *lines], strict=False) if line or last]
    print("\n".join(kept), file=terminal)


KEY_COLUMNS = 2
"""Columns at the left that identify a row."""
NAME_WIDTH = 30
"""Width of a column of names in a table that does not fit; longer names are folded."""


def _fitting(table: Table, width: int) -> Iterator[Table]:
    """``table``, or tables of some of its columns that fit ``width``."""
    from rich.box import SIMPLE
    from rich.table import Table

    columns = [dataclasses.replace(column) for column in table.columns]
    if sum(map(_column_width, columns)) <= width:
        yield table
        return
    for column in columns[:KEY_COLUMNS]:
        column.max_width, column.no_wrap, column.overflow = NAME_WIDTH, False, "fold"
    keys, rest = columns[:KEY_COLUMNS], columns[KEY_COLUMNS:]
    while rest:
        free = width - sum(map(_column_width, keys))
        count = max(sum(used <= free for used in accumulate(map(_column_width, rest))), 1)
        part = Table(box=SIMPLE, show_footer=table.show_footer, pad_edge=False)
        part.columns = [
            dataclasses.replace(c, _index=k) for k, c in enumerate([*keys, *rest[:count]])
        ]
        part.rows = table.rows
        rest = rest[count:]
        yield part


def _column_width(column: Column) -> int:
    """Width of a column of text, with its distance to the next one."""
    from rich.cells import cell_len

    texts = (str(column.header), str(column.footer), *map(str, column.cells))
    longest = max(map(cell_len, texts))
    return min(longest, column.max_width or longest) + 3


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
