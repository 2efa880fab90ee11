"""The answer of `spyre-run` to a case: its whole output and its exit code."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from spyre.cli.run import main
from tests.corpus.making import CorpusCase

GOLDEN = Path(__file__).parent / "golden"
FINDING = re.compile(r"(?:error|warning)\[(SPY\d{3})\]:")
TIME = re.compile(r"\s+[0-9.]+ (?:ns|µs|ms|s)$", re.MULTILINE)


def answer_of(case: CorpusCase, directory: Path) -> str:
    """Make ``case`` in ``directory``, which becomes the current one, and run its command line."""
    case.make(directory)
    out, err = io.StringIO(), io.StringIO()
    with (
        _inside(directory),
        mock.patch.dict(os.environ, case.environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(case.words)
        except SystemExit as end:
            code = int(end.code or 0)
    head = f"$ spyre-run {' '.join(case.words)}\n"
    return head + steady(out.getvalue() + err.getvalue()) + f"exit code {code}\n"


def codes_in(answer: str) -> set[str]:
    """Codes of the findings in an answer."""
    return set(FINDING.findall(answer))


def steady(text: str) -> str:
    """``text`` without host times, and without the rules of tables, whose widths follow them."""
    return re.sub(r"─+", "─", TIME.sub(" <time>", text))


@contextlib.contextmanager
def _inside(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
