"""The sections of ``docs/errors.md``: per code its cause, fix, and what it looks like.

Examples are taken from the answers of the corpus (``tests/corpus``), which tests compare with what
``spyre-run`` really prints.
"""

from __future__ import annotations

import re
from functools import cache

from spyre.codes.explanations import RECORDS
from spyre.codes.record import DiagnosticCode
from tests.corpus.answer import GOLDEN
from tests.corpus.making import CorpusCase
from tests.corpus.table import CASES, WITHOUT_CASE

_FENCE = "```"


def code_sections(digit: str) -> str:
    """A section per code that starts with ``digit``."""
    chosen = (record for code, record in RECORDS.items() if code[3] == digit)
    return "\n".join(_section(record) for record in chosen)


def _section(record: DiagnosticCode) -> str:
    parts = [f"### {record.code}", "", f"*{record.title}*", ""]
    if record.cause:
        parts += [_escaped(record.cause), "", f"**Fix:** {_escaped(record.fix)}", ""]
    example = examples().get(record.code)
    if example is not None:
        parts += [_FENCE, example, _FENCE]
    else:
        parts.append(f"No example: {WITHOUT_CASE.get(record.code, 'no case provokes it yet')}.")
    return "\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Text in which Markdown takes nothing for markup."""
    return re.sub(r"([*<\[\]|])", r"\\\1", re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text))


@cache
def examples() -> dict[str, str]:
    """One diagnosis by code: of the first case made for that code, else of any that shows it."""
    found: dict[str, str] = {}
    for case in sorted(CASES, key=lambda case: case.name.startswith(("mlir_", "sdsc_"))):
        answer = _answer(case)
        if case.code not in found and (text := diagnosis(answer, case.code)):
            found[case.code] = text
    for case in CASES:
        answer = _answer(case)
        for code in re.findall(r"(?:error|warning) (SPY\d{3}):", answer):
            found.setdefault(code, diagnosis(answer, code))
    return found


def _answer(case: CorpusCase) -> str:
    """The recorded answer; '' for a case that has none yet, which its test complains about."""
    golden = GOLDEN / f"{case.name}.txt"
    return golden.read_text(encoding="utf-8") if golden.is_file() else ""


def diagnosis(answer: str, code: str) -> str:
    """The first finding with ``code`` in an answer: its line and the indented ones below it."""
    lines = answer.splitlines()
    for k, line in enumerate(lines):
        if re.search(rf"(?:error|warning) {code}:", line):
            end = k + 1
            while end < len(lines) and lines[end].startswith("  "):
                end += 1
            shown = [line.removeprefix("spyre-run: "), *lines[k + 1 : end]]
            return "\n".join(x for x in shown if not re.fullmatch(r"  \(and \d+ more\)", x))
    return ""
