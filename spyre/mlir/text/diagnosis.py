"""Syntax errors of bundle.mlir: messages for the errors that Lark reports.

The stages of the parser know offsets only; ``parse_module`` knows file and text and turns a
`Rejection` into an :class:`~spyre.errors.MlirSyntaxError`. Lark reports the offset at which the
text leaves the grammar, and the terminals it expected; the rules below, tried in order, recognise
common mistakes, and the last one lists the expected terminals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from spyre.mlir.text.syntax import Rejection

OPERATIONS = (
    "arith.constant", "arith.addi", "affine.apply", "scf.for", "sdscbundle.input_arg_extract",
    "sdscbundle.device_mem_allocate", "sdscbundle.sdsc_execute", "return",
)  # fmt: skip
SPELLED = {
    "RESULT": "%name =", "SSA": "%name", "SSA_LIST": "%name", "OF_INDEX": ": index",
    "INDEX": "index", "INT": "an integer", "FLOAT": "a number", "INT_LIST": "[",
    "STRING": "a string", "WORD": "a name", "SYMBOL": "@name", "ALIAS": "#name", "ARROW": "->",
    "MODULE": "module", "FUNC": "func.func", "VISIBILITY": "private or public", "RETURN": "return",
    "CONSTANT": "arith.constant", "ADDI": "arith.addi", "_APPLY": "affine.apply",
    "_EXTRACT": "sdscbundle.input_arg_extract", "_ALLOCATE": "sdscbundle.device_mem_allocate",
    "EXECUTE": "sdscbundle.sdsc_execute", "FOR": "scf.for", "AFFINE_MAP": "affine_map",
    "INPUT_ARG": "!sdscbundle.input_arg", "ATTRIBUTES": "attributes", "_FROM": "from", "_TO": "to",
    "_STEP": "step", "_BYTES": "bytes", "SUM_OPERATOR": "+ or -",
    "TERM_OPERATOR": "*, floordiv, ceildiv or mod", "LBRACE": "{", "RBRACE": "}", "LPAR": "(",
    "RPAR": ")", "LSQB": "[", "RSQB": "]", "LESSTHAN": "<", "MORETHAN": ">", "COMMA": ",",
    "COLON": ":", "EQUAL": "=", "MINUS": "-", "_LOC": "", "$END": "the end of the file",
}  # fmt: skip
STATEMENT_STARTS = {"CONSTANT", "ADDI", "RESULT", "FOR", "EXECUTE", "RETURN"}
RESULT_OPERATIONS = {"_APPLY", "_EXTRACT", "_ALLOCATE"}
_WORD = re.compile(r"[A-Za-z_!][A-Za-z0-9_$.]*(?:<[^\n>]*>)?")
_NUMBER = re.compile(r"-?[0-9][0-9a-zA-Z.]*")
_NAME = re.compile(r"[%@#][A-Za-z0-9_$.-]*")
_QUOTED_OPERATION = re.compile(r'"([a-z_]+\.[a-z_.]+)"')
_SHOWN = 40


class ParseFailure(msgspec.Struct, frozen=True):
    """Position where parsing stopped: offset, the terminals that would fit, and the text."""

    text: str
    position: int
    expected: frozenset[str]
    is_token: bool

    @property
    def at_end(self) -> bool:
        """True if the file ended."""
        return self.position >= len(self.text)

    @property
    def found(self) -> str:
        """The word, name, number or character at the place."""
        for pattern in (_WORD, _NUMBER, _NAME):
            if match := pattern.match(self.text, self.position):
                return match[0][:_SHOWN]
        if self.at_end:
            return "the end of the file"
        character = self.text[self.position]
        return character if character.isprintable() else f"U+{ord(character):04X}"

    @property
    def starts_statement(self) -> bool:
        """True where a statement may begin."""
        return self.expected >= STATEMENT_STARTS

    @property
    def follows_result(self) -> bool:
        """True right after ``%name =``."""
        return self.expected >= RESULT_OPERATIONS


def diagnose(text: str, error: UnexpectedInput) -> Rejection:
    """The first rule that recognises the failure speaks."""
    failure = _failure(text, error)
    for rule in DIAGNOSES:
        rejection = rule(failure)
        if rejection is not None:
            return rejection
    return _unexpected(failure)


def _failure(text: str, error: UnexpectedInput) -> ParseFailure:
    if isinstance(error, UnexpectedToken):
        at_end = error.token.type == "$END"
        position = len(text) if at_end else error.token.start_pos or 0
        return ParseFailure(text, position, frozenset(error.expected), is_token=True)
    assert isinstance(error, UnexpectedCharacters)
    return ParseFailure(
        text, error.pos_in_stream or 0, frozenset(error.allowed or ()), is_token=False
    )


def _unterminated_string(failure: ParseFailure) -> Rejection | None:
    if failure.is_token or failure.text[failure.position : failure.position + 1] != '"':
        return None
    return Rejection(
        "SPY104", "a string is not terminated, or has an unknown escape", failure.position,
        expected='" on the same line; escapes are \\" \\\\ \\n \\t and two hex digits',
    )  # fmt: skip


def _elision(failure: ParseFailure) -> Rejection | None:
    if not failure.text.startswith("...", failure.position):
        return None
    return Rejection(
        "SPY102", "'...' replaces omitted text", failure.position,
        expected="the whole text, as in the file the compiler wrote",
    )  # fmt: skip


def _generic_form(failure: ParseFailure) -> Rejection | None:
    where = failure.starts_statement or failure.follows_result or "MODULE" in failure.expected
    match = _QUOTED_OPERATION.match(failure.text, failure.position)
    if match is None or not where:
        return None
    return Rejection(
        "SPY111", f"{match[1]} is written in MLIR's generic form", failure.position,
        expected=f"the pretty form: {match[1].removeprefix('builtin.')} …",
        hint="print the file without --mlir-print-op-generic",
    )  # fmt: skip


def _loop_carried(failure: ParseFailure) -> Rejection | None:
    is_result = failure.follows_result and failure.found == "scf.for"
    if failure.found not in ("iter_args", "scf.yield") and not is_result:
        return None
    return Rejection(
        "SPY113", "loop-carried values are not supported", failure.position,
        expected="scf.for %i = %lower to %upper step %step { … } without results",
        found=failure.found,
    )  # fmt: skip


def _unknown_operation(failure: ParseFailure) -> Rejection | None:
    if not (failure.starts_statement or failure.follows_result):
        return None
    if failure.found in OPERATIONS or not _WORD.match(failure.text, failure.position):
        return None
    return Rejection(
        "SPY110", f"unknown operation '{failure.found}'", failure.position,
        expected=f"one of {', '.join(OPERATIONS)}",
    )  # fmt: skip


def _other_type(failure: ParseFailure) -> Rejection | None:
    colon = failure.text[failure.position : failure.position + 1] == ":"
    if colon and "OF_INDEX" in failure.expected:
        start = _skip_blanks(failure.text, failure.position + 1)
    elif failure.expected & {"INDEX", "INPUT_ARG"}:
        start = failure.position
    else:
        return None
    match = _WORD.match(failure.text, start)
    if match is None or match[0] == "index":
        return None
    return Rejection(
        "SPY114", f"type '{match[0][:_SHOWN]}' is not supported", start, expected="index"
        if "INPUT_ARG" not in failure.expected else "index or !sdscbundle.input_arg<index>",
    )  # fmt: skip


def _early_end(failure: ParseFailure) -> Rejection | None:
    if not failure.at_end:
        return None
    missing = _spell(failure.expected)
    if "RBRACE" in failure.expected:
        missing = "}"
    return Rejection("SPY103", "the file ends too early", failure.position, expected=missing)


def _unexpected(failure: ParseFailure) -> Rejection:
    code = "SPY102" if failure.is_token else "SPY101"
    what = "text" if failure.is_token else "character"
    return Rejection(
        code, f"unexpected {what} '{failure.found}'", failure.position,
        expected=_spell(failure.expected),
    )  # fmt: skip


DIAGNOSES: tuple[Callable[[ParseFailure], Rejection | None], ...] = (
    _early_end, _elision, _generic_form, _unterminated_string, _loop_carried, _unknown_operation,
    _other_type,
)  # fmt: skip


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _spell(terminals: Iterable[str]) -> str:
    words = sorted({SPELLED.get(name, name) for name in terminals} - {""})
    return " or ".join(words) if len(words) < 3 else f"one of {'  '.join(words)}"
