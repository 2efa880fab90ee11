"""The corpus: all its cases, and the codes that have none."""

from __future__ import annotations

from tests.corpus import check, launch, parse, run, sanitize, tiles, windows
from tests.corpus.making import CorpusCase

CASES: tuple[CorpusCase, ...] = (
    *parse.CASES,
    *check.CASES,
    *launch.CASES,
    *run.CASES,
    *windows.CASES,
    *sanitize.CASES,
    *tiles.CASES,
)

WITHOUT_CASE: dict[str, str] = {}
"""Codes without an example, with the reason."""
