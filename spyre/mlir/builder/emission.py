"""bundle.mlir of a built bundle: SSA values, one name per address, made when it is first needed.

Constants, sums and argument extractions collect at the head of the function, ``affine.apply``
before the execute that needs it; names and order are those of the real frontends. Forms: bundle
format reference §2, §3.1, §3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spyre.mlir.builder.bundles import (
    POOL,
    Address,
    BuiltStep,
    LoopCount,
    address_map,
    group_by_loop,
    parameter_name,
    sizes_of,
)
from spyre.mlir.builder.operations import RuntimeSize
from spyre.mlir.program import AffineMap, AffineSymbol
from spyre.mlir.text import (
    AddIOp,
    ApplyOp,
    ArgumentField,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    ForOp,
    Function,
    FunctionParameter,
    InputArgType,
    MapAlias,
    Module,
    Statement,
)


def emit_module(
    steps: Sequence[BuiltStep], buffers: Mapping[str, str], sizes: Sequence[RuntimeSize]
) -> Module:
    """The module of a built bundle; lowering it gives the bundle's program."""
    emitter = _ModuleEmitter(buffers, sizes)
    body = emitter.body(steps, 0)
    function = Function("sdsc_bundle", tuple(emitter.parameters), (*emitter.head, *body))
    return Module(function, tuple(emitter.aliases))


@dataclass(slots=True)
class _ModuleEmitter:
    """Collects parameters, statements of the head, and map aliases."""

    buffers: Mapping[str, str]
    sizes: Sequence[RuntimeSize]
    parameters: list[FunctionParameter] = field(default_factory=list)
    head: list[Statement] = field(default_factory=list)
    aliases: list[MapAlias] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _addresses: int = 0

    def __post_init__(self) -> None:
        for buffer in self.buffers.values():
            parameter = parameter_name(buffer)
            self.parameters.append(FunctionParameter(parameter, InputArgType()))
            self._define(buffer, ExtractOp(buffer, ArgumentField.VALUE, parameter))
        for size in self.sizes:
            kind = InputArgType(size.granularity, size.maximum)
            self.parameters.append(FunctionParameter(size.name, kind))
            result = _size_value(size)
            self._define(result, ExtractOp(result, ArgumentField.VALUE, size.name, kind))

    def body(self, steps: Sequence[BuiltStep], depth: int) -> tuple[Statement, ...]:
        """Loops and executes of ``steps``."""
        statements: list[Statement] = []
        for loop, group in group_by_loop(steps, depth):
            if loop is None:
                for step in group:
                    statements += self._execute(step)
            else:
                bounds = self._loop_bounds(*loop)
                statements.append(ForOp(loop[0], *bounds, self.body(group, depth + 1)))
        return tuple(statements)

    def _loop_bounds(self, loop: str, count: LoopCount) -> tuple[str, str, str]:
        """Lower bound, upper bound and step of a loop, defined at the head."""
        self._define("c0", ConstantOp("c0", 0))
        self._define("c1", ConstantOp("c1", 1))
        bound = loop.replace("i_", "loop_bound_")
        if isinstance(count, int):
            self._define(bound, ConstantOp(bound, count))
        elif isinstance(count.expression, AffineSymbol):
            return "c0", _size_value(count.sizes[count.expression.index]), "c1"
        else:
            symbols = tuple(map(_size_value, count.sizes))
            alias = self._alias(AffineMap(0, len(symbols), (count.expression,)))
            self._define(bound, ApplyOp(bound, alias, (), symbols))
        return "c0", bound, "c1"

    def _execute(self, step: BuiltStep) -> list[Statement]:
        """The applies an execute needs, and the execute itself."""
        statements: list[Statement] = []
        _, filename, symbols = step
        operands = [self._operand(address, statements) for address in symbols]
        return [*statements, ExecuteOp(tuple(operands), filename, tuple(symbols.values()))]

    def _operand(self, address: Address | RuntimeSize, statements: list[Statement]) -> str:
        if isinstance(address, RuntimeSize):
            return _size_value(address)
        buffer, offset, strides, shifts = address
        base = self._base(buffer, offset)
        if not strides and not shifts:
            return base
        name = f"addr_{self._addresses}"
        self._addresses += 1
        loops = tuple(loop for loop, _ in strides)
        symbols = (base, *map(_size_value, sizes_of(address)))
        statements.append(ApplyOp(name, self._alias(address_map(address)), loops, symbols))
        return name

    def _base(self, buffer: str, offset: int) -> str:
        """The value ``buffer + offset`` at the head."""
        root = self.buffers[buffer]
        if offset == 0:
            return root
        is_pool = buffer == POOL
        constant = f"pool_offset_{offset}" if is_pool else f"{root}_core_offset_{offset}"
        total = f"pool_addr_{offset}" if is_pool else f"{root}_core_{offset}"
        self._define(constant, ConstantOp(constant, offset))
        self._define(total, AddIOp(total, root, constant))
        return total

    def _alias(self, map_: AffineMap) -> str:
        """Name of a map; equal ones share one."""
        for alias in self.aliases:
            if alias.map == map_:
                return alias.name
        self.aliases.append(MapAlias(f"map_{len(self.aliases)}", map_))
        return self.aliases[-1].name

    def _define(self, name: str, statement: Statement) -> None:
        """Adds a statement to the head unless its name exists."""
        if name not in self._names:
            self._names.add(name)
            self.head.append(statement)


def _size_value(size: RuntimeSize) -> str:
    """Name of a runtime size as an integer."""
    return f"{size.name}_value"
