"""Whole bundles from descriptions: buffers, loops and operations in, module and SDSCs out.

A :class:`BundleBuilder` collects operations whose tensors stand in named buffers, in one of the
two address modes of the bundle format reference §3.2: symbolic (launch arguments, symbol ids,
loops kept) or baked (addresses in the JSON, loops unrolled). In a symbolic bundle constants, sums
and argument extractions collect at the head of the function, ``affine.apply`` before the execute
that needs it; names and order are those of the real frontends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from spyre.errors import BundleError
from spyre.mlir.builder.operations import (
    BufferAddress,
    BuiltSdsc,
    OperationSpec,
    Resolve,
    RuntimeSize,
    SizeTerm,
    SizeValue,
    build_inspected,
)
from spyre.mlir.bundle import BundleParts
from spyre.mlir.program.affine import (
    EXPRESSIONS,
    AffineConstant,
    AffineDim,
    AffineExpr,
    AffineMap,
    AffineSymbol,
    fold,
)
from spyre.mlir.text.syntax import (
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

    def symbol_of(self, place: BufferAddress | RuntimeSize, offset_bytes: int) -> int:
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
    parameters: list[FunctionParameter] = field(default_factory=list)
    head: list[Statement] = field(default_factory=list)
    aliases: list[MapAlias] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _addresses: int = 0
    _symbols: int = 0

    def __post_init__(self) -> None:
        buffers = [POOL] * self.has_pool + [f"arg_{k}" for k in self.arguments.values()]
        for buffer in buffers:
            self.parameters.append(FunctionParameter(f"{buffer}_base_addr", InputArgType()))
            take = ExtractOp(buffer, ArgumentField.VALUE, f"{buffer}_base_addr")
            self._define(take.result, take)
        for size in self.sizes:
            kind = InputArgType(size.granularity, size.maximum)
            self.parameters.append(FunctionParameter(size.name, kind))
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
        elif isinstance(count.expression, AffineSymbol):
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
        places = {size: AffineSymbol(k) for k, size in enumerate(sizes, 1)}
        result: AffineExpr = AffineSymbol(0)
        for index, (_, step) in enumerate(strides):
            factor = AffineConstant(step) if isinstance(step, int) else _seen(step, places)
            result = result + factor * AffineDim(index)
        for index, term in enumerate(terms, 1):
            share = AffineSymbol(index).ceildiv(term.slices)
            result = result + AffineConstant(term.element_bytes) * share
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


def _seen(value: SizeValue, places: Mapping[RuntimeSize, AffineSymbol]) -> AffineExpr:
    """``value`` in a map whose symbols are ``places``."""
    symbols: list[AffineExpr] = [places[size] for size in value.sizes]
    return fold(value.expression, [], symbols, EXPRESSIONS)


def _size_value(size: RuntimeSize) -> str:
    """Name of a runtime size as an integer."""
    return f"{size.name}_value"


SEGMENT_BYTES = 0x4_0000_0000
MAX_SEGMENTS = 7
"""Segments tensors may use; the last one holds the program (runtime reference §4)."""
ALIGNMENT_BYTES = 128


@dataclass(frozen=True, slots=True)
class BundleBuffer:
    """A launch argument (``arg_index`` ≥ 0) or a piece of the pool, ``nbytes`` long."""

    name: str
    arg_index: int
    nbytes: int
    offset_bytes: int = 0

    def at(
        self, offset_bytes: int = 0, loop_strides: Mapping[str, int] | None = None
    ) -> BufferAddress:
        """A place ``offset_bytes`` from the start, moving by bytes per iteration of named loops."""
        name = POOL if self.arg_index < 0 else self.name
        return BufferAddress(name, self.offset_bytes + offset_bytes, loop_strides or {})


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation and the loops around it, outermost first."""

    spec: OperationSpec
    loops: tuple[tuple[str, int | SizeValue], ...]


