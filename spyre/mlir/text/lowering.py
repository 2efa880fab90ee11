"""From syntax tree to lowered program, and every check that bundle.mlir alone allows.

``lower`` walks the function once, with an `IndexValue` per name; ``inspect_module`` applies the
structure rules and, if they find no error, lowers the module and applies the rules on its values.
Checks against the SDSC files belong to the bundle. Meaning of the constructs and rules: bundle
format reference §3 and §4.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from spyre.errors import BundleError, Finding, Severity, ValidationError, has_errors
from spyre.mlir.program import (
    AffineMap,
    Body,
    DeviceAllocation,
    Execute,
    IndexValue,
    InputAtom,
    Loop,
    LoopProgram,
    Parameter,
    Terms,
    add,
    executes,
    fold_shared,
    loops,
    of_atom,
    relocate,
)
from spyre.mlir.text import syntax
from spyre.mlir.text.structure_rules import STRUCTURE_RULES, ModuleFault, ModulePlace, check_rules
from spyre.mlir.text.syntax import Module
from spyre.rules import Fault, RuleSet, severities, textual_place


def lower(module: syntax.Module) -> LoopProgram:
    """Lower a module. Raises ValidationError if its structure is wrong (names, arity, execute
    rules), BundleError SPY125, SPY157 or SPY158 if a constant expression is.
    """
    findings = check_rules(STRUCTURE_RULES, module, module)
    if has_errors(findings):
        raise ValidationError(findings)
    return _lowered(module)


def _lowered(module: syntax.Module) -> LoopProgram:
    lowering = _Lowering(module)
    parameters = tuple(map(lowering.parameter, module.function.parameters))
    body = lowering.body(module.function.body, 0)
    return LoopProgram(parameters, tuple(lowering.allocations), body, tuple(executes(body)))


class _Lowering(msgspec.Struct):
    """State of the walk: values, parameters and maps by name, and the collected allocations."""

    module: syntax.Module
    values: dict[str, IndexValue] = msgspec.field(default_factory=dict)
    parameters: dict[str, tuple[int, syntax.ParameterType]] = msgspec.field(default_factory=dict)
    maps: dict[str, AffineMap] = msgspec.field(default_factory=dict)
    allocations: list[DeviceAllocation] = msgspec.field(default_factory=list)
    terms: dict[Terms, Terms] = msgspec.field(default_factory=dict)
    n_executes: int = 0

    def __post_init__(self) -> None:
        self.maps.update((alias.name, alias.map) for alias in self.module.aliases)

    def parameter(self, node: syntax.FunctionParameter) -> Parameter:
        """A function parameter; an ``index`` one is a value at once."""
        index = len(self.parameters)
        self.parameters[node.name] = (index, node.type)
        location = self.module.locate(node.position)
        if node.type is None:
            self.values[node.name] = of_atom(InputAtom("parameter", index, node.name))
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

    def definition(self, op: syntax.Definition) -> IndexValue:
        """The value of a result, errors located."""
        try:
            match op:
                case syntax.ConstantOp():
                    return IndexValue(op.value)
                case syntax.AddIOp():
                    return add(self.values[op.left], self.values[op.right])
                case syntax.ApplyOp():
                    map_ = self.maps[op.map] if isinstance(op.map, str) else op.map
                    dims = [self.values[name] for name in op.dims]
                    symbols = [self.values[name] for name in op.symbols]
                    return fold_shared(map_.result, dims, symbols, self.terms)
                case syntax.ExtractOp():
                    return self._extract(op)
                case syntax.AllocateOp():
                    return self._allocate(op)
        except BundleError as error:
            raise relocate(error, BundleError, self.module.locate(op.position)) from None

    def _extract(self, op: syntax.ExtractOp) -> IndexValue:
        index, type_ = self.parameters[op.argument]
        assert isinstance(type_, syntax.InputArgType)
        annotation = type_.annotation(op.field)
        if annotation is not None:
            return IndexValue(annotation)
        return of_atom(InputAtom("parameter", index, op.argument))

    def _allocate(self, op: syntax.AllocateOp) -> IndexValue:
        index = len(self.allocations)
        location = self.module.locate(op.position)
        self.allocations.append(DeviceAllocation(index, op.size_bytes, location=location))
        return of_atom(InputAtom("allocation", index, f"allocation{index}"))

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
        self.values[op.variable] = of_atom(InputAtom("loop", depth, op.variable))
        body = self.body(op.body, depth + 1)
        location = self.module.locate(op.position)
        return Loop(op.variable, lower_, upper, step, body, location=location)


# --- checks -----------------------------------------------------------------------------------


class ModuleInspection(msgspec.Struct, frozen=True):
    """Findings on a module in textual order; ``lowered``: its program, or why it has none."""

    findings: tuple[Finding, ...]
    lowered: LoopProgram | BundleError

    @property
    def program(self) -> LoopProgram:
        """The lowered module; errors as of `lower`."""
        if isinstance(self.lowered, BundleError):
            raise self.lowered
        return self.lowered


def inspect_module(module: Module, *, strict: bool = False) -> ModuleInspection:
    """Checks a module and lowers it, in one pass.

    ``strict`` adds the rule that loop bounds are constants (SPY156), as the older format demands.
    Time is linear in the size of the module.
    """
    findings = check_rules(STRUCTURE_RULES, module, module)
    lowered: LoopProgram | BundleError
    if has_errors(findings):
        lowered = ValidationError(findings)
    else:
        try:
            lowered = _lowered(module)
            rules = VALUE_RULES + STRICT_RULES if strict else VALUE_RULES
            findings = (*findings, *check_rules(rules, lowered, module))
        except BundleError as problem:
            lowered, findings = problem, (*findings, problem.finding)
    return ModuleInspection(tuple(sorted(findings, key=textual_place)), lowered)


def _bounds(program: LoopProgram) -> Iterator[ModuleFault]:
    for loop in loops(program.body):
        if loop.step.is_constant and loop.step.constant <= 0:
            message = f"the step of loop '{loop.variable}' is not positive"
            expected = "a step > 0"
            yield Fault("SPY150", loop.location, message, expected=expected, found=f"{loop.step}")
        elif _has_constant_bounds(loop):
            span, step = loop.upper.constant - loop.lower.constant, loop.step.constant
            if span > 0 and span % step:
                yield Fault(
                    "SPY151", loop.location,
                    f"the trip count of loop '{loop.variable}' is not integral",
                    expected=f"upper - lower to be a multiple of {step}", found=f"{span}",
                    hint="here the last iteration is run; the device may drop it",
                )  # fmt: skip


def _has_constant_bounds(loop: Loop) -> bool:
    return loop.lower.is_constant and loop.upper.is_constant and loop.step.is_constant


def _dynamic_bounds(program: LoopProgram) -> Iterator[ModuleFault]:
    for loop in loops(program.body):
        if not _has_constant_bounds(loop):
            message = f"a bound of loop '{loop.variable}' is not a constant"
            found = f"{loop.lower} to {loop.upper} step {loop.step}"
            yield Fault("SPY156", loop.location, message, expected="constants", found=found)


def _symbols(program: LoopProgram) -> Iterator[ModuleFault]:
    """Within one outermost loop an id may be reused; elsewhere one id should have one value."""
    first: dict[int, tuple[IndexValue, int]] = {}
    reported: set[int] = set()
    for group, item in enumerate(program.body):
        for execute in executes((item,)):
            for id_, value in zip(execute.symbol_ids, execute.symbols, strict=True):
                if value.is_constant and value.constant < 0:
                    message = f"symbol {id_} of {execute.sdsc_filename} is negative"
                    expected = "an address or a size ≥ 0"
                    found = f"{value}"
                    yield Fault("SPY152", execute.location, message, expected=expected, found=found)
                before, where = first.setdefault(id_, (value, group))
                is_other = before is not value and before != value
                if is_other and where != group and id_ not in reported:
                    reported.add(id_)
                    message = f"symbol id {id_} has different values in different executes"
                    expected = f"{before}, as before"
                    found = f"{value}"
                    yield Fault("SPY166", execute.location, message, expected=expected, found=found)


VALUE_RULES: RuleSet[LoopProgram, ModulePlace] = RuleSet(
    severities("SPY150 SPY151 SPY152 SPY166", warnings="SPY151 SPY166"), (_bounds, _symbols)
)
STRICT_RULES: RuleSet[LoopProgram, ModulePlace] = RuleSet(
    {"SPY156": Severity.ERROR}, (_dynamic_bounds,)
)
