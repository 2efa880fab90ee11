"""Tracing: a checked KTIR function and its launch values become statements with start addresses.

The function is walked once. Everything that is a number is an array over all iterations of the
loops around it and all tiles; every operation on tiles of data becomes a statement whose instances
are these iterations. Loads are operands of the statement that uses them, stores are the output of
the one that computes their value, where nothing comes between.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import (
    codes_to_bytes,
    decode_bfloat16,
    decode_device,
    encode_bfloat16,
    encode_device,
)
from spyre.errors import (
    DeviceFault,
    Finding,
    LaunchError,
    Severity,
    SourceLocation,
    SpyreError,
    UnsupportedError,
)
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles.lowering import SPARE, Intent, Operand
from spyre.hw.tiles.numbers import wrapped
from spyre.hw.tiles.program import TileStatement, TracedKernel, TracedProgram
from spyre.hw.tiles.storage import Scratchpad, last_uses
from spyre.hw.tiles.values import (
    ELEMENT_BYTES,
    FORMATS,
    PAIR,
    SCRATCHPAD,
    BoolArray,
    DataTile,
    Level,
    Number,
    Shape,
    Tiles,
    Value,
    slot_pitches,
)
from spyre.layout import Int64Array
from spyre.mlir.program import relocate
from spyre.mlir.tiles import FLOATS, KtirProgram, TileFunction, TileOp

Array = npt.NDArray[Any]
V = TypeVar("V", bound=Value)
MOST_INSTANCES = 4_000_000
MOST_CONSTANT_BYTES = 1 << 28
STORED = {"i1": "f16", "i8": "i32", "i16": "i32", "bf16": "f32"}
"""Element types as which numbers of other types are in memory."""
_SCALARS = ("ktdp.construct_", "arith.constant", "arith.index", "tensor.empty")
_NUMBERS = ("arith.", "math.", "scf.", "ktdp.get_", "ktdp.runtime_")


class PointerArgument(msgspec.Struct, frozen=True, eq=False):
    """A pointer: ``elements`` of ``element`` are at it.

    ``address``: byte at which the program expects them, in the scratchpad of ``tile`` or in device
    memory; None for an argument of the function. ``places``: memory of the launch one behind the
    other, whose bytes are the elements then. ``shared``: the argument whose memory it is.
    """

    name: str
    element: str
    elements: int
    address: int | None = None
    tile: int | None = None
    places: tuple[PointerArgument, ...] = ()
    shared: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements in device memory."""
        return self.elements * ELEMENT_BYTES.get(STORED.get(self.element, self.element), 1)


Pending = Callable[[DataTile | None], DataTile]
"""Computes a value, into a place if one is given; it waits for the store that may be its output."""


