"""`SpyreKernel`: the device operations of one bundle, collected from scheduled ir.Operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from spyre.dtypes import STICK_BYTES
from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base import (
    TILING_FILE,
    TILING_REPORT,
    PassPrinter,
    ir,
    lane_of,
    wants_notes,
)
from spyre.torch_backend.inductor.kernel.operands import (
    NO_LOOPS,
    HostBuffer,
    LoopPath,
    OperandRead,
    argument_view,
    first_tile,
    loop_path,
    other_lanes,
    reads_of,
    storage_order,
    strided_view,
)
from spyre.torch_backend.inductor.kernel.passes import (
    KernelLowering,
    KernelOperations,
    insert_bmm_padding,
)
from spyre.torch_backend.inductor.kernel.planning import PlannedKernel, planned_kernel
from spyre.torch_backend.inductor.lowering import Body, ConstantLoad, DeviceProgram, Load, body_of
from spyre.torch_backend.program import (
    DeviceOp,
    Ints,
    LoweringError,
    OpKind,
    ProgramBuilder,
    Value,
    float_of,
    narrowed,
    require_sdsc,
    store_result,
)

MOST_SPREAD_BYTES = 1 << 30
"""Memory for a copy of an operand with one element per stick."""


class SpyreKernel:
    """A bundle under construction.

    ``arguments``: buffers it takes, in the order of the launch, by name. Results that nobody
    outside reads stay in its own memory. ``paths``: the loops around every operation.
    """

    def __init__(self, buffers: Mapping[str, HostBuffer], results: Sequence[str]) -> None:
        self.low = KernelLowering()
        self.arguments: list[str] = []
        self.paths: list[LoopPath] = []
        self._buffers = buffers
        self._results = frozenset(results)
        self._values: dict[str, Value] = {}
        self._programs: dict[DeviceProgram, list[Value]] = {}
        self._tiles: set[str] = set()
        self._whole: set[int] = set()
        self._spread = False
        self._lane: int | None = None
        self._lanes: Ints = ()
        self._path = NO_LOOPS
        self._reports: list[str] = []
        self._added = 0

    def add(self, operation: Any) -> None:
        """The next operation, an ir.ComputedBuffer; what it mutates takes its result.

        Where the cores cannot walk the operands as they lie, they are first spread to one element
        per stick, which every view can be walked in. LoweringError if that takes too much memory,
        or in a loop, whose tiles are not copied.
        """
        body, self._path = body_of(operation), loop_path(operation)
        self._lane = lane_of(operation.layout)
        specs, programs = list(self.low.builder.specs), dict(self._programs)
        try:
            self._make(operation, body, spread=False)
        except LoweringError:
            if self._path:
                raise
            self.low.builder.specs, self._programs = specs, programs
            del self.paths[len(specs) :]
            self._make(operation, body, spread=True)
        self._note_paths(self._path.undivided)
        made = self.low.builder.specs
        made[len(specs) :] = [replace(s, made_for=self._added) for s in made[len(specs) :]]
        self._added += 1
        if report := getattr(operation, TILING_REPORT, ""):
            self._reports.append(report)

    def _note_paths(self, path: LoopPath) -> None:
        """What was added since the last time is in these loops.

        What hints divide is the operation itself: not copies of its operands and of its result.
        """
        self.paths += [path] * (len(self.low.builder.specs) - len(self.paths))

    def _make(self, operation: Any, body: Body, spread: bool) -> None:
        known, self._spread = len(self.low.builder.specs), spread
        name = target_of(operation)
        value = self._computed(body)
        if name in self._results:
            value = self._stored(name, value)
        else:
            value = self._in_storage_order(name, value)
        self._check(self.low.builder.specs[known:])
        self._values[name] = value
        if getattr(operation.layout, "per_tile_fixed", False):
            self._tiles.add(name)
        else:
            self._whole.add(value.region)

    def _check(self, specs: Sequence[DeviceOp]) -> None:
        """LoweringError for what cannot be an SDSC, as it is when all factors are padded."""
        operations = KernelOperations(self.low, tuple(specs), (NO_LOOPS,) * len(specs))
        for spec in insert_bmm_padding(operations).specs:
            require_sdsc(spec)

    def propagated(self, name: str, body: Body) -> tuple[int, tuple[int, ...]]:
        """The lanes an operation's result and operands have if nobody chooses; nothing is tried.

        Layout propagation asks this, operation by operation. No lanes of operands where the result
        was made with another one. LoweringError if operands would have to be spread out.
        """
        self._lane, self._lanes = None, ()
        value = self._computed(body)
        is_result = name in self._results
        keep = self._stored if is_result else self._in_storage_order
        self._values[name] = keep(name, value)
        return value.lane_dim, self._lanes

    def _in_storage_order(self, name: str, value: Value) -> Value:
        """``value`` with its dims as its buffer's elements follow each other, as readers see it."""
        strides = self._buffers[name].strides
        if strides == contiguous_strides(value.sizes):
            return value
        return value.permuted(storage_order(strides))

    def _stored(self, name: str, value: Value) -> Value:
        """``value`` in the memory of a buffer that others read; in a loop, the first tile of it."""
        whole, strides = self._argument(name), self._buffers[name].strides
        sizes = tuple(n * self._path.single_tiles(k) for k, n in enumerate(value.sizes))
        goal = strided_view(whole, sizes, strides, 0)
        if goal is None:
            raise LoweringError(f"strides {strides} of {name}")
        cut = {k: k for k, n in enumerate(value.sizes) if n != sizes[k]}
        store_result(self.low, value, first_tile(goal, cut, self._path) if cut else goal)
        return whole

    def finished(self, printer: PassPrinter | None = None) -> PlannedKernel:
        """The kernel: specs with work divided and memory planned; ``printer`` shows how."""
        arguments = [self._buffers[name] for name in self.arguments]
        operations = KernelOperations(self.low, tuple(self.low.builder.specs), tuple(self.paths))
        planned = planned_kernel(operations, arguments, self._whole, printer)
        if not wants_notes() or not self._reports:
            return planned
        return replace(planned, notes={**planned.notes, TILING_FILE: "\n".join(self._reports)})

    # --- operands ------------------------------------------------------------------------------

    def _argument(self, name: str) -> Value:
        """The whole of a buffer the kernel is given, as its storage is laid out."""
        if name not in self._values:
            buffer = self._buffers[name]
            whole = argument_view(name, buffer)
            self._values[name] = self.low.builder.argument(whole, buffer.dtype)
            self.arguments.append(name)
        return self._values[name]

    def _operand(self, read: OperandRead) -> Value:
        operand, extents = read.operand, read.extents
        if isinstance(operand, ConstantLoad):
            return self.low.constant(operand.value, operand.dtype)
        value = self._argument(operand.buffer)
        if self._spread:
            value = self._spread_out(value, *_spread_form(value, read, operand))
        operand_view = self._found(value, read, operand)
        if self._spread:
            operand_view = self._gathered(operand_view)
        return operand_view if operand_view.sizes == extents else operand_view.expanded(extents)

    def _found(self, value: Value, read: OperandRead, load: Load) -> Value:
        """Elements of ``value``; where its sticks are in the way, of a copy with others."""
        path = NO_LOOPS if load.buffer in self._tiles else self._path
        strides, offset = load.strides, load.offset
        tiles = [path.single_tiles(p) if s else 1 for p, s in zip(read.axes, strides, strict=True)]
        sizes = tuple(n * count for n, count in zip(read.sizes, tiles, strict=True))
        view = strided_view(value, sizes, strides, offset)
        for lane in self._other_lanes(value) if view is None else ():
            view = strided_view(self.low.with_lane(value, lane), sizes, strides, offset)
            if view is not None:
                break
        if view is None:
            raise LoweringError(f"sizes {sizes}, strides {strides}, offset {offset}")
        cut = {d: place for d, place in enumerate(read.axes) if tiles[d] > 1}
        return first_tile(view, cut, path) if cut else view

    def _spread_out(self, value: Value, order: Ints, extents: Ints) -> Value:
        """A copy with a stick per element and the dims in ``order``, the outermost first, in memory
        for ``extents``.
        """
        if prod(extents) * STICK_BYTES > MOST_SPREAD_BYTES:
            raise LoweringError(f"{prod(extents)} elements, too many for a stick each")
        if not value.sizes:
            return value
        turned = value.permuted(_turned(order))
        spread = self.low.with_lane(turned, -1)
        if extents != value.sizes:
            room = _spread_memory(self.low.builder, value, order, extents)
            self.low.builder.add(DeviceOp(OpKind.POINTWISE, "identity", (spread,), room))
            spread = room
        elif spread is turned:
            spread = self.low.copy(turned)
        return _turned_back(spread, order)

    def _gathered(self, value: Value) -> Value:
        """A view of spread elements as a tensor of its own, in the default layout."""
        lanes = [k for k, n in enumerate(value.sizes) if n > 1]
        return self.low.with_lane(self.low.copy(value), lanes[-1] if lanes else -1)

    def _other_lanes(self, value: Value) -> list[int]:
        """Other lanes; in a loop none, for the whole tensor would be laid out anew per tile."""
        return [] if self._path else other_lanes(value)

    # --- operations ----------------------------------------------------------------------------

    def _computed(self, body: Body) -> Value:
        program = body.operation.program
        if program is not None and program in self._programs:
            return self._programs[program][body.operation.result]
        reads = self._reads(body)
        values = [self._operand(read) for read in reads]
        pairs = zip(reads, values, strict=True)
        self._lanes = tuple(v.lane_dim for read, v in pairs if isinstance(read.operand, Load))
        if program is not None:
            return self._programmed(body, program, values)
        self._note_paths(self._path.undivided)
        result = self._result(body, values)
        self._note_paths(self._path)
        return result

    def _result(self, body: Body, values: Sequence[Value]) -> Value:
        kind = body.operation.kind
        if kind is OpKind.RESTICKIFY:
            return self._restickified(values[0])
        if kind is OpKind.REDUCTION:
            return self._reduced(body, values[0])
        if kind is OpKind.MATMUL:
            return self._product(*values)
        return self._elementwise(body, values)

    def _programmed(self, body: Body, program: DeviceProgram, values: Sequence[Value]) -> Value:
        """All results of a program are made with the first of them that is asked for."""
        if self._path:
            raise LoweringError(f"{program.name} in a loop")
        self._programs[program] = program.lowered(self.low, values)
        return self._programs[program][body.operation.result]

    def _restickified(self, value: Value) -> Value:
        """A copy; what was spread out is one already."""
        copied = value if self._lane is None else self.low.with_lane(value, self._lane)
        return self.low.copy(value) if copied is value and not self._spread else copied

    def _elementwise(self, body: Body, values: Sequence[Value]) -> Value:
        name, dtype, lane = body.operation.name, body.dtype, self._lane
        constants = body.operation.constants
        if name == "identity":
            return self.low.broadcast(replace(values[0], dtype=dtype), body.ranges, lane)
        if name in self.low.CONVERSIONS:
            return self.low.converted_by(name, values[0], dtype, lane, constants)
        result = self.low.pointwise(name, *values, dtype=dtype, constants=constants, lane=lane)
        return result if result.sizes == body.ranges else result.expanded(body.ranges)

    def _reduced(self, body: Body, value: Value) -> Value:
        operation = body.operation
        result = self.low.reduce(operation.name, value, operation.dims, operation.constants)
        scale = operation.constants.get("scaling_factor")
        if result is value and scale is not None:  # tiles of one element
            result = self.low.pointwise(
                "mul", value, self.low.constant(float_of(scale), body.dtype)
            )
        return result

    def _reads(self, body: Body) -> tuple[OperandRead, ...]:
        """What the body reads; the dims a reduction's loops move along are those of its operand."""
        if body.operation.kind is OpKind.REDUCTION:
            rank = len(body.ranges)
            places = {rank + k: dim for k, dim in enumerate(body.operation.dims)}
            self._path = self._path.seen_as(places)
        return reads_of(body)

    def _product(self, left: Value, right: Value) -> Value:
        rank = len(left.sizes)
        left = self.low.left_factor(left, rank)
        path = self._path.undivided
        self._note_paths(path.seen_as({rank - 1: None, rank: rank - 1}))
        right = self.low.right_factor(right, rank)
        self._note_paths(path.seen_as({rank - 2: None, rank: rank - 2}))
        return self.low.product(left, right)


