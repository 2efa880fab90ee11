"""Forms: how operations are written, as strings that both the reader and the printer follow.

A form is a sequence of elements with blanks between. An element begins with the sign of its
kind (below), and its name is the field of the operation that it fills; anything else is literal
text. ``?( … )?`` is a part that may be missing; it begins with literal text, by which it is found.
An attribute dictionary may precede the first ``:``, ``->`` or ``ins(`` of any form.

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
from functools import lru_cache
from itertools import takewhile
from typing import Any

import msgspec

from spyre.mlir.text import print_key, quote
from spyre.mlir.tiles.reading import Reader
from spyre.mlir.tiles.syntax import (
    AttributeEntry,
    AttributeValue,
    Name,
    Opaque,
    Quoted,
    Region,
    TileFunction,
    TileModule,
    TileOp,
    TileParameter,
    Type,
)
from spyre.mlir.tiles.table import EXAMPLE_DIALECT, operation_rows

_SIGNED = re.compile(r"(\{)\}|(~)|(\^=|&&|[%!$@#\[{&^(])(\w+)(\*?)")
_LITERAL_TOKENS = re.compile(r"->|\w+|.")
_BEFORE_ATTRIBUTES = (":", "->", "ins(")
INDENT = "  "
GENERIC_FORM = "( %values* ) : ( ?( !values* )? ) -> !result*"


class Element(msgspec.Struct, frozen=True):
    """One element: its sign ('' for literal text, ``?`` for a part), name, and literal tokens."""

    sign: str
    name: str = ""
    is_list: bool = False
    tokens: tuple[str, ...] = ()
    parts: tuple[Element, ...] = ()

    @property
    def key(self) -> str:
        """The field it fills."""
        name = self.name if self.sign != "~" else "flags"
        return f"{self.sign}{name}" if self.sign in ("!", "^") else name

    def is_filled(self, op: TileOp) -> bool:
        """True if the operation has the field: then an optional part with it is written."""
        if self.sign in ("{", "(") and self.name:
            return len(op.regions) > (self.name == "else")
        return self.sign != "" and self.key in op.fields


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


class Draft(msgspec.Struct):
    """An operation while it is read. ``body`` reads the operations of a region up to its brace;
    ``pending``: arguments of the next region.
    """

    body: Callable[[], tuple[TileOp, ...]]
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    attributes: tuple[AttributeEntry, ...] = ()
    regions: list[Region] = msgspec.field(default_factory=list)
    pending: list[tuple[Name, Type | None]] = msgspec.field(default_factory=list)


def read_form(reader: Reader, elements: tuple[Element, ...], draft: Draft) -> None:
    """Fill ``draft`` with the parts that ``elements`` describe."""
    for element in elements:
        if not element.sign:
            if element.name in _BEFORE_ATTRIBUTES and reader.text == "{" and not draft.attributes:
                draft.attributes = reader.dictionary()
            for token in element.tokens:
                reader.expect(token)
        elif element.sign == "?":
            if _begins(reader, element.parts):
                read_form(reader, element.parts, draft)
        elif (value := _READERS[element.sign](reader, element, draft)) is not None:
            draft.fields[element.key] = value


def _begins(reader: Reader, parts: tuple[Element, ...]) -> bool:
    """True if the text goes on with an optional part: with its leading literals, or their like."""
    literals = takewhile(lambda part: not part.sign, parts)
    if tokens := [token for part in literals for token in part.tokens]:
        return reader.at(*tokens)
    kinds = {"%": ("name",), "!": ("word", "angled"), "$": ("word",)}
    sign = parts[0].sign
    return reader.kind in kinds[sign] if sign in kinds else reader.text == sign


def _constant(reader: Reader, element: Element, draft: Draft) -> AttributeValue:
    """``number``, ``dense<…>``, ``true``; the older ``{number : type}`` too."""
    in_braces = reader.accept("{")
    if reader.kind == "number" or reader.text == "-":
        value: AttributeValue = reader.number()
    elif reader.text in ("true", "false") or reader.text.startswith("dense<"):
        value = Opaque(" ".join(reader.next().split()))
    else:
        reader.fail("a number, true, false or dense<…>")
    if in_braces:
        if reader.accept(":"):
            reader.type()
        reader.expect("}")
    return value


def _values(reader: Reader, element: Element, draft: Draft) -> Any:
    if not element.is_list:
        return reader.name()
    return reader.several(reader.name) if reader.kind == "name" else ()


def _flags(reader: Reader, element: Element, draft: Draft) -> Opaque | None:
    flags = []
    while reader.kind == "angled" and reader.text.startswith(("fastmath<", "overflow<")):
        flags.append(reader.next())
    return Opaque(" ".join(flags)) if flags else None


def _new_names(reader: Reader, element: Element, draft: Draft) -> Any:
    """The induction variable, the variables in brackets, or ``(%new = %value, …)``."""

    def pair() -> Name:
        draft.pending.append((reader.name(), None))
        reader.expect("=")
        return reader.name()

    if element.name == "iv":
        draft.pending.append((reader.name(), None))
        return None
    reader.expect("(")
    return reader.listed(pair if element.sign == "^=" else reader.name, ")")


def _region(reader: Reader, element: Element, draft: Draft) -> None:
    """``{ operations }``, with a label, or behind a list of arguments; or the attributes."""
    if not element.name:
        draft.attributes = reader.dictionary() if reader.text == "{" else draft.attributes
        return
    arguments, style = tuple(draft.pending), "operation"
    if element.sign == "(":
        arguments, style = _typed_names(reader), "list"
    reader.expect("{")
    if element.sign == "{" and reader.kind == "label":
        reader.next()
        arguments, style = _typed_names(reader) if reader.text == "(" else (), "label"
        reader.expect(":")
    draft.regions.append(Region(arguments, draft.body(), style))


_READERS: dict[str, Callable[[Reader, Element, Draft], Any]] = {
    "%": _values,
    "!": lambda reader, element, _: reader.types() if element.is_list else reader.type(),
    "#": _constant,
    "[": lambda reader, *_: reader.bracketed(reader.name_or_integer),
    "$": lambda reader, *_: Opaque(reader.word()),
    "@": lambda reader, *_: reader.attribute_value(),
    "&": lambda reader, *_: reader.bracketed(reader.expression),
    "&&": lambda reader, *_: reader.bracketed(reader.subscript),
    "^": _new_names, "^=": _new_names, "~": _flags, "{": _region, "(": _region,
}  # fmt: skip
"""Reads an element; the value of its field, None for elements that fill none."""


def _typed_names(reader: Reader) -> tuple[tuple[Name, Type | None], ...]:
    def pair() -> tuple[Name, Type | None]:
        name = reader.name()
        reader.expect(":")
        type_ = reader.type()
        reader.location()
        return name, type_

    reader.expect("(")
    return reader.listed(pair, ")")


def print_operation(op: TileOp, indent: str = "") -> str:
    """One operation with its regions, without the indentation of its first line."""
    is_generic = op.name.startswith(f"{EXAMPLE_DIALECT}.")
    name, results = op.name, ", ".join(f"%{result}" for result in op.results)
    if "#" in results:
        results = f"%{op.results[0].partition('#')[0]}:{len(op.results)}"
    rest = _print_form(op, GENERIC_FORM if is_generic else operation_rows()[name].form, indent)
    blank = " " if rest and not rest.startswith("(") else ""
    name = f'"{name}"' if is_generic else name
    return _located(f"{results}{' = ' * bool(results)}{name}{blank}{rest}", op.location)


def _print_form(op: TileOp, form: str, indent: str) -> str:
    elements, regions, words = elements_of(form), iter(op.regions), list[str]()
    missing = () if any(e.sign == "{" and not e.name for e in elements) else op.attributes

    def write(element: Element) -> None:
        nonlocal missing
        if not element.sign:
            if missing and element.name in _BEFORE_ATTRIBUTES:
                words.append(print_value(missing))
                missing = ()
            words.append(element.name)
        elif element.sign == "?":
            if any(part.is_filled(op) for part in element.parts):
                for part in element.parts:
                    write(part)
        elif element.sign in ("{", "(") and element.name:
            words.append(_print_region(element, next(regions), indent))
        elif text := _print_field(op, element):
            bare = words[-1:] != ["->"] or not element.is_list or len(op.fields[element.key]) == 1
            words.append(text if bare else f"({text})")

    for element in elements:
        write(element)
    return _spaced([*words, print_value(missing)] if missing else words)


def _print_field(op: TileOp, element: Element) -> str:
    sign, value = element.sign, op.fields.get(element.key)
    if sign == "{":
        return print_value(op.attributes) if op.attributes else ""
    if element.name == "iv":
        return f"%{op.regions[0].arguments[0][0]}"
    if value is None:
        return ""
    items = value if isinstance(value, tuple) else (value,)
    if sign == "^=":
        carried = zip(op.regions[0].arguments[1:], items, strict=True)
        return f"({', '.join(f'%{new} = %{old}' for (new, _), old in carried)})"
    if sign == "@":
        return print_value(value)
    text = ", ".join(f"%{item}" if isinstance(item, Name) else str(item) for item in items)
    if sign in ("[", "&", "&&"):
        return f"{GLUE}[{text}]" if sign != "[" or element.name == "indices" else f"[{text}]"
    return f"({text})" if sign == "^" else text


def _print_region(element: Element, region: Region, indent: str) -> str:
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in region.arguments)
    head = [f"({arguments}) {{" if element.sign == "(" else "{"]
    if region.style == "label":
        head.append(f"{indent}^bb0({arguments}):")
    return "\n".join([*head, *_body(region.body, indent + INDENT), f"{indent}}}"])


def print_value(value: AttributeValue) -> str:
    """An attribute's value; of entries ``{key = value, …}``."""
    if isinstance(value, Quoted):
        return quote(value.text)
    if isinstance(value, AttributeEntry):
        key = print_key(value.key)
        return key if value.value is None else f"{key} = {print_value(value.value)}"
    if isinstance(value, tuple):
        text = ", ".join(map(print_value, value))
        is_dictionary = any(isinstance(item, AttributeEntry) for item in value)
        return f"{{{text}}}" if is_dictionary else f"[{text}]"
    return str(value)


