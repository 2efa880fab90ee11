"""Text of bundle.mlir → :class:`~spyre.mlir.text.syntax.Module`, or an error with file:line:column.

The grammar is bundle.lark (LALR, contextual lexer); :class:`TreeBuilder` makes the nodes while Lark
reduces, one method per rule of the grammar, and :mod:`.diagnosis` writes the messages for Lark's
errors. The grammar does not limit the numbers of modules, functions and returns, nor the
attributes: these are checked here and refused with a `Rejection`. Grammar: bundle format
reference §2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput

from spyre.cache import writable_directory
from spyre.errors import BundleError, MlirSyntaxError
from spyre.mlir.program import (
    AffineBinary,
    AffineConstant,
    AffineDim,
    AffineExpr,
    AffineMap,
    AffineSymbol,
    Operator,
)
from spyre.mlir.text.attributes import (
    RawAttribute,
    build_execute,
    canonical_attributes,
    check_unique,
    integer,
    unquote,
)
from spyre.mlir.text.diagnosis import Rejection, diagnose
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
    IndexType,
    InputArgType,
    MapAlias,
    Module,
    ParameterType,
    SourceText,
    Statement,
)

MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class DraftExpr:
    """An expression with unresolved names: ``content`` is a name, an integer or an operation."""

    position: int
    content: str | int | tuple[Operator, DraftExpr, DraftExpr]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class MapIdentifier:
    """A name declared in ``( )`` or ``[ ]`` of a map."""

    name: str
    position: int


def draft_binary(operator: Operator, position: int, left: DraftExpr, right: DraftExpr) -> DraftExpr:
    """``left operator right``; refuses trees deeper than MAX_DEPTH (SPY116)."""
    depth = max(left.depth, right.depth) + 1
    if depth > MAX_DEPTH:
        raise Rejection(
            "SPY116",
            "an affine expression has too many operators",
            position,
            expected=f"at most {MAX_DEPTH} nested operators",
        )
    return DraftExpr(position, (operator, left, right), depth)


def draft_negation(position: int, draft: DraftExpr) -> DraftExpr:
    """``-draft``, as MLIR reads it: a negative constant, or a product with -1."""
    if isinstance(draft.content, int):
        return DraftExpr(position, -draft.content)
    return draft_binary(Operator.MUL, position, draft, DraftExpr(position, -1))


def build_map(
    position: int,
    dims: Sequence[MapIdentifier],
    symbols: Sequence[MapIdentifier],
    results: Sequence[DraftExpr],
) -> AffineMap:
    """Resolve the names; refuses SPY121 (results), SPY122, SPY123 (names), SPY124, SPY125."""
    if len(results) != 1:
        raise Rejection(
            "SPY121",
            "an affine map must have exactly one result",
            position,
            expected="one expression after ->",
            found=f"{len(results)}",
        )
    names = _declared(dims, symbols)
    return AffineMap(len(dims), len(symbols), _resolve(results[0], names))


def _declared(
    dims: Sequence[MapIdentifier], symbols: Sequence[MapIdentifier]
) -> dict[str, AffineExpr]:
    names: dict[str, AffineExpr] = {}
    for kind, identifiers in ((AffineDim, dims), (AffineSymbol, symbols)):
        for index, identifier in enumerate(identifiers):
            if identifier.name in names:
                raise Rejection(
                    "SPY123",
                    f"'{identifier.name}' is declared twice in this affine map",
                    identifier.position,
                )
            names[identifier.name] = kind(index)
    return names


def _resolve(draft: DraftExpr, names: Mapping[str, AffineExpr]) -> AffineExpr:
    if isinstance(draft.content, int):
        return AffineConstant(draft.content)
    if isinstance(draft.content, str):
        return _lookup(draft.content, draft.position, names)
    operator, left, right = draft.content
    resolved = _resolve(left, names), _resolve(right, names)
    try:
        return AffineBinary(operator, *resolved)
    except BundleError as error:
        problem = error.finding
        raise Rejection(
            problem.code,
            problem.message,
            draft.position,
            expected=problem.expected,
            found=problem.found,
        ) from None


def _lookup(name: str, position: int, names: Mapping[str, AffineExpr]) -> AffineExpr:
    if name not in names:
        raise Rejection(
            "SPY122",
            f"'{name}' is not declared in this affine map",
            position,
            expected=f"one of {', '.join(names)}" if names else "a constant (nothing is declared)",
        )
    return names[name]


NAME = re.compile(r"%([A-Za-z0-9_$.-]+)")
INDEX = IndexType()
Children = list[Any]


@dataclass(frozen=True, slots=True)
class _Return:
    position: int


@dataclass(frozen=True, slots=True)
class _Body:
    """Statements in braces, and the map aliases found among them, which move to the module."""

    statements: tuple[Statement, ...]
    aliases: tuple[MapAlias, ...]
    returns: tuple[_Return, ...]


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A module with the offset of its keyword."""

    module: Module
    position: int