class Tracer(msgspec.Struct, dict=True):
    """The walk over one function.

    ``pointers``: by parameter name; ``numbers``: of the other parameters. ``handler``: traces one
    operation. The constants' memory is the argument after the last pointer: ``image``, whole sticks
    each, and ``constants``, the bytes at which they are. ``places``, ``uses``:
    of `last_uses`. ``targets``: where operations write their results, by identity; ``delivered``:
    values that deliveries bring, with the tiles that consume them, by identity.
    """

    program: KtirProgram
    function: TileFunction
    pointers: Mapping[str, PointerArgument]
    numbers: Mapping[str, float]
    numerics: Numerics
    handler: Callable[[Site], None]
    scratchpad: Scratchpad
    statements: list[TileStatement] = msgspec.field(default_factory=list)
    constants: dict[object, int] = msgspec.field(default_factory=dict)
    image: bytearray = msgspec.field(default_factory=bytearray)
    scope: ChainMap[str, Value | Pending] = msgspec.field(default_factory=ChainMap)
    targets: dict[int, DataTile] = msgspec.field(default_factory=dict)
    iterators: list[Number] = msgspec.field(default_factory=list)
    delivered: dict[int, tuple[Value, BoolArray]] = msgspec.field(default_factory=dict)
    places: dict[int, int] = msgspec.field(default_factory=dict)
    uses: dict[tuple[int, str], int] = msgspec.field(default_factory=dict)
    sequence: int = 0
    reserved_bytes: int = 0
    spilled: int = 0

    def trace(self, file: Path) -> TracedKernel:
        """The function's statements."""
        self.places, self.uses = last_uses(self.function)
        self.grid = self.program.grid(self.function.name)
        active, none = np.ones((1, prod(self.grid)), np.bool_), np.zeros((1, 0), np.int64)
        bodies = [self.function.body]
        bodies += [region.body for op in self.function.walk() for region in op.regions]
        self.blocks = {id(op): body for body in bodies for op in body}
        self.root = Level(None, np.zeros(1, np.int64), active, none, none)
        whole = Site(self, TileOp("launch", position=self.function.position), self.root)
        for parameter in self.function.parameters:
            name, kind = parameter.name, parameter.type.element or parameter.type.kind
            if name in self.pointers:
                argument = [*self.pointers].index(name)
                self.scope[name] = Number(np.zeros((1, 1), np.int64), self.root, argument)
            else:
                kind = {"int": "index", "float": "f32"}.get(kind, kind)
                self.scope[name] = whole.typed(self.numbers[name], kind)
        self._exchange(whole, True)
        self.run_body(self.function.body, self.root)
        self._exchange(whole, False)
        program = TracedProgram(tuple(self.statements), len(self.pointers) + 1, self.reserved_bytes)
        image = np.frombuffer(self.image or bytearray(STICK_BYTES), np.uint8)
        message = f"tiles of {self.spilled} bytes are in device memory: the scratchpad is full"
        note = Finding("SPY197", Severity.WARNING, message, whole.place, hint="use smaller tiles")
        return TracedKernel(file, program, image, (note,) if self.spilled else ())

    def _exchange(self, site: Site, is_begin: bool) -> None:
        """Bring memory that the launch gives to the scratchpads, or their content back."""
        for number, pointer in enumerate(self.pointers.values()):
            if pointer.tile is None:
                continue
            shape, pitches = (pointer.elements,), (ELEMENT_BYTES[pointer.element],)
            outside, inside = (
                DataTile(shape, pointer.element, owner, np.array([[at]]), self.root, pitches, None)
                for owner, at in ((number, 0), (SCRATCHPAD, pointer.address or 0))
            )
            first = pointer.address or 0
            self.scratchpad.block(first, first + pointer.elements * pitches[0])
            mine = np.arange(prod(self.grid))[None] == pointer.tile
            pair = (outside, inside) if is_begin else (inside, outside)
            site.at(self.root.restricted(mine)).move(*pair)

    def run_body(
        self, body: Sequence[TileOp], level: Level, names: Mapping[str, Value] | None = None
    ) -> list[Value]:
        """Trace a block, whose arguments are ``names``; returns the values that it yields."""
        self.scope = self.scope.new_child(dict(names or {}))
        for op in body:
            self.sequence += 1
            site = Site(self, op, level)
            try:
                site.check_uses()
                self.handler(site)
            except SpyreError as error:
                if error.finding.location is None:
                    raise relocate(error, type(error), site.place) from None
                raise
        yielded = [site.value(name) for name in op.fields.get("values", ())] if body else []
        self.scope = self.scope.parents
        return yielded

    def last_use(self, op: TileOp, name: str) -> int:
        """Number of the operation that uses a result last."""
        number = self.places[id(op)]
        return self.uses.get((number, name), number)

    def repeated(self, level: Level, counts: Int64Array) -> tuple[Level, Int64Array]:
        """So many iterations for each of ``level``, and their numbers."""
        parents = np.repeat(np.arange(level.rows), counts)
        trip = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.sequence += 1
        key = np.column_stack((level.key[parents], np.full(len(parents), self.sequence), trip))
        indices = np.column_stack((level.indices[parents], trip))
        return Level(level, parents, level.active[parents], indices, key), trip


