"""Text of bundle.mlir → :class:`~spyre.mlir.syntax.Module`, or an error with file:line:column.

The grammar is bundle.lark (LALR, contextual lexer); ``tree_builder`` makes the nodes while Lark
reduces, ``diagnosis`` puts what Lark reports into words. Grammar: bundle format reference §2.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import cast

from lark import Lark
from lark.exceptions import UnexpectedInput

from spyre.errors import MlirSyntaxError
from spyre.mlir.diagnosis import diagnose
from spyre.mlir.rejection import Rejection
from spyre.mlir.syntax import Module, Source
from spyre.mlir.tree_builder import TreeBuilder

MAX_NESTING = 100
_BRACKETS = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\[^\n])*"|[(\[{]|[)\]}]')


def parse_module(text: str, file: str = "bundle.mlir") -> Module:
    """Parse ``text``; ``file`` is the name diagnostics show.

    Raises MlirSyntaxError (SPY101-SPY128) at the first place that does not follow the grammar.
    Names are not resolved here: see ``module_rules.check_module``.
    """
    source = Source.of(file, text)
    try:
        _check_nesting(text)
        module = _parse(text)
    except Rejection as rejection:
        raise MlirSyntaxError(
            rejection.code,
            rejection.message,
            source.locate(rejection.position),
            expected=rejection.expected,
            found=rejection.found,
            hint=rejection.hint,
        ) from None
    return replace(module, source=source)


def _parse(text: str) -> Module:
    try:
        return cast(Module, _grammar().parse(text))
    except UnexpectedInput as error:
        raise diagnose(text, error) from None


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    """The LALR tables, built at the first use (about 80 ms). Lark's own disk cache is not used:
    it unpickles a file with a predictable name from the shared temporary directory.
    """
    grammar = files(__package__).joinpath("bundle.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", start="file", transformer=TreeBuilder())


def _check_nesting(text: str) -> None:
    """Refuse brackets nested deeper than MAX_NESTING: later stages recurse once per level."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "([{":
            depth += 1
        elif bracket in ")]}":
            depth -= 1
        if depth > MAX_NESTING:
            raise Rejection(
                "SPY116",
                "brackets are nested too deep",
                match.start(),
                expected=f"at most {MAX_NESTING} levels",
            )
