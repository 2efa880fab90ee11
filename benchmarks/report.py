"""Writes a result as text to the terminal or as one file, an HTML page with tables and pictures or
tables in Markdown; and its pictures as SVG files.

The page looks like the profiler's and contains its style and script. Tiled against untiled comes
first, with a row per form and a picture per workload and dim; the other sections follow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import Change, compare, machine_factors, missing
from benchmarks.results import TIMES, Measurement, Results
from spyre.files import atomic_write
from spyre.runtime.drawing import (
    Block,
    Column,
    Frame,
    Line,
    Markup,
    Scale,
    chart,
    chart_block,
    document,
    grid_block,
    html_table,
    inside,
    legend,
    legend_block,
    line_chart,
    linear_scale,
    log_scale,
    picture,
    rectangle,
    stack,
    tag,
    text_block,
    theme_button,
    value_scale,
    x_axis,
)

SECTION = "tiled"


class Kind(StrEnum):
    """Kinds of measurements of a form: the label ``kind``, and the end of the name."""

    HOST = "host"
    SIMULATED = "simulated"
    HBM = "HBM"
    LX = "LX peak"
    AGAINST = "host, against untiled"
    TORCH = "torch CPU"


@dataclass(frozen=True)
class Form:
    """A workload with a dim in ``tiles`` tiles (1: untiled). ``faster``: host time of the untiled
    form over this one's in the same rounds; 1 for the untiled one. ``hbm_bytes``: of all cores;
    ``lx_peak_bytes``: of the core that uses most.
    """

    workload: str
    dim: str
    tiles: int
    host_ms: float
    host_deviation_ms: float
    faster: float
    simulated_us: float
    hbm_bytes: float
    lx_peak_bytes: float
    torch_ms: float

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.dim}"


def forms(rows: Iterable[Measurement]) -> list[Form]:
    """Return the forms among the measurements, in the order of ``rows``."""
    found: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for row in rows:
        if "kind" in row.labels:
            key = (row.labels["workload"], row.labels["dim"], row.labels["tiles"])
            found.setdefault(key, {})[row.labels["kind"]] = row
    return [
        Form(
            *key,
            kinds[Kind.HOST].median,
            kinds[Kind.HOST].deviation,
            kinds[Kind.AGAINST].median if Kind.AGAINST in kinds else 1.0,
            *(kinds[kind].median for kind in (Kind.SIMULATED, Kind.HBM, Kind.LX)),
            found[(*key[:2], 1)][Kind.TORCH].median,
        )
        for key, kinds in found.items()
    ]


def by_title(rows: Iterable[Form]) -> dict[str, list[Form]]:
    """Group forms by workload and dim, the untiled one first."""
    groups: dict[str, list[Form]] = {}
    for form in rows:
        groups.setdefault(form.title, []).append(form)
    return groups


FormPair = tuple[Form, Form]
"""A form and the untiled form of its workload."""


def _form_column(head: str, value: Callable[[Form, Form], float]) -> Column[FormPair]:
    return Column(head, lambda pair: shown(head, value(*pair)), lambda pair: float(value(*pair)))


FORM_COLUMNS: tuple[Column[FormPair], ...] = (
    Column("workload", lambda pair: pair[0].workload),
    Column("dim", lambda pair: pair[0].dim),
    _form_column("tiles", lambda form, untiled: form.tiles),
    _form_column("host ms", lambda form, untiled: form.host_ms),
    _form_column("±", lambda form, untiled: form.host_deviation_ms / form.host_ms),
    _form_column("faster", lambda form, untiled: form.faster),
    _form_column("torch CPU ms", lambda form, untiled: form.torch_ms),
    _form_column("sim. µs", lambda form, untiled: form.simulated_us),
    _form_column("sim. faster", lambda form, untiled: untiled.simulated_us / form.simulated_us),
    _form_column("HBM MB", lambda form, untiled: form.hbm_bytes / 1e6),
    _form_column("LX KiB", lambda form, untiled: form.lx_peak_bytes / 1024),
)
"""Columns of the table. ``faster``: time of the untiled form over that of this one."""


def form_pairs(rows: Iterable[Measurement]) -> list[FormPair]:
    """Return every form with the untiled form of its workload and dim."""
    return [(form, group[0]) for group in by_title(forms(rows)).values() for form in group]


def shown(head: str, value: float) -> str:
    """Format a value: three significant digits of times, more of exact values."""
    if head == "±":
        return f"{value:.0%}"
    if head in ("tiles", "sim. µs", "LX KiB"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    if head.endswith("faster"):
        return f"{value:.2f}"
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"


WIDTH = 124
SEEN = 1.5
"""Sections are listed if half of their times hide a change of this factor."""


def show(results: Results) -> None:
    """Print a table per section."""
    console = Console(width=WIDTH)
    for section, rows in results.sections.items():
        console.print(tiled_table(rows) if section == SECTION else section_table(section, rows))
    for section, text in results.errors.items():
        console.print(f"{section} failed: {text}", style="red", markup=False)


def section_table(section: str, rows: Sequence[Measurement]) -> Table:
    """Return a table with a row per quantity."""
    table = _text_table(section, ("", "median", "unit", "deviation", "target"))
    for row in rows:
        cells_of_row = (row.name, row.shown, row.unit, row.shown_deviation, row.shown_target)
        table.add_row(*cells_of_row, style="yellow" if row.missed else "")
    return table


def tiled_table(rows: Sequence[Measurement]) -> Table:
    """Return a table with a row per workload, dim and number of tiles."""
    table = _text_table(SECTION, [column.name for column in FORM_COLUMNS])
    for pair in form_pairs(rows):
        if pair[0] is pair[1]:
            table.add_section()
        table.add_row(*(column.text(pair) for column in FORM_COLUMNS))
    return table


def _text_table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for head in heads:
        is_text = head in ("workload", "dim", "", "unit")
        table.add_column(head, justify="left" if is_text else "right", no_wrap=True)
    return table


def show_comparison(before: Results, after: Results) -> None:
    """Print changes beyond noise."""
    print("\n".join(comparison_lines(before, after)))


def comparison_lines(before: Results, after: Results) -> list[str]:
    """Describe changes beyond noise, and quantities that only one result has."""
    changes = compare(before, after)
    lines = [f"since {before.commit[:10]} of {before.ended}:"]
    if before.machine != after.machine:
        lines.append("  another machine: times are not compared, ratios and computed values are")
    if before.quick != after.quick:
        lines.append("  one of the two is a quick run: few quantities have the same sizes")
    lines += [f"  {line}" for line in machine_lines(before, after, changes)]
    changed = [change for change in changes if change.is_change]
    lines += [f"  {describe(change)}" for change in changed]
    lines.append(f"  {len(changed)} of {len(changes)} quantities changed beyond noise")
    return lines + [f"  {line}" for line in missing(before, after)]


def machine_lines(before: Results, after: Results, changes: Sequence[Change]) -> list[str]:
    """Name sections whose times hide small changes, with the reason."""
    lines = []
    for section in dict.fromkeys(change.section for change in changes):
        needed = [
            change.noise * change.machine[1] for change in changes
            if change.section == section and change.unit in TIMES and change.noise > 1.1
        ]  # fmt: skip
        if needed and statistics.median(needed) > SEEN:
            found = machine_factors(section, before, after)
            lines.append(
                f"{section}: the machine was not steady (now {found.least:.2f} to "
                f"{found.largest:.2f} times as slow): of half its times, only changes of more "
                f"than {statistics.median(needed):.2f}x would be seen"
            )
    return lines


def describe(change: Change) -> str:
    """Describe a change in one line."""
    machine = ""
    if change.machine != (1.0, 1.0):
        machine = "; machine {:.2f} to {:.2f}x".format(*change.machine)
    return (
        f"{change.verdict:<7}{change.section}: {change.name}: {change.before:.4g} -> "
        f"{change.after:.4g} {change.unit} "
        f"({change.factor:.2f}x; noise {change.noise:.2f}x{machine})"
    )


ROW_COLUMNS: tuple[Column[Measurement], ...] = (
    Column("quantity", lambda row: row.name),
    Column("median", lambda row: row.shown, lambda row: row.median),
    Column("unit", lambda row: row.unit),
    Column("of", lambda row: "model" if row.exact else "host"),
    Column("better", lambda row: "higher" if row.higher_is_better else "lower"),
    Column("deviation", lambda row: row.shown_deviation, lambda row: row.deviation),
    Column("target", lambda row: row.shown_target,
           lambda row: -1.0 if row.target is None else row.target),
)  # fmt: skip
FRAME = Frame(width=480.0, height=280.0, left=60.0)
LINES = ("host time", "simulated time", "HBM bytes", "LX peak")
STYLE = """
.panels {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr));
}
.panels figure { margin: 0; }
pre { overflow-x: auto; }
"""


def write_report(results: Results, path: Path, before: Results | None = None) -> Path:
    """Write a page in the format of the suffix, .html or .md, atomically; return ``path``."""
    text = page(results, before) if path.suffix == ".html" else markdown(results, before)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")
    return path


def about(results: Results) -> list[str]:
    """Return lines about the machine, versions, commit and time of a result."""
    machine = results.machine
    kind = "quick run (small sizes)" if results.quick else "full sizes"
    return [
        f"{machine['processor']}, {machine['cpus']} CPUs, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        f"commit {results.commit}, {kind}, ended {results.ended}",
    ]


def tables(results: Results) -> Iterator[tuple[str, Sequence[Column[Any]], Sequence[Any]]]:
    """Yield section, columns and rows of every table."""
    for section, rows in results.sections.items():
        if section == SECTION:
            yield section, FORM_COLUMNS, form_pairs(rows)
        else:
            yield section, ROW_COLUMNS, rows


def heading(section: str, rows: Sequence[Measurement]) -> str:
    """Return a section's heading: name, measured or modelled, lower or higher is better."""
    kinds = {row.exact for row in rows}
    of = {False: "measured on the host", True: "modelled, of the card"}
    both = "host and modelled" if len(kinds) == 2 else ", ".join(of[kind] for kind in kinds)
    if section == SECTION or len({row.higher_is_better for row in rows}) == 2:
        return f"{section}: {both}; times and bytes: lower is better, factors: higher"
    better = "higher" if rows and rows[0].higher_is_better else "lower"
    return f"{section}: {both}; {better} is better"


