"""An aten operation as a graph of device operations without layouts, or as a `DeviceProgram`.

Eager lowerings are written against `Lowering`; run with `GraphOperations` instead they record the
same operations as data, without layouts. Lowerings that depend on sticks or memory (joins, gathers,
rankings, running sums) have no device graph. Each of their results is one ir.ComputedBuffer, a
reduction over all elements of the operands, and the kernel that contains it runs the lowering on
the operands in their layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import msgspec
from msgspec.structs import replace

from spyre.layout import contiguous_strides, device_view
from spyre.torch_backend.program import (
    DerivedOperations,
    Ints,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    broadcast_sizes,
    device_format,
    require_sdsc,
    with_constants,
)
from spyre.torch_backend.tensors import default_base

Results = list[tuple[Ints, str]]
"""Sizes and torch dtype name per result."""


class DeviceProgram(msgspec.Struct, frozen=True, eq=False):
    """One call of an eager lowering. Two calls are never equal, as their results differ.

    ``shapes`` and ``dtypes``: of its tensor operands. ``numbers``: per operand of the lowering a
    (number, dtype), None for the next tensor.
    """

    name: str
    lowering: Callable[..., Any]
    parameters: tuple[Any, ...]
    shapes: tuple[Ints, ...]
    dtypes: tuple[str, ...]
    numbers: tuple[tuple[float, str] | None, ...]

    @property
    def extents(self) -> Ints:
        """Extents of an iteration that reaches every element of every operand, at least one."""
        rank = max(map(len, self.shapes))
        extents = tuple(
            max((s[k] for s in self.shapes if k < len(s)), default=1) for k in range(rank)
        )
        return extents or (1,)

    def lowered(self, builder: Lowering, tensors: Sequence[Value]) -> list[Value]:
        """Add its operations to ``builder``; returns its results, each in separate memory."""
        before = len(builder.builder.regions)
        rest: Iterator[Value] = iter(tensors)
        values = [next(rest) if n is None else builder.constant(*n) for n in self.numbers]
        made = self.lowering(builder, *values, *self.parameters)
        results = [made] if isinstance(made, Value) else list(made)
        return [
            builder.copy(value) if _is_shared(value, results[:k], before) else value
            for k, value in enumerate(results)
        ]

    def results(self) -> Results:
        """Its results for contiguous operands. LoweringError if it cannot be lowered for them."""
        builder = Lowering()
        tensors = [
            _contiguous_argument(builder, s, d)
            for s, d in zip(self.shapes, self.dtypes, strict=True)
        ]
        values = self.lowered(builder, tensors)
        for spec in builder.builder.specs:
            require_sdsc(spec)
        return [(value.sizes, value.dtype) for value in values]


def _is_shared(value: Value, others: Sequence[Value], before: int) -> bool:
    """Return True if a result shares memory with an operand or with another result."""
    return value.region < before or any(other.region == value.region for other in others)


def _contiguous_argument(builder: Lowering, sizes: Ints, dtype: str) -> Value:
    base = default_base(sizes, contiguous_strides(sizes), dtype)
    view = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
    if view is None:
        raise LoweringError(f"the layout of a tensor of sizes {sizes}")
    return builder.builder.argument(view, dtype)


class LayoutDependent(Exception):
    """A lowering depends on layouts, or on memory shared between operations."""


class GraphNode(msgspec.Struct, frozen=True, eq=False):
    """One device operation, an input of the graph, or a number.

    ``kind``: None for inputs and numbers. ``dims``: reduced ones, of size 1 in the result.
    ``number``: of a constant. ``position``: of an input among the operands, otherwise -1.
    ``program``: for an operation without a graph, with the number of its ``result``.
    """

    kind: OpKind | None
    name: str
    sizes: Ints
    inputs: tuple[GraphValue, ...] = ()
    dims: Ints = ()
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    number: float | None = None
    position: int = -1
    program: DeviceProgram | None = None
    result: int = 0


GraphView = tuple[str, tuple[int, ...]]
"""(how, arguments): "permute" dims, "view" sizes, "expand" sizes, "unsqueeze" dim."""


class GraphValue(msgspec.Struct, frozen=True):
    """A result or a view of one, with the interface of `Value`. ``dtype``: torch dtype name."""

    node: GraphNode
    sizes: Ints
    dtype: str
    views: tuple[GraphView, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    @property
    def format(self) -> str:
        """Format of its elements on the card."""
        return device_format(self.dtype)

    def permuted(self, order: Sequence[int]) -> GraphValue:
        """Dims in ``order``."""
        return self._with_view("permute", order, [self.sizes[k] for k in order])

    def transposed(self, a: int, b: int) -> GraphValue:
        """Dims ``a`` and ``b`` exchanged."""
        order = list(range(len(self.sizes)))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, dim: int) -> GraphValue:
        """A dim of size 1 more, in front of ``dim``."""
        return self._with_view("unsqueeze", (dim,), (*self.sizes[:dim], 1, *self.sizes[dim:]))

    def expanded(self, sizes: Sequence[int]) -> GraphValue:
        """Broadcast to ``sizes``."""
        return self if tuple(sizes) == self.sizes else self._with_view("expand", sizes, sizes)

    def reshaped(self, sizes: Sequence[int]) -> GraphValue:
        """The same elements under other sizes."""
        return self if tuple(sizes) == self.sizes else self._with_view("view", sizes, sizes)

    def _with_view(self, how: str, arguments: Sequence[int], sizes: Sequence[int]) -> GraphValue:
        views = (*self.views, (how, tuple(arguments)))
        return replace(self, sizes=tuple(sizes), views=views)

    def __getattr__(self, name: str) -> Any:
        raise LayoutDependent(f"{name} of a value")


def program_results(program: DeviceProgram) -> list[GraphValue]:
    """The results of a program, one node each. LoweringError as of `DeviceProgram.results`."""
    builder = GraphOperations()
    rows = zip(program.shapes, program.dtypes, strict=True)
    inputs = tuple(builder.input(position, *row) for position, row in enumerate(rows))
    return [
        GraphValue(
            GraphNode(None, program.name, sizes, inputs, program=program, result=k), sizes, dtype
        )
        for k, (sizes, dtype) in enumerate(program.results())
    ]


def of_another_call(values: Sequence[GraphValue]) -> list[GraphValue]:
    """``values`` for another FX node with the same call, with new programs."""
    programs = {v.node.program: replace(v.node.program) for v in values if v.node.program}
    return [
        replace(v, node=replace(v.node, program=programs[v.node.program])) if v.node.program else v
        for v in values
    ]


class GraphOperations(DerivedOperations[GraphValue]):
    """The operations of `spyre.torch_backend.program.operations.Lowering`, as graph nodes."""

    def __getattr__(self, name: str) -> Any:
        raise LayoutDependent(name)

    def input(self, position: int, sizes: Sequence[int], dtype: str) -> GraphValue:
        """Operand number ``position``."""
        node = GraphNode(None, "input", tuple(sizes), position=position)
        return GraphValue(node, node.sizes, dtype)

    def constant(self, number: float, dtype: str) -> GraphValue:
        """A number, as a value of rank 0."""
        return GraphValue(GraphNode(None, "constant", (), number=float(number)), (), dtype)

    def pointwise(
        self,
        name: str,
        *operands: GraphValue | float,
        dtype: str = "",
        constants: Mapping[str, int] | None = None,
    ) -> GraphValue:
        """An elementwise operation on operands of one device format, broadcast together."""
        inputs = tuple(with_constants(self.constant, operands))
        sizes = broadcast_sizes([v.sizes for v in inputs])
        node = GraphNode(OpKind.POINTWISE, name, sizes, inputs, constants=constants or {})
        return GraphValue(node, sizes, dtype or inputs[0].dtype)

    def broadcast(self, value: GraphValue, sizes: Ints) -> GraphValue:
        """A copy of ``value`` broadcast to ``sizes``."""
        return self.copy(value.expanded(sizes))

    def materialized(self, value: GraphValue) -> GraphValue:
        """``value`` with memory for every element."""
        is_repeated = any(how == "expand" for how, _ in value.views)
        return self.copy(value) if is_repeated else value

    def reduce(
        self,
        name: str,
        value: GraphValue,
        dims: Sequence[int],
        constants: Mapping[str, int] | None = None,
    ) -> GraphValue:
        """A reduction over ``dims``, which have size 1 in the result."""
        sizes = tuple(1 if k in dims else n for k, n in enumerate(value.sizes))
        if sizes == value.sizes:
            return value
        node = GraphNode(OpKind.REDUCTION, name, sizes, (value,), tuple(dims), constants or {})
        return GraphValue(node, sizes, value.dtype)

    def matmul(self, left: GraphValue, right: GraphValue) -> GraphValue:
        """``left[.., M, K] · right[.., K, N]`` in DL16, batch dims broadcast."""
        batch = broadcast_sizes([left.sizes[:-2], right.sizes[:-2]])
        sizes = (*batch, left.sizes[-2], right.sizes[-1])
        return GraphValue(
            GraphNode(OpKind.MATMUL, "batchmatmul", sizes, (left, right)), sizes, left.dtype
        )

    # --- conversions -----------------------------------------------------------------------------

    def converted_by(
        self,
        name: str,
        value: GraphValue,
        dtype: str,
        lane: int | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> GraphValue:
        """A conversion between formats; ``lane`` is for layouts, which graphs do not have."""
        return self.pointwise(name, value, dtype=dtype, constants=constants)
