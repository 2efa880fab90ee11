"""`SpyreKernel`: the device operations of one bundle, collected from scheduled ir.Operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base import notes
from spyre.torch_backend.inductor.base.compat import ir
from spyre.torch_backend.inductor.base.layouts import (
    HostBuffer,
    argument_view,
    lane_of,
    other_lanes,
    storage_order,
    strided_view,
)
from spyre.torch_backend.inductor.base.notes import PassPrinter
from spyre.torch_backend.inductor.kernel.passes import (
    NO_LOOPS,
    KernelLowering,
    KernelOperations,
    LoopPath,
    PlannedKernel,
    first_tile,
    insert_bmm_padding,
    loop_path,
    planned_kernel,
)
from spyre.torch_backend.inductor.lowering.device_graph import DeviceProgram
from spyre.torch_backend.inductor.lowering.device_ir import (
    Body,
    Load,
    OperandRead,
    body_of,
    reads_of,
)
from spyre.torch_backend.program import (
    ConstantArgument,
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

_Step = tuple[Any, str, Body, int]
"""An operation that was added, its target, body, and the lane of its result at that time."""


class SpyreKernel:
    """A bundle under construction.

    ``arguments``: names of the buffers it takes, in the order of the launch. Results that nothing
    outside of it reads stay in its own memory. ``paths``: the loops around every operation.
    ``is_complete``: no operation failed to be added.
    """

    def __init__(self, buffers: Mapping[str, HostBuffer], results: Sequence[str]) -> None:
        self.builder = KernelLowering()
        self.arguments: list[str] = []
        self.paths: list[LoopPath] = []
        self.is_complete = True
        self._buffers = buffers
        self._results = frozenset(results)
        self._steps: list[_Step] = []
        self._values: dict[str, Value] = {}
        self._programs: dict[DeviceProgram, list[Value]] = {}
        self._tiles: set[str] = set()
        self._whole: set[int] = set()
        self._spread = False
        self._lane: int | None = None
        self._lanes: Ints = ()
        self._path = NO_LOOPS

    @property
    def specs(self) -> list[DeviceOp]:
        """The device operations so far."""
        return self.builder.builder.specs

    def add(self, operation: Any) -> None:
        """Add an ir.ComputedBuffer; a buffer that it mutates takes its result.

        If the cores cannot walk the operands in their layouts, these are first copied with one
        element per stick, which any view can be walked in. LoweringError if that takes too much
        memory, or in a loop, where tiles are not copied.
        """
        body, self._path = body_of(operation), loop_path(operation)
        self._lane = lane_of(operation.layout)
        first, programs = len(self.specs), dict(self._programs)
        try:
            lane = self._make(operation, body, spread=False)
            self._check(first)
        except LoweringError:
            if self._path:
                raise
            self._programs = programs
            del self.specs[first:], self.paths[first:]
            lane = self._make(operation, body, spread=True)
            self._check(first)
        self._finish_step(operation, body, lane, first)

    def propagate(self, operation: Any, body: Body) -> tuple[int, Ints]:
        """Add an operation in the layout it has by itself. Returns the lane of its result, and the
        lanes of its operands in their own dims (none for results of a program made before).

        LoweringError if operands would have to be spread to one element per stick.
        """
        self._lane, self._lanes, self._path = None, (), NO_LOOPS
        first = len(self.specs)
        was_complete, self.is_complete = self.is_complete, False
        lane = self._make(operation, body, spread=False)
        with suppress(LoweringError):
            self._check(first)
            self.is_complete = was_complete
        self._finish_step(operation, body, lane, first)
        return lane, self._lanes

    def is_made_of(
        self, operations: Sequence[Any], buffers: Mapping[str, HostBuffer], results: Sequence[str]
    ) -> bool:
        """Whether `add` would make this very kernel of ``operations``: they were all propagated,
        and neither bodies, buffers, lanes nor loops have changed since.
        """
        if not self.is_complete or len(operations) != len(self._steps):
            return False
        return (
            frozenset(results) == self._results
            and all(map(_is_unchanged, self._steps, operations))
            and all(self._buffers[name] == buffers[name] for name in self._buffers)
        )

    def _finish_step(self, operation: Any, body: Body, lane: int, first: int) -> None:
        """Number the device operations from ``first`` on by the operation they were made for."""
        self._fill_paths(self._path.undivided)
        number = len(self._steps)
        self._steps.append((operation, target_of(operation), body, lane))
        self.specs[first:] = [replace(spec, made_for=number) for spec in self.specs[first:]]

    def _fill_paths(self, path: LoopPath) -> None:
        """Set the loops of the device operations that have none yet.

        Work division hints apply to the operation itself, not to copies made for it.
        """
        self.paths += [path] * (len(self.specs) - len(self.paths))

    def _make(self, operation: Any, body: Body, spread: bool) -> int:
        """Make the device operations of ``operation``; returns the lane of its result."""
        self._spread, name = spread, target_of(operation)
        value = self._computed(body)
        lane = value.lane_dim
        if name in self._results:
            value = self._stored(name, value)
        elif (strides := self._buffers[name].strides) != contiguous_strides(value.sizes):
            value = value.permuted(storage_order(strides))  # as readers index it
        self._values[name] = value
        if getattr(operation.layout, "per_tile_fixed", False):
            self._tiles.add(name)
        else:
            self._whole.add(value.region)
        return lane

    def _check(self, first: int) -> None:
        """LoweringError if a device operation from ``first`` on, factors padded, is no SDSC."""
        specs = tuple(self.specs[first:])
        operations = KernelOperations(self.builder, specs, (NO_LOOPS,) * len(specs))
        for spec in insert_bmm_padding(operations).specs:
            require_sdsc(spec)

    def _stored(self, name: str, value: Value) -> Value:
        """Store ``value`` in buffer ``name``, in a loop as its first tile; returns the buffer."""
        whole, strides = self._argument(name), self._buffers[name].strides
        sizes = tuple(n * self._path.unit_tiles(k) for k, n in enumerate(value.sizes))
        goal = strided_view(whole, sizes, strides, 0)
        if goal is None:
            raise LoweringError(f"strides {strides} of {name}")
        cut = {k: k for k, n in enumerate(value.sizes) if n != sizes[k]}
        store_result(self.builder, value, first_tile(goal, cut, self._path) if cut else goal)
        return whole

    def finished(self, printer: PassPrinter | None = None) -> PlannedKernel:
        """The kernel with work divided and memory planned; ``printer`` shows the passes."""
        arguments = [self._buffers[name] for name in self.arguments]
        operations = KernelOperations(self.builder, tuple(self.specs), tuple(self.paths))
        planned = planned_kernel(operations, arguments, self._whole, printer)
        attributes = (getattr(operation, notes.TILING_REPORT, "") for operation, *_ in self._steps)
        reports = [report for report in attributes if report]
        if not notes.wants_notes() or not reports:
            return planned
        return replace(planned, notes={**planned.notes, notes.TILING_FILE: "\n".join(reports)})

    # --- operands ------------------------------------------------------------------------------

    def _argument(self, name: str) -> Value:
        """The whole of a buffer that is an argument, or a value made before, in storage order."""
        if name not in self._values:
            buffer = self._buffers[name]
            whole = argument_view(name, buffer)
            self._values[name] = self.builder.builder.argument(whole, buffer.dtype)
            self.arguments.append(name)
        return self._values[name]

    def _operand(self, read: OperandRead) -> Value:
        operand, extents = read.operand, read.extents
        if isinstance(operand, ConstantArgument):
            return self.builder.constant(operand.number, operand.dtype)
        value = self._argument(operand.buffer)
        if self._spread:
            value = self._spread_out(value, *_spread_form(value, read))
        operand_view = self._found(value, read)
        if self._spread:  # a copy in the default layout
            lanes = [k for k, n in enumerate(operand_view.sizes) if n > 1]
            copied = self.builder.copy(operand_view)
            operand_view = self.builder.with_lane(copied, lanes[-1] if lanes else -1)
        return operand_view if operand_view.sizes == extents else operand_view.expanded(extents)

    def _found(self, value: Value, read: OperandRead) -> Value:
        """The view of ``value`` that a load reads, or one of a restickified copy if needed."""
        path = NO_LOOPS if read.load.buffer in self._tiles else self._path
        strides, offset = read.load.strides, read.load.offset
        tiles = [path.unit_tiles(p) if s else 1 for p, s in zip(read.axes, strides, strict=True)]
        sizes = tuple(n * count for n, count in zip(read.sizes, tiles, strict=True))
        view = strided_view(value, sizes, strides, offset)
        for lane in self._other_lanes(value) if view is None else ():
            view = strided_view(self.builder.with_lane(value, lane), sizes, strides, offset)
            if view is not None:
                break
        if view is None:
            raise LoweringError(f"sizes {sizes}, strides {strides}, offset {offset}")
        cut = {d: place for d, place in enumerate(read.axes) if tiles[d] > 1}
        return first_tile(view, cut, path) if cut else view

    def _spread_out(self, value: Value, order: Ints, extents: Ints) -> Value:
        """A copy with one element per stick and the dims in ``order``, the outermost first, in
        memory for ``extents``.
        """
        if prod(extents) * STICK_BYTES > MOST_SPREAD_BYTES:
            raise LoweringError(f"{prod(extents)} elements, too many for a stick each")
        if not value.sizes:
            return value
        turned = value.permuted(_turned(order))
        spread = self.builder.with_lane(turned, -1)
        if extents != value.sizes:
            room = _spread_memory(self.builder.builder, value, order, extents)
            self.builder.copy_to(spread, room)
            spread = room
        elif spread is turned:
            spread = self.builder.copy(turned)
        return _turned_back(spread, order)

    def _other_lanes(self, value: Value) -> list[int]:
        """Other lanes to try; none in a loop, where each tile would restickify the whole tensor."""
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
        self._fill_paths(self._path.undivided)
        result = self._result(body, values)
        self._fill_paths(self._path)
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
        """A result of a program; the first request for one makes all of them."""
        if self._path:
            raise LoweringError(f"{program.name} in a loop")
        self._programs[program] = program.lowered(self.builder, values)
        return self._programs[program][body.operation.result]

    def _restickified(self, value: Value) -> Value:
        """A copy with the wanted lane; a spread operand is a copy already."""
        copied = value if self._lane is None else self.builder.with_lane(value, self._lane)
        return self.builder.copy(value) if copied is value and not self._spread else copied

    def _elementwise(self, body: Body, values: Sequence[Value]) -> Value:
        name, dtype, lane = body.operation.name, body.dtype, self._lane
        constants = body.operation.constants
        if name == "identity":
            return self.builder.broadcast(replace(values[0], dtype=dtype), body.ranges, lane)
        if name in self.builder.CONVERSIONS:
            return self.builder.converted_by(name, values[0], dtype, lane, constants)
        result = self.builder.pointwise(name, *values, dtype=dtype, constants=constants, lane=lane)
        return result if result.sizes == body.ranges else result.expanded(body.ranges)

    def _reduced(self, body: Body, value: Value) -> Value:
        operation = body.operation
        result = self.builder.reduce(operation.name, value, operation.dims, operation.constants)
        scale = operation.constants.get("scaling_factor")
        if result is value and scale is not None:  # tiles of one element
            result = self.builder.pointwise(
                "mul", value, self.builder.constant(float_of(scale), body.dtype)
            )
        return result

    def _reads(self, body: Body) -> tuple[OperandRead, ...]:
        """The reads of a body. Loops around a reduction are renumbered to its operand's dims."""
        if body.operation.kind is OpKind.REDUCTION:
            rank = len(body.ranges)
            places = {rank + k: dim for k, dim in enumerate(body.operation.dims)}
            self._path = self._path.with_renumbered_dims(places)
        return reads_of(body)

    def _product(self, left: Value, right: Value) -> Value:
        rank = len(left.sizes)
        left = self.builder.left_factor(left, rank)
        path = self._path.undivided
        self._fill_paths(path.with_renumbered_dims({rank - 1: None, rank: rank - 1}))
        right = self.builder.right_factor(right, rank)
        self._fill_paths(path.with_renumbered_dims({rank - 2: None, rank: rank - 2}))
        return self.builder.product(left, right)


