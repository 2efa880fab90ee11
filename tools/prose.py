"""Check the prose of sources and docs: names in back-ticks exist, and puzzling words are absent.

``python -m tools.prose`` prints ``file:line: problem`` for each and exits 1 if there is one. In the
sources, prose is docstrings, comments and messages; in the docs, all text outside code blocks.
A name in single back-ticks has to occur in the code of the repository or be a path in it;
parameters, values and names of other projects are written in double back-ticks.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, TypeGuard

from tools.docs import ERROR_PAGE

ROOT = Path(__file__).parents[1]
CODE = ("spyre", "tests", "qa", "tools", "benchmarks", "examples", "torch-stubs")
PUZZLING = re.compile(
    r"\b(nobody|somebody|whoever|told|of (its|their) own|"
    r"as (it|they) (lies|lie|stands|stand|says|say))\b",
    re.IGNORECASE,
)
"""Words that are hard to understand; name the thing or the person instead."""
NAME = re.compile(r"(?<!`)`([A-Za-z_.][\w.]*)(\(\))?`(?!`)")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IDENTIFIER = re.compile(r"[A-Z][a-z]+[A-Z]\w*|_?[a-z]+(?:_[a-z0-9]+)+")
"""CamelCase and snake_case: inline code in docs that must be a name in the code."""
FOREIGN = ("maybe_mark_dynamic", "pt_active", "float_power")
"""Names of other projects in the docs; those that begin with a word of `FOREIGN_STEMS` are too."""
FOREIGN_STEMS = ("_adaptive_avg_pool", "max_pool")
Prose = Iterator[tuple[int, str]]


def problems() -> Iterator[str]:
    """Yield every problem as ``file:line: text``, in the order of files and lines."""
    for path in sorted((ROOT / "spyre").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        documents = list(_docstrings(text))
        if PUZZLING.search(text):
            for line, prose in sorted([*documents, *_comments(text), *_messages(text)]):
                yield from _puzzling(path, line, prose)
        for line, prose in documents:
            yield from (_at(path, line, name) for name in _unknown_names(prose))
    for path in sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ERROR_PAGE}):
        is_history = path.name == "CHANGELOG.md" or path.parent.name == "decisions"
        for line, prose in _paragraphs(path.read_text(encoding="utf-8")):
            yield from _puzzling(path, line, INLINE.sub("", prose))
            if not is_history:
                yield from (_at(path, line, name) for name in _unknown_in_docs(prose))


def _at(path: Path, line: int, name: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: no code has the name `{name}`"


def _puzzling(path: Path, line: int, prose: str) -> Iterator[str]:
    for match in PUZZLING.finditer(prose):
        yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: say it plainly"


# --- prose of a source ------------------------------------------------------------------------


def _docstrings(source: str) -> Prose:
    """Yield line and text of docstrings, including those of attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            yield node.lineno, node.value.value


def _is_text(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _comments(source: str) -> Prose:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _messages(source: str) -> Prose:
    """Yield line and text of other string constants: messages, help, formats."""
    tree = ast.parse(source)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) not in documents and _is_text(node) and " " in node.value:
            yield node.lineno, node.value


def _paragraphs(page: str) -> Prose:
    """Yield numbered lines of a page of docs, with code blocks blanked."""
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page)
    yield from enumerate(text.splitlines(), 1)


# --- names ------------------------------------------------------------------------------------


@cache
def _names_in_code() -> frozenset[str]:
    """Return every identifier in the repository's code, without docstrings and comments.

    They are read from compiled code, which holds neither; ten times as fast as walking the trees.
    """
    names: set[str] = set()
    for folder in CODE:
        for path in (*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.pyi")):
            module = compile(path.read_bytes(), path, "exec", dont_inherit=True, optimize=2)
            names.update(*_names_of(module))
    return frozenset(names)


def _names_of(value: object) -> Iterator[Iterable[str]]:
    """Yield identifiers of a code object and nested ones, and the words of its strings."""
    if isinstance(value, CodeType):
        yield (value.co_name, *value.co_varnames, *value.co_cellvars, *value.co_freevars)
        yield (part for name in value.co_names for part in name.split("."))  # of modules
        for constant in value.co_consts:
            yield from _names_of(constant)
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _names_of(item)
    elif isinstance(value, str):
        yield re.findall(r"\w+", value)


def _exists(name: str) -> bool:
    """True if a path exists, or every part of a dotted name is an identifier of the code."""
    if name in FOREIGN or name.startswith(FOREIGN_STEMS):
        return True
    if (ROOT / name).exists() or (ROOT / "spyre" / name).exists():
        return True
    return all(part in _names_in_code() for part in name.split(".") if part)


def _unknown_names(prose: str) -> Iterator[str]:
    return (match[1] for match in NAME.finditer(prose) if not _exists(match[1]))


def _unknown_in_docs(line: str) -> Iterator[str]:
    for match in INLINE.finditer(line):
        word = match[1].removesuffix("()")
        is_path = re.fullmatch(r"(spyre|tests|qa|tools|benchmarks|examples)/[\w./-]+", word)
        if (is_path or IDENTIFIER.fullmatch(word)) and not _exists(word):
            yield word


def main() -> int:
    """Print every problem; return 1 if there is one, else 0."""
    found = list(problems())
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
