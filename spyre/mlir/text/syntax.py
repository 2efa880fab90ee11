"""Syntax tree of bundle.mlir: frozen nodes, names still names, one class per construct.

The parser makes it from text, the torch backend makes it from code, the printer writes it back,
the rules check it and ``lower`` turns it into integers. A node keeps the offset of its
first character (``position``, -1 when made in code); only the module knows the text, so lines and
columns are computed on demand: ``module.locate(node.position)``. Comparisons ignore positions.
Constructs and their meaning: bundle format reference §2 and §3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from itertools import accumulate

import msgspec

from spyre.errors import SourceLocation
from spyre.mlir.program import AffineMap
from spyre.records import PartlyCompared
from spyre.rules import Fault

NO_POSITION = -1


class SyntaxNode(PartlyCompared, frozen=True, kw_only=True):
    """Base of the nodes: ``position`` is the offset of the first character, never compared."""

    uncompared = frozenset({"position"})

    position: int = NO_POSITION


class SourceText(msgspec.Struct, frozen=True):
    """The text a module was read from; ``line_starts`` holds the offset of every line."""

    file: str
    text: str
    line_starts: tuple[int, ...]

    @classmethod
    def of(cls, file: str, text: str) -> SourceText:
        """Index the lines of ``text``."""
        lengths = (len(line) + 1 for line in text.split("\n"))
        return cls(file, text, (0, *accumulate(lengths)))

    def locate(self, position: int) -> SourceLocation:
        """Line and column (from 1) of an offset, with the text of that line."""
        line = bisect_right(self.line_starts, position, hi=len(self.line_starts) - 1)
        start = self.line_starts[line - 1]
        source_line = self.text[start : self.line_starts[line] - 1].rstrip("\r")
        return SourceLocation(self.file, line, position - start + 1, source_line)


class Rejection(Exception):
    """The text breaks rule ``code`` at ``position`` (offset in characters)."""

    def __init__(self, code: str, message: str, position: int, **details: str) -> None:
        super().__init__(message)
        self.fault = Fault(code, position, message, **details)


class ArgumentField(StrEnum):
    """Fields of an argument that ``input_arg_extract`` reads."""

    VALUE = "value"
    GRANULARITY = "granularity"
    MAX_VALUE = "max_value"


class InputArgType(msgspec.Struct, frozen=True):
    """``!sdscbundle.input_arg<index, …>``: a wrapped launch argument, with its annotations."""

    granularity: int | None = None
    max_value: int | None = None

    @property
    def is_size(self) -> bool:
        """True for a dimension size, which is annotated; else it is a device address."""
        return self.granularity is not None or self.max_value is not None

    def annotation(self, which: ArgumentField) -> int | None:
        """Return the compile-time annotation ``which``; None if absent or if it is ``VALUE``."""
        if which is ArgumentField.VALUE:
            return None
        return self.granularity if which is ArgumentField.GRANULARITY else self.max_value


ParameterType = InputArgType | None
"""None: ``index``, whose integer the caller gives itself."""


class FunctionParameter(SyntaxNode, frozen=True):
    """One function parameter; ``name`` is without its ``%``, as everywhere in the tree."""

    name: str
    type: ParameterType


class Attribute(SyntaxNode, frozen=True):
    """An attribute without a meaning here: key and value as canonical text (None: unit)."""

    key: str
    value: str | None = None


class MapAlias(SyntaxNode, frozen=True):
    """``#name = affine_map<…>``. ``in_function``: written where MLIR does not allow it."""

    uncompared = SyntaxNode.uncompared | {"in_function"}

    name: str
    map: AffineMap
    in_function: bool = False


class ConstantOp(SyntaxNode, frozen=True):
    """``%result = arith.constant value : index``."""

    result: str
    value: int


class AddIOp(SyntaxNode, frozen=True):
    """``%result = arith.addi %left, %right : index``."""

    result: str
    left: str
    right: str


class ExtractOp(SyntaxNode, frozen=True):
    """``%result = sdscbundle.input_arg_extract field from %argument : type -> index``."""

    result: str
    field: ArgumentField
    argument: str
    type: ParameterType = InputArgType()


class AllocateOp(SyntaxNode, frozen=True):
    """``%result = sdscbundle.device_mem_allocate size_bytes bytes : index``."""

    result: str
    size_bytes: int


class ApplyOp(SyntaxNode, frozen=True):
    """``%result = affine.apply map(dims)[symbols]``; ``map`` is an alias name or a map."""

    result: str
    map: str | AffineMap
    dims: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


class ExecuteOp(SyntaxNode, frozen=True):
    """``sdscbundle.sdsc_execute (operands) {sdsc_filename, symbol_ids}``.

    Operand k is the value of symbol ``symbol_ids[k]``. ``attributes`` holds those we do not know.
    """

    operands: tuple[str, ...]
    sdsc_filename: str
    symbol_ids: tuple[int, ...] = ()
    attributes: tuple[Attribute, ...] = ()


class ForOp(SyntaxNode, frozen=True):
    """``scf.for %variable = %lower to %upper step %step { body }``."""

    variable: str
    lower: str
    upper: str
    step: str
    body: tuple[Statement, ...]


Definition = ConstantOp | AddIOp | ExtractOp | AllocateOp | ApplyOp
Statement = Definition | ExecuteOp | ForOp


class Function(SyntaxNode, frozen=True):
    """``func.func @name(parameters) { body return }``."""

    name: str
    parameters: tuple[FunctionParameter, ...]
    body: tuple[Statement, ...]
    visibility: str | None = None
    attributes: tuple[Attribute, ...] = ()


class Module(SyntaxNode, frozen=True):
    """A whole bundle.mlir: map aliases and the one function. ``source`` is None if made in code."""

    uncompared = SyntaxNode.uncompared | {"source"}

    function: Function
    aliases: tuple[MapAlias, ...] = ()
    name: str | None = None
    attributes: tuple[Attribute, ...] = ()
    source: SourceText | None = None

    def locate(self, position: int) -> SourceLocation | None:
        """Place of an offset of the source; None when the module was made in code."""
        if self.source is None or position == NO_POSITION:
            return None
        return self.source.locate(position)

    def walk(self) -> Iterator[Statement]:
        """Every statement in textual order, a loop before its body."""
        return walk(self.function.body)

    def executes(self) -> Iterator[ExecuteOp]:
        """Every sdsc_execute in textual order."""
        return (op for op in self.walk() if isinstance(op, ExecuteOp))


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement of ``body`` in textual order, a loop before its body."""
    for statement in body:
        yield statement
        if isinstance(statement, ForOp):
            yield from walk(statement.body)
