"""`DeviceProgram`: an operation whose lowering is about layouts, lowered in the kernel.

Joins, gathers, rankings and running sums are written in terms of sticks and memory, so they have no
device graph. Each of their results is one ir.ComputedBuffer, a reduction over all elements of the
operands; the kernel that holds it calls the lowering on the operands as they lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.layout import contiguous_strides
from spyre.layout.device_view import device_view
from spyre.mlir.sdsc_builder import Place
from spyre.torch_backend.allocation import default_base
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.program.emit import emit
from spyre.torch_backend.program.value import Ints, NotExpressible, Value

Results = list[tuple[Ints, str]]
"""Sizes and torch dtype name per result."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProgram:
    """One call of an eager lowering. Two calls are never equal: each has results of its own.

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
        found = tuple(
            max((s[k] for s in self.shapes if k < len(s)), default=1) for k in range(rank)
        )
        return found or (1,)

    def lowered(self, low: Lowering, tensors: Sequence[Value]) -> list[Value]:
        """Its results over values for its tensors, each in memory of its own."""
        before = len(low.builder.regions)
        rest: Iterator[Value] = iter(tensors)
        values = [next(rest) if n is None else low.constant(*n) for n in self.numbers]
        found = self.lowering(low, *values, *self.parameters)
        results = [found] if isinstance(found, Value) else list(found)
        return [
            low.copy(value) if _is_shared(value, results[:k], before) else value
            for k, value in enumerate(results)
        ]

    def results(self) -> Results:
        """What it makes of contiguous operands. NotExpressible if there is no program for them."""
        low = Lowering()
        tensors = [_contiguous(low, s, d) for s, d in zip(self.shapes, self.dtypes, strict=True)]
        found = self.lowered(low, tensors)
        for spec in low.builder.specs:
            emit(spec, _anywhere)
        return [(value.sizes, value.dtype) for value in found]


def _is_shared(value: Value, others: Sequence[Value], before: int) -> bool:
    """True if it lies where an operand or another result does."""
    return value.region < before or any(other.region == value.region for other in others)


def _contiguous(low: Lowering, sizes: Ints, dtype: str) -> Value:
    base = default_base(sizes, contiguous_strides(sizes), dtype)
    view = device_view(base.layout, base.shape, base.strides, base.shape, base.strides, 0)
    if view is None:
        raise NotExpressible(f"the layout of a tensor of sizes {sizes}")
    return low.builder.argument(view, dtype)


def _anywhere(value: Value) -> Place:
    """Some place for a value whose operation is only tried."""
    return Place("somewhere", value.view.offset_bytes)
