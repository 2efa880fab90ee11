"""What becomes of each diagnostic code, read off the sources: warning, or error with exit code.

A code appears as an argument of the call that makes a finding, a rule or an error. It is a
warning if every such call makes one; its exit code is that of the error class raised with it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spyre import errors

SANITIZER_CALLS = ("SanitizerFinding", "finding", "_Kind")
"""What makes findings of the sanitizer, whose errors end in exit code 1."""
_CODE = re.compile(r"SPY\d{3}")


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
