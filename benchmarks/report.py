"""A result as text on the terminal, or as one file: an HTML page with tables and pictures, or
tables in Markdown; and pictures (extra plot).

The page looks like the profiler's: its style and script are inside, it loads nothing. Tiled
against untiled comes first, a row per form and a picture per workload and dim; the other sections
follow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import Change, compare, machine_factors, missing
from benchmarks.results import TIMES, Measurement, Results
from spyre.files import atomic_write
from spyre.runtime.profile.report.html import (
    Frame,
    Markup,
    chart,
    document,
    inside,
    linear_ticks,
    tag,
    theme_button,
    x_axis,
    y_axis,
)

if TYPE_CHECKING:
    from rich.console import JustifyMethod

SECTION = "tiled"


class Kind(StrEnum):
    """What a measurement of a form is of; its label ``kind``, and the end of its name."""

    HOST = "host"
    SIMULATED = "simulated"
    HBM = "HBM"
    LX = "LX peak"
    AGAINST = "host, against untiled"
    TORCH = "torch CPU"


@dataclass(frozen=True)
class Form:
    """A workload with a dim in ``tiles`` tiles (1: untiled). ``faster``: host time of the untiled
    form over this one's, of the same rounds; 1 for the untiled one. ``hbm_bytes`` of all cores,
    ``lx_peak_bytes`` of the core that uses most.
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
    """The rows of the table, in the order of ``rows``."""
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
    """Forms of one workload and dim together, the untiled one first."""
    groups: dict[str, list[Form]] = {}
    for form in rows:
        groups.setdefault(form.title, []).append(form)
    return groups


LEFT = ("workload", "dim")
HEADS = (
    *LEFT, "tiles", "host ms", "±", "faster", "torch CPU ms", "sim. µs", "sim. faster",
    "HBM MB", "LX KiB",
)  # fmt: skip
"""``faster``: times of the untiled form over those of this one, ``sim.``: simulated."""


def cells(form: Form, untiled: Form) -> tuple[str | float, ...]:
    """Values under HEADS: text or numbers."""
    return (
        form.workload,
        form.dim,
        form.tiles,
        form.host_ms,
        form.host_deviation_ms / form.host_ms,
        form.faster,
        form.torch_ms,
        form.simulated_us,
        untiled.simulated_us / form.simulated_us,
        form.hbm_bytes / 1e6,
        form.lx_peak_bytes / 1024,
    )