@dataclass(frozen=True, slots=True)
class _Lifted:
    """A loop or function with the aliases found inside."""

    node: Any
    aliases: tuple[MapAlias, ...]


class TreeBuilder(Transformer[Token, Module]):
    """Callbacks by rule name; bundle.lark defines the children of each rule."""

    # --- file, module, function

    def file(self, children: Children) -> Module:
        """The whole text: exactly one module (or a bare function), and aliases."""
        wrappers = [c for c in children if isinstance(c, _Wrapper | _Lifted)]
        wrapper = _only(wrappers, "SPY105", "module")
        module = wrapper.module if isinstance(wrapper, _Wrapper) else _module(wrapper, [])
        aliases = [c for c in children if isinstance(c, MapAlias)]
        return replace(module, aliases=(*aliases, *module.aliases))

    def module(self, children: Children) -> _Wrapper:
        """``module [@name] [attributes] { aliases function }``."""
        keyword, name, attributes, *items = children
        functions = [c for c in items if isinstance(c, _Lifted)]
        module = replace(
            _module(_only(functions, "SPY106", "function", keyword.start_pos), items),
            name=str(name[1:]) if name else None,
            attributes=canonical_attributes(attributes or ()),
        )
        return _Wrapper(module, keyword.start_pos)

    def function(self, children: Children) -> _Lifted:
        """``func.func @name(parameters) { body }``; the body ends in its one return."""
        keyword, visibility, name, parameters, results, attributes, body = children
        if results is not None:
            raise Rejection(
                "SPY119", "the function may not return values", results, expected="no result types"
            )
        if not body.returns:
            raise Rejection(
                "SPY107", "the function does not end in return", keyword.start_pos,
                expected="return before the closing }",
            )  # fmt: skip
        node = Function(
            name=str(name[1:]),
            parameters=tuple(parameters or ()),
            body=body.statements,
            visibility=str(visibility) if visibility else None,
            attributes=canonical_attributes(attributes or ()),
            position=keyword.start_pos,
        )
        return _Lifted(node, tuple(replace(alias, in_function=True) for alias in body.aliases))

    def results(self, children: Children) -> int | None:
        """Result types: the offset of the arrow if there are any, else None."""
        arrow, types = children
        return arrow.start_pos if types else None

    def parameters(self, children: Children) -> Children:
        """The parameter list."""
        return children

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
            raise Rejection(
                "SPY126", "an input_arg cannot be annotated like this", key.start_pos,
                expected="granularity= or max_value= with a positive integer",
                found=f"{key}={value}",
            )  # fmt: skip
        return key, value

    # --- statements

    def body(self, children: Children) -> _Body:
        """Statements in braces; nothing may follow a return."""
        returns = [i for i, child in enumerate(children) if isinstance(child, _Return)]
        if returns and returns[0] != len(children) - 1:
            after = children[returns[0] + 1]
            position = after.node.position if isinstance(after, _Lifted) else after.position
            raise Rejection("SPY108", "a statement follows return", position, expected="}")
        statements: list[Statement] = []
        aliases: list[MapAlias] = []
        for child in children:
            if isinstance(child, _Lifted):
                aliases.extend(child.aliases)
                statements.append(child.node)
            elif isinstance(child, MapAlias):
                aliases.append(child)
            elif child is not None and not isinstance(child, _Return):
                statements.append(child)
        return _Body(tuple(statements), tuple(aliases), tuple(children[i] for i in returns))

    def return_statement(self, children: Children) -> _Return:
        """``return`` without operands."""
        keyword, operands = children[:2]
        if operands is not None:
            raise Rejection(
                "SPY119", "the function may not return values", keyword.start_pos,
                expected="return without operands",
            )  # fmt: skip
        return _Return(keyword.start_pos)

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
            raise Rejection(
                "SPY128", f"'{which}' cannot be extracted", which.start_pos,
                expected=f"one of {', '.join(ArgumentField)}",
            )  # fmt: skip
        return ExtractOp(
            _name(result),
            ArgumentField(which),
            str(argument[1:]),
            _type(type_),
            position=result.start_pos,
        )

    def allocate(self, children: Children) -> AllocateOp:
        """``%result = sdscbundle.device_mem_allocate size bytes : index``."""
        result, size = children[0], children[1]
        return AllocateOp(_name(result), integer(size), position=result.start_pos)

    def apply(self, children: Children) -> ApplyOp:
        """``%result = affine.apply map(dims)[symbols]``."""
        result, map_, dims, symbols = children
        return ApplyOp(
            _name(result),
            map_ if isinstance(map_, AffineMap) else str(map_[1:]),
            dims or (),
            symbols or (),
            position=result.start_pos,
        )

    def loop(self, children: Children) -> _Lifted:
        """``scf.for %variable = %lower to %upper step %step { body }``."""
        keyword, variable, lower, upper, step = children[:5]
        body = children[-1]
        if body.returns:
            position = body.returns[0].position
            raise Rejection(
                "SPY108", "return is inside a loop", position,
                expected="} closing the loop before return",
            )  # fmt: skip
        node = ForOp(
            _name(variable),
            str(lower[1:]),
            str(upper[1:]),
            str(step[1:]),
            body.statements,
            position=keyword.start_pos,
        )
        return _Lifted(node, body.aliases)

    def execute(self, children: Children) -> ExecuteOp:
        """``sdscbundle.sdsc_execute (operands) { attributes } [: (types) -> ()]``."""
        keyword, operands, attributes, signature = children
        return build_execute(keyword.start_pos, operands or (), attributes, signature)

    def signature(self, children: Children) -> int:
        """The trailing type of an execute: how many operands it claims."""
        return len(children[0] or ())

    def index_types(self, children: Children) -> Children:
        """``index, index, …``."""
        return children

    def operands(self, children: Children) -> tuple[str, ...]:
        """Names without %, from one or more list tokens."""
        if len(children) == 1:
            return tuple(NAME.findall(children[0]))
        return tuple(name for token in children for name in NAME.findall(token))

    def round_operands(self, children: Children) -> tuple[str, ...]:
        """``(operands)``."""
        return children[0] or ()

    def square_operands(self, children: Children) -> tuple[str, ...]:
        """``[operands]``."""
        return children[0] or ()

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
        """``affine_map<(dims)[symbols] -> (results)>``."""
        keyword, dims, symbols, _, results = children
        return build_map(keyword.start_pos, dims or (), symbols or (), results or ())

    def square_identifiers(self, children: Children) -> Children:
        """``[identifiers]``."""
        return children[0] or []

    def identifiers(self, children: Children) -> Children:
        """Declared names with their places."""
        return [MapIdentifier(str(token), token.start_pos) for token in children]

    def map_results(self, children: Children) -> Children:
        """The expressions after ``->``."""
        return children

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
        """``-operand``."""
        return draft_negation(children[0].position, children[0])

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
    return parsed if isinstance(parsed, InputArgType) else INDEX


