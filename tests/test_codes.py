"""Codes: every one has a title, a cause and a fix."""

from __future__ import annotations

import pytest

from spyre.codes import CODES
from spyre.codes.explanations import EXPLANATIONS, RECORDS
from tools.code_page import diagnosis, examples


def test_every_code_is_explained():
    lacking = [code for code, record in RECORDS.items() if not (record.cause and record.fix)]
    assert lacking == []


def test_only_codes_are_explained():
    assert set(EXPLANATIONS) <= set(CODES)
    assert [record.title for record in RECORDS.values()] == list(CODES.values())


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_texts_are_sentences(code):
    record = RECORDS[code]
    for text in (record.cause, record.fix):
        assert text == text.strip()
        assert text.endswith("."), text
        assert "  " not in text
    assert not record.title.endswith(".")


def test_examples_show_their_code():
    assert len(examples()) > 150
    for code, text in examples().items():
        assert code in text.splitlines()[0]


def test_an_example_is_one_finding():
    answer = (
        "$ x\na: warning SPY277: b\nspyre-run: c: error SPY130: d\n  found: e\n  (and 2 more)\nf"
    )
    assert diagnosis(answer, "SPY130") == "c: error SPY130: d\n  found: e"
    assert diagnosis(answer, "SPY131") == ""
