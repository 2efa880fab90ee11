"""SSA values of a symbolic bundle: one name per address, made when it is first needed.

The bundle builder asks for the operand of every symbol; constants, sums and argument extractions
collect at the head of the function, ``affine.apply`` before the execute that needs it. Names and
order are those of the real frontends. Forms: bundle format reference §2, §3.1, §3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spyre.mlir.affine import EXPRESSIONS, AffineExpr, AffineMap, Constant, Dim, Symbol, fold
from spyre.mlir.sdsc_builder import Place, RuntimeSize, SizeTerm, SizeValue
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
Strides = tuple[tuple[str, int | SizeValue], ...]
"""(loop, bytes per iteration) pairs, outermost loop first."""
Address = tuple[str, int, Strides, tuple[SizeTerm, ...], SizeValue | None]
"""Buffer, offset in bytes, strides, terms in runtime sizes, and more bytes that depend on them."""


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
        offset = place.offset_bytes + offset_bytes
        address = (place.buffer, offset, strides, place.size_terms, place.shift_bytes)
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

    def loop_names(self, loop: str, count: int | SizeValue) -> tuple[str, str, str]:
        """Lower bound, upper bound and step of a loop, defined at the head."""
        self._define("c0", ConstantOp("c0", 0))
        self._define("c1", ConstantOp("c1", 1))
        bound = loop.replace("i_", "loop_bound_")
        if isinstance(count, int):
            self._define(bound, ConstantOp(bound, count))
        elif isinstance(count.expression, Symbol):
            return "c0", _size_value(count.sizes[count.expression.index]), "c1"
        else:
            symbols = tuple(_size_value(size) for size in count.sizes)
            alias = self._alias(AffineMap(0, len(symbols), count.expression))
            self._define(bound, ApplyOp(bound, alias, (), symbols))
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
        buffer, offset, strides, terms, shift = address
        base = self._base(buffer, offset)
        if not strides and not terms and shift is None:
            return base
        name = f"addr_{self._addresses}"
        self._addresses += 1
        loops = tuple(loop for loop, _ in strides)
        sizes = [term.size for term in terms]
        for value in (*(step for _, step in strides), shift):
            if isinstance(value, SizeValue):
                sizes += [size for size in value.sizes if size not in sizes[len(terms) :]]
        symbols = (base, *map(_size_value, sizes))
        statements.append(ApplyOp(name, self._map(strides, terms, shift, sizes), loops, symbols))
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

    def _map(
        self,
        strides: Strides,
        terms: tuple[SizeTerm, ...],
        shift: SizeValue | None,
        sizes: Sequence[RuntimeSize],
    ) -> str:
        """Alias of ``(d0, …)[s0, s1, …] -> (s0 + a*d0 + … + (s1 ceildiv n) * b + …)``; symbol
        k + 1 is ``sizes[k]``, those of ``terms`` first.
        """
        places = {size: Symbol(k) for k, size in enumerate(sizes, 1)}
        result: AffineExpr = Symbol(0)
        for index, (_, step) in enumerate(strides):
            factor = Constant(step) if isinstance(step, int) else _seen(step, places)
            result = result + factor * Dim(index)
        for index, term in enumerate(terms, 1):
            share = Symbol(index).ceildiv(term.slices)
            result = result + Constant(term.element_bytes) * share
        if shift is not None:
            result = result + _seen(shift, places)
        return self._alias(AffineMap(len(strides), 1 + len(sizes), result))

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


def _seen(value: SizeValue, places: Mapping[RuntimeSize, Symbol]) -> AffineExpr:
    """``value`` in a map whose symbols are ``places``."""
    symbols: list[AffineExpr] = [places[size] for size in value.sizes]
    return fold(value.expression, [], symbols, EXPRESSIONS)


def _size_value(size: RuntimeSize) -> str:
    """Name of a runtime size as an integer."""
    return f"{size.name}_value"
