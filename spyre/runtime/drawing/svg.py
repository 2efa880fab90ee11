"""SVG: charts with axes, and pictures made of blocks one below another.

A `Frame` is the area of a chart, a `Scale` maps values to parts of an axis, from 0 to 1. Pages show
a chart by itself; a picture file contains charts, text and legends as blocks, with its style.

Pictures are 400 units wide unless they contain charts, so that their text can be read on a phone.
Colours follow the reader's choice of light or dark. Text that is too long for its room is
shortened; the tooltip shows all of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import ceil, floor, log10

import msgspec

from spyre.runtime.drawing.html import Content, Markup, inside, svg_style, tag

COLOURS = 8
"""Number of the CSS classes ``colour-0``, ``colour-1``, ..."""


# --- charts ---------------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True):
    """The area of a chart, in user units. The axes are at the inner edges of the margins."""

    width: float = 960.0
    height: float = 360.0
    left: float = 84.0
    right: float = 20.0
    top: float = 16.0
    bottom: float = 44.0

    @property
    def end(self) -> float:
        """Right edge of the plot."""
        return self.width - self.right

    @property
    def base(self) -> float:
        """Lower edge of the plot."""
        return self.height - self.bottom

    def x(self, part: float) -> float:
        """Return the position of a part of the x axis: 0 is the left end, 1 the right one."""
        return self.left + part * (self.end - self.left)

    def y(self, part: float) -> float:
        """Return the position of a part of the y axis: 0 is the lower end, 1 the upper one."""
        return self.base - part * (self.base - self.top)


Ticks = Sequence[tuple[float, str]]
"""Part of an axis, and the text there."""


class Scale(msgspec.Struct, frozen=True):
    """The values of an axis, from ``low`` to ``high``."""

    title: str
    low: float
    high: float
    ticks: Ticks
    is_log: bool = False

    def part(self, value: float) -> float:
        """Return which part of the axis ``value`` is at; values beyond an end are at that end."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = log10(value), log10(low), log10(high)
        return min(max((value - low) / (high - low or 1.0), 0.0), 1.0)


def linear_scale(title: str, most: float) -> Scale:
    """Return a scale from 0 to ``most`` with round numbers as ticks."""
    return Scale(title, 0.0, most or 1.0, linear_ticks(most, "{:g}".format, least=0.0))


def log_scale(title: str, low: float, high: float) -> Scale:
    """Return a logarithmic scale between two powers of ten."""
    return Scale(title, low, high, _log_ticks(low, high), True)


def value_scale(title: str, values: Iterable[float], is_log: bool = False) -> Scale:
    """Return a scale from the least to the largest of ``values``.

    The ticks are those of the values that are far enough from the one before.
    """
    sorted_values = sorted(set(values))
    bare = Scale(title, sorted_values[0], sorted_values[-1], (), is_log)
    ticks: list[tuple[float, str]] = []
    for value in sorted_values:
        part = bare.part(value)
        if not ticks or part - ticks[-1][0] > 0.09:
            ticks.append((part, f"{value:g}"))
    return Scale(title, bare.low, bare.high, ticks, is_log)


def category_scale(title: str, names: Sequence[str]) -> Scale:
    """Return a scale of names at equal distances; the value of each is its index."""
    ticks = [((k + 0.5) / len(names), name) for k, name in enumerate(names)]
    return Scale(title, -0.5, len(names) - 0.5, ticks)


