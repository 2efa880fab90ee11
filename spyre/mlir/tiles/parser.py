"""KTIR text → :class:`~spyre.mlir.tiles.syntax.TileModule`, or an error with file:line:column.

Recursive descent over the tokens of :mod:`.reading`: modules, functions, aliases and blocks are
read here, operations by the form of their row. Names are not resolved and types not compared: the
checker does that.
"""

from __future__ import annotations

from difflib import get_close_matches

from msgspec.structs import replace

from spyre.errors import MlirSyntaxError
from spyre.mlir.text import Rejection, SourceText
from spyre.mlir.tiles.forms import GENERIC_FORM, Draft, elements_of, read_form
from spyre.mlir.tiles.reading import Reader, affine, reader_of
from spyre.mlir.tiles.syntax import (
    AttributeValue,
    Name,
    Opaque,
    TileFunction,
    TileModule,
    TileOp,
    TileParameter,
    named,
)
from spyre.mlir.tiles.table import EXAMPLE_DIALECT, RETURNS, OperationRow, dialects, operation_rows

_MOST_RESULTS = 64


def parse_tiles(text: str, file: str = "kernel.ktir") -> TileModule:
    """Parse ``text``; ``file`` is the name diagnostics show.

    Raises MlirSyntaxError (SPY101-SPY104, SPY110, SPY111, SPY115-SPY117, SPY122-SPY125, SPY180,
    SPY186) at the first place that does not follow the language.
    """
    source = SourceText.of(file, text)
    try:
        module = _Parser(reader_of(text)).module()
    except Rejection as rejection:
        fault = rejection.fault
        raise fault.error(MlirSyntaxError, source.locate(fault.place)) from None
    return replace(module, source=source)


