"""Attributes of bundle.mlir: typed where they mean something, canonical text where they do not.

Called by the tree builder. ``build_execute`` takes sdsc_filename and symbol_ids out of an
attribute dictionary; every other attribute is kept as text, so that printing loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from lark import Token

from spyre.mlir.program import AffineMap
from spyre.mlir.text.syntax import Attribute, ExecuteOp, Rejection

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
LONGEST_INTEGER = 64
_ESCAPE = re.compile(r'\\(["\\nt]|[0-9a-fA-F]{2})')
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_INTEGER = re.compile(r"-?[0-9]+")
_CHARACTERS = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


class RawAttribute(msgspec.Struct, frozen=True):
    """``key = value`` as parsed: a token, a list (array or dictionary), a map, text, or None."""

    key: str
    value: Any
    position: int


def integer(token: Token) -> int:
    """Value of an integer literal, decimal or hex; SPY115 outside int64."""
    text = token.rstrip()
    if len(text) <= LONGEST_INTEGER:
        value = int(text, 16) if "x" in text else int(text)
        if INT64_MIN <= value <= INT64_MAX:
            return value
    raise Rejection(
        "SPY115", "an integer does not fit in 64 bits", token.start_pos or 0,
        expected=f"{INT64_MIN} … {INT64_MAX}", found=text[:LONGEST_INTEGER],
    )  # fmt: skip


def unquote(text: str) -> str:
    """Return the value of a string literal, with MLIR's escapes decoded."""
    inner = text[1:-1]
    return _ESCAPE.sub(lambda m: _CHARACTERS.get(m[1]) or chr(int(m[1], 16)), inner)


def quote(text: str) -> str:
    """A string literal for ``text``; the inverse of :func:`unquote`."""
    return f'"{"".join(_escaped(character) for character in text)}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character >= " " and character != "\x7f" else f"\\{ord(character):02X}"


def print_key(key: str) -> str:
    """An attribute key, quoted only where it must be."""
    return key if _BARE.fullmatch(key) else quote(key)


def check_unique(keys: Iterable[tuple[str, int]]) -> None:
    """Raise SPY117 at the second of two equal keys; pairs are (key, offset)."""
    seen = set()
    for key, position in keys:
        if key in seen:
            raise Rejection("SPY117", f"'{key}' is given twice", position)
        seen.add(key)


def canonical_attributes(attributes: Iterable[RawAttribute]) -> tuple[Attribute, ...]:
    """Attributes as canonical text."""
    return tuple(
        Attribute(a.key, None if a.value is None else _text(a.value), position=a.position)
        for a in attributes
    )


def build_execute(
    position: int,
    operands: tuple[str, ...],
    attributes: Sequence[RawAttribute],
    n_types: int | None,
) -> ExecuteOp:
    """The execute statement; refuses SPY112 (no file), SPY118 (kind of value), SPY120 (types)."""
    by_key = {attribute.key: attribute for attribute in attributes}
    if "sdsc_filename" not in by_key:
        message = "sdsc_execute needs sdsc_filename="
        raise Rejection("SPY112", message, position, expected='{sdsc_filename="sdsc_0.json", …}')
    if n_types is not None and n_types != len(operands):
        message = "the types of sdsc_execute do not match its operands"
        expected = f"{len(operands)} times index"
        raise Rejection("SPY120", message, position, expected=expected, found=f"{n_types}")
    return ExecuteOp(
        operands, _filename(by_key.pop("sdsc_filename")),
        _symbol_ids(by_key.pop("symbol_ids")) if "symbol_ids" in by_key else (),
        canonical_attributes(by_key.values()), position=position,
    )  # fmt: skip


def _filename(attribute: RawAttribute) -> str:
    if not _is_token(attribute.value, "STRING"):
        raise _wrong_kind(attribute, 'a string, such as "sdsc_0.json"')
    return unquote(attribute.value)


def _symbol_ids(attribute: RawAttribute) -> tuple[int, ...]:
    if _is_token(attribute.value, "INT_LIST"):
        return _integers(attribute.value)
    items = attribute.value
    if not isinstance(items, list) or not all(_is_token(item, "INT") for item in items):
        raise _wrong_kind(attribute, "a list of integers, such as [-1, -2]")
    return tuple(integer(item) for item in items)


def _integers(token: Token) -> tuple[int, ...]:
    try:
        values = tuple(map(int, token[1:-1].split(",")))
    except ValueError:  # more digits than Python converts
        values = (INT64_MAX + 1,)
    if all(INT64_MIN <= value <= INT64_MAX for value in (min(values), max(values))):
        return values
    start = token.start_pos or 0
    return tuple(
        integer(Token("INT", match[0], start + match.start())) for match in _INTEGER.finditer(token)
    )


def _wrong_kind(attribute: RawAttribute, expected: str) -> Rejection:
    return Rejection(
        "SPY118", f"{attribute.key} has a value of the wrong kind", attribute.position,
        expected=expected, found="no value" if attribute.value is None else _text(attribute.value),
    )  # fmt: skip


def _is_token(value: Any, type_: str) -> bool:
    return isinstance(value, Token) and value.type == type_


def _text(value: Any) -> str:
    if isinstance(value, Token):
        return _token_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"{{{', '.join(map(print_attribute, canonical_attributes(value)))}}}"
    assert isinstance(value, str | AffineMap)
    return str(value)


def _token_text(token: Token) -> str:
    if token.type == "STRING":
        return quote(unquote(token))
    if token.type == "INT":
        return str(integer(token))
    if token.type == "INT_LIST":
        return f"[{', '.join(map(str, _integers(token)))}]"
    return str(token)


def print_attribute(attribute: Attribute) -> str:
    """``key = value``, or the key alone."""
    key = print_key(attribute.key)
    return key if attribute.value is None else f"{key} = {attribute.value}"
