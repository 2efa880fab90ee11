"""Prose of sources and docs: names in back-ticks exist, puzzling words are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

ABSENT = "".join(("NoSuch", "Class"))
"""A name that no code has, not even the compiled code of this file."""


def test_the_prose_of_the_repository():
    assert list(prose.problems()) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f'"""Calls `{ABSENT}`."""', f"m.py:1: no code has the name `{ABSENT}`"),
        (f'"""Calls `prose.problems()` and ``{ABSENT}``."""', None),
        ("x = 1  # nobody reads it", "m.py:1: 'nobody': say it plainly"),
        (
            'raise ValueError("a core has a tensor of its own")',
            "m.py:1: 'of its own': say it plainly",
        ),
    ],
)
def test_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str | None
):
    names = prose._names_in_code()
    monkeypatch.setattr(prose, "_names_in_code", lambda: names)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "spyre").mkdir()
    (tmp_path / "spyre" / "m.py").write_text(source + "\n")
    expected = [] if problem is None else [f"spyre/{problem}"]
    assert list(prose.problems()) == expected


def test_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = prose._names_in_code()
    monkeypatch.setattr(prose, "_names_in_code", lambda: names)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text(f"```\nnobody\n```\nSee `qa/nothing.py`, told by `{ABSENT}`.\n")
    assert list(prose.problems()) == [
        "a.md:4: 'told': say it plainly",
        "a.md:4: no code has the name `qa/nothing.py`",
        f"a.md:4: no code has the name `{ABSENT}`",
    ]