# --- Markdown -----------------------------------------------------------------------------------


def markdown(results: Results, before: Results | None = None) -> str:
    """Return the tables as Markdown."""
    lines = ["# Benchmarks", "", *(f"- {line}" for line in about(results))]
    if before is not None:
        lines += ["", "```", *comparison_lines(before, results), "```"]
    for section, columns, rows in tables(results):
        title = heading(section, results.sections[section])
        lines += ["", f"## {title}", "", _line([column.name for column in columns])]
        lines.append(_line(["---" if column.number is None else "---:" for column in columns]))
        lines += [_line([column.text(row) for column in columns]) for row in rows]
    lines += ["", *(f"**{name} failed**: {text}" for name, text in results.errors.items())]
    return "\n".join(lines).rstrip() + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


# --- HTML ---------------------------------------------------------------------------------------


def page(results: Results, before: Results | None = None) -> str:
    """Return the result as an HTML page."""
    sections = list(_sections(results, before))
    links = [tag("a", name, href=f"#{name}") for name, _ in sections]
    lines = tag("ul", [tag("li", line) for line in about(results)], class_="facts")
    body = [
        tag("header", [tag("h1", "Benchmarks of spyre"), theme_button()]),
        lines,
        tag("nav", links, aria_label="Sections"),
        tag("main", [_section(results, name, content) for name, content in sections]),
    ]
    return document("Benchmarks of spyre", body, STYLE)


