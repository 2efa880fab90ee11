"""Checks of KTIR texts: names, types, shapes, sets, deliveries; everything known before a launch.

`check_tiles` walks every function once with the types of the values in scope. The checks of all
operations (operands have the types that are written, kinds of types, counts of results, yields)
follows from the rows of the table; a row's ``rule`` names a function of :mod:`.rules` for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from spyre.errors import Finding
from spyre.mlir.tiles.forms import Element, elements_of
from spyre.mlir.tiles.rules import Context, attribute_faults, grid_of, rule_faults
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
from spyre.rules import Fault, severities

Faults = Iterator[Fault[int]]
SEVERITIES = severities(
    "SPY115 SPY126 SPY128 SPY130 SPY131 SPY132 SPY133 SPY134 SPY138 SPY139 SPY181 SPY182 SPY183 "
    "SPY184 SPY185 SPY187 SPY188 SPY189 SPY190 SPY191 SPY192 SPY195",
    warnings="SPY195",
)
_KINDS = {"integer": INTEGERS, "float": FLOATS, "half": ("f16", "!spyreop.df16")}
_PLACES = ("memref", "access_tile", "tile_future")
_MOST = 20


def check_tiles(module: TileModule) -> tuple[Finding, ...]:
    """Return the findings on a text, in textual order, at most twenty of each code."""
    faults = [
        fault for function in module.functions for fault in _Function(module, function).check()
    ]
    seen: dict[str, int] = {}
    found = []
    for fault in sorted(faults, key=lambda fault: fault.place):
        seen[fault.code] = seen.get(fault.code, 0) + 1
        if seen[fault.code] <= _MOST:
            found.append(fault.finding(SEVERITIES[fault.code], module.locate(fault.place)))
    return tuple(found)


@dataclass
class _Value:
    """A value in scope. ``defined_by``: its operation; None for arguments."""

    type: Type
    defined_by: TileOp | None = None
    uses: list[int] = field(default_factory=list)


class _Function:
    """The walk over one function."""

    def __init__(self, module: TileModule, function: TileFunction) -> None:
        self.module, self.function = module, function
        self.scopes: list[dict[str, _Value]] = [{}]
        self.anywhere = {name: op.position for op in function.walk() for name in op.results}

    def check(self) -> Faults:
        """All faults of the function."""
        yield from grid_of(self.function)[1]
        for parameter in self.function.parameters:
            yield from attribute_faults(self.module, parameter.type, parameter.position)
            yield from self._define(parameter.name, parameter.type, None)
        for type_ in self.function.results:
            yield from attribute_faults(self.module, type_, self.function.position)
        yield from self._body(self.function.body, self.function.results)

    # --- names

    def _define(self, name: Name, type_: Type, op: TileOp | None) -> Faults:
        if any(name in scope for scope in self.scopes):
            yield Fault("SPY133", name.start_pos, f"%{name} is defined twice", "another name")
        self.scopes[-1][name] = _Value(type_, op)

    def _value(self, name: str) -> _Value | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def _undefined(self, name: Name) -> Fault[int]:
        place = self.anywhere.get(name)
        if place is None:
            return Fault("SPY130", name.start_pos, f"%{name} is not defined", "a value in scope")
        if place > name.start_pos:
            message = f"%{name} is used before its definition"
            return Fault("SPY131", name.start_pos, message, "a definition above")
        message = f"%{name} is defined inside of a region that ends before this use"
        return Fault("SPY132", name.start_pos, message, "a result of the operation with the region")

    # --- operations

    def _body(self, body: tuple[TileOp, ...], expected: tuple[Type, ...] | None) -> Faults:
        """Operations of a block, which ends by yielding values of the types ``expected``."""
        for op in body:
            yield from self._operation(op)
        for value in self.scopes[-1].values():
            if value.type.kind == "tile_future" and value.defined_by and len(value.uses) != 1:
                place = value.uses[1] if len(value.uses) > 1 else value.defined_by.position
                message = f"a future has {len(value.uses)} uses"
                yield Fault("SPY191", place, message, "one delivery per future")
        if expected is None:
            return
        last = body[-1] if body else None
        given = last.fields.get("!values", ()) if last and last.name in TERMINATORS else ()
        if tuple(given) != expected:
            place = last.position if last else self.function.position
            message = "the values yielded have other types than the results"
            shown = [", ".join(map(str, types)) or "no values" for types in (expected, given)]
            yield Fault("SPY181", place, message, *shown)

    def _operation(self, op: TileOp) -> Faults:
        row = operation_rows().get(op.name, OperationRow(op.name, result="result"))
        variables = op.fields.get("^variables", ())
        known = True
        for name in op.uses():
            value = self._value(name)
            if value is not None:
                value.uses.append(name.start_pos)
                yield from _read_of_empty(op, name, value)
                if value.type.kind in _PLACES and row.dialect != "ktdp" and op.name not in RETURNS:
                    message, known = f"%{name} of {op.name} is a place, and no value", False
                    yield Fault("SPY182", op.position, message, "a tensor", str(value.type))
            elif name not in variables:
                known = False
                yield self._undefined(name)
        yield from self._attributes(op)
        if known:
            yield from self._types(op, row)
        for region in op.regions:
            yield from self._region(op, region)
        yield from self._results(op, row)

    def _attributes(self, op: TileOp) -> Faults:
        for value in (*op.fields.values(), op.attributes):
            yield from attribute_faults(self.module, value, op.position)

    def _types(self, op: TileOp, row: OperationRow) -> Faults:
        """Operands against the types written, kinds of types, then the rule of the row."""
        context = Context(self.module, self.function, op, self._types_of(op))
        faults = [*_operand_faults(context, elements_of(row.form)), *_kind_faults(context, row)]
        yield from faults
        if row.rule and not faults:
            yield from rule_faults(context, row.rule)

    def _types_of(self, op: TileOp) -> dict[str, Type]:
        values = ((name, self._value(name)) for name in op.uses())
        return {name: value.type for name, value in values if value is not None}

    def _region(self, op: TileOp, region: Region) -> Faults:
        arguments, expected = region_types(op)
        self.scopes.append({})
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
        yield from self._body(region.body, expected)
        self.scopes.pop()

    def _results(self, op: TileOp, row: OperationRow) -> Faults:
        types = result_types(op, row, self._types_of(op))
        if len(types) != len(op.results) and (op.results or (types and row.result != "outs")):
            message = f"{op.name} has {len(types)} results"
            yield Fault("SPY183", op.position, message, f"{len(types)} names", f"{len(op.results)}")
        for name, type_ in zip(op.results, types, strict=False):
            yield from self._define(name, type_, op)


def _read_of_empty(op: TileOp, name: Name, value: _Value) -> Faults:
    """M6: a tensor.empty is a starting value, never an operand."""
    outs = (*op.fields.get("outs", ()), op.fields.get("into"))
    if value.defined_by and value.defined_by.name == "tensor.empty" and name not in outs:
        message = f"%{name} is read, but it is a tensor.empty, which has no value"
        yield Fault("SPY189", name.start_pos, message, "a tensor with values, or outs(…)")


def declared_types(op: TileOp, element: Element) -> tuple[Type, ...] | None:
    """The types that are written for the values of a form's element; None if there are none."""
    fields = op.fields
    found = fields.get(f"!{element.name}", fields.get("!T"))
    if element.name in ("views", "ins", "outs", "values", "identity"):
        return fields.get(f"!{element.name}")
    if element.name == "symbols" or found is None or isinstance(found, tuple):
        return None
    return (found,)


