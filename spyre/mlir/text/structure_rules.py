"""Rules on the syntax tree: names, arity, and the statements by themselves.

`resolve` walks the function once with the scopes MLIR has: a loop's names end with the loop, and no
name may be defined while another of the same spelling is visible. ``lower`` refuses a module that
breaks one of the errors here, so everything behind it can rely on them. Rules on values are in
:mod:`spyre.mlir.text.lowering`. Source: bundle format reference §3.1 and §4.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spyre.errors import Finding, SourceLocation
from spyre.mlir.text.syntax import (
    NO_POSITION,
    AddIOp,
    AllocateOp,
    ApplyOp,
    ArgumentField,
    ExecuteOp,
    ExtractOp,
    ForOp,
    InputArgType,
    Module,
    ParameterType,
    Statement,
    walk,
)
from spyre.rules import Fault, Rule, apply_rules, error, warning

MAX_FAULTS = 100
"""A rule is heard that often: one missing line can make ten thousand names undefined."""
MAX_LISTED = 8
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_$.-")

ModulePlace = int | SourceLocation | None
"""Where a module breaks a rule: an offset in its text, or a location."""
ModuleFault = Fault[ModulePlace]
SubjectT = TypeVar("SubjectT")


def check_rules(
    rules: Iterable[Rule[SubjectT, ModulePlace]], subject: SubjectT, module: Module
) -> tuple[Finding, ...]:
    """Findings of all rules on ``subject``, located in ``module``, in the order of the rules."""

    def locate(place: ModulePlace) -> SourceLocation | None:
        return module.locate(place) if isinstance(place, int) else place

    return tuple(apply_rules(rules, subject, locate, MAX_FAULTS))


NameFaults = Mapping[str, Sequence[ModuleFault]]
"""Faults by the code of the rule they break."""


def resolve(module: Module) -> NameFaults:
    """All faults of SSA names and aliases (`NAME_CODES`), those of a code in textual order."""
    walk = _Walk(module)
    walk.aliases()
    for parameter in module.function.parameters:
        walk.define(parameter.name, parameter.type, parameter.position)
    walk.body(module.function.body)
    walk.name_unknown()
    return walk.faults


def names_used(op: Statement) -> tuple[str, ...]:
    """SSA names the statement itself uses as integers, in textual order."""
    match op:
        case AddIOp():
            return (op.left, op.right)
        case ApplyOp():
            return (*op.dims, *op.symbols)
        case ExecuteOp():
            return op.operands
        case ForOp():
            return (op.lower, op.upper, op.step)
    return ()


def use_position(module: Module, name: str, op: Statement) -> int:
    """Offset where ``op`` first uses ``name`` (with its % or #); that of ``op`` if unknown."""
    if module.source is None or op.position == NO_POSITION:
        return op.position
    text = module.source.text
    start = op.position if isinstance(op, ExecuteOp) else text.index("=", op.position)
    position = text.find(name, start)
    while (
        position >= 0 and text[position + len(name) : position + len(name) + 1] in NAME_CHARACTERS
    ):
        position = text.find(name, position + 1)
    return position if position >= 0 else op.position


@dataclass(slots=True)
class _Walk:
    """State of the walk: ``visible`` maps a name to its type (None: a plain index value)."""

    module: Module
    visible: dict[str, ParameterType | None] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    maps: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    opened: list[str] = field(default_factory=list)
    unknown: list[tuple[str, int]] = field(default_factory=list)
    misused: set[tuple[str, int]] = field(default_factory=set)
    faults: dict[str, list[ModuleFault]] = field(default_factory=dict)

    def aliases(self) -> None:
        """Aliases have the whole file as their scope, so they come first."""
        for alias in self.module.aliases:
            if alias.name in self.maps:
                self.report("SPY135", f"map alias '#{alias.name}' is defined twice", alias.position)
            self.maps.add(alias.name)

    def body(self, statements: tuple[Statement, ...], loop: ForOp | None = None) -> None:
        """Statements of one scope; what they define, and the loop's variable, end with it."""
        outer, self.opened = self.opened, []
        if loop is not None:
            self.define(loop.variable, None, loop.position)
        for op in statements:
            self.statement(op)
        for name in self.opened:
            del self.visible[name]
        self.ended.update(self.opened)
        self.opened = outer

    def statement(self, op: Statement) -> None:
        """Uses first, then the definition, then what is inside."""
        for name in names_used(op):
            if name not in self.visible or self.visible[name] is not None:
                self.misuse(name, use_position(self.module, f"%{name}", op))
        if isinstance(op, ForOp):
            self.body(op.body, op)
        elif not isinstance(op, ExecuteOp):
            self.source(op)
            self.define(op.result, None, op.position)

    def source(self, op: Statement) -> None:
        """What a definition uses besides integers: an argument or an alias."""
        if isinstance(op, ExtractOp):
            self.extract(op)
        elif isinstance(op, ApplyOp) and isinstance(op.map, str) and op.map not in self.maps:
            known = [f"#{alias.name}" for alias in self.module.aliases[:MAX_LISTED]]
            self.report(
                "SPY134",
                f"map alias '#{op.map}' is not defined",
                use_position(self.module, f"#{op.map}", op),
                expected=f"one of {', '.join(known)}" if known else "an affine_map",
            )

    def extract(self, op: ExtractOp) -> None:
        """``input_arg_extract`` takes from an input_arg, and only what its type says."""
        name = op.argument
        position = use_position(self.module, f"%{name}", op)
        if name not in self.visible:
            self.misuse(name, position)
            return
        type_ = self.visible[name]
        if not isinstance(type_, InputArgType):
            self.report(
                "SPY137", f"'%{name}' is not an input_arg", position,
                expected="a parameter of type !sdscbundle.input_arg<index>", found="an index",
            )  # fmt: skip
        elif op.field is not ArgumentField.VALUE and type_.annotation(op.field) is None:
            self.report(
                "SPY139", f"the type of '%{name}' has no {op.field}", position,
                expected=f"!sdscbundle.input_arg<index, {op.field}=…>",
            )  # fmt: skip

    def define(self, name: str, type_: ParameterType | None, position: int) -> None:
        """A new name; it may not hide a visible one. An ``index`` parameter is a plain value."""
        if name in self.visible:
            self.report(
                "SPY133", f"'%{name}' is defined twice", position,
                expected="a name that is not visible here",
                found=f"defined before{self.line(self.positions[name])}",
            )  # fmt: skip
            return
        self.visible[name] = type_ if isinstance(type_, InputArgType) else None
        self.positions[name] = position
        self.opened.append(name)

    def misuse(self, name: str, position: int) -> None:
        """A name used as an integer that is none here; why is known at the end of the walk.

        A statement that uses it twice is told once.
        """
        if (name, position) in self.misused:
            return
        self.misused.add((name, position))
        if name in self.visible:
            self.report(
                "SPY136", f"'%{name}' is an input_arg, not an integer", position,
                hint=f"take it out with sdscbundle.input_arg_extract value from %{name}",
            )  # fmt: skip
        elif name in self.ended:
            self.report(
                "SPY132", f"'%{name}' is defined in a loop and used outside of it", position,
                found=f"defined{self.line(self.positions[name])}",
            )  # fmt: skip
        else:
            self.unknown.append((name, position))

    def name_unknown(self) -> None:
        """At the end: a name unknown where it was used may have been defined later."""
        for name, position in self.unknown:
            if name in self.positions:
                self.report(
                    "SPY131", f"'%{name}' is used before its definition", position,
                    found=f"defined{self.line(self.positions[name])}",
                )  # fmt: skip
            else:
                self.report("SPY130", f"'%{name}' is not defined", position)

    def report(self, code: str, message: str, position: int, **details: str) -> None:
        """Collect a fault."""
        self.faults.setdefault(code, []).append(Fault(position, message, **details))

    def line(self, position: int) -> str:
        """`` in line N`` if the text is known."""
        location = self.module.locate(position)
        return f" in line {location.line}" if location else ""


MAX_ALLOCATED_BYTES = 15 * 2**30
"""A 16 GiB segment less the 1 GiB kept back (bundle format reference §3)."""
_UNSAFE_PATH = re.compile(r"^$|^[/\\]|^[A-Za-z]:|\x00|(?:^|[/\\])\.\.(?:[/\\]|$)")


@dataclass(frozen=True, slots=True)
class Structure:
    """What the rules look at, worked out once: the tree, its statements, the name faults."""

    module: Module
    statements: tuple[Statement, ...]
    name_faults: NameFaults

    @property
    def executes(self) -> tuple[ExecuteOp, ...]:
        """The sdsc_execute statements in textual order."""
        return tuple(op for op in self.statements if isinstance(op, ExecuteOp))


StructureCheck = Callable[[Structure], Iterable[ModuleFault]]


def check_structure(module: Module) -> tuple[Finding, ...]:
    """Findings of all structure rules."""
    structure = Structure(module, tuple(module.walk()), resolve(module))
    return check_rules(STRUCTURE_RULES, structure, module)


def _name_rule(code: str) -> StructureCheck:
    return lambda structure: structure.name_faults.get(code, ())


def _extract_types(structure: Structure) -> Iterator[ModuleFault]:
    """Only the field asked for is compared: emitters write a narrower annotation list."""
    declared = {p.name: p.type for p in structure.module.function.parameters}
    for op in structure.statements:
        if not isinstance(op, ExtractOp) or op.argument not in declared:
            continue
        parameter = declared[op.argument]
        if isinstance(parameter, InputArgType) and not _agrees(op, parameter):
            yield Fault(
                op.position,
                f"the type written differs from that of '%{op.argument}'",
                hint="the parameter's type counts",
            )


def _agrees(op: ExtractOp, parameter: InputArgType) -> bool:
    if not isinstance(op.type, InputArgType):
        return False
    if op.field is ArgumentField.VALUE:
        return True
    return op.type.annotation(op.field) in (None, parameter.annotation(op.field))


def _aliases_in_function(structure: Structure) -> Iterator[ModuleFault]:
    for alias in structure.module.aliases:
        if alias.in_function:
            yield Fault(
                alias.position,
                f"map alias '#{alias.name}' is defined inside the function",
                expected="aliases at the top of the file",
            )


def _operand_counts(structure: Structure) -> Iterator[ModuleFault]:
    maps = {alias.name: alias.map for alias in structure.module.aliases}
    for op in structure.statements:
        if not isinstance(op, ApplyOp):
            continue
        map_ = maps.get(op.map) if isinstance(op.map, str) else op.map
        counts = (len(op.dims), len(op.symbols))
        if map_ is not None and counts != (map_.n_dims, map_.n_symbols):
            yield Fault(
                op.position,
                "operands do not fit the affine map",
                expected=f"{map_.n_dims} dims in ( ) and {map_.n_symbols} symbols in [ ]",
                found=f"{counts[0]} dims and {counts[1]} symbols",
            )


def _varying_symbols(structure: Structure) -> Iterator[ModuleFault]:
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


def _varying_symbol(name: str, position: int) -> ModuleFault:
    return Fault(
        position,
        f"symbol operand '%{name}' changes with an enclosing loop",
        expected="a loop-invariant value in [ ], loop variables in ( )",
    )


def _empty_allocations(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.statements:
        if isinstance(op, AllocateOp) and op.size_bytes <= 0:
            yield Fault(
                op.position, "device_mem_allocate needs a positive size",
                expected="at least 1 byte", found=f"{op.size_bytes}",
            )  # fmt: skip


def _total_allocation(structure: Structure) -> Iterator[ModuleFault]:
    total = 0
    for op in structure.statements:
        if isinstance(op, AllocateOp):
            total += max(op.size_bytes, 0)
            if total > MAX_ALLOCATED_BYTES:
                yield Fault(
                    op.position, "device_mem_allocate exceeds the memory there is",
                    expected=f"at most {MAX_ALLOCATED_BYTES} bytes in total", found=f"{total}",
                )  # fmt: skip
                return


def _allocations_in_loops(structure: Structure) -> Iterator[ModuleFault]:
    outermost = (op for op in structure.module.function.body if isinstance(op, ForOp))
    for loop in outermost:
        for op in walk(loop.body):
            if isinstance(op, AllocateOp):
                yield Fault(
                    op.position,
                    "device_mem_allocate inside a loop",
                    hint="all iterations share one buffer",
                )


def _id_counts(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.executes:
        if len(op.operands) != len(op.symbol_ids):
            yield Fault(
                op.position,
                f"operands and symbol ids of {op.sdsc_filename} differ in number",
                expected=f"{len(op.operands)} symbol_ids, one per operand",
                found=f"{len(op.symbol_ids)}",
            )


def _id_signs(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.executes:
        wrong = [id_ for id_ in op.symbol_ids if id_ >= 0]
        if wrong:
            yield Fault(
                op.position, f"symbol id {wrong[0]} is not negative",
                expected="ids -1, -2, …", found=f"{wrong[0]}",
            )  # fmt: skip


def _duplicate_ids(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.executes:
        if len(set(op.symbol_ids)) < len(op.symbol_ids):
            twice = Counter(op.symbol_ids).most_common(1)[0][0]
            yield Fault(op.position, f"symbol id {twice} is listed twice")


def _unknown_attributes(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.executes:
        for attribute in op.attributes:
            yield Fault(
                attribute.position,
                f"unknown attribute '{attribute.key}'",
                expected="sdsc_filename, symbol_ids",
            )


def _file_names(structure: Structure) -> Iterator[ModuleFault]:
    for op in structure.executes:
        if _UNSAFE_PATH.search(op.sdsc_filename):
            yield Fault(
                op.position, f"'{op.sdsc_filename}' is not a file of this bundle",
                expected="a path relative to the directory of bundle.mlir, without ..",
            )  # fmt: skip


def _id_lists(structure: Structure) -> Iterator[ModuleFault]:
    first: dict[str, frozenset[int]] = {}
    for op in structure.executes:
        ids = frozenset(op.symbol_ids)
        before = first.setdefault(op.sdsc_filename, ids)
        if ids != before:
            yield Fault(
                op.position, f"executes of {op.sdsc_filename} bind different symbol ids",
                expected="the same ids wherever a file is executed",
                found=f"different: {sorted(ids ^ before, reverse=True)[:8]}",
            )  # fmt: skip


NAME_CODES = (*(f"SPY{number}" for number in range(130, 138)), "SPY139")
STRUCTURE_RULES: tuple[Rule[Structure, ModulePlace], ...] = (
    *(error(code, _name_rule(code)) for code in NAME_CODES),
    warning("SPY138", _extract_types),
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
