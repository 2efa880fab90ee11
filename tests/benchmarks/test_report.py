"""The report: a row per tiled form, in HTML that needs nothing else and in Markdown."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from benchmarks.report import (
    Kind,
    by_title,
    forms,
    markdown,
    page,
    relative,
    tiled_table,
    write_report,
)
from benchmarks.results import Measurement, ratio, results_of
from benchmarks.sampling import Progress

VOID = ("meta", "link")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def form(dim, tiles, host, simulated, hbm, lx):
    def row(kind, unit, *values, exact=True):
        labels = {"workload": "f <8x8>", "dim": dim, "tiles": tiles, "kind": str(kind)}
        return Measurement(f"f, {dim}: {tiles}: {kind}", unit, values, exact, labels=labels)

    against = row(Kind.AGAINST, "x", 10 / host, exact=False)
    return [
        row(Kind.HOST, "ms", host, exact=False),
        row(Kind.SIMULATED, "us", simulated),
        row(Kind.HBM, "bytes", hbm),
        row(Kind.LX, "bytes", lx),
        *([against] if tiles > 1 else [row(Kind.TORCH, "ms", 5.0, exact=False)]),
    ]


@pytest.fixture
def found():
    rows = [
        *form("rows", 1, 10.0, 100.0, 4e6, 0),
        *form("rows", 2, 8.0, 50.0, 2e6, 2048),
        *form("rows", 4, 5.0, 200.0, 2e6, 1024),
        *form("heads", 1, 10.0, 100.0, 4e6, 0),
    ]
    others = (Measurement("a|b", "ms", (1.0, 3.0), target=1.5), ratio("r", [1], [2]))
    return results_of({"tiled": rows, "s": others}, {"t": "broken & <b>"}, {}, quick=True)


def test_a_row_per_workload_dim_and_number_of_tiles(found):
    rows = forms(found.sections["tiled"])
    assert [(row.dim, row.tiles) for row in rows] == [
        ("rows", 1), ("rows", 2), ("rows", 4), ("heads", 1),
    ]  # fmt: skip
    assert [row.faster for row in rows] == [1, 1.25, 2, 1]
    assert {row.torch_ms for row in rows} == {5.0}
    assert list(by_title(rows)) == ["f <8x8>, rows", "f <8x8>, heads"]
    assert relative(rows[:3]) == [[1, 0.8, 0.5], [1, 0.5, 2], [1, 0.5, 0.5], [0, 1, 0.5]]
    assert tiled_table(found.sections["tiled"]).row_count == 4


def test_markdown_has_the_rows(found):
    text = markdown(found, found)
    assert "| f <8x8> | rows | 4 | 5 | 0% | 2.00 | 5 | 200 | 0.50 | 2 | 1 |" in text
    assert "| a\\|b | 2 | ms | host | lower | 50% | 1.5 |" in text
    assert "## tiled: host and modelled; times and bytes: lower" in text
    assert "## s: measured on the host; times and bytes: lower is better, factors: higher" in text
    assert "0 of 21 quantities changed beyond noise" in text
    assert "**t failed**: broken & <b>" in text


class Page(HTMLParser):
    """Counts elements; fails where they do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.urls = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.urls += [value for key, value in attrs if key in ("href", "src")]
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(found):
    text = page(found, found)
    parsed = Page(text)
    assert parsed.seen.count("svg") == 2
    assert parsed.seen.count("table") == 2
    assert "<h2>tiled: host and modelled; " in text
    assert all(url.startswith(("#", "data:,")) for url in parsed.urls)
    assert not re.search(r"@import|url\(|https?:", text)
    assert "<b>" not in text


@pytest.mark.skipif(BROWSER is None, reason="no browser is here")
def test_a_browser_says_nothing_against_it(found, tmp_path):
    path = write_report(found, tmp_path / "deep" / "r.html")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('class="sortable"') == 2
    assert 'aria-pressed="false"' in done.stdout


def test_what_takes_long_says_what_it_is_at(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.sampling.DELAY_SECONDS", 0.01)
    monkeypatch.setattr("benchmarks.sampling.PIPE_SECONDS", 0.01)
    progress = Progress()
    with progress.section("s", "slow things"):
        progress.at("the third thing")
        lines = ""
        while "the third thing" not in lines:
            lines += capsys.readouterr().err
    assert "s: slow things" in lines
    assert re.search(r"s: \d+ s: the third thing", lines)
    assert re.search(r"s: \d+\.\d s\n", capsys.readouterr().err)