def _section(results: Results, name: str, content: Markup) -> Markup:
    rows = results.sections.get(name)
    title = name if rows is None else heading(name, rows)
    return tag("section", [tag("h2", title), content], id=name)


def _sections(results: Results, before: Results | None) -> Iterator[tuple[str, Markup]]:
    if before is not None:
        yield "changes", tag("pre", "\n".join(comparison_lines(before, results)))
    for section, columns, rows in tables(results):
        content = [html_table(f"{section}-table", section, columns, rows, "")]
        if section == SECTION:
            content = [_pictures(results.sections[section]), *content]
        yield section, inside(content)
    if results.errors:
        failed = [tag("li", f"{name}: {text}") for name, text in results.errors.items()]
        yield "failed", tag("ul", failed)


# --- pictures -----------------------------------------------------------------------------------


def _pictures(rows: Iterable[Measurement]) -> Markup:
    """Draw a panel per workload and dim; values relative to untiled, LX to its highest."""
    panels = [
        tag("figure", [tag("figcaption", title), _panel(title, group)])
        for title, group in by_title(forms(rows)).items()
    ]
    text = (
        "By number of tiles, as parts of the untiled form's; the peak of LX as a part of the "
        "highest of its row."
    )
    names = legend((f"colour-{k}", name) for k, name in enumerate(LINES))
    return inside([tag("p", text), names, tag("div", panels, class_="panels")])