class _Parser:
    """Reads one text."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.aliases: dict[str, AttributeValue] = {}
        self.functions: list[TileFunction] = []

    def module(self) -> TileModule:
        """The whole text: aliases, and a module or functions."""
        reader, outline = self.reader, TileModule(wrapped=False)
        while reader.kind != "end":
            if reader.text not in ("module", "builtin.module"):
                self._top_level("module, func.func or #name = …")
                continue
            if outline.wrapped:
                message = "more than one module"
                raise Rejection("SPY105", message, reader.place, expected="one module")
            place, _ = reader.place, reader.next()
            name = reader.next()[1:] if reader.kind == "symbol" else None
            attributes = reader.dictionary() if reader.accept("attributes") else ()
            reader.expect("{")
            while not reader.accept("}"):
                self._top_level("func.func, #name = … or }")
            location = reader.location()
            outline = TileModule(
                name=name, attributes=attributes, location=location, position=place
            )
        if not outline.wrapped and not self.functions:
            expected = "module { func.func … }"
            raise Rejection("SPY105", "the text holds no function", reader.place, expected=expected)
        return replace(outline, functions=tuple(self.functions), aliases=self.aliases)

    def _top_level(self, expected: str) -> None:
        reader = self.reader
        if reader.kind == "alias":
            self._alias()
        elif reader.text == "func.func":
            self.functions.append(self._function())
        else:
            reader.fail(expected)

    def _alias(self) -> None:
        reader = self.reader
        place, name = reader.place, reader.next()[1:]
        if name in self.aliases:
            raise Rejection("SPY135", f"#{name} is defined twice", place)
        reader.expect("=")
        start = reader.place
        if reader.kind == "loc":
            self.aliases[name] = Opaque(reader.next())
        elif reader.text.startswith(("affine_map<", "affine_set<")):
            self.aliases[name] = affine(reader.next(), start)
            reader.location()
        else:
            reader.fail("affine_map<…>, affine_set<…> or loc(…)")

    def _function(self) -> TileFunction:
        reader = self.reader
        place, _ = reader.place, reader.next()
        visibility = reader.next() if reader.text in ("private", "public", "nested") else ""
        name = reader.take("symbol", "@name")[1:]
        reader.expect("(")
        parameters = reader.listed(self._parameter, ")")
        results = reader.types() if reader.accept("->") else ()
        attributes = reader.dictionary() if reader.accept("attributes") else ()
        body = self._returning(place) if reader.accept("{") else ()  # of a declaration
        return TileFunction(
            name, parameters, results, attributes, body, visibility, reader.location(),
            position=place,
        )  # fmt: skip

    def _returning(self, place: int) -> tuple[TileOp, ...]:
        """Operations of the function at ``place``, the last of which returns."""
        body = self._operations()
        ends = [k for k, op in enumerate(body) if op.name in RETURNS]
        if not ends:
            message, expected = "the function does not end in return", "return before the closing }"
            raise Rejection("SPY107", message, place, expected=expected)
        if ends[0] != len(body) - 1:
            position = body[ends[0] + 1].position
            raise Rejection("SPY108", "a statement follows return", position, expected="}")
        return body

    def _parameter(self) -> TileParameter:
        reader = self.reader
        name = named("", reader.place)
        if reader.kind == "name":
            name = reader.name()
            reader.expect(":")
        type_ = reader.type()
        attributes = reader.dictionary() if reader.text == "{" else ()
        return TileParameter(name, type_, attributes, reader.location(), position=name.start_pos)

    def _operations(self) -> tuple[TileOp, ...]:
        """Operations up to the brace that closes their block."""
        found = []
        while not self.reader.accept("}"):
            found.append(self._operation())
        return tuple(found)

    def _operation(self) -> TileOp:
        """An operation by the form of its row, or ``"test.name"(%a, …) {…} : (types) -> types``."""
        reader = self.reader
        place = reader.place
        results = self._results() if reader.kind == "name" else ()
        if reader.kind == "string":
            name, form = reader.text.strip('"'), GENERIC_FORM
            if name.partition(".")[0] != EXAMPLE_DIALECT:
                raise Rejection(
                    "SPY111", f"{name} is written in MLIR's generic form", reader.place,
                    expected=f"the pretty form: {name} …",
                    hint="print the file without --mlir-print-op-generic",
                )  # fmt: skip
        elif reader.kind == "word":
            row = _row(reader.text, reader.place)
            name, form = row.name, row.form
        else:
            reader.fail("an operation or }" if not results else "an operation")
        reader.next()
        draft = Draft(self._operations)
        read_form(reader, elements_of(form), draft)
        if form != GENERIC_FORM and reader.text == "{" and not draft.attributes:
            draft.attributes = reader.dictionary()
        return TileOp(
            name, results, draft.fields, draft.attributes, tuple(draft.regions),
            reader.location(), position=place,
        )  # fmt: skip

    def _results(self) -> tuple[Name, ...]:
        """``%a, %b =`` or ``%a:2 =``, whose values are ``a#0`` and ``a#1``."""
        reader = self.reader
        names = reader.several(reader.name)
        for name in names:
            if "#" in name:
                message = f"unexpected text '%{name}'"
                raise Rejection("SPY102", message, name.start_pos, expected="%name, or %name:2")
        if reader.accept(":"):
            count, place = reader.integer(), reader.place
            if not 1 <= count <= _MOST_RESULTS or len(names) > 1:
                message, expected = "this number of results is wrong", f"1 to {_MOST_RESULTS}"
                raise Rejection("SPY102", message, place, expected=expected, found=str(count))
            names = tuple(named(f"{names[0]}#{k}", names[0].start_pos) for k in range(count))
        reader.expect("=")
        return names


def _row(name: str, place: int) -> OperationRow:
    """The row of operation ``name``; SPY110 for none, SPY180 for one that is not simulated."""
    rows, (dialect, _, rest) = operation_rows(), name.partition(".")
    row = rows.get(name, rows.get(f"{dialect}.*"))
    if row is not None and not row.refused:
        return row
    known = dialects().get(dialect, ())
    expected, hint = f"one of {', '.join(known or dialects()['ktdp'])}", ""
    if row is not None:
        message = f"{name} is not simulated: {row.refused}"
        raise Rejection("SPY180", message, place, expected=expected)
    message = f"unknown operation '{name}'"
    if not known or not rest:
        message = f"'{dialect}' is no dialect of KTIR" if rest else message
        expected = f"an operation of {', '.join(sorted(dialects()))}, or return"
        raise Rejection("SPY110", message, place, expected=expected, found=name)
    for close in get_close_matches(name, known, 1):
        hint = f"did you mean {close}?"
    raise Rejection("SPY110", message, place, expected=expected, hint=hint)
