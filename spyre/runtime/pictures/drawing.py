"""What all pictures are made of: blocks one below another, each as wide as a phone.

A picture is 400 units wide, so that its text can be read at 390 pixels, and larger on a wider
screen. Colours follow the reader's choice of light or dark. Text that has no room is shortened,
and stands whole in the tooltip.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.layout import Int64Array
from spyre.runtime.profile.report import Markup, inside, palette, tag

WIDTH = 400.0
MARGIN = 14.0
INNER = WIDTH - 2 * MARGIN
"""Width of a block."""
COLOURS = 8
_LETTER = 5.9
"""Mean width of a letter of the text; wider ones are in the minority."""
_LINE = 15.0
_STYLE = """
.back{fill:var(--back)}text{font:11px system-ui,sans-serif;fill:var(--text)}
.head{font-size:14px;font-weight:600}.faint{fill:var(--faint)}.middle{text-anchor:middle}
.end{text-anchor:end}.small{font-size:9px}
.box{fill:var(--panel);stroke:var(--line)}.line{fill:none;stroke:var(--faint);stroke-width:1.2}
.idle{fill:none;stroke:var(--line);stroke-dasharray:3 2}
.own{fill:var(--own);fill-opacity:.38;stroke:var(--own)}.run{fill:var(--own)}
.lx{stroke:var(--c2)}.hbm{stroke:var(--c0)}
"""
_COLOURS = "".join(f".colour-{k}{{--own:var(--c{k})}}" for k in range(COLOURS))


@dataclass(frozen=True)
class Picture:
    """``name``: of its file, without suffix. ``svg``: the whole document."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True)
class Block:
    """A part of a picture, drawn from (0, 0) to (`INNER`, height)."""

    height: float
    drawn: Markup


def picture(name: str, title: str, blocks: Iterable[Block]) -> Picture:
    """The blocks one below another under a headline."""
    pieces: list[Markup] = []
    y = MARGIN
    for block in (text_block(title, "head", 48), *blocks):
        pieces.append(tag("g", block.drawn, transform=f"translate({MARGIN:g} {y:g})"))
        y += block.height + 8.0
    height = y + MARGIN - 8.0
    svg = tag(
        "svg",
        [
            tag("title", title),
            tag("style", Markup(palette() + _STYLE + _COLOURS)),
            tag("rect", width=WIDTH, height=height, rx=8, class_="back"),
            *pieces,
        ],
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        width=WIDTH * 1.4,
        height=height * 1.4,
        style="max-width:100%;height:auto",
        role="img",
        aria_label=title,
    )
    return Picture(name, title, f"{svg}\n")


def text_block(text: str, style: str = "", letters: int = 62) -> Block:
    """A paragraph, broken into lines."""
    lines = textwrap.wrap(text, letters) or [""]
    step = _LINE + (4.0 if style == "head" else 0.0)
    drawn = (
        tag("text", line, y=step * (k + 1) - 4.0, class_=style or None)
        for k, line in enumerate(lines)
    )
    return Block(step * len(lines), inside(drawn))


def shortened(text: str, width: float) -> str:
    """``text`` as far as it has room in ``width`` units."""
    room = max(int(width / _LETTER), 1)
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def label(text: str, x: float, y: float, width: float, style: str = "") -> Markup:
    """A line of text that ends where its room does."""
    shown = shortened(text, width)
    content = [tag("title", text), shown] if shown != text else [shown]
    return tag("text", content, x=x, y=y, class_=style or None)


def rectangle(
    x: float, y: float, width: float, height: float, style: str, title: str = ""
) -> Markup:
    """A box, with a tooltip."""
    content = tag("title", title) if title else ""
    return tag("rect", content, x=x, y=y, width=width, height=height, rx=2.0, class_=style)


def picked(count: int, most: int) -> list[int | None]:
    """Which of ``count`` things are shown: all, or the first, a gap (None), the last."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


# --- memory -----------------------------------------------------------------------------------

_COLUMNS = 360
MAX_STICKS = 1 << 20


@dataclass(frozen=True, eq=False)
class MemoryRow:
    """A part of a memory: ``first`` byte, ``size_bytes``."""

    name: str
    first: int
    size_bytes: int


def memory_block(
    rows: Sequence[MemoryRow], owners: Sequence[tuple[int, Int64Array]], stick_bytes: int
) -> Block:
    """Memory from left to right, a row per part; sticks have the colour of who touches them.

    ``owners``: (colour, addresses of sticks in bytes), a later one over an earlier one.
    """
    left, height, pieces = 96.0, 13.0, []
    width = INNER - left
    for number, row in enumerate(rows):
        y = number * (height + 2.0)
        pieces.append(label(row.name, 0.0, y + 10.0, left - 4.0, "faint"))
        pieces.append(rectangle(left, y, width, height, "box"))
        colours = _columns(row, owners, stick_bytes)
        for begin, end, colour in _runs(colours):
            x, right = (left + width * edge / len(colours) for edge in (begin, end))
            pieces.append(rectangle(x, y, right - x, height, f"run colour-{colour}"))
    return Block(len(rows) * (height + 2.0), inside(pieces))


def _columns(
    row: MemoryRow, owners: Sequence[tuple[int, Int64Array]], stick_bytes: int
) -> npt.NDArray[np.int8]:
    """The colour of each column of pixels, -1 for none."""
    count = max(min(_COLUMNS, row.size_bytes // stick_bytes), 1)
    colours = np.full(count, -1, np.int8)
    for colour, addresses in owners:
        inside_row = addresses[(addresses >= row.first) & (addresses < row.first + row.size_bytes)]
        colours[(inside_row - row.first) * count // row.size_bytes] = colour
    return colours


def _runs(colours: npt.NDArray[np.int8]) -> Iterable[tuple[int, int, int]]:
    """(begin, end, colour) of neighbours of one colour."""
    edges = np.flatnonzero(np.diff(colours)) + 1
    begins = np.concatenate([[0], edges])
    ends = np.append(edges, len(colours))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if colours[begin] >= 0:
            yield begin, end, int(colours[begin])


def legend_block(names: Sequence[tuple[int, str]]) -> Block:
    """Colours and what they stand for, in lines as long as there is room."""
    pieces, x, y = [], 0.0, 0.0
    for colour, name in names:
        width = 20.0 + _LETTER * len(name) + 8.0
        if x and x + width > INNER:
            x, y = 0.0, y + _LINE
        pieces.append(rectangle(x, y + 2.0, 11.0, 11.0, f"run colour-{colour}"))
        pieces.append(tag("text", name, x=x + 16.0, y=y + 11.5))
        x += width
    return Block(y + _LINE, inside(pieces))
