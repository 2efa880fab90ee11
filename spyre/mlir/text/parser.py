"""Text of bundle.mlir → :class:`~spyre.mlir.text.syntax.Module`, or an error with file:line:column.

The grammar is bundle.lark (LALR, contextual lexer); :class:`TreeBuilder` makes the nodes while Lark
reduces, one method per rule of the grammar, and :mod:`.diagnosis` writes the messages for Lark's
errors. The grammar does not limit the numbers of modules, functions and returns, nor the
attributes: these are checked here and refused with a `Rejection`. Grammar: bundle format
reference §2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput
from msgspec.structs import replace

from spyre.cache import require_trusted, writable_directory
from spyre.errors import MlirSyntaxError
from spyre.mlir.program import AffineMap, Operator
from spyre.mlir.text.attributes import (
    RawAttribute,
    build_execute,
    canonical_attributes,
    check_unique,
    integer,
    unquote,
)
from spyre.mlir.text.diagnosis import diagnose
from spyre.mlir.text.expressions import (
    DraftExpr,
    check_nesting,
    declared,
    draft_binary,
    draft_negation,
    resolve,
)
from spyre.mlir.text.syntax import (
    AddIOp,
    AllocateOp,
    ApplyOp,
    ArgumentField,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    ForOp,
    Function,
    FunctionParameter,
    InputArgType,
    MapAlias,
    Module,
    ParameterType,
    Rejection,
    SourceText,
    Statement,
)

NAME = re.compile(r"%([A-Za-z0-9_$.-]+)")
Children = list[Any]

Body = tuple[tuple[Statement, ...], tuple[MapAlias, ...], Token | None]
"""Statements in braces, the map aliases found among them, which move to the module, and the keyword
of the return at the end, if there is one."""


class TreeBuilder(Transformer[Token, Module]):
    """Callbacks by rule name; bundle.lark defines the children of each rule."""

    # --- file, module, function

    def file(self, children: Children) -> Module:
        """The whole text: exactly one module (or a bare function), and aliases."""
        return _with_aliases(_only(children, "SPY105", "module"), children)

    def module(self, children: Children) -> Module:
        """``module [@name] [attributes] { aliases function }``."""
        keyword, name, attributes, *items = children
        return replace(
            _with_aliases(_only(items, "SPY106", "function", keyword.start_pos), items),
            name=str(name[1:]) if name else None,
            attributes=canonical_attributes(attributes or ()),
            position=keyword.start_pos,
        )

    def function(self, children: Children) -> Module:
        """``func.func @name(parameters) { body }``; the body ends in its one return.

        As a module that holds nothing else but the aliases inside.
        """
        keyword, visibility, name, parameters, results, attributes, (statements, aliases, end) = (
            children
        )
        if results is not None:
            raise Rejection(
                "SPY119", "the function may not return values", results, expected="no result types"
            )
        if end is None:
            message = "the function does not end in return"
            expected = "return before the closing }"
            raise Rejection("SPY107", message, keyword.start_pos, expected=expected)
        node = Function(
            name=str(name[1:]), parameters=tuple(parameters or ()), body=statements,
            visibility=str(visibility) if visibility else None,
            attributes=canonical_attributes(attributes or ()), position=keyword.start_pos,
        )  # fmt: skip
        inside = tuple(replace(alias, in_function=True) for alias in aliases)
        return Module(node, inside, position=keyword.start_pos)

    def results(self, children: Children) -> int | None:
        """Result types: the offset of the arrow if there are any, else None."""
        arrow, types = children
        return arrow.start_pos if types else None

    def parameters(self, children: Children) -> Children:
        """A list without brackets."""
        return children

    index_types = identifiers = map_results = parameters

    def parameter(self, children: Children) -> FunctionParameter:
        """``%name: type``."""
        name, type_ = children
        return FunctionParameter(str(name[1:]), _type(type_), position=name.start_pos)

    def input_arg(self, children: Children) -> InputArgType:
        """``!sdscbundle.input_arg<index, granularity=…, max_value=…>``."""
        annotations = children[2:]
        check_unique((str(key), key.start_pos) for key, _ in annotations)
        return InputArgType(**{str(key): value for key, value in annotations})

    def annotation(self, children: Children) -> tuple[Token, int]:
        """``granularity=…`` or ``max_value=…``, both positive."""
        key, number = children
        value = integer(number)
        if key not in ("granularity", "max_value") or value <= 0:
            message = "an input_arg cannot be annotated like this"
            expected = "granularity= or max_value= with a positive integer"
            found = f"{key}={value}"
            raise Rejection("SPY126", message, key.start_pos, expected=expected, found=found)
        return key, value

    # --- statements

    def body(self, children: Children) -> Body:
        """Statements in braces; nothing may follow a return."""
        items = [child for child in children if child is not None]
        ends = [i for i, item in enumerate(items) if isinstance(item, Token)]
        if ends and ends[0] != len(items) - 1:
            position = _start(items[ends[0] + 1])
            raise Rejection("SPY108", "a statement follows return", position, expected="}")
        statements: list[Statement] = []
        aliases: list[MapAlias] = []
        for item in items:
            if isinstance(item, tuple):
                statements.append(item[0])
                aliases.extend(item[1])
            elif isinstance(item, MapAlias):
                aliases.append(item)
            elif not isinstance(item, Token):
                statements.append(item)
        return tuple(statements), tuple(aliases), items[-1] if ends else None

    def return_statement(self, children: Children) -> Token:
        """``return`` without operands: its keyword."""
        keyword, operands = children[:2]
        if operands is not None:
            message = "the function may not return values"
            expected = "return without operands"
            raise Rejection("SPY119", message, keyword.start_pos, expected=expected)
        return cast(Token, keyword)

    def constant(self, children: Children) -> ConstantOp:
        """``%result = arith.constant value : index``."""
        result, value = children[0], children[1]
        return ConstantOp(_name(result), integer(value), position=result.start_pos)

    def addi(self, children: Children) -> AddIOp:
        """``%result = arith.addi %left, %right : index``."""
        result, operands = children[0], children[1]
        if len(operands) != 2:
            raise Rejection(
                "SPY127", "arith.addi adds two values", result.start_pos,
                expected="two operands", found=f"{len(operands)}",
            )  # fmt: skip
        return AddIOp(_name(result), operands[0], operands[1], position=result.start_pos)

    def extract(self, children: Children) -> ExtractOp:
        """``%result = sdscbundle.input_arg_extract field from %argument : type -> index``."""
        result, which, argument, type_ = children[:4]
        if which not in list(ArgumentField):
            message = f"'{which}' cannot be extracted"
            expected = f"one of {', '.join(ArgumentField)}"
            raise Rejection("SPY128", message, which.start_pos, expected=expected)
        return ExtractOp(
            _name(result), ArgumentField(which), str(argument[1:]), _type(type_),
            position=result.start_pos,
        )  # fmt: skip

    def allocate(self, children: Children) -> AllocateOp:
        """``%result = sdscbundle.device_mem_allocate size bytes : index``."""
        result, size = children[0], children[1]
        return AllocateOp(_name(result), integer(size), position=result.start_pos)

    def apply(self, children: Children) -> ApplyOp:
        """``%result = affine.apply map(dims)[symbols]``."""
        result, map_, dims, symbols = children
        return ApplyOp(
            _name(result), map_ if isinstance(map_, AffineMap) else str(map_[1:]), dims or (),
            symbols or (), position=result.start_pos,
        )  # fmt: skip

    def loop(self, children: Children) -> tuple[ForOp, tuple[MapAlias, ...]]:
        """``scf.for %variable = %lower to %upper step %step { body }``, and the aliases inside."""
        keyword, variable, lower, upper, step = children[:5]
        statements, aliases, end = children[-1]
        if end is not None:
            expected = "} closing the loop before return"
            raise Rejection("SPY108", "return is inside a loop", end.start_pos, expected=expected)
        node = ForOp(
            _name(variable), str(lower[1:]), str(upper[1:]), str(step[1:]), statements,
            position=keyword.start_pos,
        )  # fmt: skip
        return node, aliases

    def execute(self, children: Children) -> ExecuteOp:
        """``sdscbundle.sdsc_execute (operands) { attributes } [: (types) -> ()]``."""
        keyword, operands, attributes, signature = children
        return build_execute(keyword.start_pos, operands or (), attributes, signature)

    def signature(self, children: Children) -> int:
        """The trailing type of an execute: how many operands it claims."""
        return len(children[0] or ())

    def operands(self, children: Children) -> tuple[str, ...]:
        """Names without %, from one or more list tokens."""
        if len(children) == 1:
            return tuple(NAME.findall(children[0]))
        return tuple(name for token in children for name in NAME.findall(token))

    def round_operands(self, children: Children) -> Sequence[Any]:
        """``(operands)``, ``[operands]``, ``[identifiers]``."""
        return children[0] or ()

    square_operands = square_identifiers = round_operands

    # --- attributes

    def dictionary(self, children: Children) -> tuple[RawAttribute, ...]:
        """``{ key = value, … }``."""
        attributes = tuple(child for child in children if child is not None)
        check_unique((attribute.key, attribute.position) for attribute in attributes)
        return attributes

    def attribute(self, children: Children) -> RawAttribute:
        """``key`` or ``key = value``."""
        key, value = children
        name = unquote(key) if key.type == "STRING" else str(key)
        return RawAttribute(name, value, key.start_pos)

    def typed_integer(self, children: Children) -> Token | str:
        """An integer token, or its canonical text with its type."""
        number, type_ = children
        if type_ is None:
            return cast(Token, number)
        return f"{integer(number)} : {type_.removeprefix(':').strip()}"

    def array(self, children: Children) -> Children:
        """``[ value, … ]``."""
        return [child for child in children if child is not None]

    # --- affine maps

    def affine_map(self, children: Children) -> AffineMap:
        """``affine_map<(dims)[symbols] -> (results)>``; refuses SPY121 unless it has one result."""
        keyword, dims, symbols, _, results = children
        if len(results or ()) != 1:
            raise Rejection(
                "SPY121", "an affine map must have exactly one result", keyword.start_pos,
                expected="one expression after ->", found=f"{len(results or ())}",
            )  # fmt: skip
        dims, symbols = dims or (), symbols or ()
        return AffineMap(len(dims), len(symbols), (resolve(results[0], declared(dims, symbols)),))

    def affine_integer(self, children: Children) -> DraftExpr:
        """An integer."""
        return DraftExpr(children[0].start_pos, integer(children[0]))

    def affine_name(self, children: Children) -> DraftExpr:
        """A dim or symbol by name."""
        return DraftExpr(children[0].start_pos, str(children[0]))

    def binary(self, children: Children) -> DraftExpr:
        """``left operator right``."""
        left, operator, right = children
        return draft_binary(Operator(operator), operator.start_pos, left, right)

    def negation(self, children: Children) -> DraftExpr:
        """``-operand``, as MLIR reads it: a negative constant, or a product with -1."""
        return draft_negation(*children)

    # --- aliases

    def map_alias(self, children: Children) -> MapAlias:
        """``#name = affine_map<…>``."""
        name, map_ = children
        return MapAlias(str(name[1:]), map_, position=name.start_pos)

    def location_alias(self, children: Children) -> None:
        """``#loc = loc(…)``: accepted without a meaning."""