def _operand_faults(context: Context, elements: tuple[Element, ...]) -> Faults:
    """Values of other types than are written, and places that are no integers."""
    for element in elements:
        if element.sign == "?":
            yield from _operand_faults(context, element.parts)
        given = context.op.fields.get(element.name)
        if given is None:
            continue
        if element.sign in ("[", "&", "&&") or element.name in ("base", "symbols"):
            is_indirect = element.sign == "&&"
            for name in names_in(tuple(s.expressions for s in given) if is_indirect else given):
                if name in context.types and context.types[name].kind not in INTEGERS:
                    message = f"%{name} is no integer"
                    yield context.fault("SPY182", message, "index", context.types[name])
        elif element.sign == "%":
            names = given if isinstance(given, tuple) else (given,)
            yield from context.written(names, declared_types(context.op, element))


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


def result_types(op: TileOp, row: OperationRow, types: dict[str, Type]) -> tuple[Type, ...]:
    """Types of the results, by the row; ``types``: of the operands, by name."""
    fields = op.fields
    match row.result:
        case "bool":
            return (fields["!T"].with_element("i1"),)
        case "last":
            return tuple(fields["!types"][-1:])
        case "element":
            return (read_type(fields["!value"].element),)
        case "constant":
            return (fields.get("!result", read_type("i1")),)
        case key:
            found = read_type(key) if key in INTEGERS else fields.get(f"!{key}", ())
            return found if isinstance(found, tuple) else (found,)


def region_types(op: TileOp) -> tuple[tuple[Type | None, ...] | None, tuple[Type, ...] | None]:
    """Types of a region's arguments and of the values it yields; None where all are right."""
    fields = op.fields
    if op.name == "scf.for":
        carried = tuple(fields.get("!types", ()))
        return (fields.get("!T", read_type("index")), *carried), carried
    if op.name == "scf.if":
        return (), tuple(fields.get("!result", ()))
    if op.name in ("linalg.generic", "linalg.reduce"):
        outs = tuple(read_type(type_.element) for type_ in fields.get("!outs", ()))
        return (*(read_type(type_.element) for type_ in fields.get("!ins", ())), *outs), outs
    if op.name == "ktdp.inter_tile_produce":
        future = fields["!result"]
        return None, future.details[0] if future.kind == "tile_future" else None
    parts = tuple(fields.get("!identity", ()))
    return (*parts, *parts) or None, parts or None
