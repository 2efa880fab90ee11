"""Forms: how operations are written, as strings that both the reader and the printer follow.

A form is a sequence of elements with blanks between. An element begins with the sign of its
kind (below), and its name is the field of the operation that it fills; anything else is literal
text. ``?( … )?`` is a part that may be missing; it begins with literal text, by which it is found.
An attribute dictionary may stand before the first ``:``, ``->`` or ``ins(`` of any form.

    %a      a value                      %a*     values with commas
    !a      a type                       !a*     types with commas, perhaps in round brackets
    $a      a bare word                  @a      an attribute value
    #a      the value of a constant      [a      integers or values in square brackets
    &a      expressions in brackets      &&a     subscripts of an indirect access
    ^a      new names in brackets        ^iv     the induction variable of a loop
    ^=a     (%new = %value, …)           {}      an attribute dictionary
    {a      a region                     (a      a region with its arguments in a list before it
    ~       flags of arithmetic, such as fastmath<…>"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import Any

from spyre.mlir.text import print_key, quote
from spyre.mlir.tiles.reading import Reader
from spyre.mlir.tiles.syntax import (
    AttributeEntry,
    AttributeValue,
    Name,
    Opaque,
    Quoted,
    Region,
    Subscript,
    TileFunction,
    TileModule,
    TileOp,
    Type,
)
from spyre.mlir.tiles.table import EXAMPLE_DIALECT, operation_rows

_SIGNED = re.compile(r"(\{)\}|(~)|(\^=|&&|[%!$@#\[{&^(])(\w+)(\*?)")
_LITERAL_TOKENS = re.compile(r"->|\w+|.")
_BEFORE_ATTRIBUTES = (":", "->", "ins(")
INDENT = "  "
GENERIC_FORM = "( %values* ) : ( ?( !values* )? ) -> !result*"


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its sign ('' for literal text, ``?`` for a part), name, and literal tokens."""

    sign: str
    name: str = ""
    is_list: bool = False
    tokens: tuple[str, ...] = ()
    parts: tuple[Element, ...] = ()

    @property
    def key(self) -> str:
        """The field it fills."""
        return f"{self.sign}{self.name}" if self.sign in ("!", "^") else self.name

    @property
    def is_literal(self) -> bool:
        """True for literal text."""
        return self.sign == ""


@lru_cache(maxsize=512)
def elements_of(form: str) -> tuple[Element, ...]:
    """The elements of ``form``."""
    words = iter(form.split())

    def sequence() -> tuple[Element, ...]:
        found = []
        for word in words:
            if word == ")?":
                break
            if word == "?(":
                found.append(Element("?", parts=sequence()))
            elif match := _SIGNED.fullmatch(word):
                sign = match[1] or match[2] or match[3]
                found.append(Element(sign, match[4] or "", match[5] == "*"))
            else:
                found.append(Element("", word, tokens=tuple(_LITERAL_TOKENS.findall(word))))
        return tuple(found)

    return sequence()


# --- reading ----------------------------------------------------------------------------------

Body = Callable[[], tuple[TileOp, ...]]


@dataclass(slots=True)
class Draft:
    """An operation while it is read. ``pending``: arguments of its next region."""

    body: Body
    fields: dict[str, Any] = field(default_factory=dict)
    attributes: tuple[AttributeEntry, ...] = ()
    regions: list[Region] = field(default_factory=list)
    pending: list[tuple[Name, Type | None]] = field(default_factory=list)


def read_form(reader: Reader, elements: tuple[Element, ...], draft: Draft) -> None:
    """Fill ``draft`` with the parts that ``elements`` describe."""
    for element in elements:
        if element.is_literal:
            if element.name in _BEFORE_ATTRIBUTES and reader.text == "{" and not draft.attributes:
                draft.attributes = reader.dictionary()
            for token in element.tokens:
                reader.expect(token)
        elif element.sign == "?":
            if _begins(reader, element.parts):
                read_form(reader, element.parts, draft)
        else:
            _READ[element.sign](reader, element, draft)


def _begins(reader: Reader, parts: tuple[Element, ...]) -> bool:
    """True if the text goes on with an optional part: with its leading literals, or their like."""
    literals = takewhile(lambda part: part.is_literal, parts)
    if tokens := [token for part in literals for token in part.tokens]:
        return reader.at(*tokens)
    kinds = {"%": ("name",), "!": ("word", "angled")}
    sign = parts[0].sign
    return reader.kind in kinds[sign] if sign in kinds else reader.text == sign


def _constant(reader: Reader, element: Element) -> AttributeValue:
    """``number``, ``dense<…>``, ``true``; the older ``{number : type}`` too."""
    in_braces = reader.accept("{")
    if reader.kind == "number" or reader.text == "-":
        value: AttributeValue = reader.number()
    elif reader.text in ("true", "false") or reader.text.startswith("dense<"):
        value = Opaque(" ".join(reader.text.split()))
        reader.index += 1
    else:
        reader.fail("a number, true, false or dense<…>")
    if in_braces:
        if reader.accept(":"):
            reader.type()
        reader.expect("}")
    return value


