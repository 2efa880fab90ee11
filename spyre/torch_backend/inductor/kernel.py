"""`SpyreKernel`: the device operations of one bundle, collected from scheduled ir.Operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spyre.layout import contiguous_strides
from spyre.layout.device_view import device_view, seen_through
from spyre.torch_backend.allocation import default_base
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.body import Body, Load, Number, body_of
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.storing import store
from spyre.torch_backend.program.value import Ints, NotExpressible, Value


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """A tensor the kernel is given: host extents and strides (elements), torch dtype name."""

    sizes: Ints
    strides: Ints
    dtype: str


class SpyreKernel:
    """A bundle under construction.

    ``arguments``: buffers it takes, in the order of the launch, by name. Results that nobody
    outside reads stay in its own memory.
    """

    def __init__(self, buffers: Mapping[str, HostBuffer], results: Sequence[str]) -> None:
        self.low = Lowering()
        self.arguments: list[str] = []
        self._buffers = buffers
        self._results = frozenset(results)
        self._values: dict[str, Value] = {}

    def add(self, name: str, operation: Any) -> None:
        """The next operation, which makes buffer ``name``."""
        body = body_of(operation)
        value = self._computed(body)
        if name in self._results:
            goal = self._argument(name)
            store(self.low, value, self._seen(goal, self._buffers[name].sizes, None, 0))
            value = goal
        self._values[name] = value

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

    def _seen(self, value: Value, sizes: Ints, strides: Ints | None, offset: int) -> Value:
        """``value`` as a tensor of ``sizes`` and ``strides`` (default contiguous), elements."""
        found = seen_through(
            value.view, sizes, contiguous_strides(sizes) if strides is None else strides, offset
        )
        if found is None:
            raise NotExpressible(f"sizes {sizes}, strides {strides}, offset {offset}")
        return replace(value, view=found, order=None)

    def _operand(self, operand: Load | Number, extents: Ints) -> Value:
        if isinstance(operand, Number):
            return self.low.constant(operand.value, operand.dtype)
        value = self._argument(operand.buffer)
        strides = operand.strides
        sizes = tuple(n if s else 1 for n, s in zip(extents, strides, strict=True))
        seen = self._seen(value, sizes, strides, operand.offset)
        return seen.expanded(extents)

    # --- operations ----------------------------------------------------------------------------

    def _computed(self, body: Body) -> Value:
        if body.operation.kind is OpKind.REDUCTION:
            return self._reduced(body)
        if body.operation.kind is OpKind.MATMUL:
            return self._product(body)
        values = [self._operand(operand, body.ranges) for operand in body.operands]
        return self._elementwise(body, values)

    def _elementwise(self, body: Body, values: Sequence[Value]) -> Value:
        name, dtype = body.operation.name, body.dtype
        if name == "identity":
            return self.low.broadcast(replace(values[0], dtype=dtype), body.ranges)
        if name in self.low.CONVERSIONS:
            return self.low.converted_by(name, values[0], dtype)
        found = self.low.pointwise(name, *values, dtype=dtype, constants=body.operation.constants)
        return found.expanded(body.ranges)

    def _reduced(self, body: Body) -> Value:
        (operand,) = body.operands
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
        return self.low.matmul(a, b)

    def source(self) -> str:
        """Interim."""
        from spyre.torch_backend.inductor.async_compile import KERNELS

        KERNELS.append(self)
        return str(len(KERNELS) - 1)