def target_of(operation: Any) -> str:
    """The buffer an operation writes to: its own, or the one it mutates."""
    layout = operation.layout
    mutates = isinstance(layout, ir.MutationLayoutSHOULDREMOVE)
    target: str = layout.get_buffer().get_name() if mutates else operation.get_name()
    return target


def _turned(order: Ints) -> Ints:
    """The dims as fresh memory takes them, which is to have ``order``: the first is innermost."""
    return (order[-1], *order[:-1])


def _turned_back(value: Value, order: Ints) -> Value:
    turned = _turned(order)
    return value.permuted([turned.index(k) for k in range(len(turned))])


def _spread_form(value: Value, read: OperandRead, load: Load) -> tuple[Ints, Ints]:
    """The order of dims, and extents of memory, in which a copy of ``value`` with a stick per
    element can be read.

    Row-major memory can be walked by pitches through any view but one with steps that do not divide
    an extent. One such dim can be the outermost; where there are more, they get extents that the
    steps divide.
    """
    dims = tuple(range(len(value.sizes)))
    forms = [((first, *(k for k in dims if k != first)), value.sizes) for first in dims]
    if dims:
        forms.append((dims, _divided_extents(value.sizes, read.sizes, load.strides)))
    for order, extents in forms:
        memory = _spread_memory(ProgramBuilder(), value, order, extents)
        spread = _turned_back(memory, order)
        if strided_view(spread, read.sizes, load.strides, load.offset) is not None:
            return order, extents
    return dims, value.sizes


def _spread_memory(builder: ProgramBuilder, value: Value, order: Ints, extents: Ints) -> Value:
    """Memory for ``extents`` with a stick per element, and of it that of ``value``, its dims turned
    by ``order``.
    """
    turned = _turned(order)
    memory = builder.scratch(tuple(extents[k] for k in turned), value.dtype, -1)
    for place, k in enumerate(turned):
        memory = narrowed(memory, place, 0, value.sizes[k])
    return memory


def _divided_extents(sizes: Ints, read_sizes: Ints, read_strides: Ints) -> Ints:
    """``sizes``, rounded up to what the steps divide that a view of them takes along each dim."""
    extents, strides = list(sizes), contiguous_strides(sizes)
    for count, stride in zip(read_sizes, read_strides, strict=True):
        places = [k for k, s in enumerate(strides) if sizes[k] > 1 and s <= stride]
        if count > 1 and places:
            k = places[0]
            step = stride // strides[k]
            extents[k] = -(-extents[k] // step) * step
    return tuple(extents)