@dataclass(slots=True)
class BundleBuilder:
    """Collects a bundle; ``build`` may be called once everything has been added.

    ``symbolic``: addresses are launch arguments; otherwise they are baked into the SDSCs, with
    argument k in segment k, or k+1 when there is a pool (segment 0).
    """

    symbolic: bool = True
    arguments: list[BundleBuffer] = field(default_factory=list)
    pool_bytes: int = 0
    sizes: list[RuntimeSize] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    _loops: list[tuple[str, int | SizeValue]] = field(default_factory=list)
    _loop_count: int = 0

    def argument(self, nbytes: int, name: str = "") -> BundleBuffer:
        """The next launch argument; its arg_index counts from 0."""
        index = len(self.arguments)
        buffer = BundleBuffer(name or f"arg_{index}", index, nbytes)
        if any(other.name == buffer.name for other in self.arguments) or buffer.name == POOL:
            raise BundleError("SPY291", f"buffer {buffer.name} exists already")
        self.arguments.append(buffer)
        return buffer

    def size(self, name: str, maximum: int | None, granularity: int = 1) -> RuntimeSize:
        """A size each launch gives by ``name``: positive, at most ``maximum``, in steps of
        ``granularity`` elements. None: a size that is no dim of operations.
        """
        if not self.symbolic:
            message = f"runtime size {name} in a bundle of baked addresses"
            raise BundleError("SPY291", message, expected="a symbolic bundle")
        size = RuntimeSize(name, maximum, granularity)
        if any(other.name == name for other in self.sizes):
            raise BundleError("SPY291", f"runtime size {name} exists already")
        self.sizes.append(size)
        return size

    def temporary(self, nbytes: int) -> BundleBuffer:
        """A piece of the pool, at the next multiple of 128 bytes."""
        offset = self.pool_bytes
        self.pool_bytes += -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return BundleBuffer(f"{POOL}_{offset}", -1, nbytes, offset)

    @contextmanager
    def loop(self, count: int | SizeValue) -> Iterator[str]:
        """Operations added inside are repeated ``count`` times; gives the loop's name.

        A count that depends on runtime sizes may come to 0 at a launch.
        """
        if isinstance(count, int) and count < 1:
            raise BundleError("SPY291", "a loop runs at least once", found=str(count))
        for size in () if isinstance(count, int) else count.sizes:
            self._check_size("loop", size)
        name = f"i_{self._loop_count}"
        self._loop_count += 1
        self._loops.append((name, count))
        try:
            yield name
        finally:
            self._loops.pop()

    def add(self, spec: OperationSpec) -> None:
        """The next operation, inside the loops open now. BundleError SPY291 for unknown names."""
        for operand in (*spec.inputs, *spec.index_inputs, *spec.outputs):
            if isinstance(operand.base, BufferAddress):
                self._check_place(spec, operand.base)
        for dim, size in spec.sizes.items():
            self._check_size(spec.name, size)
            if size.maximum is None:
                message = f"{spec.name}: dim {dim} of runtime size {size.name}, without a maximum"
                raise BundleError("SPY291", message, expected="BundleBuilder.size(name, maximum)")
        self._steps.append(_Step(spec, tuple(self._loops)))

    def _check_size(self, what: str, size: RuntimeSize) -> None:
        if size not in self.sizes:
            message = f"{what}: unknown runtime size {size.name}"
            expected = f"one of {', '.join(s.name for s in self.sizes) or 'none'}"
            raise BundleError("SPY291", message, expected=expected)

    def _check_place(self, spec: OperationSpec, place: BufferAddress) -> None:
        known = {buffer.name for buffer in self.arguments}
        if place.buffer not in known and not (place.buffer == POOL and self.pool_bytes):
            message = f"{spec.name}: unknown buffer {place.buffer}"
            raise BundleError("SPY291", message, expected=f"one of {', '.join(sorted(known))}")
        loops = dict(self._loops)
        for name in place.loop_strides:
            if name not in loops:
                message = f"{spec.name}: loop {name} is not open here"
                raise BundleError("SPY291", message, expected=f"one of {', '.join(loops)}")
        for value in (*place.loop_strides.values(), place.shift_bytes):
            for size in value.sizes if isinstance(value, SizeValue) else ():
                self._check_size(spec.name, size)

    def build(self) -> BundleParts:
        """Module and SDSCs. BundleError or ValidationError when an operation cannot be built."""
        if self.symbolic:
            bases = {buffer.name: buffer.arg_index for buffer in self.arguments}
            emitter = SymbolEmitter(bases, bool(self.pool_bytes), tuple(self.sizes))
            return _build_symbolic(self._steps, emitter)
        return _build_baked(self._steps, self.arguments, bool(self.pool_bytes))