def _panel(title: str, group: Sequence[Form]) -> Markup:
    return chart(FRAME, f"{title}, by tiles", _tiled_lines(group))


def _tiled_lines(group: Sequence[Form]) -> Markup:
    found = relative(group)
    tiles = [form.tiles for form in group]
    x = value_scale("tiles", tiles, is_log=True)
    y = linear_scale("of untiled", max(1.0, *(max(line) for line in found)))
    one = FRAME.y(y.part(1.0))
    drawn = [
        Line.numbered(name, list(zip(tiles, line, strict=True)), number)
        for number, (name, line) in enumerate(zip(LINES, found, strict=True))
    ]
    whole = tag("line", x1=FRAME.left, x2=FRAME.end, y1=one, y2=one, class_="one")
    return inside([whole, line_chart(FRAME, drawn, x, y)])


def relative(group: Sequence[Form]) -> list[list[float]]:
    """Return the values of a panel's lines, in the order of LINES."""
    whole, highest = group[0], max(form.lx_peak_bytes for form in group) or 1.0
    return [
        [form.host_ms / whole.host_ms for form in group],
        [form.simulated_us / whole.simulated_us for form in group],
        [form.hbm_bytes / whole.hbm_bytes for form in group],
        [form.lx_peak_bytes / highest for form in group],
    ]


# --- picture files --------------------------------------------------------------------------------

Rows = Sequence[Measurement]


