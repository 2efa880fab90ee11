"""Codes: every one is explained, or belongs to a range whose texts are still to be written."""

from __future__ import annotations

import pytest

from spyre.codes import CODES, EXPLANATIONS, RECORDS
from tools.code_page import diagnosis, examples

TO_BE_EXPLAINED = (
    (254, 269),
    (292, 297),
    (372, 379),
    (515, 519),
    (533, 559),
    (610, 614),
    (701, 739),
)
"""Ranges of codes that may have a title only, and no case in the corpus, for now."""


def is_left_open(code: str) -> bool:
    return any(low <= int(code[3:]) <= high for low, high in TO_BE_EXPLAINED)


def test_codes_without_text_are_in_the_ranges_left_open():
    lacking = [code for code, record in RECORDS.items() if not (record.cause and record.fix)]
    assert [code for code in lacking if not is_left_open(code)] == []


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
