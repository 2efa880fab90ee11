"""Examples of the codes that no case of the corpus provokes: findings of other tests.

``shown.toml`` names a test for each code, and what its finding says. Whenever that test runs, the
finding must be made; ``--update-golden`` rewrites it.
"""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from spyre.errors import Finding

FILE = Path(__file__).with_name("shown.toml")
PLACES = re.compile(
    r"(?:/[^\s/'\"]+)*/(?:pytest-\d+/(?:popen-gw\d+/)?[^\s/'\"]+|tile-kernels-\w+/\w+)/?"
    f"|{re.escape(str(Path(__file__).parents[2]))}/"
)
"""Directories of a test and of the checkout, which an example leaves out."""


@cache
def shown() -> dict[str, dict[str, str]]:
    """``test`` and ``text`` by code."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def codes_by_test() -> dict[str, list[str]]:
    """The codes of each test that shows some, by its node id."""
    found: dict[str, list[str]] = {}
    for code, row in shown().items():
        found.setdefault(row["test"], []).append(code)
    return found


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Collect the text of every finding and warning that this process makes within the block."""
    texts: list[str] = []
    make, warn = Finding.__init__, warnings.warn

    def made(self: Finding, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        texts.append(steady(str(self)))

    def warned(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        texts.append(steady(f"warning: {message}"))
        warn(message, *args, **kwargs)

    with (
        mock.patch.object(Finding, "__init__", made),
        mock.patch.object(warnings, "warn", warned),
    ):
        yield texts


def steady(text: str) -> str:
    """``text`` without directories and users of this machine."""
    return re.sub("spyre-cache-[0-9]+", "spyre-cache-1000", PLACES.sub("", text))


def compare(codes: Iterable[str], texts: list[str], update: bool) -> None:
    """AssertionError if a code's example is not among the findings; ``update`` rewrites it."""
    for code in codes:
        if update and shown()[code]["text"] not in texts:
            shown()[code]["text"] = next(t for t in texts if code in t.split("\n")[0])
            FILE.write_text(toml_of(shown()), encoding="utf-8")
        assert shown()[code]["text"] in texts, f"the example of {code}: pytest --update-golden"


def toml_of(rows: dict[str, dict[str, str]]) -> str:
    """The content of the file, in rising order of codes."""
    return "\n".join(
        f"[{code}]\ntest = {json.dumps(row['test'])}\ntext = '''\n{row['text']}'''\n"
        for code, row in sorted(rows.items())
    )
