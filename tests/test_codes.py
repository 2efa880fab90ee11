"""Codes: every one has a title, a cause and a fix."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from spyre.codes import diagnostic_codes
from tools.docs import ROOT
from tools.error_page import diagnosis, examples


def test_every_code_in_the_sources_is_listed():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "spyre").rglob("*.py")]
    mentioned = {code for text in sources for code in re.findall(r"SPY\d{3}", text)}
    assert mentioned - set(diagnostic_codes()) == set()


def test_codes_are_in_order():
    codes = list(diagnostic_codes())
    assert codes == sorted(codes)
    assert all(re.fullmatch(r"SPY[1-9]\d\d", code) for code in codes)


@pytest.mark.parametrize("code", diagnostic_codes())
def test_texts_are_sentences(code):
    entry = diagnostic_codes()[code]
    for text in (entry.cause, entry.fix):
        assert text.endswith("."), text
        assert "  " not in text
    assert entry.title
    assert not entry.title.endswith(".")


def test_nothing_loads_the_table_at_start_up():
    program = "import sys; from spyre import errors; print('tomllib' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert printed == "False\n"


def test_examples_show_their_code():
    assert len(examples()) > 150
    for code, text in examples().items():
        assert code in text.splitlines()[0]


def test_the_terminal_shows_the_examples():
    shown = {code: entry.example for code, entry in diagnostic_codes().items() if entry.example}
    assert shown == examples()


def test_an_example_is_one_finding():
    answer = (
        "$ x\nwarning[SPY277]: b\nerror[SPY130]: d\n --> c\n12 | x\n  = found: e\n  (and 2 more)\nf"
    )
    assert diagnosis(answer, "SPY130") == "error[SPY130]: d\n --> c\n12 | x\n  = found: e"
    assert diagnosis(answer, "SPY131") == ""
