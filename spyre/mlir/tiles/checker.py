"""Checks of KTIR texts: names, types, shapes, sets, deliveries; everything known before a launch.

`check_tiles` walks every function once with the types of the values in scope. The checks of all
operations (operands have the types that are written, kinds of types, counts of results, yields)
follow from the rows of the table; a row's ``rule`` names a function of :mod:`.rules` for the rest.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence

from spyre.errors import Finding
from spyre.mlir.tiles.forms import Element, elements_of
from spyre.mlir.tiles.rules import Context, ScopedValue, attribute_faults, grid_of, rule_faults
from spyre.mlir.tiles.syntax import (
    FLOATS,
    INTEGERS,
    Name,
    Region,
    TileFunction,
    TileModule,
    TileOp,
    Type,
    names_in,
    read_type,
)
from spyre.mlir.tiles.table import RETURNS, TERMINATORS, OperationRow, operation_rows
from spyre.rules import Fault, RuleSet, severities, textual_place

Faults = Iterator[Fault[int]]
Types = tuple[Type, ...]
_KINDS = {"integer": INTEGERS, "float": FLOATS, "half": ("f16", "!spyreop.df16")}
_PLACES = ("memref", "access_tile", "tile_future")
_LISTS = ("views", "ins", "outs", "values", "identity")
_MOST = 20
_ENDS = {
    "ktdp.inter_tile_produce": "ktdp.yield_partial", "ktdp.inter_tile_reduce": "ktdp.yield_reduced",
}  # fmt: skip
"""The last operation of a block, of operations for which it is not their dialect's ``yield``."""


def _module_faults(module: TileModule) -> Faults:
    names: set[str] = set()
    for function in module.functions:
        yield from _Function(module, function).check()
        if function.name in names:
            message = f"@{function.name} is defined twice"
            yield Fault("SPY133", function.position, message, "another name")
        names.add(function.name)


RULES: RuleSet[TileModule, int] = RuleSet(
    severities(
        "SPY115 SPY126 SPY128 SPY130 SPY131 SPY132 SPY133 SPY134 SPY138 SPY139 SPY181 SPY182 "
        "SPY183 SPY184 SPY185 SPY187 SPY188 SPY189 SPY190 SPY191 SPY192 SPY195",
        warnings="SPY195",
    ),
    (_module_faults,),
)


def check_tiles(module: TileModule) -> tuple[Finding, ...]:
    """Return the findings on a text, in textual order, at most twenty of each code."""
    return tuple(sorted(RULES.findings(module, module.locate, _MOST), key=textual_place))


