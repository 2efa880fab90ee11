"""Device operations as ir.Operations, one realised buffer each, and bodies read back as data.

A body loads the operands and names the operation; the rest is in its `DeviceOperation`, an
attribute of the ir.ComputedBuffer. `body_of` traces a body with one symbol per dim of its ranges
(c0, c1, …, then the reduced dims), so that their order does not depend on the scheduler. `reads_of`
gives the dims that the operation walks in each operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sympy
import torch
from msgspec.structs import replace

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.compat import DefaultHandler, V, ir, lowering, ops
from spyre.torch_backend.inductor.lowering.device_graph import (
    DeviceProgram,
    GraphNode,
    GraphValue,
    GraphView,
)
from spyre.torch_backend.program import ConstantArgument, Ints, LoweringError, OpKind

Index = Sequence[sympy.Expr]
Loader = Callable[[Index], Any]


class DeviceOperation(msgspec.Struct, frozen=True):
    """The device operation of an ir.ComputedBuffer.

    ``dims``: reduced dims of the operand, in the order of the reduction ranges. ``program``: the
    program that it is result number ``result`` of, instead of an operation of some kind.
    """

    kind: OpKind | None
    name: str
    dims: Ints = ()
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    program: DeviceProgram | None = None
    result: int = 0


DEVICE_OPERATION = "device_operation"


def program_of(operation: Any) -> DeviceProgram | None:
    """The device program an ir.Operation is a result of; None for a single operation."""
    device_operation: DeviceOperation | None = getattr(operation, DEVICE_OPERATION, None)
    return None if device_operation is None else device_operation.program


INDUCTOR_NAMES = {
    **{name: name for name in ("add", "sub", "mul", "maximum", "minimum", "exp", "sqrt", "rsqrt")},
    **{name: name for name in ("reciprocal", "neg", "abs", "sigmoid", "floor")},
    **{"realdiv": "truediv", "relufwd": "relu", "where3": "where"},
}
"""Inductor's names of device operations; the others become opaque elementwise operations."""


class GraphToIr:
    """Makes the buffers of one graph's nodes, each once per requested dtype."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self._operands = operands
        self._boxes: dict[tuple[int, str], Any] = {}
        self._strides: dict[tuple[int, str], Ints] = {}
        self._device = operands[0].get_device()

    def box(self, value: GraphValue) -> Any:
        """The ir.TensorBox of a value that is not a number."""
        return _viewed(self._origin(value.node, value.dtype), value.views)

    def result(self, value: GraphValue, strides: Ints) -> Any:
        """The box of a result of the graph, its buffer with these strides (host elements)."""
        if strides == contiguous_strides(value.sizes):
            return self.box(value)
        self._strides[id(value.node), value.dtype] = node_strides(value, strides)
        buffer = self._origin(value.node, value.dtype)
        if not value.views:
            return buffer
        layout = ir.FixedLayout(self._device, buffer.get_dtype(), list(value.sizes), list(strides))
        return ir.TensorBox(ir.ReinterpretView(data=buffer.data, layout=layout))

    def _origin(self, node: GraphNode, dtype: str) -> Any:
        key = (id(node), dtype)
        if key not in self._boxes:
            self._boxes[key] = self._made(node, dtype)
        return self._boxes[key]

    def _made(self, node: GraphNode, dtype: str) -> Any:
        if node.position >= 0:
            return self._operand(node, dtype)
        if node.program is not None:
            return self._program(node, node.program, dtype)
        if node.kind is OpKind.REDUCTION:
            data = self._reduction(node, dtype)
        elif node.kind is OpKind.MATMUL:
            data = self._matmul(node, dtype)
        else:
            data = self._pointwise(node, dtype)
        assert node.kind is not None
        operation = DeviceOperation(node.kind, node.name, node.dims, node.constants)
        return realised_buffer(data, operation, self._strides.get((id(node), dtype)))

    def _operand(self, node: GraphNode, dtype: str) -> Any:
        """An operand; under another dtype of the same format it is a copy."""
        box = self._operands[node.position]
        if str(box.get_dtype()) == f"torch.{dtype}":
            return box
        same = GraphValue(node, node.sizes, str(box.get_dtype()).removeprefix("torch."))
        copy = GraphNode(OpKind.POINTWISE, "identity", node.sizes, (same,))
        return self._origin(copy, dtype)

    def _loader(self, value: GraphValue, sizes: Ints) -> Loader:
        """Loads the element of ``value`` that belongs to an index of ``sizes``."""
        if value.node.number is not None:
            number, dtype = value.node.number, getattr(torch, value.dtype)
            return lambda index: ops.constant(number, dtype)
        load = self.box(value).make_loader()
        missing = len(sizes) - len(value.sizes)
        return lambda index: load(
            [
                sympy.S.Zero if n == 1 else i
                for n, i in zip(value.sizes, index[missing:], strict=True)
            ]
        )

    def _pointwise(self, node: GraphNode, dtype: str) -> Any:
        loaders = [self._loader(value, node.sizes) for value in node.inputs]
        torch_dtype = getattr(torch, dtype)

        def body(index: Index) -> Any:
            return device_call(node.name, [load(index) for load in loaders], torch_dtype)

        return ir.Pointwise(
            device=self._device, dtype=torch_dtype, inner_fn=body, ranges=list(node.sizes)
        )

    def _reduction(self, node: GraphNode, dtype: str) -> Any:
        (value,) = node.inputs
        load = self._loader(value, value.sizes)

        def body(index: Index, reduced: Index) -> Any:
            at = dict(zip(node.dims, reduced, strict=True))
            return load([at.get(k, i) for k, i in enumerate(index)])

        return _new_reduction(
            self._device, dtype, body, node, [value.sizes[k] for k in node.dims], node.name
        )

    def _program(self, node: GraphNode, program: DeviceProgram, dtype: str) -> Any:
        """A reduction over all operands, which take their indices from the same iteration."""
        loads = [self.box(value).make_loader() for value in node.inputs]
        ranks = [len(value.sizes) for value in node.inputs]

        def body(index: Index, reduced: Index) -> Any:
            return tuple(load(reduced[:rank]) for load, rank in zip(loads, ranks, strict=True))

        data = _new_reduction(self._device, dtype, body, node, program.extents, node.name)
        operation = DeviceOperation(None, node.name, program=program, result=node.result)
        return realised_buffer(data, operation, self._strides.get((id(node), dtype)))

    def _matmul(self, node: GraphNode, dtype: str) -> Any:
        left, right = node.inputs
        batch, inner = node.sizes[:-2], left.sizes[-1]
        load_left = self._loader(left, (*batch, *left.sizes[-2:]))
        load_right = self._loader(right, (*batch, *right.sizes[-2:]))

        def body(index: Index, reduced: Index) -> Any:
            (k,) = reduced
            *outer, row, column = index
            return load_left([*outer, row, k]), load_right([*outer, k, column])

        return _new_reduction(self._device, dtype, body, node, [inner], node.name)


def _new_reduction(
    device: torch.device, dtype: str, body: Any, node: GraphNode, extents: Sequence[int], name: str
) -> Any:
    """An ir.Reduction. Reduction.create is not used, as it decomposes small reductions."""
    torch_dtype = getattr(torch, dtype)
    return ir.Reduction(
        device=device,
        dtype=torch_dtype,
        inner_fn=body,
        ranges=list(node.sizes),
        reduction_ranges=list(extents),
        reduction_type=name,
        src_dtype=torch_dtype,
        reduction_hint=ir.ReductionHint.DEFAULT,
    )


def node_strides(value: GraphValue, strides: Ints) -> Ints:
    """Strides of the node's buffer that give ``value`` these strides; empty if there are none."""
    if not value.views:
        return strides
    if any(how not in ("view", "unsqueeze") for how, _ in value.views):
        return ()
    viewed = torch.empty_strided(value.sizes, strides, device="meta")
    try:
        return tuple(viewed.view(value.node.sizes).stride())
    except RuntimeError:
        return ()


