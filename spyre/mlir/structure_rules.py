"""Rules on the syntax tree: names, arity, and the statements by themselves.

``lower`` refuses a module that breaks one of the errors here, so everything behind it can rely
on them. Rules on values are in ``module_rules``. Source: bundle format reference §3.1 and §4.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spyre.errors import Finding
from spyre.mlir.names import NameFault, names_used, resolve
from spyre.mlir.rule import Fault, Rule, error, run, warning
from spyre.mlir.syntax import (
    AllocateOp,
    ApplyOp,
    ArgumentField,
    ExecuteOp,
    ExtractOp,
    ForOp,
    InputArgType,
    Module,
    Statement,
    walk,
)

MAX_ALLOCATED_BYTES = 15 * 2**30
"""A 16 GiB segment less the 1 GiB kept back (bundle format reference §3)."""
_UNSAFE_PATH = re.compile(r"^$|^[/\\]|^[A-Za-z]:|\x00|(?:^|[/\\])\.\.(?:[/\\]|$)")


@dataclass(frozen=True, slots=True)
class Structure:
    """What the rules look at, worked out once: the tree, its statements, the name faults."""

    module: Module
    statements: tuple[Statement, ...]
    name_faults: tuple[NameFault, ...]

    @property
    def executes(self) -> tuple[ExecuteOp, ...]:
        """The sdsc_execute statements in textual order."""
        return tuple(op for op in self.statements if isinstance(op, ExecuteOp))


StructureCheck = Callable[[Structure], Iterator[Fault]]


def check_structure(module: Module) -> tuple[Finding, ...]:
    """Findings of all structure rules."""
    structure = Structure(module, tuple(module.walk()), resolve(module))
    return run(STRUCTURE_RULES, structure, module)


def _name_rule(code: str) -> StructureCheck:
    def check(structure: Structure) -> Iterator[Fault]:
        return (found.fault for found in structure.name_faults if found.code == code)

    return check


def _extract_types(structure: Structure) -> Iterator[Fault]:
    """Only the field asked for is compared: emitters write a narrower annotation list."""
    declared = {p.name: p.type for p in structure.module.function.parameters}
    for op in structure.statements:
        if not isinstance(op, ExtractOp) or op.argument not in declared:
            continue
        parameter = declared[op.argument]
        if isinstance(parameter, InputArgType) and not _agrees(op, parameter):
            yield Fault(
                f"the type written differs from that of '%{op.argument}'",
                op.position,
                hint="the parameter's type counts",
            )


def _agrees(op: ExtractOp, parameter: InputArgType) -> bool:
    if not isinstance(op.type, InputArgType):
        return False
    if op.field is ArgumentField.VALUE:
        return True
    return op.type.annotation(op.field) in (None, parameter.annotation(op.field))


def _aliases_in_function(structure: Structure) -> Iterator[Fault]:
    for alias in structure.module.aliases:
        if alias.in_function:
            yield Fault(
                f"map alias '#{alias.name}' is defined inside the function",
                alias.position,
                expected="aliases at the top of the file",
            )


def _operand_counts(structure: Structure) -> Iterator[Fault]:
    maps = {alias.name: alias.map for alias in structure.module.aliases}
    for op in structure.statements:
        if not isinstance(op, ApplyOp):
            continue
        map_ = maps.get(op.map) if isinstance(op.map, str) else op.map
        given = (len(op.dims), len(op.symbols))
        if map_ is not None and given != (map_.n_dims, map_.n_symbols):
            yield Fault(
                "operands do not fit the affine map",
                op.position,
                expected=f"{map_.n_dims} dims in ( ) and {map_.n_symbols} symbols in [ ]",
                found=f"{given[0]} dims and {given[1]} symbols",
            )


def _varying_symbols(structure: Structure) -> Iterator[Fault]:
    varying: set[str] = set()
    for op in structure.statements:
        if isinstance(op, ForOp):
            varying.add(op.variable)
        elif not isinstance(op, ExecuteOp):
            if isinstance(op, ApplyOp):
                changing = (name for name in op.symbols if name in varying)
                yield from (_varying_symbol(name, op.position) for name in changing)
            depends = not varying.isdisjoint(names_used(op))
            (varying.add if depends else varying.discard)(op.result)


def _varying_symbol(name: str, position: int) -> Fault:
    return Fault(
        f"symbol operand '%{name}' changes with an enclosing loop",
        position,
        expected="a loop-invariant value in [ ], loop variables in ( )",
    )


def _empty_allocations(structure: Structure) -> Iterator[Fault]:
    for op in structure.statements:
        if isinstance(op, AllocateOp) and op.size_bytes <= 0:
            yield Fault(
                "device_mem_allocate needs a positive size", op.position,
                expected="at least 1 byte", found=f"{op.size_bytes}",
            )  # fmt: skip


def _total_allocation(structure: Structure) -> Iterator[Fault]:
    total = 0
    for op in structure.statements:
        if isinstance(op, AllocateOp):
            total += max(op.size_bytes, 0)
            if total > MAX_ALLOCATED_BYTES:
                yield Fault(
                    "device_mem_allocate exceeds the memory there is", op.position,
                    expected=f"at most {MAX_ALLOCATED_BYTES} bytes in total", found=f"{total}",
                )  # fmt: skip
                return


def _allocations_in_loops(structure: Structure) -> Iterator[Fault]:
    outermost = (op for op in structure.module.function.body if isinstance(op, ForOp))
    for loop in outermost:
        for op in walk(loop.body):
            if isinstance(op, AllocateOp):
                yield Fault(
                    "device_mem_allocate inside a loop",
                    op.position,
                    hint="all iterations share one buffer",
                )


def _id_counts(structure: Structure) -> Iterator[Fault]:
    for op in structure.executes:
        if len(op.operands) != len(op.symbol_ids):
            yield Fault(
                f"operands and symbol ids of {op.sdsc_filename} differ in number",
                op.position,
                expected=f"{len(op.operands)} symbol_ids, one per operand",
                found=f"{len(op.symbol_ids)}",
            )


def _id_signs(structure: Structure) -> Iterator[Fault]:
    for op in structure.executes:
        wrong = [id_ for id_ in op.symbol_ids if id_ >= 0]
        if wrong:
            yield Fault(
                f"symbol id {wrong[0]} is not negative", op.position,
                expected="ids -1, -2, …", found=f"{wrong[0]}",
            )  # fmt: skip


def _duplicate_ids(structure: Structure) -> Iterator[Fault]:
    for op in structure.executes:
        if len(set(op.symbol_ids)) < len(op.symbol_ids):
            twice = Counter(op.symbol_ids).most_common(1)[0][0]
            yield Fault(f"symbol id {twice} is listed twice", op.position)


def _unknown_attributes(structure: Structure) -> Iterator[Fault]:
    for op in structure.executes:
        for attribute in op.attributes:
            yield Fault(
                f"unknown attribute '{attribute.key}'",
                attribute.position,
                expected="sdsc_filename, symbol_ids",
            )


def _file_names(structure: Structure) -> Iterator[Fault]:
    for op in structure.executes:
        if _UNSAFE_PATH.search(op.sdsc_filename):
            yield Fault(
                f"'{op.sdsc_filename}' is not a file of this bundle", op.position,
                expected="a path relative to the directory of bundle.mlir, without ..",
            )  # fmt: skip


def _id_lists(structure: Structure) -> Iterator[Fault]:
    first: dict[str, frozenset[int]] = {}
    for op in structure.executes:
        ids = frozenset(op.symbol_ids)
        before = first.setdefault(op.sdsc_filename, ids)
        if ids != before:
            yield Fault(
                f"executes of {op.sdsc_filename} bind different symbol ids", op.position,
                expected="the same ids wherever a file is executed",
                found=f"different: {sorted(ids ^ before, reverse=True)[:8]}",
            )  # fmt: skip


STRUCTURE_RULES: tuple[Rule[Structure], ...] = (
    error("SPY130", _name_rule("SPY130")),
    error("SPY131", _name_rule("SPY131")),
    error("SPY132", _name_rule("SPY132")),
    error("SPY133", _name_rule("SPY133")),
    error("SPY134", _name_rule("SPY134")),
    error("SPY135", _name_rule("SPY135")),
    error("SPY136", _name_rule("SPY136")),
    error("SPY137", _name_rule("SPY137")),
    warning("SPY138", _extract_types),
    error("SPY139", _name_rule("SPY139")),
    warning("SPY140", _aliases_in_function),
    error("SPY141", _operand_counts),
    warning("SPY142", _varying_symbols),
    error("SPY153", _empty_allocations),
    error("SPY154", _total_allocation),
    warning("SPY155", _allocations_in_loops),
    error("SPY160", _id_counts),
    error("SPY161", _id_signs),
    error("SPY162", _duplicate_ids),
    warning("SPY163", _unknown_attributes),
    error("SPY164", _file_names),
    error("SPY165", _id_lists),
)
