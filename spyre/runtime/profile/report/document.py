"""An HTML document with style and script inside it, which loads nothing and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from spyre.runtime.profile.report.svg import Markup, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Sequence[Markup], style: str = "") -> str:
    """The text of a page. ``style``: CSS besides that of all our pages."""
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Markup(_asset("page.css") + style)),
    ]
    parts = [*body, tag("script", Markup(_asset("page.js")))]
    html = tag("html", [tag("head", head), tag("body", parts)], lang="en")
    return f"<!doctype html>\n{html}\n"


def theme_button() -> Markup:
    """Switches between dark and light."""
    return tag("button", "Dark or light", type="button", id="theme", aria_pressed="false")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
