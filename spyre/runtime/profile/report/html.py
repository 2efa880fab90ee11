"""Small pieces of HTML and SVG as text, everything that goes in escaped; and documents that load
nothing and send nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from math import ceil, floor, log10


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Iterable[str]


def tag(name: str, content: Content = "", **attributes: object) -> Markup:
    """An element. Plain text in ``content`` is escaped, `Markup` is not; an attribute's ``_`` is a
    dash, one at its end is dropped, None leaves it out, True has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(shown if value is True else f'{shown}="{escape(_text(value), quote=True)}"')
    return Markup(f"<{' '.join(parts)}>{inside(content)}</{name}>")


def inside(content: Content) -> Markup:
    """Content one behind another, what is no markup escaped."""
    # A plain string is one piece of text: iterating over it would escape character by character.
    pieces = [content] if isinstance(content, str) else content
    return Markup("".join(p if isinstance(p, Markup) else escape(p, quote=True) for p in pieces))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Frame:
    """A chart's area in user units: the plot lies inside the margins."""

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
        """From 0 to 1, left to right."""
        return self.left + part * (self.end - self.left)

    def y(self, part: float) -> float:
        """From 0 to 1, bottom to top."""
        return self.base - part * (self.base - self.top)


def chart(frame: Frame, label: str, content: Content) -> Markup:
    """An SVG of a frame's size that shrinks with the page."""
    box = f"0 0 {frame.width:g} {frame.height:g}"
    titled = [tag("title", label), inside(content)]
    # On a phone it is scrolled rather than shrunk until nobody can read it.
    least = f"--least: {0.75 * frame.width:g}px"
    attributes = {"viewBox": box, "role": "img", "aria_label": label, "class_": "chart"}
    drawn = tag("svg", titled, **attributes, style=least)
    return tag("div", drawn, class_="wide", role="region", tabindex="0", aria_label=label)


def plot(frame: Frame, content: Content) -> Markup:
    """What lies between the axes, for a script that shows a part of it: a picture of its own."""
    width, height = frame.end - frame.left, frame.height
    box = f"{frame.left:g} 0 {width:g} {height:g}"
    return tag("svg", content, x=frame.left, y=0, width=width, height=height, viewBox=box,
               preserveAspectRatio="none", class_="plot")  # fmt: skip


def x_axis(frame: Frame, ticks: Iterable[tuple[float, str]], title: str) -> Markup:
    """Ticks at parts of the width, lines up through the plot, and what is shown."""
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
    """Ticks at parts of the height, lines across the plot, and what is shown."""
    pieces: list[str] = []
    for part, text in ticks:
        y = frame.y(part)
        pieces.append(tag("line", x1=frame.left, x2=frame.end, y1=y, y2=y, class_="grid"))
        pieces.append(tag("text", text, x=frame.left - 6, y=y + 4, class_="tick end"))
    middle = (frame.top + frame.base) / 2
    turned = f"rotate(-90 14 {middle:g})"
    pieces.append(tag("text", title, x=14, y=middle, transform=turned, class_="axis middle"))
    return inside(pieces)


def linear_ticks(
    most: float, text: Callable[[float], str], factors: tuple[int, ...] = (1, 2, 5, 10)
) -> list[tuple[float, str]]:
    """About five round numbers from 0 to ``most``, with their place from 0 to 1.

    ``factors``: what a round number is, times a power of the last of them.
    """
    if most <= 0:
        return [(0.0, "0")]
    base = factors[-1]
    step = float(base ** max(floor(log10(most / 4) / log10(base)), 0))
    step *= next(factor for factor in factors if most / (step * factor) <= 6)
    places = range(1, floor(most / step + 1e-9) + 1)
    return [(0.0, "0"), *((k * step / most, text(k * step)) for k in places)]


def decade_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten, with their place on a logarithmic axis; at most ten of them."""
    first, last = round(log10(low)), round(log10(high))
    step = ceil((last - first) / 10) or 1
    names = {0: "1", 1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M", -1: "0.1"}
    return [
        ((k - first) / (last - first), names.get(k, f"1e{k}")) for k in range(first, last + 1, step)
    ]


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Sequence[Markup], style: str = "") -> str:
    """The text of a page. ``style``: CSS besides that of all our pages."""
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Markup(palette() + _asset("page.css") + style)),
    ]
    parts = [*body, tag("script", Markup(_asset("page.js")))]
    html = tag("html", [tag("head", head), tag("body", parts)], lang="en")
    return f"<!doctype html>\n{html}\n"


def theme_button() -> Markup:
    """Switches between dark and light."""
    return tag("button", "Dark or light", type="button", id="theme", aria_pressed="false")


def palette() -> str:
    """CSS: the colours of pages and pictures, by light and dark."""
    return _asset("colours.css")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