def device_call(name: str, values: Sequence[Any], dtype: torch.dtype) -> Any:
    """The device operation ``name`` in a body."""
    if name == "identity":
        return values[0]
    if name in INDUCTOR_NAMES:
        return getattr(ops, INDUCTOR_NAMES[name])(*values)
    return ops.inline_asm_elementwise(
        *values, asm=name, constraints=None, dtype=dtype, is_pure=True, pack=1
    )


def realised_buffer(data: Any, operation: DeviceOperation, strides: Ints | None = None) -> Any:
    """A realised buffer that computes ``operation``. ``strides``: None for row-major ones."""
    box = ir.TensorBox.create(data)
    box.realize()
    buffer = box.data.data
    if strides is None:
        buffer.freeze_layout()
    else:
        buffer.freeze_layout_with_exact_strides(list(strides))
    prevent_inlining(box)
    setattr(buffer, DEVICE_OPERATION, operation)
    return box


def prevent_inlining(box: Any) -> None:
    """Have readers load a realised buffer. Inductor would inline one that is computed from numbers
    alone into every reader's body.
    """
    buffer = box
    while isinstance(buffer, (ir.MutableBox, ir.BaseView)):
        buffer = buffer.data
    if isinstance(buffer, ir.ComputedBuffer):
        buffer.make_loader = functools.partial(ir.Buffer.make_loader, buffer)


def _viewed(box: Any, views: Sequence[GraphView]) -> Any:
    for how, arguments in views:
        given = arguments[0] if how == "unsqueeze" else list(arguments)
        box = getattr(lowering, how)(box, given)
    return box


class Load(msgspec.Struct, frozen=True):
    """Reads a buffer at a host index, elements: Σ stride · symbol + offset.

    ``strides``: per symbol of the iteration.
    """

    buffer: str
    strides: Ints
    offset: int = 0

    def at(self, index: Sequence[Any]) -> Any:
        """The element's index in the buffer at an index of the iteration."""
        steps = (s * i for s, i in zip(self.strides, index, strict=True))
        return sympy.Add(self.offset, *steps)


