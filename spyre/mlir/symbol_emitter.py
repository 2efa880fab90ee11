"""SSA values of a symbolic bundle: one name per address, made when it is first needed.

The bundle builder asks for the operand of every symbol; constants, sums and argument extractions
collect at the head of the function, ``affine.apply`` before the execute that needs it. Names and
order are those of the real frontends. Forms: bundle format reference §2, §3.1, §3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spyre.mlir.affine import AffineExpr, AffineMap, Constant, Dim, Symbol
from spyre.mlir.sdsc_builder import Place, RuntimeSize, SizeTerm
from spyre.mlir.syntax import (
    AddIOp,
    ApplyOp,
    ArgumentField,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    InputArgType,
    MapAlias,
    Parameter,
    Statement,
)

POOL = "pool"
Strides = tuple[tuple[str, int], ...]
"""(loop, bytes per iteration) pairs, outermost loop first."""
Address = tuple[str, int, Strides, tuple[SizeTerm, ...]]
"""Buffer, offset in bytes, strides, terms in runtime sizes."""


@dataclass(slots=True)
class SymbolTable:
    """Symbols of one SDSC: equal addresses share one id, in order of first appearance."""

    next_id: int
    ids: dict[Address | RuntimeSize, int] = field(default_factory=dict)

    def symbol_of(self, place: Place | RuntimeSize, offset_bytes: int) -> int:
        """The id (negative) of an address or a size; a new one if it is new."""
        if isinstance(place, RuntimeSize):
            return self.ids.setdefault(place, self.next_id - len(self.ids))
        strides = tuple((loop, step) for loop, step in place.loop_strides.items() if step)
        address = (place.buffer, place.offset_bytes + offset_bytes, strides, place.size_terms)
        return self.ids.setdefault(address, self.next_id - len(self.ids))


@dataclass(slots=True)
class SymbolEmitter:
    """Statements of a symbolic module. ``arguments``: buffer name → arg_index; ``sizes`` become
    parameters behind those of the arguments.
    """

    arguments: Mapping[str, int]
    has_pool: bool
    sizes: Sequence[RuntimeSize] = ()
    parameters: list[Parameter] = field(default_factory=list)
    head: list[Statement] = field(default_factory=list)
    aliases: list[MapAlias] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _addresses: int = 0
    _symbols: int = 0

    def __post_init__(self) -> None:
        buffers = [POOL] * self.has_pool + [f"arg_{k}" for k in self.arguments.values()]
        for buffer in buffers:
            self.parameters.append(Parameter(f"{buffer}_base_addr", InputArgType()))
            take = ExtractOp(buffer, ArgumentField.VALUE, f"{buffer}_base_addr")
            self._define(take.result, take)
        for size in self.sizes:
            kind = InputArgType(size.granularity, size.maximum)
            self.parameters.append(Parameter(size.name, kind))
            result = _size_value(size)
            self._define(result, ExtractOp(result, ArgumentField.VALUE, size.name, kind))

    def new_table(self) -> SymbolTable:
        """An empty symbol table; ids go on where the last SDSC's ended."""
        return SymbolTable(-1 - self._symbols)

    def loop_names(self, loop: str, count: int) -> tuple[str, str, str]:
        """Lower bound, upper bound and step of a loop, as constants at the head."""
        self._define("c0", ConstantOp("c0", 0))
        self._define("c1", ConstantOp("c1", 1))
        bound = loop.replace("i_", "loop_bound_")
        self._define(bound, ConstantOp(bound, count))
        return "c0", bound, "c1"

    def execute(self, table: SymbolTable, filename: str) -> tuple[Statement, ...]:
        """The applies an execute needs, and the execute itself."""
        self._symbols += len(table.ids)
        statements: list[Statement] = []
        operands = [self._operand(address, statements) for address in table.ids]
        execute = ExecuteOp(tuple(operands), filename, tuple(table.ids.values()))
        return (*statements, execute)

    def _operand(self, address: Address | RuntimeSize, statements: list[Statement]) -> str:
        if isinstance(address, RuntimeSize):
            return _size_value(address)
        buffer, offset, strides, terms = address
        base = self._base(buffer, offset)
        if not strides and not terms:
            return base
        name = f"addr_{self._addresses}"
        self._addresses += 1
        loops = tuple(loop for loop, _ in strides)
        symbols = (base, *(_size_value(term.size) for term in terms))
        statements.append(ApplyOp(name, self._map(strides, terms), loops, symbols))
        return name

    def _base(self, buffer: str, offset: int) -> str:
        """The value ``buffer + offset`` at the head."""
        is_pool = buffer == POOL
        root = POOL if is_pool else f"arg_{self.arguments[buffer]}"
        if offset == 0:
            return root
        constant = f"pool_offset_{offset}" if is_pool else f"{root}_core_offset_{offset}"
        total = f"pool_addr_{offset}" if is_pool else f"{root}_core_{offset}"
        self._define(constant, ConstantOp(constant, offset))
        self._define(total, AddIOp(total, root, constant))
        return total

    def _map(self, strides: Strides, terms: tuple[SizeTerm, ...]) -> str:
        """Alias of ``(d0, …)[s0, s1, …] -> (s0 + a*d0 + … + (s1 ceildiv n) * b + …)``; equal maps
        share one.
        """
        result: AffineExpr = Symbol(0)
        for index, (_, step) in enumerate(strides):
            result = result + Constant(step) * Dim(index)
        for index, term in enumerate(terms, 1):
            share = Symbol(index).ceildiv(term.slices)
            result = result + Constant(term.element_bytes) * share
        map_ = AffineMap(len(strides), 1 + len(terms), result)
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
