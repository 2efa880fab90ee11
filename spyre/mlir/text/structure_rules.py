"""Rules on the syntax tree: names, arity, and the statements by themselves.

One walk over the function, with the scopes MLIR has: a loop's names end with the loop, and no name
may be defined while another of the same spelling is visible. ``lower`` refuses a module that breaks
one of the errors here, so everything behind it can rely on them. Rules on values are in
:mod:`spyre.mlir.text.lowering`. Source: bundle format reference §3.1 and §4.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import TypeVar

import msgspec

from spyre.errors import Finding, SourceLocation
from spyre.mlir.program import AffineMap
from spyre.mlir.text.syntax import (
    NO_POSITION,
    AddIOp,
    AllocateOp,
    ApplyOp,
    ArgumentField,
    Definition,
    ExecuteOp,
    ExtractOp,
    ForOp,
    InputArgType,
    Module,
    ParameterType,
    Statement,
)
from spyre.rules import Fault, RuleSet, severities

MAX_FAULTS = 100
"""A rule is heard that often: one missing line can make ten thousand names undefined."""
MAX_LISTED = 8
MAX_ALLOCATED_BYTES = 15 * 2**30
"""A 16 GiB segment less the 1 GiB kept back (bundle format reference §3)."""
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_$.-")
_UNSAFE_PATH = re.compile(r"^$|^[/\\]|^[A-Za-z]:|\x00|(?:^|[/\\])\.\.(?:[/\\]|$)")

ModulePlace = int | SourceLocation | None
"""Place of a broken rule in a module: an offset in its text, or a location."""
ModuleFault = Fault[ModulePlace]
SubjectT = TypeVar("SubjectT")


def check_rules(
    rules: RuleSet[SubjectT, ModulePlace], subject: SubjectT, module: Module
) -> tuple[Finding, ...]:
    """Findings of ``rules`` on ``subject``, located in ``module``."""

    def locate(place: ModulePlace) -> SourceLocation | None:
        return module.locate(place) if isinstance(place, int) else place

    return rules.findings(subject, locate, MAX_FAULTS)


def structure_faults(module: Module) -> list[ModuleFault]:
    """Everything wrong with names, arity and single statements; of a code in textual order."""
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


class _Walk(msgspec.Struct):
    """State of the walk: ``visible`` maps a name to its type (None: a plain index value).

    ``varying``: names whose values change with a loop. ``symbol_ids``: those of the first execute
    of every file.
    """

    module: Module
    visible: dict[str, ParameterType] = msgspec.field(default_factory=dict)
    positions: dict[str, int] = msgspec.field(default_factory=dict)
    maps: dict[str, AffineMap] = msgspec.field(default_factory=dict)
    ended: set[str] = msgspec.field(default_factory=set)
    opened: list[str] = msgspec.field(default_factory=list)
    unknown: list[tuple[str, int]] = msgspec.field(default_factory=list)
    misused: set[tuple[str, int]] = msgspec.field(default_factory=set)
    varying: set[str] = msgspec.field(default_factory=set)
    symbol_ids: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)
    loops: int = 0
    allocated_bytes: int = 0
    faults: list[ModuleFault] = msgspec.field(default_factory=list)

    def aliases(self) -> None:
        """Aliases have the whole file as their scope, so they come first."""
        for alias in self.module.aliases:
            if alias.name in self.maps:
                self.report("SPY135", f"map alias '#{alias.name}' is defined twice", alias.position)
            if alias.in_function:
                message = f"map alias '#{alias.name}' is defined inside the function"
                expected = "aliases at the top of the file"
                self.report("SPY140", message, alias.position, expected=expected)
            self.maps[alias.name] = alias.map

    def body(self, statements: tuple[Statement, ...], loop: ForOp | None = None) -> None:
        """Check the statements of one scope, and end the names defined in it."""
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
        """Check the names a statement uses, then its definition, then its body."""
        for name in names_used(op):
            if name not in self.visible or self.visible[name] is not None:
                self.misuse(name, use_position(self.module, f"%{name}", op))
        match op:
            case ForOp():
                self.loop(op)
            case ExecuteOp():
                self.execute(op)
            case _:
                self.definition(op)

    def loop(self, op: ForOp) -> None:
        """A loop and its body."""
        self.varying.add(op.variable)
        self.loops += 1
        self.body(op.body, op)
        self.loops -= 1

    # --- definitions ------------------------------------------------------------------------------

    def definition(self, op: Definition) -> None:
        """Check a statement's operands that are no integers, and define its name."""
        match op:
            case ExtractOp():
                self.extract(op)
            case ApplyOp():
                self.apply(op)
            case AllocateOp():
                self.allocate(op)
        changes = not self.varying.isdisjoint(names_used(op))
        (self.varying.add if changes else self.varying.discard)(op.result)
        self.define(op.result, None, op.position)

    def extract(self, op: ExtractOp) -> None:
        """``input_arg_extract`` needs an input_arg whose type has the extracted field."""
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
            return
        if op.field is not ArgumentField.VALUE and type_.annotation(op.field) is None:
            self.report(
                "SPY139", f"the type of '%{name}' has no {op.field}", position,
                expected=f"!sdscbundle.input_arg<index, {op.field}=…>",
            )  # fmt: skip
        if not _agrees(op, type_):
            message = f"the type written differs from that of '%{name}'"
            self.report("SPY138", message, op.position, hint="the parameter's type counts")

    def apply(self, op: ApplyOp) -> None:
        """``affine.apply`` of a map that is there, with as many operands as it takes."""
        map_ = self.maps.get(op.map) if isinstance(op.map, str) else op.map
        counts = len(op.dims), len(op.symbols)
        if map_ is None:
            known = [f"#{alias.name}" for alias in self.module.aliases[:MAX_LISTED]]
            message = f"map alias '#{op.map}' is not defined"
            position = use_position(self.module, f"#{op.map}", op)
            expected = f"one of {', '.join(known)}" if known else "an affine_map"
            self.report("SPY134", message, position, expected=expected)
        elif counts != (map_.n_dims, map_.n_symbols):
            message = "operands do not fit the affine map"
            expected = f"{map_.n_dims} dims in ( ) and {map_.n_symbols} symbols in [ ]"
            found = f"{counts[0]} dims and {counts[1]} symbols"
            self.report("SPY141", message, op.position, expected=expected, found=found)
        for name in op.symbols:
            if name in self.varying:
                message = f"symbol operand '%{name}' changes with an enclosing loop"
                expected = "a loop-invariant value in [ ], loop variables in ( )"
                self.report("SPY142", message, op.position, expected=expected)

    def allocate(self, op: AllocateOp) -> None:
        """``device_mem_allocate`` is outside loops, of a positive size that fits a segment."""
        if op.size_bytes <= 0:
            message = "device_mem_allocate needs a positive size"
            expected = "at least 1 byte"
            self.report("SPY153", message, op.position, expected=expected, found=f"{op.size_bytes}")
        before = self.allocated_bytes
        self.allocated_bytes += max(op.size_bytes, 0)
        if before <= MAX_ALLOCATED_BYTES < self.allocated_bytes:
            message = "device_mem_allocate exceeds the memory there is"
            expected = f"at most {MAX_ALLOCATED_BYTES} bytes in total"
            found = f"{self.allocated_bytes}"
            self.report("SPY154", message, op.position, expected=expected, found=found)
        if self.loops:
            message = "device_mem_allocate inside a loop"
            self.report("SPY155", message, op.position, hint="all iterations share one buffer")

    def define(self, name: str, type_: ParameterType, position: int) -> None:
        """A new name; it may not hide a visible one. An ``index`` parameter is a plain value."""
        if name in self.visible:
            message = f"'%{name}' is defined twice"
            expected = "a name that is not visible here"
            found = f"defined before{self.line(self.positions[name])}"
            self.report("SPY133", message, position, expected=expected, found=found)
            return
        self.visible[name] = type_
        self.positions[name] = position
        self.opened.append(name)

    # --- executes ---------------------------------------------------------------------------------

    def execute(self, op: ExecuteOp) -> None:
        """A file of this bundle, and attributes with a meaning."""
        self.bind(op)
        for attribute in op.attributes:
            message = f"unknown attribute '{attribute.key}'"
            self.report("SPY163", message, attribute.position, expected="sdsc_filename, symbol_ids")
        if _UNSAFE_PATH.search(op.sdsc_filename):
            message = f"'{op.sdsc_filename}' is not a file of this bundle"
            expected = "a path relative to the directory of bundle.mlir, without .."
            self.report("SPY164", message, op.position, expected=expected)

    def bind(self, op: ExecuteOp) -> None:
        """A symbol id per operand: negative, distinct, the same wherever a file is executed."""
        ids, position = frozenset(op.symbol_ids), op.position
        if len(op.operands) != len(op.symbol_ids):
            message = f"operands and symbol ids of {op.sdsc_filename} differ in number"
            expected = f"{len(op.operands)} symbol_ids, one per operand"
            found = f"{len(op.symbol_ids)}"
            self.report("SPY160", message, position, expected=expected, found=found)
        if wrong := [id_ for id_ in op.symbol_ids if id_ >= 0]:
            message = f"symbol id {wrong[0]} is not negative"
            self.report("SPY161", message, position, expected="ids -1, -2, …", found=f"{wrong[0]}")
        if len(ids) < len(op.symbol_ids):
            twice = Counter(op.symbol_ids).most_common(1)[0][0]
            self.report("SPY162", f"symbol id {twice} is listed twice", position)
        before = self.symbol_ids.setdefault(op.sdsc_filename, ids)
        if ids != before:
            message = f"executes of {op.sdsc_filename} bind different symbol ids"
            expected = "the same ids wherever a file is executed"
            found = f"different: {sorted(ids ^ before, reverse=True)[:8]}"
            self.report("SPY165", message, position, expected=expected, found=found)

    # --- names ------------------------------------------------------------------------------------

    def misuse(self, name: str, position: int) -> None:
        """Record or report a name that is used as an integer and is none at ``position``.

        Names that may be defined later are reported at the end of the walk. A statement that uses
        a name twice is reported once.
        """
        if (name, position) in self.misused:
            return
        self.misused.add((name, position))
        if name in self.visible:
            hint = f"take it out with sdscbundle.input_arg_extract value from %{name}"
            self.report("SPY136", f"'%{name}' is an input_arg, not an integer", position, hint=hint)
        elif name in self.ended:
            message = f"'%{name}' is defined in a loop and used outside of it"
            found = f"defined{self.line(self.positions[name])}"
            self.report("SPY132", message, position, found=found)
        else:
            self.unknown.append((name, position))

    def name_unknown(self) -> None:
        """At the end: a name unknown where it was used may have been defined later."""
        for name, position in self.unknown:
            if name in self.positions:
                message = f"'%{name}' is used before its definition"
                found = f"defined{self.line(self.positions[name])}"
                self.report("SPY131", message, position, found=found)
            else:
                self.report("SPY130", f"'%{name}' is not defined", position)

    def report(self, code: str, message: str, position: int, **details: str) -> None:
        """Collect a fault."""
        self.faults.append(Fault(code, position, message, **details))

    def line(self, position: int) -> str:
        """`` in line N`` if the text is known."""
        location = self.module.locate(position)
        return f" in line {location.line}" if location else ""


def _agrees(op: ExtractOp, parameter: InputArgType) -> bool:
    """Only the field asked for is compared: emitters write a narrower annotation list."""
    if not isinstance(op.type, InputArgType):
        return False
    if op.field is ArgumentField.VALUE:
        return True
    return op.type.annotation(op.field) in (None, parameter.annotation(op.field))


STRUCTURE_RULES: RuleSet[Module, ModulePlace] = RuleSet(
    severities(
        "SPY130 SPY131 SPY132 SPY133 SPY134 SPY135 SPY136 SPY137 SPY139 SPY138 SPY140 SPY141 "
        "SPY142 SPY153 SPY154 SPY155 SPY160 SPY161 SPY162 SPY163 SPY164 SPY165",
        warnings="SPY138 SPY140 SPY142 SPY155 SPY163",
    ),
    (structure_faults,),
)
