"""Whole bundles from descriptions: buffers, loops and operations in, program and SDSCs out.

A :class:`BundleBuilder` collects operations on tensors in named buffers, in one of the two address
modes of the bundle format reference §3.2: symbolic (launch arguments, symbol ids, loops kept) or
baked (addresses in the JSON, loops unrolled). The built program runs without files; text
and JSON are made on demand. Tests check for every built program that reading its files gives the
same program.

In the text every address has one name, made when it is first needed: constants, sums and argument
extractions at the head of the function, ``affine.apply`` before the execute that needs it. Names
and order are those of the real frontends. Forms: bundle format reference §2, §3.1, §3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from spyre.errors import BundleError, Finding
from spyre.mlir.builder.operations import (
    BufferAddress,
    BuiltOperation,
    OperationSpec,
    Resolve,
    RuntimeSize,
    SizeValue,
    build_inspected,
)
from spyre.mlir.operation import Operation, Origin
from spyre.mlir.program import (
    EXPRESSIONS,
    AffineConstant,
    AffineDim,
    AffineExpr,
    AffineMap,
    AffineSymbol,
    Body,
    Execute,
    IndexValue,
    InputAtom,
    Loop,
    LoopProgram,
    Parameter,
    Terms,
    add,
    executes,
    fold,
    fold_shared,
    of_atom,
)
from spyre.mlir.sdsc import Sdsc
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

POOL = "pool"
Strides = tuple[tuple[str, int | SizeValue], ...]
"""(loop, bytes per iteration) pairs, outermost loop first."""
Address = tuple[str, int, Strides, tuple[SizeValue, ...]]
"""Buffer, offset in bytes, strides, and bytes that depend on runtime sizes."""
LoopCount = int | SizeValue
Loops = tuple[tuple[str, LoopCount], ...]
"""Names and trip counts, outermost loop first."""


def _symbols(first_id: int, ids: dict[Address | RuntimeSize, int]) -> Resolve:
    """Gives equal addresses and sizes one negative id, in order of first appearance in ``ids``."""

    def symbol_of(place: BufferAddress | RuntimeSize, offset_bytes: int) -> int:
        if isinstance(place, RuntimeSize):
            return ids.setdefault(place, first_id - len(ids))
        strides = tuple((loop, step) for loop, step in place.loop_strides.items() if step)
        address = (place.buffer, place.offset_bytes + offset_bytes, strides, place.shifts)
        return ids.setdefault(address, first_id - len(ids))

    return symbol_of


BuiltStep = tuple[Loops, str, Mapping[Address | RuntimeSize, int]]
"""One execute of a bundle: the loops around it, its file, and the value of each symbol id."""


def sizes_of(address: Address) -> list[RuntimeSize]:
    """Runtime sizes an address depends on, each once."""
    _, _, strides, shifts = address
    values = (*(step for _, step in strides if isinstance(step, SizeValue)), *shifts)
    return list(dict.fromkeys(size for value in values for size in value.sizes))


def address_map(address: Address) -> AffineMap:
    """``(d0, …)[s0, s1, …] -> (s0 + a*d0 + … + b*(s1 ceildiv n) + …)``: s0 is the buffer with its
    offset, the dims are the loops of the strides, symbol k + 1 is ``sizes_of(address)[k]``.
    """
    _, _, strides, shifts = address
    sizes = sizes_of(address)
    symbols = {size: AffineSymbol(k) for k, size in enumerate(sizes, 1)}
    result: AffineExpr = AffineSymbol(0)
    for index, (_, step) in enumerate(strides):
        factor = AffineConstant(step) if isinstance(step, int) else _substituted(step, symbols)
        result = result + factor * AffineDim(index)
    for shift in shifts:
        result = result + _substituted(shift, symbols)
    return AffineMap(len(strides), 1 + len(sizes), (result,))


def _substituted(value: SizeValue, symbols: Mapping[RuntimeSize, AffineSymbol]) -> AffineExpr:
    """``value`` in a map that has other ``symbols``."""
    operands: list[AffineExpr] = [symbols[size] for size in value.sizes]
    return fold(value.expression, [], operands, EXPRESSIONS)


Step = tuple[Loops, OperationSpec]
"""An operation to build, and the loops around it."""
StepT = TypeVar("StepT", Step, BuiltStep)


def group_by_loop(
    steps: Sequence[StepT], depth: int
) -> Iterator[tuple[tuple[str, LoopCount] | None, list[StepT]]]:
    """Consecutive steps in the same loop of ``depth``; no loop: (None, steps)."""
    for loop, group in groupby(steps, lambda s: s[0][depth] if len(s[0]) > depth else None):
        yield loop, list(group)


SEGMENT_BYTES = 0x4_0000_0000
MAX_SEGMENTS = 7
"""Segments tensors may use; the last one holds the program (runtime reference §4)."""
ALIGNMENT_BYTES = 128


class BundleBuffer(msgspec.Struct, frozen=True):
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


class BundleBuilder(msgspec.Struct):
    """Collects a bundle; ``build`` may be called once everything has been added.

    ``symbolic``: addresses are launch arguments; otherwise they are baked into the SDSCs, with
    argument k in segment k, or k+1 when there is a pool (segment 0).
    """

    symbolic: bool = True
    arguments: list[BundleBuffer] = msgspec.field(default_factory=list)
    pool_bytes: int = 0
    sizes: list[RuntimeSize] = msgspec.field(default_factory=list)
    _steps: list[Step] = msgspec.field(default_factory=list)
    _loops: list[tuple[str, LoopCount]] = msgspec.field(default_factory=list)
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
    def loop(self, count: LoopCount) -> Iterator[str]:
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
        self._steps.append((tuple(self._loops), spec))

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
        for value in (*place.loop_strides.values(), *place.shifts):
            for size in value.sizes if isinstance(value, SizeValue) else ():
                self._check_size(spec.name, size)

    def build(self) -> BuiltBundle:
        """The bundle. BundleError or ValidationError when an operation cannot be built."""
        return self._build_symbolic() if self.symbolic else self._build_baked()

    def _build_symbolic(self) -> BuiltBundle:
        operations: dict[str, BuiltOperation] = {}
        steps: list[BuiltStep] = []
        n_symbols = 0
        for loops, spec in self._steps:
            index = len(operations)
            ids: dict[Address | RuntimeSize, int] = {}
            resolve = _symbols(-1 - n_symbols, ids)
            built = build_inspected(spec, f"{index}_{spec.name}", resolve)
            operations[_filename(index)] = built
            n_symbols += len(ids)
            steps.append((loops, _filename(index), ids))
        buffers = {POOL: POOL} if self.pool_bytes else {}
        buffers |= {buffer.name: f"arg_{buffer.arg_index}" for buffer in self.arguments}
        program = _program(steps, buffers, self.sizes)
        return BuiltBundle(program, operations, tuple(steps), buffers, tuple(self.sizes))

    def _build_baked(self) -> BuiltBundle:
        has_pool = bool(self.pool_bytes)
        if len(self.arguments) + has_pool > MAX_SEGMENTS:
            expected = f"at most {MAX_SEGMENTS} segments"
            raise BundleError("SPY291", "too many arguments for baked addresses", expected=expected)
        bases = {b.name: (b.arg_index + has_pool) * SEGMENT_BYTES for b in self.arguments}
        operations: dict[str, BuiltOperation] = {}
        for spec, iteration in _unrolled(self._steps, 0, {}):
            index = len(operations)
            resolve = _literal(bases | {POOL: 0}, iteration)
            operations[_filename(index)] = build_inspected(spec, f"{index}_{spec.name}", resolve)
        steps: tuple[BuiltStep, ...] = tuple(((), name, {}) for name in operations)
        return BuiltBundle(_program(steps, {}, ()), operations, steps)


# --- built bundles ----------------------------------------------------------------------------


def parameter_name(buffer: str) -> str:
    """The parameter with the address of a buffer."""
    return f"{buffer}_base_addr"


class BuiltBundle(msgspec.Struct, frozen=True, dict=True):
    """A bundle made in code: it can run at once, or be written as a directory.

    ``built``: operations by the file name that executes of ``program`` use. A launch gives the
    addresses of ``buffers`` (name → the module's name for it, the pool first), then ``sizes``.
    ``directory``: the path that messages name. ``extra_files``: files to write beside bundle.mlir
    and the SDSCs.
    """

    program: LoopProgram
    built: Mapping[str, BuiltOperation]
    steps: Sequence[BuiltStep]
    buffers: Mapping[str, str] = msgspec.field(default_factory=dict)
    sizes: Sequence[RuntimeSize] = ()
    directory: Path = Path()
    extra_files: Mapping[str, bytes] = msgspec.field(default_factory=dict)

    @cached_property
    def operations(self) -> Mapping[str, Operation]:
        """By file name. UnsupportedError at the first that is not simulated."""
        return {name: built.simulated for name, built in self.built.items()}

    @cached_property
    def module(self) -> Module:
        """bundle.mlir as a syntax tree."""
        return emit_module(self.steps, self.buffers, self.sizes)

    @cached_property
    def sdscs(self) -> Mapping[str, Sdsc]:
        """The SDSC files."""
        return {name: built.sdsc for name, built in self.built.items()}

    def with_origins(self, origins: Sequence[Origin]) -> BuiltBundle:
        """The bundle with the origin of every execute, unchanged for another number of executes."""
        if len(origins) != len(self.steps):
            return self
        named = {name: origin for (_, name, _), origin in zip(self.steps, origins, strict=True)}
        built = {
            name: replace(each, described=replace(each.described, origin=named[name]))
            for name, each in self.built.items()
        }
        return replace(self, built=built)

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """All findings on the files, as if they were written; errors as of `Bundle.check`."""
        from spyre.mlir.bundle import Bundle

        return Bundle(self.directory, self.module, self.sdscs).check(raise_on_error)


# --- the program ------------------------------------------------------------------------------


def _program(
    steps: Sequence[BuiltStep], buffers: Mapping[str, str], sizes: Sequence[RuntimeSize]
) -> LoopProgram:
    """Return the program that lowering the written module would give."""
    maker = _ProgramMaker()
    for name, written in buffers.items():
        maker.buffers[name] = maker.parameter(Parameter(parameter_name(written), "input_arg"))
    for size in sizes:
        parameter = Parameter(size.name, "input_arg", size.granularity, size.maximum)
        maker.sizes[size] = maker.parameter(parameter)
    body = maker.body(steps, 0, {})
    return LoopProgram(tuple(maker.parameters), (), body, tuple(executes(body)))


class _ProgramMaker(msgspec.Struct):
    """Values of the buffers and sizes of a launch, and the terms that values share."""

    parameters: list[Parameter] = msgspec.field(default_factory=list)
    buffers: dict[str, IndexValue] = msgspec.field(default_factory=dict)
    sizes: dict[RuntimeSize, IndexValue] = msgspec.field(default_factory=dict)
    terms: dict[Terms, Terms] = msgspec.field(default_factory=dict)
    n_executes: int = 0

    def parameter(self, parameter: Parameter) -> IndexValue:
        """The next parameter, as a value."""
        self.parameters.append(parameter)
        return of_atom(InputAtom("parameter", len(self.parameters) - 1, parameter.name))

    def body(
        self, steps: Sequence[BuiltStep], depth: int, variables: Mapping[str, IndexValue]
    ) -> Body:
        """Loops and executes of ``steps``, whose outer loops have ``variables``."""
        items: list[Loop | Execute] = []
        for loop, group in group_by_loop(steps, depth):
            if loop is None:
                items += [self.execute(step, variables) for step in group]
                continue
            name, count = loop
            variable = of_atom(InputAtom("loop", depth, name))
            inner = self.body(group, depth + 1, {**variables, name: variable})
            items.append(Loop(name, IndexValue(0), self.trips(count), IndexValue(1), inner))
        return tuple(items)

    def trips(self, count: LoopCount) -> IndexValue:
        """How often a loop runs."""
        if isinstance(count, int):
            return IndexValue(count)
        sizes = [self.sizes[size] for size in count.sizes]
        return fold_shared(count.expression, [], sizes, self.terms)

    def execute(self, step: BuiltStep, variables: Mapping[str, IndexValue]) -> Execute:
        """An execute with the values of its symbols."""
        _, filename, symbols = step
        values = tuple([self.value(address, variables) for address in symbols])
        self.n_executes += 1
        return Execute(self.n_executes - 1, filename, tuple(symbols.values()), values)

    def value(
        self, address: Address | RuntimeSize, variables: Mapping[str, IndexValue]
    ) -> IndexValue:
        """Return the value of a symbol."""
        if isinstance(address, RuntimeSize):
            return self.sizes[address]
        buffer, offset, strides, shifts = address
        base = add(self.buffers[buffer], IndexValue(offset))
        if not strides and not shifts:
            return base
        dims = [variables[loop] for loop, _ in strides]
        symbols = [base, *(self.sizes[size] for size in sizes_of(address))]
        return fold_shared(address_map(address).result, dims, symbols, self.terms)


# --- baked: literal addresses, loops unrolled -------------------------------------------------


def _unrolled(
    steps: Sequence[Step], depth: int, iteration: Mapping[str, int]
) -> Iterator[tuple[OperationSpec, Mapping[str, int]]]:
    """Every operation of every iteration in program order, with its loop indices."""
    for loop, group in group_by_loop(steps, depth):
        if loop is None:
            yield from ((spec, iteration) for _, spec in group)
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


# --- bundle.mlir ---------------------------------------------------------------------------------


def emit_module(
    steps: Sequence[BuiltStep], buffers: Mapping[str, str], sizes: Sequence[RuntimeSize]
) -> Module:
    """The module of a built bundle; lowering it gives the bundle's program."""
    emitter = _ModuleEmitter(buffers, sizes)
    body = emitter.body(steps, 0)
    function = Function("sdsc_bundle", tuple(emitter.parameters), (*emitter.head, *body))
    return Module(function, tuple(emitter.aliases))


class _ModuleEmitter(msgspec.Struct):
    """Collects parameters, statements of the head, and map aliases."""

    buffers: Mapping[str, str]
    sizes: Sequence[RuntimeSize]
    parameters: list[FunctionParameter] = msgspec.field(default_factory=list)
    head: list[Statement] = msgspec.field(default_factory=list)
    aliases: list[MapAlias] = msgspec.field(default_factory=list)
    _names: set[str] = msgspec.field(default_factory=set)
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
