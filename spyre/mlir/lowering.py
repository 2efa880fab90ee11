"""Lowering: a syntax tree becomes a :class:`~.program.LoopProgram`, SSA names gone, integers only.

``lower`` walks the function once, with a :class:`~spyre.mlir.value.Value` per name. Meaning of the
constructs: bundle format reference §3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spyre.errors import BundleError, Severity, ValidationError
from spyre.mlir import syntax
from spyre.mlir.affine import AffineMap, fold
from spyre.mlir.loops import Allocation, Body, Execute, Loop, Parameter, executes
from spyre.mlir.program import LoopProgram
from spyre.mlir.relocate import relocate
from spyre.mlir.structure_rules import check_structure
from spyre.mlir.value import (
    SYMBOLIC,
    AllocationAtom,
    LoopAtom,
    ParameterAtom,
    Terms,
    Value,
    add,
    of_atom,
)


def lower(module: syntax.Module) -> LoopProgram:
    """Lower a module. Raises ValidationError if its structure is wrong (names, arity, execute
    rules), BundleError SPY125, SPY157 or SPY158 if a constant expression is.
    """
    findings = check_structure(module)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise ValidationError(findings)
    lowering = _Lowering(module)
    parameters = tuple(map(lowering.parameter, module.function.parameters))
    body = lowering.body(module.function.body, 0)
    return LoopProgram(parameters, tuple(lowering.allocations), body, tuple(executes(body)))


@dataclass(slots=True)
class _Lowering:
    """The walk: what every name is worth so far, and what has been collected."""

    module: syntax.Module
    values: dict[str, Value] = field(default_factory=dict)
    parameters: dict[str, tuple[int, syntax.ParameterType]] = field(default_factory=dict)
    maps: dict[str, AffineMap] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    terms: dict[Terms, Terms] = field(default_factory=dict)
    n_executes: int = 0

    def __post_init__(self) -> None:
        self.maps.update((alias.name, alias.map) for alias in self.module.aliases)

    def parameter(self, node: syntax.Parameter) -> Parameter:
        """A function parameter; an ``index`` one is a value at once."""
        index = len(self.parameters)
        self.parameters[node.name] = (index, node.type)
        location = self.module.locate(node.position)
        if isinstance(node.type, syntax.IndexType):
            self.values[node.name] = of_atom(ParameterAtom(index, node.name))
            return Parameter(node.name, "index", location=location)
        granularity, max_value = node.type.granularity, node.type.max_value
        return Parameter(node.name, "input_arg", granularity, max_value, location=location)

    def body(self, statements: tuple[syntax.Statement, ...], depth: int) -> Body:
        """Statements in order; definitions only change ``values``."""
        items: list[Loop | Execute] = []
        for statement in statements:
            if isinstance(statement, syntax.ExecuteOp):
                items.append(self.execute(statement))
            elif isinstance(statement, syntax.ForOp):
                items.append(self.loop(statement, depth))
            else:
                self.values[statement.result] = self.definition(statement)
        return tuple(items)

    def definition(self, op: syntax.Definition) -> Value:
        """The value of a result, errors located."""
        try:
            return self._evaluate(op)
        except BundleError as error:
            raise relocate(error, BundleError, self.module.locate(op.position)) from None

    def _evaluate(self, op: syntax.Definition) -> Value:
        match op:
            case syntax.ConstantOp():
                return Value(op.value)
            case syntax.AddIOp():
                return add(self.values[op.left], self.values[op.right])
            case syntax.ApplyOp():
                map_ = self.maps[op.map] if isinstance(op.map, str) else op.map
                dims = [self.values[name] for name in op.dims]
                symbols = [self.values[name] for name in op.symbols]
                return self._shared(fold(map_.result, dims, symbols, SYMBOLIC))
            case syntax.ExtractOp():
                return self._extract(op)
            case syntax.AllocateOp():
                return self._allocate(op)

    def _shared(self, value: Value) -> Value:
        """``value`` with the terms object of earlier equal terms: the schedule computes values
        that share it together.
        """
        return Value(value.constant, self.terms.setdefault(value.terms, value.terms))

    def _extract(self, op: syntax.ExtractOp) -> Value:
        index, type_ = self.parameters[op.argument]
        assert isinstance(type_, syntax.InputArgType)
        annotation = type_.annotation(op.field)
        if annotation is not None:
            return Value(annotation)
        return of_atom(ParameterAtom(index, op.argument))

    def _allocate(self, op: syntax.AllocateOp) -> Value:
        index = len(self.allocations)
        location = self.module.locate(op.position)
        self.allocations.append(Allocation(index, op.size_bytes, location=location))
        return of_atom(AllocationAtom(index))

    def execute(self, op: syntax.ExecuteOp) -> Execute:
        """An execute with its symbols."""
        index = self.n_executes
        self.n_executes += 1
        symbols = tuple([self.values[name] for name in op.operands])
        location = self.module.locate(op.position)
        return Execute(index, op.sdsc_filename, op.symbol_ids, symbols, location=location)

    def loop(self, op: syntax.ForOp, depth: int) -> Loop:
        """A loop; its variable is the column of its depth."""
        lower_, upper, step = (self.values[name] for name in (op.lower, op.upper, op.step))
        self.values[op.variable] = of_atom(LoopAtom(depth, op.variable))
        body = self.body(op.body, depth + 1)
        location = self.module.locate(op.position)
        return Loop(op.variable, lower_, upper, step, body, location=location)