class _Function:
    """The walk over one function."""

    def __init__(self, module: TileModule, function: TileFunction) -> None:
        self.module, self.function = module, function
        self.scope: ChainMap[str, ScopedValue] = ChainMap()
        self.anywhere = {name: op.position for op in function.walk() for name in op.results}

    def check(self) -> Faults:
        """All faults of the function."""
        yield from grid_of(self.function)[1]
        for parameter in self.function.parameters:
            yield from attribute_faults(self.module, parameter.type, parameter.position)
            if self.function.body:
                yield from self._define(parameter.name, parameter.type, None)
        yield from attribute_faults(self.module, self.function.results, self.function.position)
        if self.function.body:
            yield from self._body(self.function.body, self.function.results, RETURNS)

    def _define(self, name: Name, type_: Type, op: TileOp | None) -> Faults:
        if name in self.scope:
            yield Fault("SPY133", name.start_pos, f"%{name} is defined twice", "another name")
        self.scope[name] = ScopedValue(type_, op)

    def _undefined(self, name: Name) -> Fault[int]:
        place, hint = self.anywhere.get(name, -1), "a result of the operation with the region"
        code, message = "SPY132", "is defined inside of a region that ends before this use"
        if place < 0:
            code, message, hint = "SPY130", "is not defined", "a value in scope"
        elif place > name.start_pos:
            code, message, hint = "SPY131", "is used before its definition", "a definition above"
        return Fault(code, name.start_pos, f"%{name} {message}", hint)

    def _body(
        self, body: tuple[TileOp, ...], expected: Types | None, ends: Sequence[str], place: int = 0
    ) -> Faults:
        """Operations of a block, which ends by one of ``ends`` with values of types ``expected``.

        ``place``: of the operation around an empty block.
        """
        for op in body:
            yield from self._operation(op)
            if op.name in TERMINATORS and (op is not body[-1] or op.name not in ends):
                message, expected_end = f"{op.name} does not end this block", " or ".join(ends)
                yield Fault("SPY183", op.position, message, f"{expected_end} at its end")
        for value in self.scope.maps[0].values():
            if value.type.kind == "tile_future" and value.defined_by and len(value.uses) != 1:
                place = value.uses[1] if len(value.uses) > 1 else value.defined_by.position
                message = f"a future has {len(value.uses)} uses"
                yield Fault("SPY191", place, message, "one delivery per future")
        last = body[-1] if body else None
        given = last.fields.get("!values", ()) if last and last.name in TERMINATORS else ()
        if expected is not None and tuple(given) != expected:
            place = last.position if last else place
            message = "the values yielded have other types than the results"
            shown = [", ".join(map(str, types)) or "no values" for types in (expected, given)]
            yield Fault("SPY181", place, message, *shown)

    def _operation(self, op: TileOp) -> Faults:
        """Names, attributes, operands against the types written, kinds of types, the rule of the
        row; then the regions and results.
        """
        row = operation_rows().get(op.name, OperationRow(op.name))
        known = True
        for name in op.uses():
            if name in self.scope:
                value = self.scope[name]
                value.uses.append(name.start_pos)
                yield from _use_faults(op, name, value)
                known = known and (value.type.kind not in _PLACES or _takes_places(op))
            elif name not in op.fields.get("^variables", ()):
                known = False
                yield self._undefined(name)
        for field_ in (*op.fields.values(), op.attributes):
            yield from attribute_faults(self.module, field_, op.position)
        if known:
            context = Context(self.module, self.function, op, self.scope)
            faults = [*_operand_faults(context, elements_of(row.form)), *_kind_faults(context, row)]
            if row.result == "outs" and "!result" in op.fields:
                pair = [", ".join(map(str, context.type(key))) for key in ("outs", "result")]
                faults += context.equal("SPY181", "results have other types than outs", *pair)
            yield from faults or rule_faults(context, row.rule)
        for region in op.regions:
            yield from self._region(op, region)
        results = _result_types(op, row)
        if len(results) != len(op.results) and (op.results or (results and row.result != "outs")):
            message = f"{op.name} has {len(results)} results"
            expected = f"{len(results)} names"
            yield Fault("SPY183", op.position, message, expected, f"{len(op.results)}")
        for name, type_ in zip(op.results, results, strict=False):
            yield from self._define(name, type_, op)

    def _region(self, op: TileOp, region: Region) -> Faults:
        arguments, expected = _region_types(op)
        self.scope = self.scope.new_child()
        if arguments is not None and len(arguments) != len(region.arguments):
            message = f"the region of {op.name} has {len(region.arguments)} arguments"
            yield Fault("SPY183", op.position, message, f"{len(arguments)}")
        given = arguments or tuple(type_ for _, type_ in region.arguments)
        for (own, written), implied in zip(region.arguments, given, strict=False):
            type_ = written or implied or read_type("index")
            if written and implied and written != implied:
                message = f"%{own} has another type than {op.name} gives it"
                yield Fault("SPY181", own.start_pos, message, str(implied), str(written))
            yield from self._define(own, type_, None)
        last = [_ENDS.get(op.name, f"{op.name.partition('.')[0]}.yield")]
        yield from self._body(region.body, expected, last, op.position)
        self.scope = self.scope.parents


def _takes_places(op: TileOp) -> bool:
    return op.name.startswith("ktdp.") or op.name in RETURNS