def _name(result: str) -> str:
    """``x`` of ``%x =``."""
    match = NAME.match(result)
    assert match is not None
    return match[1]


def _type(parsed: InputArgType | Token) -> ParameterType:
    return parsed if isinstance(parsed, InputArgType) else None


def _only(items: Children, code: str, what: str, position: int = 0) -> Module:
    """The single module; refuses none (at ``position``) and a second one (at its place)."""
    found = [item for item in items if isinstance(item, Module)]
    if len(found) > 1:
        raise Rejection(code, f"more than one {what}", found[1].position, expected=f"one {what}")
    if not found:
        raise Rejection(code, f"there is no {what}", position, expected=f"one {what}")
    return found[0]


def _with_aliases(module: Module, items: Children) -> Module:
    """``module`` with the aliases beside it before its own."""
    aliases = [item for item in items if isinstance(item, MapAlias)]
    return replace(module, aliases=(*aliases, *module.aliases))


def _start(item: Any) -> int:
    """Offset of a statement, an alias, or the keyword of a return."""
    if isinstance(item, Token):
        return item.start_pos or 0
    node = item[0] if isinstance(item, tuple) else item
    return cast(int, node.position)


def parse_module(text: str, file: str = "bundle.mlir") -> Module:
    """Parse ``text``; ``file`` is the name diagnostics show.

    Raises MlirSyntaxError (SPY101-SPY128) at the first place that does not follow the grammar.
    Names are not resolved here: see `inspect_module`.
    """
    source = SourceText.of(file, text)
    try:
        check_nesting(text)
        module = _parse(text)
    except Rejection as rejection:
        fault = rejection.fault
        raise fault.error(MlirSyntaxError, source.locate(fault.place)) from None
    return replace(module, source=source)


def _parse(text: str) -> Module:
    try:
        return cast(Module, _grammar().parse(text))
    except UnexpectedInput as error:
        raise diagnose(text, error) from None


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    """The LALR tables, built at the first use (80 ms) and kept by Lark in our cache directory.

    Not where Lark would keep them, under a predictable name in the shared temporary directory: they
    are unpickled. Lark's key is the grammar, its own version and Python's.
    """
    grammar = Path(__file__).with_name("bundle.lark").read_text("utf-8")
    directory = writable_directory("grammar")
    kept = None if directory is None else directory / "bundle.tables"
    if kept is not None and kept.exists():
        try:
            require_trusted(kept)
        except PermissionError:
            kept.unlink()
    cache = False if kept is None else str(kept)
    return Lark(grammar, parser="lalr", start="file", transformer=TreeBuilder(), cache=cache)
