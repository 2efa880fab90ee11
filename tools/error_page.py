"""The page of diagnostic codes, ``docs/errors.md``: made from the table of codes and the sources.

Whether a code is a warning, and the exit code it ends `spyre-run` with, is read off the sources: a
code appears as an argument of the call that makes a finding, a rule or an error; it is a warning if
every such call makes one, and its exit code is that of the error class raised with it. Examples are
taken from the answers of the corpus (``tests/corpus``), which tests compare with what
``spyre-run`` really prints.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spyre import errors
from spyre.codes import DiagnosticCode, diagnostic_codes
from tests.corpus.answer import GOLDEN
from tests.corpus.making import CorpusCase
from tests.corpus.table import CASES, WITHOUT_CASE

FRAME = Path(__file__).with_name("errors.md")
"""The page without its tables."""
SANITIZER_CALLS = ("SanitizerFinding", "finding", "_Kind")
"""What makes findings of the sanitizer, whose errors end in exit code 1."""
_CODE = re.compile(r"SPY\d{3}")
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class CodeKind:
    """``exit_code``: what ``spyre-run`` returns when an error with this code ends it."""

    is_warning: bool
    exit_code: int


def error_classes() -> list[type[errors.SpyreError]]:
    """The error tree of `spyre.errors`, each class before its subclasses."""
    found: list[type[errors.SpyreError]] = []

    def visit(cls: type[errors.SpyreError]) -> None:
        found.append(cls)
        for child in cls.__subclasses__():
            if child.__module__ == errors.__name__:
                visit(child)

    visit(errors.SpyreError)
    return found


@cache
@cache
def find_code_kinds(package: Path) -> dict[str, CodeKind]:
    """The kind of every code that a call below ``package`` mentions."""
    calls: dict[str, list[ast.Call]] = {}
    for path in sorted(package.rglob("*.py")):
        for code, call in _calls(ast.parse(path.read_text(encoding="utf-8"))):
            calls.setdefault(code, []).append(call)
    return {code: _kind(found) for code, found in calls.items()}


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = argument.value if isinstance(argument, ast.Constant) else None
            if isinstance(value, str) and _CODE.fullmatch(value):
                yield value, node


def _kind(calls: list[ast.Call]) -> CodeKind:
    exits = {c.__name__: c.exit_code for c in error_classes()} | dict.fromkeys(SANITIZER_CALLS, 1)
    codes = [exits.get(_name(call.func), 2) for call in calls]
    return CodeKind(all(map(_is_warning, calls)), min(codes))


def _is_warning(call: ast.Call) -> bool:
    return _name(call.func) == "warning" or any(_name(a) == "WARNING" for a in call.args)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# --- sections -----------------------------------------------------------------------------------


def code_sections(digit: str) -> str:
    """A section per code that starts with ``digit``."""
    chosen = (c for c in diagnostic_codes().values() if c.code[3] == digit)
    return "\n".join(_section(code) for code in chosen)


def _section(code: DiagnosticCode) -> str:
    parts = [f"### {code.code}", "", f"*{code.title}*", ""]
    parts += [_escaped(code.cause), "", f"**Fix:** {_escaped(code.fix)}", ""]
    example = examples().get(code.code)
    if example is not None:
        parts += [_FENCE, example, _FENCE]
    else:
        parts.append(f"No example: {WITHOUT_CASE.get(code.code, 'no case provokes it yet')}.")
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