def linear_ticks(
    most: float,
    text: Callable[[float], str],
    factors: tuple[int, ...] = (1, 2, 5, 10),
    least: float = 1.0,
) -> list[tuple[float, str]]:
    """Return about five round numbers from 0 to ``most``, with their parts of the axis.

    ``factors``: round numbers are these times a power of the last one. ``least``: the smallest
    step between them.
    """
    if most <= 0:
        return [(0.0, "0")]
    base = factors[-1]
    step = max(float(base) ** floor(log10(most / 4) / log10(base)), least)
    step *= next(factor for factor in factors if most / (step * factor) <= 6)
    steps = range(1, floor(most / step + 1e-9) + 1)
    return [(0.0, "0"), *((k * step / most, text(k * step)) for k in steps)]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return at most ten powers of ten, with 2 and 5 times each if they are at most three."""
    first, last = round(log10(low)), round(log10(high))
    step = ceil((last - first) / 10) or 1
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**k for k in range(first, last + 1, step) for factor in factors]
    return [
        ((log10(value) - first) / (last - first), _short(value))
        for value in values
        if value <= high * (1 + 1e-9)
    ]


def _short(value: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if size <= value < 1e3 * size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def chart(frame: Frame, description: str, content: Content) -> Markup:
    """Return a chart for a page, which shrinks with the page."""
    box = f"0 0 {frame.width:g} {frame.height:g}"
    titled = [tag("title", description), inside(content)]
    # On a phone it is scrolled: shrunk to that width, its text could not be read.
    least = f"--least: {0.75 * frame.width:g}px"
    attributes = {"viewBox": box, "role": "img", "aria_label": description, "class_": "chart"}
    drawn = tag("svg", titled, **attributes, style=least)
    return tag("div", drawn, class_="wide", role="region", tabindex="0", aria_label=description)


def plot(frame: Frame, content: Content) -> Markup:
    """Return the part of a chart between the axes as a nested SVG, which a script can zoom."""
    width, height = frame.end - frame.left, frame.height
    box = f"{frame.left:g} 0 {width:g} {height:g}"
    return tag("svg", content, x=frame.left, y=0, width=width, height=height, viewBox=box,
               preserveAspectRatio="none", class_="plot")  # fmt: skip


def axes(frame: Frame, x: Scale, y: Scale) -> Markup:
    """Return both axes with their titles and grid lines."""
    return inside([x_axis(frame, x.ticks, x.title), y_axis(frame, y.ticks, y.title)])


def x_axis(frame: Frame, ticks: Iterable[tuple[float, str]], title: str) -> Markup:
    """Return an x axis: tick labels, vertical grid lines and a title."""
    pieces: list[str] = []
    for part, text in ticks:
        x = frame.x(part)
        pieces.append(tag("line", x1=x, x2=x, y1=frame.top, y2=frame.base, class_="grid"))
        # A label at the right edge would be cut off in the middle.
        side = "end" if x > frame.end - 20.0 else "middle"
        pieces.append(tag("text", text, x=x, y=frame.base + 16, class_=f"tick {side}"))
    middle = (frame.left + frame.end) / 2
    pieces.append(tag("text", title, x=middle, y=frame.height - 6, class_="axis middle"))
    return inside(pieces)


def y_axis(frame: Frame, ticks: Iterable[tuple[float, str]], title: str) -> Markup:
    """Return a y axis: tick labels, horizontal grid lines and a title."""
    pieces: list[str] = []
    for part, text in ticks:
        y = frame.y(part)
        pieces.append(tag("line", x1=frame.left, x2=frame.end, y1=y, y2=y, class_="grid"))
        pieces.append(tag("text", text, x=frame.left - 6, y=y + 4, class_="tick end"))
    middle = (frame.top + frame.base) / 2
    turned = f"rotate(-90 14 {middle:g})"
    pieces.append(tag("text", title, x=14, y=middle, transform=turned, class_="axis middle"))
    return inside(pieces)


class Line(msgspec.Struct, frozen=True):
    """Points (x, y) of a chart in the order they are joined. ``style``: CSS classes."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str

    @staticmethod
    def numbered(name: str, points: Sequence[tuple[float, float]], number: int) -> Line:
        """Return line ``number`` of a chart; beyond `COLOURS` lines are dashed."""
        dashed = " dashed" if number >= COLOURS else ""
        return Line(name, points, f"colour-{number % COLOURS}{dashed}")


def line_chart(
    frame: Frame, lines: Iterable[Line], x: Scale, y: Scale, is_joined: bool = True
) -> Markup:
    """Return axes, and every line with a marker and a tooltip at each point."""
    pieces: list[str] = [axes(frame, x, y)]
    for line in lines:
        drawn = [(frame.x(x.part(a)), frame.y(y.part(b))) for a, b in line.points]
        for (x1, y1), (x2, y2) in pairwise(drawn) if is_joined else ():
            pieces.append(tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"line {line.style}"))
        for (cx, cy), (_, value) in zip(drawn, line.points, strict=True):
            title = tag("title", f"{line.name}: {value:.4g}")
            pieces.append(tag("circle", title, cx=cx, cy=cy, r=3.5, class_=f"point {line.style}"))
    return inside(pieces)


# --- pictures -------------------------------------------------------------------------------------

MARGIN = 14.0
INNER = 400.0 - 2 * MARGIN
"""Width of a block."""
_LETTER = 5.9
"""Mean width of a letter of the text; few letters are wider."""
_LINE = 15.0


class Picture(msgspec.Struct, frozen=True):
    """``name``: of its file, without suffix. ``svg``: text of the whole SVG document."""

    name: str
    title: str
    svg: str


