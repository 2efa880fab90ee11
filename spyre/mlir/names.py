"""Name resolution: does every SSA name and map alias mean exactly one thing where it is used?

One walk over the function with the scopes MLIR has: a loop's names end with the loop, and no
name may be defined while another of the same spelling is visible. Rules: bundle format
reference §4, names.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from spyre.mlir.rule import Fault
from spyre.mlir.syntax import (
    NO_POSITION,
    AddIOp,
    ApplyOp,
    ArgumentField,
    ExecuteOp,
    ExtractOp,
    ForOp,
    InputArgType,
    Module,
    ParameterType,
    Statement,
)

MAX_LISTED = 8
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_$.-")


@dataclass(frozen=True, slots=True)
class NameFault:
    """A fault with the code of the rule it breaks."""

    code: str
    fault: Fault


def resolve(module: Module) -> tuple[NameFault, ...]:
    """All faults of SSA names and aliases (SPY130-SPY137, SPY139), in textual order."""
    walk = _Walk(module)
    walk.aliases()
    for parameter in module.function.parameters:
        walk.define(parameter.name, parameter.type, parameter.position)
    walk.body(module.function.body)
    return tuple(walk.finish())


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
    unknown: dict[int, tuple[str, int]] = field(default_factory=dict)
    misused: set[tuple[str, int]] = field(default_factory=set)
    faults: list[NameFault | None] = field(default_factory=list)

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
            self.unknown[len(self.faults)] = (name, position)
            self.faults.append(None)

    def finish(self) -> Iterator[NameFault]:
        """The faults; a name unknown where it was used may have been defined later."""
        for index, fault in enumerate(self.faults):
            yield fault if fault is not None else self.undefined(*self.unknown[index])

    def undefined(self, name: str, position: int) -> NameFault:
        """Used before its definition, or never defined."""
        if name not in self.positions:
            return NameFault("SPY130", Fault(f"'%{name}' is not defined", position))
        found = f"defined{self.line(self.positions[name])}"
        message = f"'%{name}' is used before its definition"
        return NameFault("SPY131", Fault(message, position, found=found))

    def report(self, code: str, message: str, position: int, **details: str) -> None:
        """Collect a fault."""
        self.faults.append(NameFault(code, Fault(message, position, **details)))

    def line(self, position: int) -> str:
        """`` in line N`` if the text is known."""
        location = self.module.locate(position)
        return f" in line {location.line}" if location else ""
