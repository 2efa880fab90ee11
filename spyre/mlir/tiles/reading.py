"""Tokens of KTIR texts, and the parts of operations: types, attributes, subscripts.

Tokens are coarse: a type, an affine map or set, a location is one token, and equal texts of maps
and sets are parsed once, so that long texts cost time in proportion to their length. Comments
become blanks first; offsets stay those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NoReturn, TypeVar

from spyre.mlir.program import AffineDim, AffineMap, AffineSet, Constraint, Operator
from spyre.mlir.text import (
    DraftExpr,
    Rejection,
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
    |(?P<symbol>@(?:[A-Za-z_][A-Za-z0-9_$.-]*|{_STRING})(?:::@[A-Za-z_][A-Za-z0-9_$.-]*)*)
    |(?P<label>\^[A-Za-z0-9_$.-]+)
    |(?P<mark>->|>=|<=|==|[(){{}}\[\],:=<>?*+-])
    |(?P<end>\Z)
    |(?P<bad>.))""",
    re.X,
)
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*")
_SHOWN = 40
_LONGEST_NUMBER = 64
_SUMS = ("+", "-")
_PRODUCTS = ("*", "floordiv", "ceildiv", "mod")
T = TypeVar("T")


class Reader:
    """A text as tokens, read from front to back; every error is a `Rejection` with its offset.

    ``kind``, ``text``, ``place``: of the next token.
    """

    def __init__(self, text: str, shift: int = 0) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or "bad"
            self._tokens.append((kind, match[kind], match.start(kind) + shift))
            if kind == "end":
                break
        self._index = 0
        self.kind, self.text, self.place = self._tokens[0]

    def next(self) -> str:
        """Skip the next token, and return it."""
        text = self.text
        self._index += 1
        self.kind, self.text, self.place = self._tokens[self._index]
        return text

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
        tokens = self._tokens[self._index : self._index + len(texts)]
        return [text for _, text, _ in tokens] == [*texts]

    def accept(self, text: str) -> bool:
        """Skip the next token if it is ``text``."""
        found = self.text == text
        if found:
            self.next()
        return found

    def expect(self, text: str) -> None:
        """Skip ``text``, which has to come."""
        if self.text != text:
            self.fail(text)
        self.next()

    def take(self, kind: str, expected: str) -> str:
        """The next token, which has to be of ``kind``."""
        if self.kind != kind:
            self.fail(expected)
        return self.next()

    def word(self) -> Name:
        """A bare word with its place."""
        place = self.place
        return named(self.take("word", "a word"), place)

    def name(self) -> Name:
        """``%name``."""
        place = self.place
        return named(self.take("name", "%name")[1:], place)

    def location(self) -> str | None:
        """A location, if one comes."""
        return self.next() if self.kind == "loc" else None

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

    def any_type(self) -> Type:
        """A type, of KTIR or not."""
        if self.kind not in ("word", "angled"):
            self.fail("a type")
        return read_type(self.next())

    def type(self) -> Type:
        """A type; SPY186 for one that KTIR does not have."""
        place, text = self.place, self.text
        type_ = self.any_type()
        if type_.kind == "other":
            expected = (
                "a scalar, tensor<…>, memref<…>, !ktdp.access_tile<…xindex>, "
                "!ktdp.runtime_arg<…> or !ktdp.tile_future<…>"
            )
            message = f"'{text[:_SHOWN]}' is no type of KTIR"
            raise Rejection("SPY186", message, place, expected=expected)
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
        kind, text, place = self.kind, self.text, self.place
        if kind == "number" or text == "-":
            number = self.number()
            return Numeral(number.text, self.any_type()) if self.accept(":") else number
        if text == "[":
            return self.bracketed(self.attribute_value)
        if text == "{":
            return self.dictionary()
        if kind not in ("word", "string", "alias", "symbol", "angled"):
            self.fail("an attribute value")
        self.next()
        if kind == "string":
            return Quoted(unquote(text))
        if kind == "alias":
            return Alias(text[1:])
        if kind == "angled" and text.startswith(("affine_map", "affine_set")):
            return affine(text, place)
        if (type_ := read_type(text)).kind != "other":
            return type_
        written = f" : {self.any_type()}" if self.accept(":") else ""
        return Opaque(" ".join(text.split()) + written)

    def dictionary(self) -> tuple[AttributeEntry, ...]:
        """``{key = value, …}``; SPY117 for a key that is given twice."""

        def entry() -> AttributeEntry:
            place = self.place
            if self.kind not in ("word", "string"):
                self.fail("an attribute")
            key = unquote(self.text) if self.kind == "string" else self.text
            self.next()
            value = self.attribute_value() if self.accept("=") else None
            return AttributeEntry(key, value, position=place)

        self.expect("{")
        entries = self.listed(entry, "}")
        check_unique((entry.key, entry.position) for entry in entries)
        return entries

    def expression(self) -> Expression:
        """An affine expression over values."""
        first = self._index
        draft = self.draft()
        names: dict[str, Name] = {}
        for kind, text, place in self._tokens[first : self._index]:
            if kind == "name":
                names.setdefault(text, named(text[1:], place))
        dims = {name: AffineDim(k) for k, name in enumerate(names)}
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

    def draft(self, operators: Sequence[str] = _SUMS) -> DraftExpr:
        """A sum of terms, or a term: a product of factors."""

        def operand() -> DraftExpr:
            return self.draft(_PRODUCTS) if operators is _SUMS else self._factor()

        left = operand()
        while self.text in operators:
            place = self.place
            left = draft_binary(Operator(self.next()), place, left, operand())
        return left

    def _factor(self) -> DraftExpr:
        signs = 0  # counted, because a call for each would be too deep
        while self.accept("-"):
            signs += 1
        kind, place = self.kind, self.place
        if self.accept("("):
            found = self.draft()
            self.expect(")")
        elif kind == "number":
            found = DraftExpr(place, self.integer())
        elif kind in ("name", "word"):
            found = DraftExpr(place, self.next())
        else:
            self.fail("an affine expression")
        for _ in range(signs):
            found = draft_negation(found)
        return found

    def constraint(self) -> tuple[DraftExpr, bool]:
        """``left >= right``, ``left <= right`` or ``left == right``, as a difference."""
        left, sign, place = self.draft(), self.text, self.place
        if sign not in (">=", "<=", "=="):
            self.fail(">=, <= or ==")
        self.next()
        right = self.draft()
        if sign == "<=":
            left, right = right, left
        if right.content == 0:
            return left, sign == "=="
        return draft_binary(Operator.SUB, place, left, right), sign == "=="


