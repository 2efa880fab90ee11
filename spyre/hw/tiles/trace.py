"""Tracing: a checked KTIR function and its launch values become statements with start addresses.

The function is walked once. Everything that is a number is an array over all iterations of the
loops around it and all tiles; every operation on tiles of data becomes a statement whose instances
are these iterations. Loads are operands of the statement that uses them, stores are the output of
the one that computes their value, where nothing comes between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from spyre.errors import (
    Finding,
    LaunchError,
    Severity,
    SourceLocation,
    SpyreError,
    UnsupportedError,
)
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles.lowering import SPARE, Intent, Operand, state
from spyre.hw.tiles.numbers import (
    comparison,
    float_operation,
    integer_operation,
    is_integer_operation,
    wrapped,
)
from spyre.hw.tiles.program import TileStatement, TracedKernel, TracedProgram
from spyre.hw.tiles.storage import Scratchpad, last_uses
from spyre.hw.tiles.values import (
    ELEMENT_BYTES,
    FORMATS,
    PAIR,
    SCRATCHPAD,
    DataTile,
    Level,
    Number,
    Value,
    slot_pitches,
)
from spyre.mlir.program import relocate
from spyre.mlir.tiles import (
    KtirProgram,
    TileFunction,
    TileOp,
    Type,
    operation_rows,
)

Array = npt.NDArray[Any]
MOST_INSTANCES = 4_000_000
COMPARISONS = {
    "eq": "equal", "ne": "notequal", "gt": "greaterthan", "ge": "greaterequal",
    "lt": "lesserthan", "le": "lesserequal",
}  # fmt: skip
ENGINE_NAMES = {"gelu": "gelufwd"}
HALF_ONLY = ("log", "tanh", "gelufwd", "softplus")
"""Operations of the engine on 16-bit floats alone."""
_NOT_YET = "a tile of whole sticks"


@dataclass(frozen=True, eq=False)
class PointerArgument:
    """A pointer: ``elements`` of ``element`` are at it."""

    name: str
    element: str
    elements: int


@dataclass(frozen=True, eq=False)
class Pending:
    """A value whose computation waits for the store that may be its output."""

    number: int
    until: int
    shape: tuple[int, ...]
    element: str
    emit: Callable[[DataTile | None], DataTile]


@dataclass
class Tracer:
    """The walk over one function.

    ``pointers``: by parameter name; ``numbers``: of the other parameters. ``half``: rounds to the
    run's 16-bit format. ``handlers``: what traces an operation that is not elementwise. The
    constants' memory is the argument after the last pointer.
    """

    program: KtirProgram
    function: TileFunction
    pointers: Mapping[str, PointerArgument]
    numbers: Mapping[str, float]
    half: Callable[[Array], Array]
    handlers: Mapping[str, Callable[[Tracer, TileOp, Level], None]]
    statements: list[TileStatement] = field(default_factory=list)
    constants: dict[tuple[str, float], int] = field(default_factory=dict)
    scopes: list[dict[str, tuple[Value | Pending, int]]] = field(default_factory=list)
    scratchpad: Scratchpad = field(default_factory=Scratchpad)
    targets: dict[str, DataTile] = field(default_factory=dict)
    sequence: int = 0
    reserved_bytes: int = 0
    spilled: int = 0

    def trace(self, file: Path) -> TracedKernel:
        """The function's statements."""
        self.places, self.uses = last_uses(self.function)
        grid = self.program.grid(self.function.name)
        self.grid = grid
        n_tiles = prod(grid)
        none = np.zeros((1, 0), np.int64)
        level = Level(None, np.zeros(1, np.int64), np.ones((1, n_tiles), np.bool_), none, none)
        self.scopes = [{}]
        for parameter in self.function.parameters:
            name = parameter.name
            if name in self.pointers:
                argument = [*self.pointers].index(name)
                value = Number(np.zeros((1, 1), np.int64), level, argument)
            else:
                value = self._number(
                    self.numbers[name], parameter.type.element or parameter.type.kind, level
                )
            self.scopes[0][name] = value, -1
        self.run_body(self.function.body, level)
        program = TracedProgram(tuple(self.statements), len(self.pointers) + 1, self.reserved_bytes)
        return TracedKernel(file, program, tuple(self.constants), self._notes())

    def _notes(self) -> tuple[Finding, ...]:
        if not self.spilled:
            return ()
        message = f"tiles of {self.spilled} bytes are in device memory: the scratchpad is full"
        place = self.program.module.locate(self.function.position)
        return (Finding("SPY197", Severity.WARNING, message, place, hint="use smaller tiles"),)

    # --- places, errors, names ------------------------------------------------------------------

    def place(self, op: TileOp) -> SourceLocation | None:
        """Where an operation is in the text."""
        return self.program.module.locate(op.position)

    def refuse(self, op: TileOp, what: str, expected: str = _NOT_YET, found: str = "") -> NoReturn:
        """UnsupportedError SPY557: the operation is right, but not simulated in this form."""
        raise UnsupportedError(
            "SPY557", f"{op.name}: {what} is not simulated", self.place(op),
            expected=expected, found=found,
        )  # fmt: skip

    def _lookup(self, name: str) -> tuple[Value | Pending, int]:
        return next(scope[name] for scope in reversed(self.scopes) if name in scope)

    def value(self, name: str) -> Value:
        """The value of a name; one that was waiting is computed now."""
        found, number = self._lookup(name)
        if isinstance(found, Pending):
            computed = found.emit(None)
            scope = next(scope for scope in reversed(self.scopes) if name in scope)
            scope[name] = computed, number
            return computed
        return found

    def bind(self, op: TileOp, name: str, value: Value | Pending) -> None:
        """Define ``name``; the storage of a tile lives until the name's last use."""
        number = self.places[id(op)]
        self.scopes[-1][name] = value, number
        if isinstance(value, DataTile) and value.is_local:
            self.scratchpad.extend(
                int(value.offsets.flat[0]), self.uses.get((number, name), number)
            )

    def number(self, name: str) -> Number:
        """A name's number."""
        value = self.value(name)
        if not isinstance(value, Number):
            place = getattr(name, "start_pos", -1)
            raise UnsupportedError(
                "SPY194", f"%{name} depends on loaded data", self.program.module.locate(place),
                expected="a number that is known when the program is launched",
            )  # fmt: skip
        return value

    def tile(self, name: str, shape: tuple[int, ...] = (), element: str = "") -> DataTile:
        """A name's tile; a number becomes a constant tile of ``shape``."""
        value = self.value(name)
        if isinstance(value, Number):
            return self.constant(value, shape, element)
        assert isinstance(value, DataTile)
        return value

    def _number(self, value: Any, kind: str, level: Level) -> Number:
        """A number of the type ``kind``, the same on all tiles, rounded to the type."""
        array = np.asarray([[value]])
        if kind in ("f16", "f32", "bf16", "!spyreop.df16"):
            return Number(self._rounded(array.astype(np.float64), kind), level)
        return Number(wrapped(array.astype(np.int64), kind), level)

    def _rounded(self, values: Array, kind: str) -> Array:
        with np.errstate(over="ignore"):
            single = np.asarray(values, np.float64).astype(np.float32)
        return self.half(single) if kind in ("f16", "!spyreop.df16") else single

    def constant(self, number: Number, shape: tuple[int, ...], element: str) -> DataTile:
        """A tile of one number, read from the constants' memory."""
        values = np.asarray(number.values, np.float64)
        distinct, which = np.unique(values, return_inverse=True)
        kind = "f32" if element == "f32" else "f16" if element in FORMATS else element
        if kind == "i1":
            kind = "f16"
        at = [self.constants.setdefault((kind, float(v)), len(self.constants)) for v in distinct]
        offsets = STICK_BYTES * np.array(at, np.int64)[which.reshape(values.shape)]
        value = float(distinct[0]) if len(distinct) == 1 else None
        return DataTile(
            shape, kind, len(self.pointers), offsets, number.level, (0,) * len(shape), None, value
        )

    # --- the walk -------------------------------------------------------------------------------

    def run_body(self, body: Sequence[TileOp], level: Level) -> None:
        """Trace the operations of a block."""
        for op in body:
            self._operation(op, level)

    def _operation(self, op: TileOp, level: Level) -> None:
        self.now = self.places[id(op)]
        self.sequence += 1
        try:
            if (handler := self.handlers.get(op.name)) is not None:
                handler(self, op, level)
            elif (row := operation_rows()[op.name]).result:
                self._compute(op, row.engine, level)
        except SpyreError as error:
            if error.finding.location is None:
                raise relocate(error, type(error), self.place(op)) from None
            raise

    def _compute(self, op: TileOp, engine: str, level: Level) -> None:
        """An elementwise operation on numbers or tiles."""
        names = [*op.uses()]
        values = [self.value(name) for name in names]
        if all(isinstance(v, Number) for v in values):
            self.bind(op, op.results[0], self._on_numbers(op, values, level))
            return
        self._elementwise(op, ENGINE_NAMES.get(engine, engine), names, level)

    def _on_numbers(self, op: TileOp, values: Sequence[Any], level: Level) -> Number:
        fields, name = op.fields, op.name.partition(".")[2]
        arrays = [v.at(level) for v in values]
        origins = {v.origin for v in values if v.origin is not None}
        kind = (
            fields["!T"].kind
            if "!T" in fields
            else fields.get("!a", fields.get("!types", (None,))[-1])
        )
        kind = kind if isinstance(kind, str) else kind.kind
        if name == "select":
            found = np.where(arrays[0], arrays[1], arrays[2])
        elif name in ("cmpi", "cmpf"):
            found = comparison(fields["predicate"].text, arrays[0], arrays[1], kind)
        elif "!result" in fields:
            found = self._cast(fields["!result"].kind, arrays[0], kind)
        elif is_integer_operation(name):
            found = integer_operation(
                name, arrays[0], arrays[1], kind, level.active, self.place(op)
            )
        else:
            computed = float_operation(name, *arrays)
            if computed is None:
                self.refuse(op, "this function of a number", "arithmetic, exp, sqrt")
            found = self._rounded(computed, kind)
        if origins and name not in ("addi", "subi", "index_cast", "index_castui", "select"):
            self.refuse(op, "this arithmetic on an address", "addition")
        return Number(np.atleast_2d(found), level, origins.pop() if origins else None)

    def _cast(self, target: str, values: Array, source: str) -> Array:
        if target in ("f16", "f32", "bf16", "!spyreop.df16"):
            return self._rounded(values.astype(np.float64), target)
        if values.dtype.kind == "f":
            return wrapped(np.trunc(values).astype(np.int64), target)
        return wrapped(values.astype(np.int64), target)

    # --- statements -----------------------------------------------------------------------------

    def slot(
        self, shape: tuple[int, ...], element: str, stick: int | None, level: Level, until: int
    ) -> DataTile:
        """New storage for a tile."""
        pitches, size = slot_pitches(shape, element, stick)
        offset = self.scratchpad.place(size, self.now, until)
        root = level
        while root.parent is not None:
            root = root.parent
        if offset is None:
            count = root.active.shape[1]
            offsets = self.reserve(size * count) + size * np.arange(count)[None]
            self.spilled += size
        else:
            offsets = np.full((1, 1), offset, np.int64)
        owner = SCRATCHPAD if offset is not None else self.reserved_owner
        return DataTile(shape, element, owner, offsets, root, tuple(pitches), stick)

    def emit(
        self,
        op: TileOp,
        name: str,
        inputs: Sequence[Operand],
        output: Operand,
        extents: Mapping[str, int],
        stick: str,
        level: Level,
        constants: Mapping[str, int] | None = None,
    ) -> None:
        """State an operation of the engine over the rows of ``level``."""
        if not level.active.any():
            return
        self.sequence += 1
        key = np.column_stack((level.key, np.full(level.rows, self.sequence, np.int64)))
        place = self.place(op)
        where = "" if place is None else f"{place.line}:{place.column} "
        title = f"{where}{op.name}"
        taken = sum(s.operation.sdsc_name.startswith(title) for s in self.statements)
        title = title if not taken else f"{title} [{taken}]"
        intent = Intent(name, tuple(inputs), output, extents, stick, constants or {})
        self.statements += state(intent, level, key, self.grid, title, place)
        if sum(len(s.key) for s in self.statements) > MOST_INSTANCES:
            raise LaunchError(
                "SPY175", "too many iterations", place,
                expected=f"at most {MOST_INSTANCES} executes in one launch",
            )  # fmt: skip

    def copy_back(
        self, op: TileOp, made: Sequence[DataTile], places: Sequence[DataTile], level: Level
    ) -> None:
        """Copy values to the places of those they replace, through another place where they are
        one of those themselves.
        """
        moved = []
        for tile, place in zip(made, places, strict=True):
            if tile.begins_as(place) and tile.pitches == place.pitches:
                continue
            if any(tile.begins_as(other) for other in places):
                tile = self.pointwise(op, "identity", [tile], tile.shape, level, None, self.now)
            moved.append((tile, place))
        for tile, place in moved:
            self.pointwise(op, "identity", [tile], place.shape, level, place, self.now)

    @property
    def reserved_owner(self) -> int:
        """Number of the memory that the program reserves, among its arguments and the constants."""
        return len(self.pointers) + 1

    def reserve(self, size_bytes: int) -> int:
        """Offset of further device memory of the launch."""
        offset, self.reserved_bytes = self.reserved_bytes, self.reserved_bytes + size_bytes
        return offset

    def along_lanes(
        self, op: TileOp, tiles: Sequence[DataTile], level: Level
    ) -> tuple[list[DataTile], int | None]:
        """The tiles with one dim along lanes, and that dim; it is the last that any of them has."""
        sticks = [t.stick for t in tiles if t.stick is not None]
        if not sticks:
            return list(tiles), None
        stick = max(sticks)
        found = []
        for tile in tiles:
            if tile.stick not in (None, stick):
                tile = self.restick(op, tile, stick, level)
            elif tile.stick is None and tile.pitches[stick]:
                self.refuse(op, "single elements of sticks beside whole sticks")
            found.append(tile)
        return found, stick

    def restick(self, op: TileOp, tile: DataTile, stick: int, level: Level) -> DataTile:
        """The tile with dim ``stick`` along lanes."""
        sizes = [tile.shape[stick], tile.shape[tile.stick or 0]]
        if any(size % tile.lanes for size in sizes):
            self.refuse(op, "a transposition of ragged tiles", found=str(tile.shape))
        result = self.slot(tile.shape, tile.element, stick, level, self.now)
        dims = dims_of(tile.shape)
        extents = dict(zip(dims, tile.shape, strict=True))
        self.emit(op, "ReStickifyOpHBM", [Operand(tile, dims)], Operand(result, dims), extents,
                  dims[stick], level)  # fmt: skip
        return result

    def pointwise(
        self,
        op: TileOp,
        name: str,
        inputs: Sequence[DataTile],
        shape: tuple[int, ...],
        level: Level,
        target: DataTile | None,
        until: int,
        element: str = "",
        constants: Mapping[str, int] | None = None,
    ) -> DataTile:
        """An elementwise operation, a conversion or a copy over ``shape``."""
        tiles, stick = self.along_lanes(op, inputs, level)
        element = element or tiles[-1].element
        constant = not any(t.varies for t in tiles)
        if stick is None and shape and constant:
            stick = len(shape) - 1 if target is None else target.stick
        if target is not None and (
            (target.stick != stick and (stick is not None or target.stick is None))
            or any(_overlaps(tile, target) for tile in tiles)
        ):
            target = None
        if target is not None and stick is None:
            stick = target.stick
        result = target
        if result is None:
            result = self.slot(shape, element, stick, level, until)
        dims = dims_of(shape)
        converts = {t.element for t in tiles} != {element}
        lanes = PAIR if converts else STICK_BYTES // ELEMENT_BYTES[element]
        extents = {
            dim: -(-size // lanes) * lanes if k == stick else size
            for k, (dim, size) in enumerate(zip(dims, shape, strict=True))
        }
        along = SPARE if stick is None else dims[stick]
        extents.setdefault(along, lanes)
        operands = [Operand(tile, dims) for tile in tiles]
        self.emit(op, name, operands, Operand(result, dims), extents, along, level, constants)
        return result

    def _elementwise(self, op: TileOp, name: str, names: Sequence[str], level: Level) -> None:
        """An operation on tiles by its row; it waits if only a store uses its result."""
        result, fields = op.results[0], op.fields
        type_ = _result_type(op)
        shape = type_.extents
        element = fields["!T"].scalar if "!T" in fields else type_.scalar
        if not shape and isinstance(type_, Type) and type_.kind != "tensor":
            shape = ()
        stored = self._stored(op, names)
        tiles = [self.tile(n, shape, stored) for n in names]
        number, until = self.places[id(op)], self.uses.get((self.places[id(op)], result), 0)
        for tile in tiles:
            if tile.is_local:
                self.scratchpad.extend(int(tile.offsets.flat[0]), max(until, number))

        def compute(target: DataTile | None) -> DataTile:
            return self._computed(op, name, tiles, shape, element, level, target, until)

        if self._only_stored(op, result):
            self.bind(op, result, Pending(number, until, shape, element, compute))
        else:
            self.bind(op, result, compute(self.targets.get(result)))

    def _stored(self, op: TileOp, names: Sequence[str]) -> str:
        """Element type that constants among the operands are stored as."""
        kinds = [v.element for v in map(self.value, names) if isinstance(v, DataTile)]
        return kinds[-1]

    def _computed(
        self,
        op: TileOp,
        name: str,
        tiles: Sequence[DataTile],
        shape: tuple[int, ...],
        element: str,
        level: Level,
        target: DataTile | None,
        until: int,
    ) -> DataTile:
        short = op.name.partition(".")[2]
        constants: dict[str, int] = {}
        if short == "cmpf":
            predicate = op.fields["predicate"].text
            if predicate[1:] not in COMPARISONS:
                self.refuse(op, f"the predicate {predicate}", "ordered comparisons")
            return self.pointwise(
                op, COMPARISONS[predicate[1:]], tiles, shape, level, target, until
            )
        if operation_rows()[op.name].rule == "cast":
            return self._converted(op, tiles[0], shape, level, target, until)
        if name == "softplus":
            for key, constant in (("beta", "softplusBeta"), ("threshold", "softplusThresh")):
                constants[constant] = int(np.float32(op.fields[key].value).view(np.int32))
        if element not in FORMATS:
            self.refuse(op, f"arithmetic on tiles of {element}", f"one of {', '.join(FORMATS)}")
        if (element == "f32" and name in HALF_ONLY) or not _is_known(name):
            self.refuse(op, f"{short} of {element}", "operations of docs/operations.md")
        if tiles[0].element in ("i32", "si32"):
            self.refuse(op, "integer arithmetic on tiles", "floats")
        return self.pointwise(op, name, tiles, shape, level, target, until, constants=constants)

    def _converted(
        self,
        op: TileOp,
        tile: DataTile,
        shape: tuple[int, ...],
        level: Level,
        target: DataTile | None,
        until: int,
    ) -> DataTile:
        wanted = op.fields["!result"].scalar
        names = {("f16", "f32"): "dl16tofp32", ("f32", "f16"): "fp32todl16"}
        if FORMATS.get(wanted) == FORMATS[tile.element]:
            return tile
        if tile.value is not None:
            return self.constant(
                Number(self._rounded(np.array([[tile.value]]), wanted), tile.level), shape, wanted
            )
        name = names.get((tile.element, wanted))
        if name is None:
            self.refuse(op, f"a conversion from {tile.element} to {wanted}", "f16 and f32")
        return self.pointwise(op, name, [tile], shape, level, target, until, wanted)

    def _only_stored(self, op: TileOp, result: str) -> bool:
        """True if the next operation that touches data is a store of ``result``, its only use."""
        block = self.block_of(op)
        uses = sum(name == result for other in block for name in all_uses(other))
        for other in block[block.index(op) + 1 :]:
            if other.name == "ktdp.store":
                return uses == 1 and other.fields["value"] == result
            if not other.name.startswith(("ktdp.construct_", "arith.constant")) and not _is_scalar(
                other
            ):
                return False
        return False

    def block_of(self, op: TileOp) -> tuple[TileOp, ...]:
        """The block that holds an operation."""
        blocks = [self.function.body, *(r.body for o in self.function.walk() for r in o.regions)]
        return next(block for block in blocks if any(o is op for o in block))


def _overlaps(tile: DataTile, target: DataTile) -> bool:
    """True if a tile shares its place in the scratchpads with ``target``, in another order."""
    return tile.begins_as(target) and tile.pitches != target.pitches


def _is_known(name: str) -> bool:
    from spyre.hw.ops import OPS

    return name in OPS


def _is_scalar(op: TileOp) -> bool:
    types = [t for key, t in op.fields.items() if key[0] == "!"]
    flat = [x for t in types for x in (t if isinstance(t, tuple) else (t,))]
    return not op.regions and op.name.startswith("arith.") and not any(t.is_shaped for t in flat)


def all_uses(op: TileOp) -> list[str]:
    """Every value that an operation and its regions use."""
    found: list[str] = [*op.uses()]
    for region in op.regions:
        for inner in region.body:
            found += all_uses(inner)
    return found


def dims_of(shape: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"d{k}" for k in range(len(shape)))


def _result_type(op: TileOp) -> Type:
    fields = op.fields
    found = fields.get("!result", fields.get("!T", fields.get("!types", (None,))[-1]))
    assert isinstance(found, Type)
    return found.with_element("i1") if op.name.endswith(("cmpf", "cmpi")) else found
