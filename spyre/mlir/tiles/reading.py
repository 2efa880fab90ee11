"""Tokens of KTIR texts, and what operations are written with: types, attributes, subscripts.

Tokens are coarse: a type, an affine map or set, a location is one token, and equal texts of maps
and sets are parsed once, so that long texts cost time in proportion to their length. Comments
become blanks first; offsets stay those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn, TypeVar

from spyre.mlir.program import AffineDim, AffineMap, AffineSet, Constraint, Operator
from spyre.mlir.text import (
    DraftExpr,
    check_nesting,
    check_unique,
    declared,
    draft_binary,
    draft_negation,
    resolve,
    unquote,
)
from spyre.mlir.tiles.syntax import (
    Alias,
    AttributeEntry,
    AttributeValue,
    Expression,
    Name,
    Numeral,
    Opaque,
    Quoted,
    Rejection,
    Subscript,
    Type,
    named,
    read_type,
)

_FLAT = r"(?:->|[<>]=|[^<>])*+"
_ANGLED = rf"<(?:->|[<>]=|[^<>]|<(?:->|[<>]=|[^<>]|<(?:->|[<>]=|[^<>]|<{_FLAT}>)*+>)*+>)*+>"
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_ROUND = rf'(?:[^()"]|{_STRING}|\((?:[^()"]|{_STRING}|\((?:[^()"]|{_STRING}|\([^()]*\))*+\))*+\))*+'
_TOKEN = re.compile(
    rf"""[ \t\r\n]*(?:(?P<name>%[A-Za-z0-9_$.-]+(?:\#\d+)?)
    |(?P<loc>loc\({_ROUND}\))
    |(?P<angled>(?:[!#]?[A-Za-z_][A-Za-z0-9_$.]*)?{_ANGLED})
    |(?P<word>!?[A-Za-z_][A-Za-z0-9_$.]*)
    |(?P<number>0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?)?)
    |(?P<string>{_STRING})
    |(?P<alias>\#[A-Za-z0-9_$.-]+)
    |(?P<symbol>@(?:[A-Za-z_][A-Za-z0-9_$.-]*|{_STRING}))
    |(?P<label>\^[A-Za-z0-9_$.-]+)
    |(?P<mark>->|>=|<=|==|[(){{}}\[\],:=<>?*+-])
    |(?P<end>\Z)
    |(?P<bad>.))""",
    re.X,
)
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*")
_SHOWN = 40
_LONGEST_NUMBER = 64
T = TypeVar("T")


def without_comments(text: str) -> str:
    """``text`` with blanks for comments."""
    if "//" not in text:
        return text
    return _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " " * len(m[0]), text)


class Reader:
    """A text as tokens, read from front to back; every error is a `Rejection` with its offset."""

    def __init__(self, text: str, shift: int = 0) -> None:
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.places: list[int] = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or "bad"
            self.kinds.append(kind)
            self.texts.append(match[kind])
            self.places.append(match.start(kind) + shift)
            if kind == "end":
                break
        self.index = 0

    @property
    def kind(self) -> str:
        """Kind of the next token."""
        return self.kinds[self.index]

    @property
    def text(self) -> str:
        """The next token."""
        return self.texts[self.index]

    @property
    def place(self) -> int:
        """Offset of the next token."""
        return self.places[self.index]

    def fail(self, expected: str) -> NoReturn:
        """Refuse the next token: SPY101 to SPY104."""
        text, kind = self.text, self.kind
        if kind == "end":
            raise Rejection("SPY103", "the text ends too early", self.place, expected=expected)
        if text == '"':
            message = "a string is not terminated, or has an unknown escape"
            raise Rejection("SPY104", message, self.place, expected='" on the same line')
        code, what = ("SPY101", "character") if kind == "bad" else ("SPY102", "text")
        shown = text[:_SHOWN] if text.isprintable() else f"U+{ord(text[0]):04X}"
        raise Rejection(code, f"unexpected {what} '{shown}'", self.place, expected=expected)

    def at(self, *texts: str) -> bool:
        """True if the next tokens are ``texts``."""
        return all(
            self.index + k < len(self.texts) and self.texts[self.index + k] == text
            for k, text in enumerate(texts)
        )

    def accept(self, text: str) -> bool:
        """Skip the next token if it is ``text``."""
        if self.text != text:
            return False
        self.index += 1
        return True

    def expect(self, text: str) -> None:
        """Skip ``text``, which has to come."""
        if self.text != text:
            self.fail(text)
        self.index += 1

    def take(self, kind: str, expected: str) -> str:
        """The next token, which has to be of ``kind``."""
        if self.kind != kind:
            self.fail(expected)
        self.index += 1
        return self.texts[self.index - 1]

    def word(self, expected: str = "a word") -> Name:
        """A bare word with its place."""
        place = self.place
        return named(self.take("word", expected), place)

    def name(self) -> Name:
        """``%name``."""
        place = self.place
        return named(self.take("name", "%name")[1:], place)

    def location(self) -> str | None:
        """A location, if one comes."""
        if self.kind != "loc":
            return None
        self.index += 1
        return self.texts[self.index - 1]

    def listed(self, item: Callable[[], T], end: str) -> tuple[T, ...]:
        """Items with commas up to ``end``, which is skipped."""
        if self.accept(end):
            return ()
        items = self.several(item)
        self.expect(end)
        return items

    def bracketed(self, item: Callable[[], T]) -> tuple[T, ...]:
        """Items in square brackets."""
        self.expect("[")
        return self.listed(item, "]")

    def several(self, item: Callable[[], T]) -> tuple[T, ...]:
        """At least one item; more after commas."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    # --- types and attributes

    def type(self) -> Type:
        """A type; SPY186 for one that KTIR does not have."""
        place, text = self.place, self.text
        if self.kind not in ("word", "angled"):
            self.fail("a type")
        self.index += 1
        type_ = read_type(text)
        if type_.kind == "other":
            raise Rejection(
                "SPY186", f"'{text[:_SHOWN]}' is no type of KTIR", place,
                expected="a scalar, tensor<…>, memref<…>, !ktdp.access_tile<…xindex>, "
                "!ktdp.runtime_arg<…> or !ktdp.tile_future<…>",
            )  # fmt: skip
        if type_.kind == "tile_future":
            parts, groups = type_.details
            if not re.fullmatch(r"#[\w.$-]+", groups):
                affine(groups, place + text.rindex(groups[:1]))
            if any(part.kind == "other" for part in parts):
                message = "a future has parts that are no types"
                raise Rejection("SPY186", message, place, expected="tensor<…>", found=text)
        return type_

    def types(self) -> tuple[Type, ...]:
        """``type``, ``type, type`` or ``(type, …)``."""
        return self.listed(self.type, ")") if self.accept("(") else self.several(self.type)

    def number(self) -> Numeral:
        """A number with its sign, without its type."""
        sign = "-" if self.accept("-") else ""
        place = self.place
        text = sign + self.take("number", "a number")
        if len(text) > _LONGEST_NUMBER:
            message = "an integer does not fit in 64 bits"
            raise Rejection("SPY115", message, place, found=text[:_LONGEST_NUMBER])
        return Numeral(text)

    def integer(self) -> int:
        """A whole number of 64 bits."""
        place, number = self.place, self.number()
        if not isinstance(value := number.value, int):
            raise Rejection("SPY102", f"unexpected text '{number}'", place, expected="an integer")
        if not -(2**63) <= value < 2**63:
            message = "an integer does not fit in 64 bits"
            raise Rejection("SPY115", message, place, found=number.text)
        return value

    def attribute_value(self) -> AttributeValue:
        """A value of an attribute dictionary."""
        if self.kind == "number" or self.text == "-":
            number = self.number()
            return Numeral(number.text, self.type()) if self.accept(":") else number
        if self.text == "[":
            return self.bracketed(self.attribute_value)
        if self.text == "{":
            return self.dictionary()
        kind, text, place = self.kind, self.text, self.place
        if kind not in ("word", "string", "alias", "symbol", "angled"):
            self.fail("an attribute value")
        self.index += 1
        if kind == "string":
            return Quoted(unquote(text))
        if kind == "alias":
            return Alias(text[1:])
        if kind == "angled" and text.startswith(("affine_map", "affine_set")):
            return affine(text, place)
        type_ = read_type(text)
        return Opaque(" ".join(text.split())) if type_.kind == "other" else type_

    def dictionary(self) -> tuple[AttributeEntry, ...]:
        """``{key = value, …}``; SPY117 for a key that is given twice."""
        self.expect("{")
        entries = self.listed(self._entry, "}")
        check_unique((entry.key, entry.position) for entry in entries)
        return entries

    def _entry(self) -> AttributeEntry:
        place = self.place
        if self.kind not in ("word", "string"):
            self.fail("an attribute")
        key = unquote(self.text) if self.kind == "string" else self.text
        self.index += 1
        value = self.attribute_value() if self.accept("=") else None
        return AttributeEntry(key, value, position=place)

    # --- expressions

    def expression(self) -> Expression:
        """An affine expression over values."""
        draft = self.draft()
        names: dict[str, Name] = {}
        _collect(draft, names)
        dims = {f"%{name}": AffineDim(k) for k, name in enumerate(names)}
        return Expression(resolve(draft, dims), tuple(names.values()))

    def name_or_integer(self) -> Name | int:
        """A value, or an integer that is written."""
        return self.name() if self.kind == "name" else self.integer()

    def subscript(self) -> Subscript:
        """``ind(%view[…])`` or an expression."""
        if not self.accept("ind"):
            return Subscript(None, (self.expression(),))
        self.expect("(")
        found = Subscript(self.name(), self.bracketed(self.expression))
        self.expect(")")
        return found

    def draft(self) -> DraftExpr:
        """A sum of terms."""
        left = self._term()
        while self.text in ("+", "-"):
            operator, place = Operator(self.text), self.place
            self.index += 1
            left = draft_binary(operator, place, left, self._term())
        return left

    def _term(self) -> DraftExpr:
        left = self._factor()
        while self.text in ("*", "floordiv", "ceildiv", "mod"):
            operator, place = Operator(self.text), self.place
            self.index += 1
            left = draft_binary(operator, place, left, self._factor())
        return left

    def _factor(self) -> DraftExpr:
        signs = 0  # counted, because a call for each would be too deep
        while self.accept("-"):
            signs += 1
        found = self._operand()
        for _ in range(signs):
            found = draft_negation(found)
        return found

    def _operand(self) -> DraftExpr:
        kind, text, place = self.kind, self.text, self.place
        if self.accept("("):
            inside = self.draft()
            self.expect(")")
            return inside
        if kind == "number":
            return DraftExpr(place, self.integer())
        if kind not in ("name", "word"):
            self.fail("an affine expression")
        self.index += 1
        return DraftExpr(place, text)

    def identifiers(self, opening: str, closing: str) -> tuple[Name, ...]:
        """Names of dims or symbols in brackets."""
        self.expect(opening)
        return self.listed(self.word, closing)


def _collect(draft: DraftExpr, names: dict[str, Name]) -> None:
    """Add the values that ``draft`` names, in order."""
    if isinstance(draft.content, tuple):
        _, left, right = draft.content
        _collect(left, names)
        _collect(right, names)
    elif isinstance(draft.content, str) and draft.content.startswith("%"):
        names.setdefault(draft.content[1:], named(draft.content[1:], draft.position))


def affine(text: str, place: int) -> AffineMap | AffineSet:
    """The map or set that begins at ``place``; equal texts are parsed once."""
    try:
        return _affine(text)
    except Rejection as rejection:
        fault = rejection.fault
        raise Rejection(
            fault.code, fault.message, fault.place + place,
            expected=fault.expected, found=fault.found,
        ) from None  # fmt: skip


@lru_cache(maxsize=4096)
def _affine(text: str) -> AffineMap | AffineSet:
    if not text.startswith(("affine_map<", "affine_set<")) or text[-1] != ">":
        raise Rejection("SPY102", "unexpected text", 0, expected="affine_map<…> or affine_set<…>")
    start = text.index("<") + 1
    reader = Reader(text[start:-1], start)
    dims = reader.identifiers("(", ")")
    symbols = reader.identifiers("[", "]") if reader.text == "[" else ()
    names = declared(dims, symbols)
    if text.startswith("affine_map"):
        reader.expect("->")
        reader.expect("(")
        results = reader.listed(reader.draft, ")")
        found: AffineMap | AffineSet = AffineMap(
            len(dims), len(symbols), tuple(resolve(result, names) for result in results)
        )
    else:
        reader.expect(":")
        reader.expect("(")
        drafts = reader.listed(lambda: _constraint(reader), ")")
        constraints = tuple(Constraint(resolve(draft, names), equal) for draft, equal in drafts)
        found = AffineSet(len(dims), len(symbols), constraints)
    if reader.kind != "end":
        reader.fail(">")
    return found


def _constraint(reader: Reader) -> tuple[DraftExpr, bool]:
    """``left >= right``, ``left <= right`` or ``left == right``, as a difference."""
    left, sign, place = reader.draft(), reader.text, reader.place
    if sign not in (">=", "<=", "=="):
        reader.fail(">=, <= or ==")
    reader.index += 1
    right = reader.draft()
    if sign == "<=":
        left, right = right, left
    if right.content == 0:
        return left, sign == "=="
    return draft_binary(Operator.SUB, place, left, right), sign == "=="


def reader_of(text: str) -> Reader:
    """Tokens of a whole text; SPY116 for brackets nested too deep."""
    check_nesting(text)
    return Reader(without_comments(text))