def shown(head: str, value: str | float) -> str:
    """A value as text: three significant digits of times, more of what is exact."""
    if isinstance(value, str):
        return value
    if head == "±":
        return f"{value:.0%}"
    if head in ("tiles", "sim. µs", "LX KiB"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    if head.endswith("faster"):
        return f"{value:.2f}"
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"


WIDTH = 124
SEEN = 1.5
"""Sections in half of whose times a change of this factor would not be seen are named."""
LEFT_TEXT_HEADS = (*LEFT, "", "unit")


def show(results: Results) -> None:
    """A table per section."""
    console = Console(width=WIDTH)
    for section, rows in results.sections.items():
        console.print(tiled_table(rows) if section == SECTION else section_table(section, rows))
    for section, text in results.errors.items():
        console.print(f"{section} failed: {text}", style="red", markup=False)


def section_table(section: str, rows: Sequence[Measurement]) -> Table:
    """A row per quantity."""
    table = _text_table(section, ("", "median", "unit", "deviation", "target"))
    for row in rows:
        cells_of_row = (row.name, row.shown, row.unit, row.shown_deviation, row.shown_target)
        table.add_row(*cells_of_row, style="yellow" if row.missed else "")
    return table


def tiled_table(rows: Sequence[Measurement]) -> Table:
    """A row per workload, dim and number of tiles."""
    table = _text_table(SECTION, HEADS)
    for group in by_title(forms(rows)).values():
        for form in group:
            values = zip(HEADS, cells(form, group[0]), strict=True)
            table.add_row(*(shown(head, value) for head, value in values))
        table.add_section()
    return table


def _text_table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for head in heads:
        justify: JustifyMethod = "left" if head in LEFT_TEXT_HEADS else "right"
        table.add_column(head, justify=justify, no_wrap=True)
    return table


def show_comparison(before: Results, after: Results) -> None:
    """What changed beyond noise."""
    print("\n".join(comparison_lines(before, after)))


def comparison_lines(before: Results, after: Results) -> list[str]:
    """What changed beyond noise, and what only one of the two has."""
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
    """Sections in whose times small changes would not have been seen, and why."""
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
    """A line on a change."""
    machine = ""
    if change.machine != (1.0, 1.0):
        machine = "; machine {:.2f} to {:.2f}x".format(*change.machine)
    return (
        f"{change.verdict:<7}{change.section}: {change.name}: {change.before:.4g} -> "
        f"{change.after:.4g} {change.unit} "
        f"({change.factor:.2f}x; noise {change.noise:.2f}x{machine})"
    )


ROW_HEADS = ("quantity", "median", "unit", "of", "better", "deviation", "target")
LEFT_HEADS = (*LEFT, "quantity", "unit", "of", "better")
FRAME = Frame(width=480.0, height=280.0, left=60.0)
LINES = ("host time", "simulated time", "HBM bytes", "LX peak")
STYLE = """
.panels {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr));
}
.panels figure { margin: 0; }
.line { fill: none; stroke: var(--own); stroke-width: 2; }
.one { stroke: var(--faint); }
pre { overflow-x: auto; }
"""
Cell = tuple[str, float | None]


def write_report(results: Results, path: Path, before: Results | None = None) -> Path:
    """Write it as the suffix says, .html or .md, under another name first."""
    text = page(results, before) if path.suffix == ".html" else markdown(results, before)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")
    return path


def about(results: Results) -> list[str]:
    """Lines on where a result is from."""
    machine = results.machine
    kind = "quick run (small sizes)" if results.quick else "full sizes"
    return [
        f"{machine['processor']}, {machine['cpus']} CPUs, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        f"commit {results.commit}, {kind}, ended {results.ended}",
    ]


def tables(results: Results) -> Iterator[tuple[str, Sequence[str], list[list[Cell]]]]:
    """Section, headings and cells of every table: text, and the number it sorts by."""
    for section, rows in results.sections.items():
        if section == SECTION:
            yield section, HEADS, list(_form_rows(rows))
        else:
            yield section, ROW_HEADS, [_row(row) for row in rows]


def heading(section: str, rows: Sequence[Measurement]) -> str:
    """The name of a section with what its numbers are of, and which way they should go."""
    kinds = {row.exact for row in rows}
    of = {False: "measured on the host", True: "modelled, of the card"}
    both = "host and modelled" if len(kinds) == 2 else ", ".join(of[kind] for kind in kinds)
    if section == SECTION or len({row.higher_is_better for row in rows}) == 2:
        return f"{section}: {both}; times and bytes: lower is better, factors: higher"
    better = "higher" if rows and rows[0].higher_is_better else "lower"
    return f"{section}: {both}; {better} is better"


def _form_rows(rows: Iterable[Measurement]) -> Iterator[list[Cell]]:
    for group in by_title(forms(rows)).values():
        for form in group:
            yield [
                (shown(head, value), None if isinstance(value, str) else float(value))
                for head, value in zip(HEADS, cells(form, group[0]), strict=True)
            ]


def _row(row: Measurement) -> list[Cell]:
    return [
        (row.name, None),
        (row.shown, row.median),
        (row.unit, None),
        ("model" if row.exact else "host", None),
        ("higher" if row.higher_is_better else "lower", None),
        (row.shown_deviation, row.deviation),
        (row.shown_target, row.target if row.target is not None else -1.0),
    ]


# --- Markdown -----------------------------------------------------------------------------------


def markdown(results: Results, before: Results | None = None) -> str:
    """The tables."""
    lines = ["# Benchmarks", "", *(f"- {line}" for line in about(results))]
    if before is not None:
        lines += ["", "```", *comparison_lines(before, results), "```"]
    for section, heads, rows in tables(results):
        title = heading(section, results.sections[section])
        lines += ["", f"## {title}", "", _line(heads)]
        lines.append(_line(["---" if head in LEFT_HEADS else "---:" for head in heads]))
        lines += [_line([text for text, _ in row]) for row in rows]
    lines += ["", *(f"**{name} failed**: {text}" for name, text in results.errors.items())]
    return "\n".join(lines).rstrip() + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


# --- HTML ---------------------------------------------------------------------------------------


def page(results: Results, before: Results | None = None) -> str:
    """The page."""
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
    for section, heads, rows in tables(results):
        content = [_html_table(section, heads, rows)]
        if section == SECTION:
            content = [_pictures(results.sections[section]), *content]
        yield section, inside(content)
    if results.errors:
        failed = [tag("li", f"{name}: {text}") for name, text in results.errors.items()]
        yield "failed", tag("ul", failed)


def _html_table(section: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Markup:
    arrow = tag("span", "", class_="arrow", aria_hidden="true")
    head = [
        tag("th", tag("button", [name, arrow], type="button"), scope="col", class_=_class(name))
        for name in heads
    ]
    body = [
        tag("tr", [_cell(name, cell) for name, cell in zip(heads, row, strict=True)])
        for row in rows
    ]
    content = [tag("caption", section), tag("thead", tag("tr", head)), tag("tbody", body)]
    table = tag("table", content, class_="sortable", id=f"{section}-table")
    return tag("div", table, class_="wide", role="region", tabindex="0", aria_label=section)


def _cell(head: str, cell: Cell) -> Markup:
    text, number = cell
    value = None if number is None else repr(number)
    return tag("td", text, data_value=value, class_=_class(head))


def _class(head: str) -> str | None:
    return None if head in LEFT_HEADS else "number"


# --- pictures -----------------------------------------------------------------------------------


def _pictures(rows: Iterable[Measurement]) -> Markup:
    """A panel per workload and dim: every line as parts of its untiled value, LX of its highest."""
    panels = [
        tag("figure", [tag("figcaption", title), _panel(title, group)])
        for title, group in by_title(forms(rows)).items()
    ]
    names = [
        tag("li", [tag("span", "", class_=f"swatch colour-{k}", aria_hidden="true"), name])
        for k, name in enumerate(LINES)
    ]
    text = (
        "By number of tiles, as parts of the untiled form's; the peak of LX as a part of the "
        "highest of its row."
    )
    legend = tag("ul", names, class_="legend")
    return inside([tag("p", text), legend, tag("div", panels, class_="panels")])


def _panel(title: str, group: Sequence[Form]) -> Markup:
    lines = relative(group)
    most = max(1.0, *(max(line) for line in lines))
    last = max(log2(group[-1].tiles), 1.0)
    places = [log2(form.tiles) / last for form in group]
    ticks = [(x, str(form.tiles)) for x, form in zip(places, group, strict=True)]
    pieces: list[str] = [
        x_axis(FRAME, ticks, "tiles"),
        y_axis(FRAME, linear_ticks(most, lambda value: f"{value:g}"), "of untiled"),
    ]
    one = FRAME.y(1 / most)
    pieces.append(tag("line", x1=FRAME.left, x2=FRAME.end, y1=one, y2=one, class_="one"))
    for number, line in enumerate(lines):
        points = [(FRAME.x(x), FRAME.y(y / most)) for x, y in zip(places, line, strict=True)]
        pieces += _drawn(points, f"colour-{number}", LINES[number], line)
    return chart(FRAME, f"{title}, by tiles", pieces)


def relative(group: Sequence[Form]) -> list[list[float]]:
    """The lines of a panel, in the order of LINES."""
    whole, highest = group[0], max(form.lx_peak_bytes for form in group) or 1.0
    return [
        [form.host_ms / whole.host_ms for form in group],
        [form.simulated_us / whole.simulated_us for form in group],
        [form.hbm_bytes / whole.hbm_bytes for form in group],
        [form.lx_peak_bytes / highest for form in group],
    ]


def _drawn(
    points: Sequence[tuple[float, float]], style: str, name: str, values: Sequence[float]
) -> Iterator[Markup]:
    for (x1, y1), (x2, y2) in pairwise(points):
        yield tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"line {style}")
    for (x, y), value in zip(points, values, strict=True):
        told = tag("title", f"{name}: {value:.3g}")
        yield tag("circle", told, cx=x, cy=y, r=3.5, class_=f"point {style}")


# --- pictures of their own (extra plot) -----------------------------------------------------------

Rows = Sequence[Measurement]


def write_plots(results: Results, directory: Path) -> list[Path]:
    """A PNG per section there is a picture of; paths of those written."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, Callable[[Any, Rows], None]] = {
        "tiled": _draw_tiled,
        "kernels": _draw_ratios,
        "scaling": _draw_scaling,
    }
    written = []
    for section, draw in drawers.items():
        rows = results.sections.get(section)
        if not rows:
            continue
        figure = Figure(layout="constrained")
        draw(figure, rows)
        figure.suptitle(f"{heading(section, rows)}\ncommit {results.commit[:10]}", fontsize="small")
        written.append(directory / f"{section}.png")
        figure.savefig(written[-1], dpi=100)
    return written


def _grid(figure: Any, count: int, size: tuple[float, float] = (4.5, 3.5)) -> list[Any]:
    across = min(count, 3)
    down = ceil(count / across)
    figure.set_size_inches(size[0] * across, size[1] * down)
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in places[count:]:
        unused.set_axis_off()
    return places[:count]


def _draw_tiled(figure: Any, rows: Rows) -> None:
    """Times and traffic of every form, as parts of the untiled one's; LX peak on its own axis."""
    groups = by_title(forms(rows))
    for panel, (title, group) in zip(_grid(figure, len(groups)), groups.items(), strict=True):
        tiles, whole = [form.tiles for form in group], group[0]
        lines = {
            "host": [form.host_ms / whole.host_ms for form in group],
            "simulated": [form.simulated_us / whole.simulated_us for form in group],
            "HBM": [form.hbm_bytes / whole.hbm_bytes for form in group],
        }
        for kind, line in lines.items():
            panel.plot(tiles, line, "o-", label=kind)
        other = panel.twinx()
        other.plot(tiles, [f.lx_peak_bytes / 1024 for f in group], "s:", color="grey", alpha=0.6)
        other.set(ylabel="LX peak, KiB (dotted)", ylim=(0, None))
        panel.axhline(1.0, color="grey", linewidth=0.5)
        panel.set_xscale("log", base=2)
        panel.set(xlabel="tiles", ylabel="of untiled", ylim=(0, None))
        panel.set_title(title, fontsize="small")
        panel.legend(fontsize="x-small")


def _draw_ratios(figure: Any, rows: Rows) -> None:
    ratios = [row for row in rows if row.unit == "x"]
    (panel,) = _grid(figure, 1, (8, 0.35 * len(ratios) + 1))
    names = [row.name for row in ratios]
    panel.barh(names, [row.median for row in ratios])
    panel.axvline(1.0, color="grey", linewidth=0.5)
    panel.set_xscale("log")
    panel.invert_yaxis()
    panel.set(xlabel="times faster than the reference")


def _draw_forms(panel: Any, rows: Rows, axis: str) -> None:
    """A line for each form of a quantity, over ``axis``; what a model says is dashed, in the colour
    of what was measured.
    """
    colours: dict[str, Any] = {}
    for form in dict.fromkeys(row.labels["form"] for row in rows):
        line = [(row.labels[axis], row.median) for row in rows if row.labels["form"] == form]
        name, _, kind = form.partition(", ")
        label, style = (None, "--") if kind == "modelled" else (form, "o-")
        (drawn,) = panel.plot(*zip(*line, strict=True), style, label=label, color=colours.get(name))
        colours[name] = drawn.get_color()
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set(xlabel=axis, ylabel=rows[0].unit if rows else "")
    if any(row.labels["form"].endswith("modelled") for row in rows):
        panel.set_title("dashed: modelled", fontsize="small")
    panel.legend(fontsize="x-small")


def _draw_scaling(figure: Any, rows: Rows) -> None:
    others = [row for row in rows if "form" in row.labels]
    rows = [row for row in rows if "form" not in row.labels]
    kinds = [(kind, axis) for axis in ("size", "cores") for kind in ("host", "simulated")]
    panels = _grid(figure, len(kinds) + 2)
    _draw_forms(panels[-2], [row for row in others if "executes" in row.labels], "executes")
    _draw_forms(panels[-1], [row for row in others if "threads" in row.labels], "threads")
    most = max(row.labels["cores"] for row in rows)
    fixed = sorted({row.labels["size"] for row in rows})[-2]
    for panel, (kind, axis) in zip(panels[:-2], kinds, strict=True):
        at = {"size": ("cores", most), "cores": ("size", fixed)}[axis]
        for operation in dict.fromkeys(row.labels["operation"] for row in rows):
            line = sorted(
                (row.labels[axis], row.median) for row in rows
                if row.name.endswith(kind) and row.labels[at[0]] == at[1]
                and row.labels["operation"] == operation
            )  # fmt: skip
            panel.plot([x for x, _ in line], [y for _, y in line], "o-", label=operation)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set(xlabel=axis, ylabel="ms" if kind == "host" else "us")
        panel.set_title(f"{kind}, {at[0]} {at[1]}", fontsize="small")
        panel.legend(fontsize="x-small")