def _values(reader: Reader, element: Element) -> Any:
    if not element.is_list:
        return reader.name()
    return reader.several(reader.name) if reader.kind == "name" else ()


def _read_new_names(reader: Reader, element: Element, draft: Draft) -> None:
    if element.name == "iv":
        draft.pending.append((reader.name(), None))
        return
    reader.expect("(")
    draft.fields[element.key] = reader.listed(reader.name, ")")


def _read_carried(reader: Reader, element: Element, draft: Draft) -> None:
    def pair() -> Name:
        draft.pending.append((reader.name(), None))
        reader.expect("=")
        return reader.name()

    reader.expect("(")
    draft.fields[element.name] = reader.listed(pair, ")")


def _read_dictionary(reader: Reader, element: Element, draft: Draft) -> None:
    """The attribute dictionary, or a region: ``{name``."""
    if not element.name:
        draft.attributes = reader.dictionary() if reader.text == "{" else ()
        return
    reader.expect("{")
    arguments, style = tuple(draft.pending), "operation"
    if reader.kind == "label":
        reader.index += 1
        style, arguments = "label", _typed_names(reader) if reader.text == "(" else ()
        reader.expect(":")
    draft.regions.append(Region(arguments, draft.body(), style))


def _read_listed_region(reader: Reader, element: Element, draft: Draft) -> None:
    arguments = _typed_names(reader)
    reader.expect("{")
    draft.regions.append(Region(arguments, draft.body(), "list"))


def _typed_names(reader: Reader) -> tuple[tuple[Name, Type | None], ...]:
    def pair() -> tuple[Name, Type | None]:
        name = reader.name()
        reader.expect(":")
        type_ = reader.type()
        reader.location()
        return name, type_

    reader.expect("(")
    return reader.listed(pair, ")")


def _read_flags(reader: Reader, element: Element, draft: Draft) -> None:
    while reader.kind == "angled" and reader.text.startswith(("fastmath<", "overflow<")):
        flags = draft.fields.get("flags", Opaque(""))
        draft.fields["flags"] = Opaque(f"{flags.text} {reader.text}".strip())
        reader.index += 1


def _field(read: Callable[[Reader, Element], Any]) -> Callable[[Reader, Element, Draft], None]:
    def into(reader: Reader, element: Element, draft: Draft) -> None:
        draft.fields[element.key] = read(reader, element)

    return into


_READ: dict[str, Callable[[Reader, Element, Draft], None]] = {
    "%": _field(_values),
    "!": _field(lambda reader, element: reader.types() if element.is_list else reader.type()),
    "#": _field(_constant),
    "[": _field(lambda reader, element: reader.bracketed(reader.name_or_integer)),
    "$": _field(lambda reader, element: Opaque(reader.word())),
    "@": _field(lambda reader, element: reader.attribute_value()),
    "&": _field(lambda reader, element: reader.bracketed(reader.expression)),
    "&&": _field(lambda reader, element: reader.bracketed(reader.subscript)),
    "^": _read_new_names,
    "^=": _read_carried,
    "{": _read_dictionary,
    "(": _read_listed_region,
    "~": _read_flags,
}


# --- printing ---------------------------------------------------------------------------------

PrintBody = Callable[[tuple[TileOp, ...], str], list[str]]


def print_form(op: TileOp, elements: tuple[Element, ...], indent: str, body: PrintBody) -> str:
    """The text of ``op`` behind its name; ``body`` prints the lines of a region."""
    regions = iter(op.regions)
    words: list[str] = []
    missing = () if any(e.sign == "{" and not e.name for e in elements) else op.attributes

    def write(element: Element) -> None:
        nonlocal missing
        if element.is_literal:
            if missing and element.name in _BEFORE_ATTRIBUTES:
                words.append(print_entries(missing))
                missing = ()
            words.append(element.name)
        elif element.sign == "?":
            if any(_is_filled(op, part) for part in element.parts):
                for part in element.parts:
                    write(part)
        elif element.sign in ("{", "(") and element.name:
            words.append(_print_region(element, next(regions), indent, body))
        elif text := _print_field(op, element):
            bare = words[-1:] != ["->"] or not element.is_list or len(op.fields[element.key]) == 1
            words.append(text if bare else f"({text})")

    for element in elements:
        write(element)
    return _spaced([*words, print_entries(missing)] if missing else words)


def _is_filled(op: TileOp, part: Element) -> bool:
    """True if the operation has the field of ``part``: then its optional part is written."""
    if part.sign == "{" and part.name:
        return len(op.regions) > (part.name == "else")
    if part.sign == "(":
        return bool(op.regions)
    return not part.is_literal and part.key in op.fields