def _parts(module: Module, built: Mapping[str, BuiltSdsc]) -> BundleParts:
    sdscs = {name: found.sdsc for name, found in built.items()}
    inspections = {name: found.inspection for name, found in built.items()}
    return BundleParts(module, sdscs, inspections=inspections)


Group = tuple[tuple[str, int | SizeValue] | None, list[_Step]]


def _groups(steps: Sequence[_Step], depth: int) -> Iterator[Group]:
    """Consecutive steps in the same loop of ``depth``; no loop: (None, steps)."""
    for loop, group in groupby(steps, lambda s: s.loops[depth] if len(s.loops) > depth else None):
        yield loop, list(group)


# --- symbolic: launch arguments, symbol ids, loops kept ---------------------------------------


def _build_symbolic(steps: Sequence[_Step], emitter: SymbolEmitter) -> BundleParts:
    sdscs: dict[str, BuiltSdsc] = {}
    body = _symbolic_body(steps, 0, emitter, sdscs)
    function = Function("sdsc_bundle", tuple(emitter.parameters), (*emitter.head, *body))
    return _parts(Module(function, tuple(emitter.aliases)), sdscs)


def _symbolic_body(
    steps: Sequence[_Step], depth: int, emitter: SymbolEmitter, sdscs: dict[str, BuiltSdsc]
) -> tuple[Statement, ...]:
    body: list[Statement] = []
    for loop, group in _groups(steps, depth):
        if loop is None:
            for step in group:
                body.extend(_symbolic_execute(step.spec, emitter, sdscs))
        else:
            bounds = emitter.loop_names(*loop)
            body.append(ForOp(loop[0], *bounds, _symbolic_body(group, depth + 1, emitter, sdscs)))
    return tuple(body)


def _symbolic_execute(
    spec: OperationSpec, emitter: SymbolEmitter, sdscs: dict[str, BuiltSdsc]
) -> tuple[Statement, ...]:
    index = len(sdscs)
    table = emitter.new_table()
    sdscs[_filename(index)] = build_inspected(spec, f"{index}_{spec.name}", table.symbol_of)
    return emitter.execute(table, _filename(index))


# --- baked: literal addresses, loops unrolled -------------------------------------------------


def _build_baked(
    steps: Sequence[_Step], arguments: Sequence[BundleBuffer], has_pool: bool
) -> BundleParts:
    if len(arguments) + has_pool > MAX_SEGMENTS:
        expected = f"at most {MAX_SEGMENTS} segments"
        raise BundleError("SPY291", "too many arguments for baked addresses", expected=expected)
    bases = {b.name: (b.arg_index + has_pool) * SEGMENT_BYTES for b in arguments} | {POOL: 0}
    sdscs: dict[str, BuiltSdsc] = {}
    for spec, iteration in _unrolled(steps, 0, {}):
        index = len(sdscs)
        resolve = _literal(bases, iteration)
        sdscs[_filename(index)] = build_inspected(spec, f"{index}_{spec.name}", resolve)
    body: tuple[Statement, ...] = tuple(ExecuteOp((), name) for name in sdscs)
    return _parts(Module(Function("sdsc_bundle", (), body)), sdscs)


def _unrolled(
    steps: Sequence[_Step], depth: int, iteration: Mapping[str, int]
) -> Iterator[tuple[OperationSpec, Mapping[str, int]]]:
    """Every operation of every iteration in program order, with its loop indices."""
    for loop, group in _groups(steps, depth):
        if loop is None:
            yield from ((step.spec, iteration) for step in group)
            continue
        name, count = loop
        assert isinstance(count, int), "BundleBuilder.size refuses baked bundles"
        for index in range(count):
            yield from _unrolled(group, depth + 1, {**iteration, name: index})


def _literal(bases: Mapping[str, int], iteration: Mapping[str, int]) -> Resolve:
    """Resolves places to addresses in the segments of baked bundles."""

    def address(place: BufferAddress | RuntimeSize, offset_bytes: int) -> int:
        assert isinstance(place, BufferAddress), "BundleBuilder.size refuses baked bundles"
        steps = place.loop_strides.items()
        moved = sum(iteration[loop] * step for loop, step in steps if isinstance(step, int))
        return bases[place.buffer] + place.offset_bytes + moved + offset_bytes

    return address


def _filename(index: int) -> str:
    return f"sdsc_{index}.json"