def affine(text: str, place: int) -> AffineMap | AffineSet:
    """The map or set that begins at ``place``; equal texts are parsed once."""
    try:
        return _affine(text)
    except Rejection as rejection:
        fault = rejection.fault
        details = {"expected": fault.expected, "found": fault.found}
        raise Rejection(fault.code, fault.message, fault.place + place, **details) from None


@lru_cache(maxsize=4096)
def _affine(text: str) -> AffineMap | AffineSet:
    if not text.startswith(("affine_map<", "affine_set<")) or text[-1] != ">":
        raise Rejection("SPY102", "unexpected text", 0, expected="affine_map<…> or affine_set<…>")
    start = text.index("<") + 1
    reader = Reader(text[start:-1], start)
    reader.expect("(")
    dims = reader.listed(reader.word, ")")
    symbols = reader.bracketed(reader.word) if reader.text == "[" else ()
    names, counts = declared(dims, symbols), (len(dims), len(symbols))
    is_map = text.startswith("affine_map")
    reader.expect("->" if is_map else ":")
    reader.expect("(")
    if is_map:
        results = reader.listed(reader.draft, ")")
        found: AffineMap | AffineSet = AffineMap(
            *counts, tuple(resolve(result, names) for result in results)
        )
    else:
        drafts = reader.listed(reader.constraint, ")")
        constraints = tuple(Constraint(resolve(draft, names), equal) for draft, equal in drafts)
        found = AffineSet(*counts, constraints)
    if reader.kind != "end":
        reader.fail(">")
    return found


def reader_of(text: str) -> Reader:
    """Tokens of a whole text, blanks for comments; SPY116 for brackets nested too deep."""
    check_nesting(text)
    if "//" in text:
        text = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " " * len(m[0]), text)
    return Reader(text)