def _use_faults(op: TileOp, name: Name, value: ScopedValue) -> Faults:
    """A tensor.empty is a starting value, never an operand (M6); places are no values."""
    outs = (*op.fields.get("outs", ()), op.fields.get("into"))
    if value.defined_by and value.defined_by.name == "tensor.empty" and name not in outs:
        message = f"%{name} is read, but it is a tensor.empty, which has no value"
        yield Fault("SPY189", name.start_pos, message, "a tensor with values, or outs(…)")
    if value.type.kind in _PLACES and not _takes_places(op):
        message = f"%{name} of {op.name} is a place, and no value"
        yield Fault("SPY182", op.position, message, "a tensor", str(value.type))


def _operand_faults(context: Context, elements: tuple[Element, ...]) -> Faults:
    """Values of other types than are written, and places that are no integers."""
    fields = context.op.fields
    for element in elements:
        if element.sign == "?":
            yield from _operand_faults(context, element.parts)
        given = fields.get(element.name)
        if given is None:
            continue
        if element.sign in ("[", "&", "&&") or element.name in ("base", "symbols"):
            for name in names_in(tuple(s.expressions for s in given) if element.sign == "&&"
                                 else given):  # fmt: skip
                type_ = context.type_of_value(name)
                if type_ is not None and type_.kind not in INTEGERS:
                    yield context.fault("SPY182", f"%{name} is no integer", "index", type_)
        elif element.sign == "%":
            written = fields.get(f"!{element.name}", fields.get("!T"))
            if element.name in _LISTS:
                written = fields.get(f"!{element.name}")
            elif written is not None:
                written = None if isinstance(written, tuple) else (written,)
            yield from context.written(given if isinstance(given, tuple) else (given,), written)


def _kind_faults(context: Context, row: OperationRow) -> Faults:
    if not row.kinds:
        return
    fields = context.op.fields
    lists = (*fields.get("!ins", ()), *fields.get("!types", ()))
    first = fields.get("!a") or fields.get("!T") or lists[-1]
    allowed = [kind for kinds in row.kinds.split() for kind in _KINDS[kinds]]
    if first.scalar not in allowed or first.kind in ("memref", "access_tile"):
        expected = f"one of {', '.join(allowed)}, or tensors of them"
        yield context.fault("SPY182", f"{first.scalar} is not taken", expected, first)


def _result_types(op: TileOp, row: OperationRow) -> Types:
    """Types of the results, by the row."""
    fields = op.fields
    match row.result:
        case "bool":
            found = fields["!T"].with_element("i1")
        case "pair":
            found = (fields["!T"],) * 2
        case "last":
            found = tuple(fields["!types"][-1:])
        case "element":
            found = read_type(fields["!value"].element)
        case "constant":
            found = fields.get("!result", read_type("i1"))
        case key:
            found = read_type(key) if key in INTEGERS else fields.get(f"!{key}", ())
    return found if isinstance(found, tuple) else (found,)


def _region_types(op: TileOp) -> tuple[tuple[Type | None, ...] | None, Types | None]:
    """Types of a region's arguments and of the values it yields; None where all are right."""
    fields = op.fields
    if op.name == "scf.for":
        carried = tuple(fields.get("!types", ()))
        return (fields.get("!T", read_type("index")), *carried), carried
    if op.name == "scf.if":
        return (), tuple(fields.get("!result", ()))
    if op.name in ("linalg.generic", "linalg.reduce", "linalg.map"):
        ins, outs = (
            tuple(read_type(type_.scalar) for type_ in fields.get(key, ()))
            for key in ("!ins", "!outs")
        )
        is_short = op.name == "linalg.map" and len(op.regions[0].arguments) == len(ins)
        return ins if is_short else (*ins, *outs), outs
    if op.name == "ktdp.inter_tile_produce":
        future = fields["!result"]
        return None, future.details[0] if future.kind == "tile_future" else None
    parts = tuple(fields.get("!identity", ()))
    return (*parts, *parts) or None, parts or None