def write_plots(results: Results, directory: Path) -> list[Path]:
    """Write an SVG per section that has a picture; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    blocks: dict[str, Callable[[Rows], Block]] = {
        "tiled": _tiled_block,
        "kernels": _ratio_block,
        "scaling": _scaling_block,
    }
    written = []
    for section, block_of in blocks.items():
        rows = results.sections.get(section)
        if not rows:
            continue
        body = block_of(rows)
        about_run = text_block(f"commit {results.commit[:10]}", "faint", body.width)
        drawn = picture(section, heading(section, rows), [about_run, body], body.width)
        written.append(directory / f"{section}.svg")
        with atomic_write(written[-1]) as place:
            place.write_text(drawn.svg, encoding="utf-8")
    return written


def _tiled_block(rows: Rows) -> Block:
    """Draw every form relative to the untiled one."""
    panels = [
        stack([text_block(title, "", FRAME.width), chart_block(FRAME, _tiled_lines(group))])
        for title, group in by_title(forms(rows)).items()
    ]
    names = [(f"colour-{k}", name) for k, name in enumerate(LINES)]
    grid = grid_block(panels, min(len(panels), 3))
    return stack([legend_block(names, grid.width), grid])


def _ratio_block(rows: Rows) -> Block:
    """Draw a bar per ratio."""
    ratios = [row for row in rows if row.unit == "x"]
    frame = Frame(width=960.0, height=18.0 * len(ratios) + 60.0, left=330.0)
    x = _log_scale("times faster than the reference", [1.0, *(row.median for row in ratios)])
    pieces = [x_axis(frame, x.ticks, x.title)]
    one = frame.x(x.part(1.0))
    for number, row in enumerate(ratios):
        y, end = frame.top + 18.0 * number, frame.x(x.part(row.median))
        pieces.append(tag("text", row.name, x=frame.left - 6, y=y + 13, class_="tick end"))
        title = f"{row.name}: {row.median:.3g}"
        pieces.append(rectangle(min(one, end), y + 3, abs(end - one), 12, "bar", title))
    pieces.append(tag("line", x1=one, x2=one, y1=frame.top, y2=frame.base, class_="mean"))
    return chart_block(frame, pieces)


def _log_scale(title: str, values: Iterable[float]) -> Scale:
    """Return a logarithmic scale between the powers of ten around ``values``."""
    logs = [log10(value) for value in values]
    low, high = floor(min(logs)), ceil(max(logs))
    return log_scale(title, 10.0**low, 10.0 ** max(high, low + 1))


def _lines_block(title: str, unit: str, axis: str, drawn: Sequence[Line]) -> Block:
    """Draw lines over ``axis``, both scales logarithmic."""
    x = value_scale(axis, [a for line in drawn for a, _ in line.points], is_log=True)
    y = _log_scale(unit, [b for line in drawn for _, b in line.points])
    names = {line.name: line.style for line in drawn if line.name}
    return stack(
        [
            text_block(title, "", FRAME.width),
            chart_block(FRAME, line_chart(FRAME, drawn, x, y)),
            legend_block([(style, name) for name, style in names.items()], FRAME.width),
        ]
    )


def _forms_block(rows: Rows, axis: str) -> Block:
    """Draw a line for each form of a quantity over ``axis``; modelled ones are dashed."""
    colours: dict[str, int] = {}
    drawn = []
    for form in dict.fromkeys(row.labels["form"] for row in rows):
        line = [(row.labels[axis], row.median) for row in rows if row.labels["form"] == form]
        name, _, kind = form.partition(", ")
        style = f"colour-{colours.setdefault(name, len(colours))}"
        drawn.append(
            Line("", line, f"{style} dashed") if kind == "modelled" else Line(form, line, style)
        )
    is_modelled = any(line.style.endswith("dashed") for line in drawn)
    title = f"host, {axis}{'; dashed: modelled' if is_modelled else ''}"
    return _lines_block(title, rows[0].unit, axis, drawn)


def _scaling_block(rows: Rows) -> Block:
    """Draw times by size, cores, executes and threads."""
    others = [row for row in rows if "form" in row.labels]
    rows = [row for row in rows if "form" not in row.labels]
    most = max(row.labels["cores"] for row in rows)
    fixed = sorted({row.labels["size"] for row in rows})[-2]
    panels = []
    for axis, other, at in (("size", "cores", most), ("cores", "size", fixed)):
        for kind in ("host", "simulated"):
            drawn = []
            for operation in dict.fromkeys(row.labels["operation"] for row in rows):
                line = sorted(
                    (row.labels[axis], row.median) for row in rows
                    if row.name.endswith(kind) and row.labels[other] == at
                    and row.labels["operation"] == operation
                )  # fmt: skip
                drawn.append(Line.numbered(operation, line, len(drawn)))
            unit = "ms" if kind == "host" else "us"
            panels.append(_lines_block(f"{kind}, {other} {at}", unit, axis, drawn))
    panels += [
        _forms_block([row for row in others if axis in row.labels], axis)
        for axis in ("executes", "threads")
    ]
    return grid_block(panels, 3)
