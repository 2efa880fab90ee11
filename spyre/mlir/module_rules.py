"""Every check that needs bundle.mlir alone: the rules as data, and ``check_module``.

Structure rules look at the syntax tree; if they find no error the module is lowered and the
value rules look at its loops and symbols. Checks against the SDSC files belong to the bundle.
Source: bundle format reference §3 and §4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from spyre.errors import BundleError, Finding, Severity
from spyre.mlir.loops import Execute, Loop, loops
from spyre.mlir.lowering import lower
from spyre.mlir.program import LoopProgram
from spyre.mlir.rule import Fault, Rule, error, run, warning
from spyre.mlir.structure_rules import STRUCTURE_RULES, Structure, check_structure
from spyre.mlir.syntax import Module
from spyre.mlir.value import Value


def check_module(module: Module, *, strict: bool = False) -> tuple[Finding, ...]:
    """All findings, errors and warnings, in textual order.

    ``strict`` adds the rule that loop bounds are constants (SPY156), as the older format demands.
    Time is linear in the size of the module.
    """
    findings = check_structure(module)
    if all(finding.severity is Severity.WARNING for finding in findings):
        findings = (*findings, *_check_values(module, strict))
    return tuple(sorted(findings, key=_place))


def _check_values(module: Module, strict: bool) -> tuple[Finding, ...]:
    try:
        program = lower(module)
    except BundleError as problem:
        return (problem.finding,)
    return run((*VALUE_RULES, *STRICT_RULES) if strict else VALUE_RULES, program, module)


def _place(finding: Finding) -> tuple[int, int]:
    location = finding.location
    return (getattr(location, "line", 0), getattr(location, "column", 0))


def _steps(program: LoopProgram) -> Iterator[Fault]:
    for loop in loops(program.body):
        if loop.step.is_constant and loop.step.constant <= 0:
            yield Fault(
                f"the step of loop '{loop.variable}' is not positive", loop.location,
                expected="a step > 0", found=f"{loop.step}",
            )  # fmt: skip


def _trip_counts(program: LoopProgram) -> Iterator[Fault]:
    for loop in loops(program.body):
        if not _has_constant_bounds(loop) or loop.step.constant <= 0:
            continue
        span, step = loop.upper.constant - loop.lower.constant, loop.step.constant
        if span > 0 and span % step:
            yield Fault(
                f"the trip count of loop '{loop.variable}' is not integral",
                loop.location,
                expected=f"upper - lower to be a multiple of {step}",
                found=f"{span}",
                hint="here the last iteration is run; the device may drop it",
            )


def _has_constant_bounds(loop: Loop) -> bool:
    return loop.lower.is_constant and loop.upper.is_constant and loop.step.is_constant


def _negative_symbols(program: LoopProgram) -> Iterator[Fault]:
    for execute in program.executes:
        for id_, value in zip(execute.symbol_ids, execute.symbols, strict=True):
            if value.is_constant and value.constant < 0:
                yield Fault(
                    f"symbol {id_} of {execute.sdsc_filename} is negative",
                    execute.location,
                    expected="an address or a size ≥ 0",
                    found=f"{value}",
                )


def _dynamic_bounds(program: LoopProgram) -> Iterator[Fault]:
    for loop in loops(program.body):
        if not _has_constant_bounds(loop):
            yield Fault(
                f"a bound of loop '{loop.variable}' is not a constant", loop.location,
                expected="constants", found=f"{loop.lower} to {loop.upper} step {loop.step}",
            )  # fmt: skip


def _rebound_ids(program: LoopProgram) -> Iterator[Fault]:
    """Within one outermost loop an id may be reused; elsewhere one id should have one value."""
    first: dict[int, tuple[Value, int]] = {}
    reported: set[int] = set()
    for group, item in enumerate(program.body):
        for execute in _executes(item):
            for id_, value in zip(execute.symbol_ids, execute.symbols, strict=True):
                before, where = first.setdefault(id_, (value, group))
                if where != group and before != value and id_ not in reported:
                    reported.add(id_)
                    yield Fault(
                        f"symbol id {id_} has different values in different executes",
                        execute.location,
                        expected=f"{before}, as before",
                        found=f"{value}",
                    )


def _executes(item: Loop | Execute) -> Iterator[Execute]:
    if isinstance(item, Execute):
        return iter((item,))
    return chain.from_iterable(map(_executes, item.body))


VALUE_RULES: tuple[Rule[LoopProgram], ...] = (
    error("SPY150", _steps),
    warning("SPY151", _trip_counts),
    error("SPY152", _negative_symbols),
    warning("SPY166", _rebound_ids),
)
STRICT_RULES: tuple[Rule[LoopProgram], ...] = (error("SPY156", _dynamic_bounds),)
RULES: tuple[Rule[Structure] | Rule[LoopProgram], ...] = (
    *STRUCTURE_RULES,
    *VALUE_RULES,
    *STRICT_RULES,
)
"""All rules, for the docs: code, severity, title."""