GLUE = "\0"
"""Begins a word that no blank is before."""


def _spaced(words: list[str]) -> str:
    """Words with blanks between; none after ( and before commas, ) and indices."""
    text = ""
    for word in words:
        glued = not text or text.endswith("(") or word[0] in f",){GLUE}"
        text += word.removeprefix(GLUE) if glued else f" {word}"
    return text


def print_tiles(module: TileModule) -> str:
    """The whole text, ending in a newline."""
    lines = [f"#{name} = {value}" for name, value in module.aliases.items()]
    if module.wrapped:
        name = f" @{module.name}" if module.name else ""
        lines.append(f"module{name}{_attributes(module.attributes)} {{")
    for function in module.functions:
        lines.extend(_function(function, INDENT if module.wrapped else ""))
    if module.wrapped:
        lines.append(_located("}", module.location))
    return "\n".join(lines) + "\n"


def _function(function: TileFunction, indent: str) -> list[str]:
    visibility = f"{function.visibility} " if function.visibility else ""
    parameters = ", ".join(map(_parameter, function.parameters))
    results = f" -> ({', '.join(map(str, function.results))})" if function.results else ""
    head = f"{indent}func.func {visibility}@{function.name}({parameters}){results}"
    head += _attributes(function.attributes)
    if not function.body:
        return [_located(head, function.location)]
    end = _located(f"{indent}}}", function.location)
    return [f"{head} {{", *_body(function.body, indent + INDENT), end]


def _parameter(parameter: TileParameter) -> str:
    name = f"%{parameter.name}: " if parameter.name else ""
    attributes = f" {print_value(parameter.attributes)}" if parameter.attributes else ""
    return _located(f"{name}{parameter.type}{attributes}", parameter.location)


def _attributes(entries: tuple[AttributeEntry, ...]) -> str:
    return f" attributes {print_value(entries)}" if entries else ""


def _body(body: tuple[TileOp, ...], indent: str) -> list[str]:
    return [indent + print_operation(op, indent) for op in body]


def _located(text: str, location: str | None) -> str:
    return text if location is None else f"{text} {location}"
