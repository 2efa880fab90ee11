"""Every case of the corpus, by its whole answer; every code, by a case or a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spyre.codes import diagnostic_codes
from tests.corpus.answer import GOLDEN, answer_of, codes_in
from tests.corpus.making import CorpusCase, Stage
from tests.corpus.shown import shown
from tests.corpus.table import CASES, WITHOUT_CASE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answer(case: CorpusCase, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    answer = answer_of(case, tmp_path)
    assert case.code in codes_in(answer), answer
    assert str(tmp_path) not in answer
    assert "Traceback" not in answer
    golden(GOLDEN / f"{case.name}.txt", answer)


def test_the_corpus_is_large_and_covers_all_stages() -> None:
    stages = Counter(case.stage for case in CASES)
    assert len(CASES) >= 120
    for stage in Stage:
        assert stages[stage] >= 5, stage


def test_names_are_distinct_and_no_golden_is_left_over() -> None:
    names = Counter(case.name for case in CASES)
    assert max(names.values()) == 1
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(names)


def test_every_code_has_a_case_or_a_reason() -> None:
    covered = {code for case in CASES for code in codes_in(golden_text(case))} | set(shown())
    missing = sorted(set(diagnostic_codes()) - covered - set(WITHOUT_CASE))
    assert missing == [], "add cases to tests/corpus, tests to shown.toml, reasons to WITHOUT_CASE"
    assert sorted(covered & set(WITHOUT_CASE)) == []
    assert sorted(set(WITHOUT_CASE) - set(diagnostic_codes())) == []


def golden_text(case: CorpusCase) -> str:
    return (GOLDEN / f"{case.name}.txt").read_text(encoding="utf-8")


PLACES = rf"/tmp|/home|/usr|{re.escape(str(Path(__file__).parents[2]))}|0x7f[0-9a-f]{{10}}"


def test_answers_do_not_depend_on_the_place(tmp_path: Path) -> None:
    """Goldens hold nothing of this machine."""
    for case in CASES:
        assert not re.search(PLACES, golden_text(case)), case.name
    for code, row in shown().items():
        assert not re.search(PLACES, row["text"]), code
