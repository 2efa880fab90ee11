"""Every code block of README and docs runs, with the output shown."""

from __future__ import annotations

import pytest

from tests.doc_blocks import PAGES, ROOT, blocks_of, require_same, run_commands
from tests.torch_backend.processes import run

RUN = [page for page in PAGES if any(True for _ in blocks_of(page.read_text(encoding="utf-8")))]


SHOWN = {
    "README.md": ["131072"],
    "docs/python.md": ["all 32768 elements agree"],
    "docs/runtime.md": [
        "256.0\n",
        "on the host, in stream order\n",
        "(2500, 128)\n",
        "   3 - 8    compute stream 0",
        "2 control blocks\n",
    ],
}
"""Output of Python blocks, for pages that show it in a comment."""


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_as_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from pathlib import Path
    from tests.doc_blocks import run_page
    run_page(Path({str(page)!r}))
    """
    printed = run(code)
    missing = [text for text in SHOWN.get(str(page.relative_to(ROOT)), []) if text not in printed]
    assert missing == []


def test_a_block_that_shows_something_else_is_noticed():
    require_same("took 3 ms\n…\nlast…", "took   40 µs\nmore\nlast line\n", "page:1")
    for shown in ("first\n", "first\nother\n", "first\n…\nthird\n"):
        with pytest.raises(AssertionError, match="page:1 shows what is not printed"):
            require_same(shown, "first\nsecond\n", "page:1")


def test_a_command_that_fails_is_noticed():
    with pytest.raises(AssertionError, match="exit code 2"):
        run_commands(["spyre check nowhere"], "page:1")
    run_commands(["$ spyre check nowhere", "error[SPY270]: nowhere does not exist", "…",
                  "$ echo $?", "2"], "page:1")  # fmt: skip


def test_what_is_left_out_says_why():
    left_out = "<!-- not run: two hosts -->\n```\nspyre x\n```\n\n"
    (block,) = blocks_of(f"{left_out}```python\nx = 1\n```\n\n```text\n\n```\n")
    assert (block.body, block.printed) == ("x = 1\n", "\n")
