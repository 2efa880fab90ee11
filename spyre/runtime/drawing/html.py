"""HTML as text: elements with escaped content, tables for pages and terminals, whole documents.

A document contains its style and script; its security policy forbids loading and sending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from spyre.errors import printable

if TYPE_CHECKING:
    from rich.table import Table


class Markup(str):
    """Text that is HTML or SVG already and is not escaped again."""

    __slots__ = ()


Content = str | Iterable[str]
Section = tuple[str, str, Markup]
"""A section of a page: its id, its headline and its content."""


def tag(name: str, content: Content = "", **attributes: object) -> Markup:
    """Return an element. Plain text in ``content`` is escaped, `Markup` is not.

    In the name of an attribute ``_`` is written as a dash, and dropped at the end. The values None
    and False leave the attribute out; True writes its name alone.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(shown if value is True else f'{shown}="{_escaped(_text(value))}"')
    return Markup(f"<{' '.join(parts)}>{inside(content)}</{name}>")


def inside(content: Content) -> Markup:
    """Join ``content``, escaping the pieces that are not `Markup`."""
    # A plain string is one piece of text: iterating over it would escape character by character.
    pieces = [content] if isinstance(content, str) else content
    return Markup("".join(p if isinstance(p, Markup) else _escaped(p) for p in pieces))


def _escaped(text: str) -> str:
    """Escape HTML and XML syntax, and control characters, which XML may not hold."""
    return escape(printable(text), quote=True)


def breakable(text: str) -> Markup:
    """Return ``text`` with a place for a line break behind every underscore."""
    return Markup(_escaped(text).replace("_", "_<wbr>"))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- tables ---------------------------------------------------------------------------------------

Row = TypeVar("Row")


class Column(msgspec.Struct, Generic[Row], frozen=True):
    """A column of a table: its heading, and the text and the number of a row's cell.

    HTML tables sort by the number. A column without ``number`` is text: left-aligned, sorted
    alphabetically.
    """

    name: str
    text: Callable[[Row], str]
    number: Callable[[Row], float | None] | None = None


def html_table(
    identifier: str, caption: str, columns: Sequence[Column[Row]], rows: Iterable[Row], head: str
) -> Markup:
    """Return a table whose columns sort by a click or a key.

    ``identifier``: id of the table element. ``head``: name of the column with the row headings.
    """
    arrow = tag("span", "", class_="arrow", aria_hidden="true")
    names = [
        tag("th", tag("button", [c.name, arrow], type="button"), scope="col", class_=_class(c))
        for c in columns
    ]
    body = [tag("tr", [_cell(column, row, head) for column in columns]) for row in rows]
    content = [tag("caption", caption), tag("thead", tag("tr", names)), tag("tbody", body)]
    table = tag("table", content, class_="sortable", id=identifier)
    return tag("div", table, class_="wide", role="region", tabindex="0", aria_label=caption)


def _cell(column: Column[Row], row: Row, head: str) -> Markup:
    number = None if column.number is None else column.number(row)
    return tag(
        "th" if column.name == head else "td",
        breakable(column.text(row)) if column.name == head else column.text(row),
        scope="row" if column.name == head else None,
        data_value=None if number is None else repr(float(number)),
        class_="name" if column.name == "kernel" else _class(column),
    )


def _class(column: Column[Row]) -> str | None:
    return None if column.number is None else "number"


def text_table(
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    folded: Collection[str] = (),
    total: Row | None = None,
) -> Table:
    """Return the `rich` table.

    ``folded``: names of the columns whose text may be broken into lines. ``total``: the row shown
    in the footer.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, show_footer=total is not None, pad_edge=False)
    for column in columns:
        table.add_column(
            column.name,
            footer="" if total is None else column.text(total),
            justify="left" if column.number is None else "right",
            overflow="fold",
            no_wrap=column.name not in folded,
        )
    for row in rows:
        table.add_row(*(printable(column.text(row)) for column in columns))
    return table


# --- documents ------------------------------------------------------------------------------------


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a list of coloured squares and their names. ``entries``: (CSS class, name)."""
    items = (
        tag("li", inside([tag("span", "", class_=f"swatch {style}", aria_hidden="true"), name]))
        for style, name in entries
    )
    return tag("ul", items, class_="legend")


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Sequence[Markup], style: str = "") -> str:
    """Return the text of a page. ``style``: CSS added to the style that all pages share."""
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Markup(asset("page.css") + svg_style() + style)),
    ]
    parts = [*body, tag("script", Markup(asset("page.js")))]
    html = tag("html", [tag("head", head), tag("body", parts)], lang="en")
    return f"<!doctype html>\n{html}\n"


def theme_button() -> Markup:
    """Return the button that switches between dark and light."""
    return tag("button", "Dark or light", type="button", id="theme", aria_pressed="false")


def svg_style() -> str:
    """Return the CSS of charts and pictures, with their colours in light and dark."""
    return asset("colours.css") + asset("svg.css")


def asset(name: str) -> str:
    """Return the text of a style or script beside this module."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