class Site(msgspec.Struct, frozen=True):
    """An operation where it is traced: over the iterations and tiles of ``level``."""

    tracer: Tracer
    op: TileOp
    level: Level

    def at(self, level: Level) -> Site:
        """The operation over other iterations or tiles."""
        return replace(self, level=level)

    @property
    def now(self) -> int:
        """Number of the operation."""
        return self.tracer.places.get(id(self.op), -1)

    @property
    def until(self) -> int:
        """Number of the last operation that uses its results, or is inside of it."""
        uses = (self.tracer.last_use(self.op, name) for name in self.op.results)
        inside = (self.tracer.places.get(id(op), -1) for op in self.op.inside())
        return max((self.now, *uses, *inside))

    @property
    def place(self) -> SourceLocation | None:
        """Where it is in the text."""
        return self.tracer.program.module.locate(self.op.position)

    @property
    def n_tiles(self) -> int:
        """Tiles of the grid."""
        return int(self.level.active.shape[1])

    def fail(
        self, kind: type[SpyreError], code: str, message: str, expected: str, found: object = ""
    ) -> NoReturn:
        """Raise an error at the operation."""
        raise kind(code, message, self.place, expected=expected, found=str(found))

    def refuse(self, what: str, expected: str = "another form", found: str = "") -> NoReturn:
        """UnsupportedError SPY557: the operation is right, but not simulated in this form."""
        message = f"{self.op.name}: {what} is not simulated"
        self.fail(UnsupportedError, "SPY557", message, expected, found)

    def check_uses(self) -> None:
        """LaunchError SPY190 for a delivered value that other tiles than its consumers use."""
        delivered, scope = self.tracer.delivered, self.tracer.scope
        for name in self.op.uses() if delivered else ():
            _, consumers = delivered.get(id(scope.get(name)), (None, None))
            if consumers is not None and (others := self.level.active & ~consumers).any():
                message = f"%{name} is used on a tile that does not consume it"
                expected = f"tiles {np.flatnonzero(consumers).tolist()}"
                found = f"tile {np.argwhere(others)[0][1]}"
                self.fail(LaunchError, "SPY190", message, expected, found)

    def resolved(self, key: str) -> Any:
        """An attribute's value, aliases resolved; None if it is not given."""
        return self.tracer.program.module.attribute(self.op, key)

    def value(self, name: str) -> Value:
        """The value of a name; one that was waiting is computed now, in its block."""
        scope = self.tracer.scope
        if callable(found := scope[name]):
            found = scope[name] = found(None)
        return found

    def one_of(self, kind: type[V], name: str) -> V:
        """The value of a name, which has to be of ``kind``."""
        value = self.value(name)
        if not isinstance(value, kind):
            self.refuse(f"%{name} as an operand", kind.__name__, type(value).__name__)
        return value

    def require_inside(
        self, dim: int, first: Array, last: Array, size: Array | int, place: str
    ) -> None:
        """DeviceFault SPY414 for positions along a dim that are not in ``place``."""
        active = self.level.active
        first, last, size = (np.broadcast_to(x, active.shape) for x in (first, last, size))
        outside = active & ((first < 0) | (last >= size))
        if outside.any():
            at = tuple(np.argwhere(outside)[0])
            message = f"a tile of data leaves its {place} on compute tile {at[1]}"
            expected = f"coordinates from 0, below {size[at]}, along dim {dim}"
            found = first[at] if first[at] < 0 else last[at]
            self.fail(DeviceFault, "SPY414", message, expected, found)

    def number(self, item: str | int, is_address: bool = False) -> Number:
        """A name's number, or one that is written; no address but where one may be."""
        if isinstance(item, int):
            return Number(np.array([[item]]), self.level)
        value = self.value(item)
        if not isinstance(value, Number):
            place = self.tracer.program.module.locate(getattr(item, "start_pos", -1))
            expected = "a number that is known when the program is launched"
            message = f"%{item} depends on loaded data"
            raise UnsupportedError("SPY194", message, place, expected=expected)
        if value.origin is not None and not is_address:
            self.refuse("an address as a number", "a number", f"%{item}")
        return value

    def numbers(self, items: Sequence[str | int]) -> tuple[Array, ...]:
        """Numbers by the iterations of the operation, [row, tile] each."""
        return tuple(self.number(item).at(self.level) for item in items)

    def tile(self, name: str, shape: Shape = ()) -> DataTile:
        """A name's tile; a number becomes a constant tile of ``shape``."""
        return self.as_tile(self.value(name), shape)

    def as_tile(self, value: Value, shape: Shape) -> DataTile:
        """A value as a tile; a number becomes a constant one of ``shape``."""
        if isinstance(value, Number):
            if value.origin is not None:
                self.refuse("an address as data", "a number")
            return self.constant(value, shape)
        if not isinstance(value, DataTile):
            self.refuse("a place as data", "a tensor", type(value).__name__)
        return value

    def typed(self, value: Any, kind: str) -> Number:
        """A number of the type ``kind``, the same on all tiles, rounded to the type."""
        return Number(self.rounded(np.asarray([[value]]), kind), self.level, kind=kind)

    def filled(self, value: float, kind: str, shape: Shape) -> DataTile:
        """A constant tile of one number."""
        return self.constant(self.typed(value, kind), shape)

    def rounded(self, values: Array, kind: str) -> Array:
        """Numbers as ones of the type ``kind``; fractions towards zero as integers."""
        if kind not in FLOATS:
            return wrapped(np.trunc(values).astype(np.int64), kind)
        with np.errstate(over="ignore"):
            single = np.asarray(values, np.float64).astype(np.float32)
        if kind == "bf16":
            return np.asarray(decode_bfloat16(encode_bfloat16(single)))
        rules, name = self.tracer.numerics.alu_rules, FORMATS["f16"]
        return single if kind == "f32" else decode_device(
            encode_device(single, name, rules), name, rules
        )  # fmt: skip

    def constant(self, number: Number, shape: Shape) -> DataTile:
        """A tile of numbers, read from the constants' memory; booleans are 1 and 0."""
        tracer, shape = self.tracer, number.shape or shape
        values = np.asarray(number.values, np.float64)
        element = STORED.get(number.kind, number.kind)
        if number.kind not in FLOATS and (np.abs(values + 0.5) > 2.0**31).any():
            self.refuse("an integer of more than 32 bits as data", "-2^31 to 2^31 - 1")
        held = values.shape[2:]
        rows = values.reshape(prod(values.shape[:2]), prod(held))
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        stick = len(held) - 1 if held and held[-1] > 1 else None
        pitches, size = slot_pitches(held, element, stick)
        size = size if prod(held) > 1 else STICK_BYTES
        at = [self._constant_at(element, held, row, stick, size) for row in distinct]
        offsets = np.array(at, np.int64)[which.reshape(values.shape[:2])]
        value = float(distinct[0, 0]) if distinct.size == 1 else None
        steps = tuple(p if n > 1 else 0 for p, n in zip(pitches, held, strict=True))
        owner, steps = len(tracer.pointers), steps or (0,) * len(shape)
        return DataTile(shape, element, owner, offsets, number.level, steps, stick, value)

    def _constant_at(
        self, element: str, held: Shape, row: Array, stick: int | None, size: int
    ) -> int:
        """Byte of the constants' memory at which the numbers ``row`` of a shape are."""
        tracer, key = self.tracer, (element, held, row.tobytes())
        if key not in tracer.constants:
            if len(tracer.image) + size > MOST_CONSTANT_BYTES:
                self.refuse("a table of so many numbers", f"at most {MOST_CONSTANT_BYTES} bytes")
            image = np.full(size // ELEMENT_BYTES[element], row[0] if len(row) == 1 else 0.0)
            steps, _ = slot_pitches(held, element, stick)
            strides = [step // ELEMENT_BYTES[element] * image.itemsize for step in steps]
            np.lib.stride_tricks.as_strided(image, held, strides)[...] = row.reshape(held)
            name, tracer.constants[key] = FORMATS[element], len(tracer.image)
            codes = encode_device(
                image.astype(np.int32 if "INT" in name else np.float32), name,
                tracer.numerics.alu_rules,
            )  # fmt: skip
            tracer.image += codes_to_bytes(codes, name).tobytes()
        return tracer.constants[key]

    def bind(self, value: Value | Pending, name: str = "") -> None:
        """Define a result; the storage of a tile lives until its last use."""
        name = name or self.op.results[0]
        self.tracer.scope[name] = value
        if isinstance(value, DataTile):
            self.keep(value, self.tracer.last_use(self.op, name))

    def keep(self, tile: DataTile, until: int) -> None:
        """Keep the storage of a tile until then."""
        if tile.is_local:
            self.tracer.scratchpad.extend(int(tile.offsets.flat[0]), until)

    def bind_computed(self, compute: Pending) -> None:
        """Define the result as the tile of ``compute``, which waits if only a store uses it."""
        waits = self.is_only_used_by("ktdp.store")
        self.bind(compute if waits else compute(self.tracer.targets.get(id(self.op))))

    def is_apart(self, target: DataTile, tiles: Tiles) -> bool:
        """True if none of ``tiles`` is in the memory of ``target``."""
        names = [pointer.shared or name for name, pointer in self.tracer.pointers.items()]
        names += ["constants", "reserved", ""]
        return names[target.owner] not in [names[tile.owner] for tile in tiles]

    def is_only_used_by(self, user: str = "") -> bool:
        """True if the one use of the result is in its block, by ``user`` or any operation without a
        block, and only numbers are computed in between (or nothing is stored).
        """
        body, name = self.tracer.blocks[id(self.op)], self.op.results[0]
        after = body[[id(op) for op in body].index(id(self.op)) + 1 :]
        users = [k for k, op in enumerate(after) for use in op.all_uses() if use == name]
        if len(users) != 1:
            return False
        last, between = after[users[0]], after[: users[0]]
        if user:
            numbers = all(op.name.startswith(_SCALARS) or computes_numbers(op) for op in between)
            return last.name == user and last.fields["value"] == name and numbers
        stores = any(op.regions or op.name.startswith(("ktdp.store", "ktdp.in")) for op in between)
        return not stores and not (last.regions and last.name.startswith("scf."))

    def slot(
        self,
        shape: Shape,
        element: str,
        stick: int | None,
        until: int | None = None,
        is_local: bool = True,
    ) -> DataTile:
        """New storage for a tile, as long as the result is used or ``until`` an operation; in
        device memory, one place per compute tile, without room or if it is not ``is_local``.
        """
        tracer, (pitches, size) = self.tracer, slot_pitches(shape, element, stick)
        end, at = self.until if until is None else until, None
        if is_local and (at := tracer.scratchpad.place(size, self.now, end)) is None:
            tracer.spilled += size
        owner, offsets = SCRATCHPAD, np.array([[at or 0]], np.int64)
        if at is None:
            owner = len(tracer.pointers) + 1  # after the arguments and the constants
            offsets = tracer.reserved_bytes + size * np.arange(self.n_tiles)[None]
            tracer.reserved_bytes += size * self.n_tiles
        return DataTile(shape, element, owner, offsets, tracer.root, pitches, stick)

    def rows(self, shape: Shape, element: str, until: int | None = None) -> DataTile:
        """New storage for elements of a tile, with its last dim along lanes."""
        return self.padded(self.slot(shape, element, len(shape) - 1 if shape else None, until))

    def padded(self, tile: DataTile) -> DataTile:
        """The tile, zeros in the second stick of a pair that it does not reach: casts read both."""
        d, lanes = tile.stick, tile.lanes
        if d is None or lanes == PAIR or not 0 < tile.shape[d] % PAIR <= lanes:
            return tile
        shape = tuple(lanes if k == d else size for k, size in enumerate(tile.shape))
        behind = tile.offsets + -(-tile.shape[d] // lanes) * STICK_BYTES
        self.zeroed(replace(tile, shape=shape, offsets=behind))
        return tile

    def zeroed(self, tile: DataTile) -> DataTile:
        """The tile, with zeros written to it."""
        self.write(self.filled(0, tile.element, tile.shape), tile)
        return tile

    def emit(
        self,
        name: str,
        operands: Sequence[Operand],
        extents: Mapping[str, int],
        stick: str,
        **further: Any,
    ) -> None:
        """State an operation of the engine, the output last; ``further``: as of `Intent`."""
        tracer, level, place = self.tracer, self.level, self.place
        if not level.active.any():
            return
        tracer.sequence += 1
        key = np.column_stack((level.key, np.full(level.rows, tracer.sequence, np.int64)))
        title = f"{place.line}:{place.column} {self.op.name}" if place else self.op.name
        taken = sum(s.operation.sdsc_name.startswith(title) for s in tracer.statements)
        title = title if not taken else f"{title} [{taken}]"
        intent = Intent(self, name, tuple(operands), extents, stick, key, title, **further)
        tracer.statements += intent.statements()
        if sum(len(s.key) for s in tracer.statements) > MOST_INSTANCES:
            most = f"at most {MOST_INSTANCES} executes in one launch"
            self.fail(LaunchError, "SPY175", "too many iterations", most)

    def move(
        self,
        source: DataTile,
        target: DataTile,
        indices: Sequence[tuple[DataTile, int, int]] = (),
        gathers: bool = True,
    ) -> None:
        """Copy element by element; ``indices``: tiles of integers that move one side, each with the
        bytes that an index counts and how many there are.
        """
        if not source.shape:
            source, target = (tile.over((1,), ()) for tile in (source, target))
        dims = dims_of(source.shape)
        operands = [(tile, dims) for tile in (source, *(tile for tile, _, _ in indices), target)]
        extents = dict(zip(dims, source.shape, strict=True))
        moves = {"indices": tuple(own[1:] for own in indices), "gathers": gathers}
        self.emit("identity", operands, extents, dims[-1], single=True, **moves)

    def copied(self, tile: DataTile, until: int | None = None) -> DataTile:
        """A copy with the last dim along lanes."""
        result = self.rows(tile.shape, tile.element, until)
        self.move(tile, result)
        return result

    def resticked(self, tile: DataTile, stick: int) -> DataTile:
        """A copy of the tile with dim ``stick`` along lanes."""
        result = self.slot(tile.shape, tile.element, stick, self.now)
        sizes = [tile.shape[stick], 1 if tile.stick is None else tile.shape[tile.stick]]
        is_moved = tile.stick in (None, stick) or not tile.pitches[stick]
        if is_moved or any(size % tile.lanes for size in sizes):
            self.move(tile, self.padded(result))
            return result
        dims = dims_of(tile.shape)
        extents = dict(zip(dims, tile.shape, strict=True))
        self.emit("ReStickifyOpHBM", [(tile, dims), (result, dims)], extents, dims[stick])
        return result

    def pointwise(
        self,
        name: str,
        inputs: Tiles,
        shape: Shape,
        target: DataTile | None = None,
        until: int | None = None,
        element: str = "",
        **further: Any,
    ) -> DataTile:
        """An elementwise operation, a conversion or a copy over ``shape``, into ``target`` if it
        can be written there.
        """
        stick = max((t.stick for t in inputs if t.stick is not None), default=None)
        tiles = [
            tile if stick in (None, tile.stick) or (tile.stick is None and not tile.pitches[stick])
            else self.resticked(tile, stick)
            for tile in inputs
        ]  # fmt: skip
        element = element or tiles[-1].element
        if stick is None and shape and not any(t.varies for t in tiles):
            stick = len(shape) - 1 if target is None else target.stick
        if target is not None and (
            (target.stick is None and stick is not None)
            or any(t.pitches[target.stick or 0] and t.stick != target.stick for t in tiles if shape)
            or any(t.begins_as(target) and t.differs(target) for t in tiles)
        ):
            target = None
        if target is not None and stick is None:
            stick = target.stick
        result = target or self.slot(shape, element, stick, until)
        dims = dims_of(shape)
        lanes = PAIR if {t.element for t in tiles} != {element} else result.lanes
        if target is None and lanes != PAIR:
            self.padded(result)
        extents = {
            dim: -(-size // lanes) * lanes if k == stick else size
            for k, (dim, size) in enumerate(zip(dims, shape, strict=True))
        }
        along = SPARE if stick is None else dims[stick]
        extents.setdefault(along, lanes)
        self.emit(name, [(tile, dims) for tile in (*tiles, result)], extents, along, **further)
        return result

    def copy(self, tile: DataTile, until: int | None = None) -> DataTile:
        """A copy by whole sticks."""
        return self.pointwise("identity", [tile], tile.shape, None, until)

    def write(self, tile: DataTile, target: DataTile) -> None:
        """Copy a value to its place."""
        if tile.begins_as(target) and tile.differs(target):
            tile = self.copied(tile, self.now)
        lanes = target.stick
        is_single = tile.stick is None and lanes is not None and not tile.pitches[lanes]
        if tile.varies and tile.stick != lanes and not is_single:
            self.move(tile, target)
        else:
            self.pointwise("identity", [tile], target.shape, target)


def computes_numbers(op: TileOp) -> bool:
    """True for an operation on scalars; operations in its regions are not looked at."""
    types = [t for key, t in op.fields.items() if key[0] == "!"]
    flat = [x for t in types for x in (t if isinstance(t, tuple) else (t,))]
    return op.name.startswith(_NUMBERS) and not any(t.is_shaped for t in flat)


def dims_of(shape: Sequence[int]) -> tuple[str, ...]:
    """The dims of an operation over ``shape``."""
    return tuple(f"d{k}" for k in range(len(shape)))