def _print_field(op: TileOp, element: Element) -> str:
    value = op.fields.get("flags" if element.sign == "~" else element.key)
    if element.sign == "{":
        return print_entries(op.attributes) if op.attributes else ""
    if element.sign == "^" and element.name == "iv":
        return f"%{op.regions[0].arguments[0][0]}"
    if element.sign == "^=":
        carried = zip(op.regions[0].arguments[1:], value or (), strict=True)
        return f"({', '.join(f'%{new} = %{old}' for (new, _), old in carried)})"
    if value is None:
        return ""
    if element.sign == "!" and element.is_list:
        return ", ".join(map(str, value))
    if element.sign in ("%", "^"):
        names = value if isinstance(value, tuple) else (value,)
        texts = ", ".join(f"%{name}" for name in names)
        return f"({texts})" if element.sign == "^" else texts
    if element.sign in ("[", "&", "&&"):
        mark = "\0" if element.sign != "[" or element.name == "indices" else ""
        return f"{mark}[{', '.join(map(_print_item, value))}]"
    return print_value(value)


def _print_item(item: Any) -> str:
    if isinstance(item, Name):
        return f"%{item}"
    if isinstance(item, Subscript):
        inside = ", ".join(map(str, item.expressions))
        return f"({inside})" if item.view is None else f"ind(%{item.view}[{inside}])"
    return str(item)


def _print_region(element: Element, region: Region, indent: str, body: PrintBody) -> str:
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in region.arguments)
    head = f"({arguments}) {{" if element.sign == "(" else "{"
    lines = [head]
    if region.style == "label":
        lines.append(f"{indent}^bb0({arguments}):")
    return "\n".join([*lines, *body(region.body, indent + INDENT), f"{indent}}}"])


def print_value(value: AttributeValue) -> str:
    """An attribute's value."""
    if isinstance(value, Quoted):
        return quote(value.text)
    if isinstance(value, tuple):
        if value and isinstance(value[0], AttributeEntry):
            return print_entries(value)
        return f"[{', '.join(map(print_value, value))}]"
    return str(value)


def print_entries(entries: tuple[AttributeEntry, ...]) -> str:
    """``{key = value, …}``."""
    pairs = (
        print_key(e.key) + ("" if e.value is None else f" = {print_value(e.value)}")
        for e in entries
    )
    return f"{{{', '.join(pairs)}}}"


def _spaced(words: list[str]) -> str:
    """Words with blanks between; none after ( and before commas, ) and indices (marked by NUL)."""
    text = ""
    for word in words:
        glued = not text or text.endswith("(") or word[0] in ",)\0"
        text += word.removeprefix("\0") if glued else f" {word}"
    return text


# --- printing of texts ----------------------------------------------------------------------------


def print_tiles(module: TileModule) -> str:
    """The whole text, ending in a newline."""
    lines = [f"#{alias.name} = {alias.value}" for alias in module.aliases]
    if module.wrapped:
        name = f" @{module.name}" if module.name else ""
        attributes = f" attributes {print_entries(module.attributes)}" if module.attributes else ""
        lines.append(f"module{name}{attributes} {{")
    for function in module.functions:
        lines.extend(_function(function, INDENT if module.wrapped else ""))
    if module.wrapped:
        lines.append(_located("}", module.location))
    return "\n".join(lines) + "\n"


def _function(function: TileFunction, indent: str) -> list[str]:
    visibility = f"{function.visibility} " if function.visibility else ""
    parameters = ", ".join(
        _located(f"%{p.name}: {p.type}", p.location) for p in function.parameters
    )
    results = f" -> ({', '.join(map(str, function.results))})" if function.results else ""
    written = f" attributes {print_entries(function.attributes)}" if function.attributes else ""
    head = f"{indent}func.func {visibility}@{function.name}({parameters}){results}{written} {{"
    return [
        head,
        *_body(function.body, indent + INDENT),
        _located(f"{indent}}}", function.location),
    ]


def _body(body: tuple[TileOp, ...], indent: str) -> list[str]:
    return [indent + print_operation(op, indent) for op in body]


def print_operation(op: TileOp, indent: str = "") -> str:
    """One operation with its regions, without the indentation of its first line."""
    is_generic = op.name.startswith(f"{EXAMPLE_DIALECT}.")
    form = GENERIC_FORM if is_generic else operation_rows()[op.name].form
    name = f'"{op.name}"' if is_generic else op.name
    rest = print_form(op, elements_of(form), indent, _body)
    blank = " " if rest and not rest.startswith("(") else ""
    return _located(f"{_results(op.results)}{name}{blank}{rest}", op.location)


def _results(results: tuple[Name, ...]) -> str:
    if not results:
        return ""
    if "#" in results[0]:
        return f"%{results[0].partition('#')[0]}:{len(results)} = "
    return f"{', '.join(f'%{name}' for name in results)} = "


def _located(text: str, location: str | None) -> str:
    return text if location is None else f"{text} {location}"