class Block(msgspec.Struct, frozen=True):
    """A part of a picture, drawn from (0, 0) to (width, height)."""

    height: float
    drawn: Markup
    width: float = INNER


def picture(name: str, title: str, blocks: Iterable[Block], width: float = INNER) -> Picture:
    """Return a picture of ``blocks`` one below another, under a headline."""
    body = stack([text_block(title, "heading", width), *blocks])
    outer, height = width + 2 * MARGIN, body.height + 2 * MARGIN
    svg = tag(
        "svg",
        [
            tag("title", title),
            tag("style", Markup(svg_style())),
            tag("rect", width=outer, height=height, rx=8, class_="back"),
            tag("g", body.drawn, transform=f"translate({MARGIN:g} {MARGIN:g})"),
        ],
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {outer:g} {height:g}",
        width=outer * 1.4,
        height=height * 1.4,
        style="max-width:100%;height:auto",
        role="img",
        aria_label=title,
        class_="picture",
    )
    return Picture(name, title, f"{svg}\n")


def stack(blocks: Iterable[Block]) -> Block:
    """Return ``blocks`` one below another."""
    pieces, y, width = [], 0.0, 0.0
    for block in blocks:
        pieces.append(tag("g", block.drawn, transform=f"translate(0 {y:g})"))
        y, width = y + block.height + 8.0, max(width, block.width)
    return Block(max(y - 8.0, 0.0), inside(pieces), width)


def grid_block(blocks: Sequence[Block], across: int) -> Block:
    """Return ``blocks`` in rows of ``across``, from left to right."""
    gap, width = 16.0, max(block.width for block in blocks)
    rows = []
    for first in range(0, len(blocks), across):
        row = blocks[first : first + across]
        pieces = [
            tag("g", block.drawn, transform=f"translate({k * (width + gap):g} 0)")
            for k, block in enumerate(row)
        ]
        rows.append(Block(max(block.height for block in row) + gap, inside(pieces)))
    below = stack(rows)
    return Block(below.height, below.drawn, min(across, len(blocks)) * (width + gap) - gap)


def chart_block(frame: Frame, content: Content) -> Block:
    """Return the content of a chart as a block."""
    return Block(frame.height, tag("g", content, class_="chart"), frame.width)


def text_block(text: str, style: str = "", width: float = INNER) -> Block:
    """Return a paragraph, broken into lines. ``style``: "", "faint" or "heading"."""
    is_heading = style == "heading"
    lines = textwrap.wrap(text, int(width / (7.75 if is_heading else 6.0))) or [""]
    step = _LINE + (4.0 if is_heading else 0.0)
    drawn = (
        tag("text", line, y=step * (k + 1) - 4.0, class_=style or None)
        for k, line in enumerate(lines)
    )
    return Block(step * len(lines), inside(drawn), width)


def _shortened(text: str, width: float) -> str:
    """Return as much of ``text`` as has room in ``width`` units."""
    room = max(int(width / _LETTER), 1)
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def label(text: str, x: float, y: float, width: float, style: str = "") -> Markup:
    """Return a line of text of at most ``width`` units, with a tooltip if it is shortened."""
    shown = _shortened(text, width)
    content = [tag("title", text), shown] if shown != text else [shown]
    return tag("text", content, x=x, y=y, class_=style or None)


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    style: str,
    title: str = "",
    *,
    radius: float | None = 2.0,
    opacity: str | None = None,
) -> Markup:
    """Return a box. ``title``: its tooltip; ``radius``: of corners; ``opacity``: of the fill."""
    content = tag("title", title) if title else ""
    return tag("rect", content, x=x, y=y, width=width, height=height, rx=radius, class_=style,
               fill_opacity=opacity)  # fmt: skip


def shown_indices(count: int, most: int) -> list[int | None]:
    """Return the indices to show of ``count`` things: all, or the first, a gap (None), the last."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def legend_block(entries: Iterable[tuple[str, str]], width: float = INNER) -> Block:
    """Return coloured squares and their names in as few lines as possible.

    ``entries``: (CSS class, name), as of `spyre.runtime.drawing.html.legend`.
    """
    pieces, x, y = [], 0.0, 0.0
    for style, name in entries:
        needed = min(30.0 + 6.4 * len(name), width)
        if x and x + needed > width:
            x, y = 0.0, y + _LINE
        pieces.append(rectangle(x, y + 2.0, 11.0, 11.0, f"run {style}"))
        pieces.append(label(name, x + 16.0, y + 11.5, width - 16.0))
        x += needed
    return Block(y + _LINE, inside(pieces), width)