def _only(found: list[Any], code: str, what: str, position: int = 0) -> Any:
    """The single element; refuses none (at ``position``) and a second one (at its place)."""
    if len(found) > 1:
        raise Rejection(code, f"more than one {what}", _start(found[1]), expected=f"one {what}")
    if not found:
        raise Rejection(code, f"there is no {what}", position, expected=f"one {what}")
    return found[0]


def _module(lifted: _Lifted, items: Children) -> Module:
    """A module of one function, with the aliases beside and inside it."""
    aliases = [item for item in items if isinstance(item, MapAlias)]
    return Module(lifted.node, (*aliases, *lifted.aliases))


def _start(node: _Wrapper | _Lifted) -> int:
    return node.position if isinstance(node, _Wrapper) else node.node.position


MAX_NESTING = 100
_BRACKETS = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\[^\n])*"|[(\[{]|[)\]}]')


def parse_module(text: str, file: str = "bundle.mlir") -> Module:
    """Parse ``text``; ``file`` is the name diagnostics show.

    Raises MlirSyntaxError (SPY101-SPY128) at the first place that does not follow the grammar.
    Names are not resolved here: see `inspect_module`.
    """
    source = SourceText.of(file, text)
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
    """The LALR tables, built at the first use (80 ms) and kept by Lark in our cache directory.

    Not where Lark would keep them, under a predictable name in the shared temporary directory: they
    are unpickled. Lark's key is the grammar, its own version and Python's.
    """
    grammar = Path(__file__).with_name("bundle.lark").read_text("utf-8")
    directory = writable_directory("grammar")
    kept = False if directory is None else str(directory / "bundle.tables")
    return Lark(grammar, parser="lalr", start="file", transformer=TreeBuilder(), cache=kept)


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
