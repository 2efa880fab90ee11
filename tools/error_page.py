"""Generates the page of diagnostic codes, ``docs/errors.md``, from the codes and the sources.

Severity and exit code of a code are read from the sources: a code appears in a table of rules, with
its severity, or as an argument of the call that makes a finding or an error. It is a warning if
every such place makes one, and its exit code is that of the error class raised with it. Examples
are taken from the answers of the corpus (``tests/corpus``), which tests compare with the output of
``spyre-run``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spyre import errors
from spyre.codes import DiagnosticCode, diagnostic_codes

FRAME = Path(__file__).with_name("errors.md")
"""The page without its tables."""
SANITIZER_CALLS = ("SanitizerFinding", "finding", "_Kind")
"""Calls that make findings of the sanitizer, whose errors end in exit code 1."""
_CODE = re.compile(r"SPY\d{3}")
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class CodeKind:
    """Kind of a code; ``exit_code``: of ``spyre-run`` after an error with the code."""

    is_warning: bool
    exit_code: int


def error_classes() -> list[type[errors.SpyreError]]:
    """Return the error classes of `spyre.errors`, each class before its subclasses."""
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
    """Return the kind of every code in a rule or a call below ``package``."""
    places: dict[str, list[_Place]] = {}
    for path in sorted(package.rglob("*.py")):
        for code, place in _places(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(code, []).append(place)
    return {code: _kind(of_code) for code, of_code in places.items()}


_Place = ast.Call | ast.Attribute
"""A call with the code, or its severity in a table of rules."""
FAULT_CALLS = ("Fault", "report")
"""Calls that make faults, whose severity is in a table of rules."""


def _places(tree: ast.Module) -> Iterator[tuple[str, _Place]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, severity in zip(node.keys, node.values, strict=True):
                if (code := _code(key)) and isinstance(severity, ast.Attribute):
                    yield code, severity
        elif isinstance(node, ast.Call):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if code := _code(argument):
                    yield code, node


def _code(node: ast.expr | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and _CODE.fullmatch(value) else ""


def _kind(places: list[_Place]) -> CodeKind:
    exits = {c.__name__: c.exit_code for c in error_classes()} | dict.fromkeys(SANITIZER_CALLS, 1)
    calls = [place for place in places if isinstance(place, ast.Call)]
    known = [p for p in places if not (isinstance(p, ast.Call) and _name(p.func) in FAULT_CALLS)]
    return CodeKind(
        bool(known) and all(map(_is_warning, known)),
        min((exits.get(_name(call.func), 2) for call in calls), default=2),
    )


def _is_warning(place: _Place) -> bool:
    arguments = place.args if isinstance(place, ast.Call) else [place]
    return any(_name(argument) == "WARNING" for argument in arguments)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# --- sections -----------------------------------------------------------------------------------


def code_sections(digit: str) -> str:
    """Return a section per code that starts with ``digit``."""
    chosen = (c for c in diagnostic_codes().values() if c.code[3] == digit)
    return "\n".join(_section(code) for code in chosen)


def code_pages() -> dict[str, str]:
    """Return a page per code, by path beside the list of all, which alone links to them."""
    return {
        page_of(code.code): "\n".join(
            ["---", "orphan: true", "---", "", _section(code, _heading(code)), _BACK]
        )
        for code in diagnostic_codes().values()
    }


_BACK = "[All codes](../errors.md)\n"


def _heading(code: DiagnosticCode) -> str:
    return f"({code.code.lower()})=\n# {code.code}: {_escaped(code.title)}"


def page_of(code: str) -> str:
    """Return the path of the page that explains a code."""
    return f"errors/{code}.md"


def _section(code: DiagnosticCode, heading: str = "") -> str:
    heading = heading or f"### {code.code}\n\n*{code.title}*"
    return "\n".join([heading, "", *_explained(code)]) + "\n"


def _explained(code: DiagnosticCode) -> list[str]:
    """Return the lines of cause, fix and example."""
    parts = [_escaped(code.cause), "", f"**Fix:** {_escaped(code.fix)}", ""]
    return [*parts, f"{_FENCE}text", code.example, _FENCE] if code.example else parts


def _escaped(text: str) -> str:
    """Escape characters that are markup in Markdown."""
    return re.sub(r"([*<\[\]|])", r"\\\1", re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text))


@cache
def examples() -> dict[str, str]:
    """Return a diagnosis by code, of the first case for the code, else of any that shows it, else
    of another test.
    """
    # The site is built without pytest, which these import.
    from tests.corpus.answer import GOLDEN
    from tests.corpus.shown import shown
    from tests.corpus.table import CASES

    def recorded(name: str) -> str:
        """'' for a case that has no answer yet, which its test complains about."""
        golden = GOLDEN / f"{name}.txt"
        return golden.read_text(encoding="utf-8") if golden.is_file() else ""

    found: dict[str, str] = {}
    for case in sorted(CASES, key=lambda case: case.name.startswith(("mlir_", "sdsc_"))):
        answer = recorded(case.name)
        if case.code not in found and (text := diagnosis(answer, case.code)):
            found[case.code] = text
    for case in CASES:
        answer = recorded(case.name)
        for code in re.findall(r"(?m)^(?:error|warning)\[(SPY\d{3})\]:", answer):
            found.setdefault(code, diagnosis(answer, code))
    return {code: row["text"] for code, row in shown().items()} | found


def examples_toml() -> str:
    """The examples as ``spyre/codes/examples.toml`` has them, in rising order of codes."""
    rows = sorted(examples().items())
    return "".join(f"{code} = {json.dumps(text, ensure_ascii=False)}\n" for code, text in rows)


def diagnosis(answer: str, code: str) -> str:
    """The first finding with ``code`` in an answer: its line and the indented ones below it."""
    lines = answer.splitlines()
    for k, line in enumerate(lines):
        if re.match(rf"(?:error|warning)\[{code}\]:", line):
            end = k + 1
            while end < len(lines) and re.match(r" |\d+ \|", lines[end]):
                end += 1
            shown = lines[k:end]
            return "\n".join(x for x in shown if not re.fullmatch(r"  \(and \d+ more\)", x))
    return ""