def _is_unchanged(step: _Step, operation: Any) -> bool:
    """Whether ``operation`` is the one that was added, unchanged and in no loop."""
    _, target, body, lane = step
    return (
        target == target_of(operation)
        and body == body_of(operation)
        and lane_of(operation.layout) in (None, lane)
        and loop_path(operation) == NO_LOOPS
    )


def target_of(operation: Any) -> str:
    """The name of the buffer that an operation writes: its result, or the buffer it mutates."""
    layout = operation.layout
    mutates = isinstance(layout, ir.MutationLayoutSHOULDREMOVE)
    target: str = layout.get_buffer().get_name() if mutates else operation.get_name()
    return target


def _turned(order: Ints) -> Ints:
    """The dims in the order of fresh memory for ``order``: its last one first."""
    return (order[-1], *order[:-1])


def _turned_back(value: Value, order: Ints) -> Value:
    turned = _turned(order)
    return value.permuted([turned.index(k) for k in range(len(turned))])


def _spread_form(value: Value, read: OperandRead) -> tuple[Ints, Ints]:
    """The order of dims and the extents of memory in which a copy of ``value`` with one element per
    stick can be read.

    Pitches describe any view of row-major memory whose steps divide the extents. One dim whose
    steps do not can be the outermost; if there are more, their extents are rounded up.
    """
    dims, load = tuple(range(len(value.sizes))), read.load
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
    """The part for ``value`` of fresh memory for ``extents`` with one element per stick, its dims
    in ``order``.
    """
    turned = _turned(order)
    memory = builder.scratch(tuple(extents[k] for k in turned), value.dtype, -1)
    for place, k in enumerate(turned):
        memory = narrowed(memory, place, 0, value.sizes[k])
    return memory


def _divided_extents(sizes: Ints, read_sizes: Ints, read_strides: Ints) -> Ints:
    """``sizes``, each rounded up to a multiple of the step that a view takes along it."""
    extents, strides = list(sizes), contiguous_strides(sizes)
    for count, stride in zip(read_sizes, read_strides, strict=True):
        places = [k for k, s in enumerate(strides) if sizes[k] > 1 and s <= stride]
        if count > 1 and places:
            k = places[0]
            step = stride // strides[k]
            extents[k] = -(-extents[k] // step) * step
    return tuple(extents)