class Body(msgspec.Struct, frozen=True):
    """``ranges``: extents of the result; ``reduced``: of the reduced dims. ``dtype``: torch dtype
    name of the result.
    """

    operation: DeviceOperation
    operands: tuple[Load | ConstantArgument, ...]
    ranges: Ints
    reduced: Ints
    dtype: str

    @property
    def loads(self) -> tuple[Load, ...]:
        """Operands that are loads, in the order of the body."""
        return tuple(operand for operand in self.operands if isinstance(operand, Load))


class _BodyReader(DefaultHandler):  # type: ignore[misc]
    """Collects loads and numbers in the order the body asks for them."""

    def __init__(self, symbols: Sequence[sympy.Symbol]) -> None:
        self.symbols = symbols
        self.found: list[Load | ConstantArgument] = []
        self.called: list[str] = []

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.called.append(name)

    def load(self, name: str, index: sympy.Expr) -> Any:
        self.found.append(_strided_load(name, index, self.symbols))

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        self.found.append(ConstantArgument(float(value), str(dtype).removeprefix("torch.")))


def _strided_load(name: str, index: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> Load:
    """The index as strides; LoweringError for one that is not linear."""
    terms = dict(sympy.expand(index).as_coefficients_dict())
    offset = terms.pop(sympy.S.One, 0)
    strides = [terms.pop(symbol, 0) for symbol in symbols]
    if any(terms.values()):
        raise LoweringError(f"elements {index} of {name}")
    return Load(name, tuple(int(s) for s in strides), int(offset))


TRACED_BODY = "__spyre_body_cache"
"""Attribute of ir.Loops, named as those that `clear_caches` removes when a body changes."""


def body_of(operation: Any) -> Body:
    """The body of an ir.ComputedBuffer that is one device operation, or a copy; traced once.

    LoweringError for a body that Inductor's own lowering made.
    """
    data = operation.data
    ranges = tuple(int(n) for n in data.ranges)
    reduced = tuple(int(n) for n in getattr(data, "reduction_ranges", ()))
    reader = getattr(data, TRACED_BODY, None)
    if reader is None:
        reader = _traced(data, len(ranges), len(reduced))
        object.__setattr__(data, TRACED_BODY, reader)
    known = getattr(operation, DEVICE_OPERATION, None)
    if known is None:
        if reader.called or len(reader.found) != 1:
            raise LoweringError(f"a body of Inductor's own, which calls {reader.called}")
        known = DeviceOperation(OpKind.POINTWISE, "identity")
    dtype = str(operation.get_dtype()).removeprefix("torch.")
    return Body(known, tuple(reader.found), ranges, reduced, dtype)


def _traced(data: Any, rank: int, reduced: int) -> _BodyReader:
    symbols = [sympy.Symbol(f"c{k}", integer=True) for k in range(rank + reduced)]
    reader = _BodyReader(symbols)
    with V.set_ops_handler(reader):
        if reduced:
            data.inner_fn(symbols[:rank], symbols[rank:])
        else:
            data.inner_fn(symbols)
    return reader


class OperandRead(msgspec.Struct, frozen=True, dict=True):
    """An operand with the dims that the operation walks: ``extents``, and one stride per dim.

    ``axes``: per dim, the axis of the body's iteration.
    """

    operand: Load | ConstantArgument
    extents: Ints
    axes: Ints = ()

    @property
    def load(self) -> Load:
        """The operand, which is no number."""
        assert isinstance(self.operand, Load)
        return self.operand

    @functools.cached_property
    def sizes(self) -> Ints:
        """Extents of a load, 1 along dims that repeat one element."""
        return tuple(n if s else 1 for n, s in zip(self.extents, self.load.strides, strict=True))


def reads_of(body: Body) -> tuple[OperandRead, ...]:
    """The operands of a body in order, with reduced dims at their position in the operand."""
    rank, axes = len(body.ranges), list(range(len(body.ranges)))
    if body.operation.program is not None:
        shapes = enumerate(body.operation.program.shapes)
        return tuple(
            _operand_read(body, k, range(rank, rank + len(shape)), tuple(shape))
            for k, shape in shapes
        )
    if body.operation.kind is OpKind.REDUCTION:
        for k, dim in enumerate(body.operation.dims):
            axes[dim] = rank + k
        return (_operand_read(body, 0, axes),)
    if body.operation.kind is OpKind.MATMUL:
        *batch, row, column = axes
        walked = ((*batch, row, rank), (*batch, rank, column))
        return tuple(_operand_read(body, k, each) for k, each in enumerate(walked))
    return tuple(_operand_read(body, number, axes) for number in range(len(body.operands)))


def _operand_read(body: Body, number: int, axes: Sequence[int], extents: Ints = ()) -> OperandRead:
    every = (*body.ranges, *body.reduced)
    extents = extents or tuple(every[k] for k in axes)
    operand = body.operands[number]
    if isinstance(operand, Load):
        operand = replace(operand, strides=tuple(operand.strides[k] for k in axes))
    return OperandRead(operand, extents, tuple(axes))
