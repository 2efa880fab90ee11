"""`SpyreKernel`: the device operations of one bundle, collected from scheduled ir.Operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spyre.dtypes import STICK_BYTES
from spyre.layout import contiguous_strides
from spyre.layout.device_view import device_view, seen_through
from spyre.mlir.sdsc_builder import Place
from spyre.torch_backend.allocation import default_base
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.body import Body, Load, Number, body_of
from spyre.torch_backend.inductor.compat import ir
from spyre.torch_backend.inductor.device_program import DeviceProgram
from spyre.torch_backend.inductor.finished_kernel import FinishedKernel, HostBuffer, finished_kernel
from spyre.torch_backend.inductor.loop_paths import NO_LOOPS, LoopPath, loop_path
from spyre.torch_backend.program.emit import emit
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.storing import store
from spyre.torch_backend.program.value import Ints, NotExpressible, Value

MOST_SPREAD_BYTES = 1 << 30
"""Memory for a copy of an operand with one element per stick."""


class SpyreKernel:
    """A bundle under construction.

    ``arguments``: buffers it takes, in the order of the launch, by name. Results that nobody
    outside reads stay in its own memory. ``paths``: the loops around every operation.
    """

    def __init__(self, buffers: Mapping[str, HostBuffer], results: Sequence[str]) -> None:
        self.low = Lowering()
        self.arguments: list[str] = []
        self.paths: list[LoopPath] = []
        self._buffers = buffers
        self._results = frozenset(results)
        self._values: dict[str, Value] = {}
        self._programs: dict[DeviceProgram, list[Value]] = {}
        self._spread = False
        self._path = NO_LOOPS

    def add(self, operation: Any) -> None:
        """The next operation, an ir.ComputedBuffer; what it mutates takes its result.

        Where the cores cannot walk the operands as they lie, they are first spread to one element
        per stick, which every view can be walked in. NotExpressible if that takes too much memory,
        or in a loop, whose tiles are not copied.
        """
        body, self._path = body_of(operation), loop_path(operation)
        specs, programs = list(self.low.builder.specs), dict(self._programs)
        try:
            self._make(operation, body, spread=False)
        except NotExpressible:
            if self._path:
                raise
            self.low.builder.specs, self._programs = specs, programs
            del self.paths[len(specs) :]
            self._make(operation, body, spread=True)
        self._note_paths(self._path)

    def _note_paths(self, path: LoopPath) -> None:
        """What was added since the last time is in these loops."""
        self.paths += [path] * (len(self.low.builder.specs) - len(self.paths))

    def _make(self, operation: Any, body: Body, spread: bool) -> None:
        known, self._spread = len(self.low.builder.specs), spread
        name = target_of(operation)
        value = self._computed(body)
        if name in self._results:
            value = self._stored(name, value)
        for spec in self.low.builder.specs[known:]:
            emit(spec, _anywhere)
        self._values[name] = value

    def _stored(self, name: str, value: Value) -> Value:
        """``value`` in the memory of a buffer that others read; in a loop, the first tile of it."""
        whole, strides = self._argument(name), self._buffers[name].strides
        goal = _seen(whole, value.sizes, strides, 0)
        if goal is None:
            raise NotExpressible(f"strides {strides} of {name}")
        store(self.low, value, goal)
        return whole

    def finished(self) -> FinishedKernel:
        """The kernel: specs with work divided and memory planned."""
        arguments = [self._buffers[name] for name in self.arguments]
        return finished_kernel(self.low, self.paths, arguments)

    # --- operands ------------------------------------------------------------------------------

    def _argument(self, name: str) -> Value:
        """The whole of a buffer the kernel is given, as its storage is laid out."""
        if name not in self._values:
            buffer = self._buffers[name]
            base = default_base(buffer.sizes, buffer.strides, buffer.dtype)
            whole = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
            if whole is None:
                raise NotExpressible(f"the layout of {name}")
            self._values[name] = self.low.builder.argument(whole, buffer.dtype)
            self.arguments.append(name)
        return self._values[name]

    def _operand(self, operand: Load | Number, extents: Ints) -> Value:
        if isinstance(operand, Number):
            return self.low.constant(operand.value, operand.dtype)
        sizes = tuple(n if s else 1 for n, s in zip(extents, operand.strides, strict=True))
        value = self._argument(operand.buffer)
        if self._spread:
            value = self._spread_out(value)
        found = self._found(value, sizes, operand.strides, operand.offset)
        if self._spread:
            found = self._gathered(found)
        return found if found.sizes == extents else found.expanded(extents)

    def _found(self, value: Value, sizes: Ints, strides: Ints, offset: int) -> Value:
        """Elements of ``value``; where its sticks are in the way, of a copy with others."""
        found = _seen(value, sizes, strides, offset)
        for lane in self._other_lanes(value) if found is None else ():
            found = _seen(self.low.with_lane(value, lane), sizes, strides, offset)
            if found is not None:
                break
        if found is None:
            raise NotExpressible(f"sizes {sizes}, strides {strides}, offset {offset}")
        return found

    def _spread_out(self, value: Value) -> Value:
        if value.numel * STICK_BYTES > MOST_SPREAD_BYTES:
            raise NotExpressible(f"{value.numel} elements, too many for a stick each")
        if not (rank := len(value.sizes)):
            return value
        # In this order fresh memory is row-major, so that any view of the elements has pitches.
        turned = value.permuted([rank - 1, *range(rank - 1)])
        spread = self.low.with_lane(turned, -1)
        spread = self.low.copy(turned) if spread is turned else spread
        return spread.permuted([*range(1, rank), 0])

    def _gathered(self, value: Value) -> Value:
        """A view of spread elements as a tensor of its own, in the default layout."""
        lanes = [k for k, n in enumerate(value.sizes) if n > 1]
        return self.low.with_lane(self.low.copy(value), lanes[-1] if lanes else -1)

    def _other_lanes(self, value: Value) -> list[int]:
        """Lane dims to try, the last dims first, in the end one element per stick; in a loop none,
        for the whole tensor would be laid out anew for every tile.
        """
        if self._path:
            return []
        lanes = [k for k, n in enumerate(value.sizes) if n > 1 and k != value.lane_dim]
        return [*reversed(lanes), -1]

    # --- operations ----------------------------------------------------------------------------

    def _computed(self, body: Body) -> Value:
        if body.operation.program is not None:
            return self._programmed(body, body.operation.program)[body.operation.result]
        if body.operation.kind is OpKind.REDUCTION:
            return self._reduced(body)
        if body.operation.kind is OpKind.MATMUL:
            return self._product(body)
        values = [self._operand(operand, body.ranges) for operand in body.operands]
        return self._elementwise(body, values)

    def _programmed(self, body: Body, program: DeviceProgram) -> list[Value]:
        """All results of a program, made with the first of them that is asked for."""
        if self._path:
            raise NotExpressible(f"{program.name} in a loop")
        if program not in self._programs:
            outer = len(body.ranges)
            values = []
            for operand, sizes in zip(body.operands, program.shapes, strict=True):
                if isinstance(operand, Load):
                    operand = replace(operand, strides=operand.strides[outer:][: len(sizes)])
                values.append(self._operand(operand, sizes).expanded(sizes))
            self._programs[program] = program.lowered(self.low, values)
        return self._programs[program]

    def _elementwise(self, body: Body, values: Sequence[Value]) -> Value:
        name, dtype = body.operation.name, body.dtype
        if name == "identity":
            return self.low.broadcast(replace(values[0], dtype=dtype), body.ranges)
        if name in self.low.CONVERSIONS:
            return self.low.converted_by(name, values[0], dtype)
        found = self.low.pointwise(name, *values, dtype=dtype, constants=body.operation.constants)
        return found if found.sizes == body.ranges else found.expanded(body.ranges)

    def _reduced(self, body: Body) -> Value:
        (operand,) = body.operands
        rank = len(body.ranges)
        places = {rank + k: dim for k, dim in enumerate(body.operation.dims)}
        self._path = self._path.seen_as(places)
        extents, reduced = list(body.ranges), iter(body.reduced)
        for k in body.operation.dims:
            extents[k] = next(reduced)
        assert isinstance(operand, Load)
        strides = list(operand.strides[: len(extents)])
        for k, dim in enumerate(body.operation.dims):
            strides[dim] = operand.strides[len(extents) + k]
        value = self._operand(replace(operand, strides=tuple(strides)), tuple(extents))
        return self.low.reduce(
            body.operation.name, value, body.operation.dims, body.operation.constants
        )

    def _product(self, body: Body) -> Value:
        left, right = body.operands
        *batch, rows, columns = body.ranges
        (inner,) = body.reduced
        assert isinstance(left, Load)
        assert isinstance(right, Load)
        *outer, row, _, k = left.strides
        a = self._operand(replace(left, strides=(*outer, row, k)), (*batch, rows, inner))
        *outer, _, column, k = right.strides
        b = self._operand(replace(right, strides=(*outer, k, column)), (*batch, inner, columns))
        rank = len(body.ranges)
        a = self.low.left_factor(a, rank)
        self._note_paths(self._path.seen_as({rank - 1: None, rank: rank - 1}))
        b = self.low.right_factor(b, rank)
        self._note_paths(self._path.seen_as({rank - 2: None, rank: rank - 2}))
        return self.low.product(a, b)


def target_of(operation: Any) -> str:
    """The buffer an operation writes to: its own, or the one it mutates."""
    layout = operation.layout
    mutates = isinstance(layout, ir.MutationLayoutSHOULDREMOVE)
    found: str = layout.get_buffer().get_name() if mutates else operation.get_name()
    return found


def _anywhere(value: Value) -> Place:
    """Some place for a value whose operation is only tried."""
    return Place("somewhere", value.view.offset_bytes)


def _seen(value: Value, sizes: Ints, strides: Ints, offset: int) -> Value | None:
    """A tensor of ``sizes`` and ``strides`` over the elements of ``value`` in row-major order."""
    if offset == 0 and sizes == value.sizes and strides == contiguous_strides(sizes):
        return value
    found = seen_through(value.view, sizes, strides, offset)
    return None if found is None else replace(value, view=found, order=None)
