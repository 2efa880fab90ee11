"""Parts of the reports: units, grouping of executes, the progress bar, encodings."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from rich.box import SIMPLE
from rich.table import Table

from spyre.cli import text_report as progress_module
from spyre.cli.run import main
from spyre.cli.text_report import (
    MAX_ROWS,
    ProgressBar,
    _statistics,
    cells_of,
    make_table,
    print_executes,
    print_table,
    print_warnings,
    rows_of,
)
from spyre.errors import Finding, Severity
from spyre.hw.counters.counts import Counters
from spyre.runtime.run.session import ExecuteReport
from spyre.runtime.units import format_bytes, format_count, format_ns


class TestUnits:
    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "-"),
            (128, "128 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (81920, "80 KiB"),
            (5373952, "5.12 MiB"),
            (3 << 40, "3 TiB"),
            (5000 << 40, "5000 TiB"),
        ],
    )
    def test_bytes(self, size, text):
        assert format_bytes(size) == text

    @pytest.mark.parametrize(
        ("count", "text"), [(0, "0"), (999, "999"), (32768, "32.8k"), (6291456, "6.29M")]
    )
    def test_counts(self, count, text):
        assert format_count(count) == text

    @pytest.mark.parametrize(
        ("time_ns", "text"),
        [(None, "-"), (0, "0 ns"), (900, "900 ns"), (1500, "1.5 µs"), (2 * 10**9, "2 s")],
    )
    def test_times(self, time_ns, text):
        assert format_ns(time_ns) == text


def report(index: int, op: str, host_ns: int | None = 10) -> ExecuteReport:
    counters = Counters(100, 200, 0, 0, 0, 7)
    return ExecuteReport(index, f"sdsc_{index}.json", op, "mb 4", 2, 3, counters, host_ns)


class TestTable:
    def test_few_executes_have_a_row_each(self):
        rows = rows_of([report(k, "add") for k in range(MAX_ROWS)], every=False)
        assert [label for label, _ in rows] == [str(k) for k in range(MAX_ROWS)]

    def test_many_are_shown_by_kind(self):
        reports = [report(k, "add" if k % 2 else "mul") for k in range(MAX_ROWS + 2)]
        (label, mul), (_, add) = rows_of(reports, every=False)
        half = MAX_ROWS // 2 + 1
        assert (mul.op, label, mul.executions) == ("mul", f"{half} of", 3 * half)
        assert add.counters == Counters(100, 200, 0, 0, 0, 7).times(half)
        assert add.host_ns == 10 * half
        assert len(rows_of(reports, every=True)) == MAX_ROWS + 2

    def test_an_unknown_time_stays_unknown(self):
        reports = [report(0, "add"), report(1, "add", None)]
        table = make_table(*cells_of(rows_of(reports, every=True)))
        assert table.columns[-1].footer == "-"
        assert list(table.columns[-1].cells) == ["10 ns", "-"]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_without_rich_it_is_the_same(self, capsys, count: int):
        cells = cells_of([(str(9 * k), report(k, "add" * (k + 1))) for k in range(count)])
        print_executes(*cells)
        plain = capsys.readouterr().out
        print_table(make_table(*cells))
        assert plain == capsys.readouterr().out

    @pytest.mark.parametrize("name", ["größer", "add" * 60, "\x1b[31m"])
    def test_long_lines_and_other_letters_are_left_to_rich(self, capsys, name: str):
        cells = cells_of([("0", report(0, name))])
        print_executes(*cells)
        plain = capsys.readouterr().out
        print_table(make_table(*cells))
        assert plain == capsys.readouterr().out

    def test_one_row_needs_no_total(self):
        assert not make_table(*cells_of(rows_of([report(0, "add")], every=False))).show_footer


class TestStatistics:
    def test_not_finite(self):
        values = np.array([1.0, np.inf, np.nan, 3.0])
        assert _statistics(values) == "min 1, max 3, mean 2, 2 elements not finite"
        assert _statistics(np.array([np.nan])) == "1 element not finite"
        assert _statistics(np.zeros((0, 4))) == "no elements"

    def test_booleans(self):
        assert _statistics(np.array([True, False])) == "min 0, max 1, mean 0.5"


class TestProgress:
    def terminal(self, monkeypatch) -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        return stream

    def test_short_runs_show_nothing(self, monkeypatch):
        terminal = self.terminal(monkeypatch)
        with ProgressBar() as bar:
            bar.update(1, 2)
        assert terminal.getvalue() == ""

    def test_long_runs_show_a_bar(self, monkeypatch):
        terminal = self.terminal(monkeypatch)
        monkeypatch.setattr(progress_module, "DELAY_S", -1)
        with ProgressBar() as bar:
            bar.update(1, 2)
            bar.update(2, 2)
        assert "executes" in terminal.getvalue()

    def test_no_terminal_no_bar(self, monkeypatch, capsys):
        monkeypatch.setattr(progress_module, "DELAY_S", -1)
        with ProgressBar() as bar:
            bar.update(1, 2)
        assert capsys.readouterr().err == ""


def test_warnings_are_limited(capsys):
    findings = [Finding("SPY364", Severity.WARNING, f"number {k}") for k in range(12)]
    print_warnings(findings, show_all=False)
    assert capsys.readouterr().err.endswith("number 9\n… 2 more warnings (-v shows all)\n")
    print_warnings(findings, show_all=True)
    assert capsys.readouterr().err.endswith("number 11\n")


def test_a_terminal_without_unicode(examples, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main([str(examples / "softmax")]) == 0
    stream.seek(0)
    assert "\\xb5s" in stream.read()


@pytest.mark.parametrize("columns", [60, 80, 130, 400])
def test_tables_fit_the_terminal_without_losing_anything(monkeypatch, capsys, columns):
    table = Table(box=SIMPLE, pad_edge=False, show_footer=True)
    name, sizes = "n" * 150, [f"{number}.5_KiB" for number in range(100, 110)]
    for number in range(12):
        table.add_column(f"title_{number}", footer=f"foot_{number}", no_wrap=True)
    table.add_row("0", name, *sizes)
    monkeypatch.setattr(progress_module, "_table_width", lambda: columns)
    progress_module.print_table(table)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    titles = [f"title_{number}" for number in range(2, 12)]
    assert all(text.split().count(word) == 1 for word in (*sizes, *titles))
    parts = text.split().count("title_1")
    assert text.count("n") == 150 * parts
    assert (parts == 1) == (columns == 400)
