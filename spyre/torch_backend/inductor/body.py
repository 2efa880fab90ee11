"""What an ir.ComputedBuffer loads, and where: its body as data.

Bodies are read from the ir.Operation itself, with one symbol per dim of its ranges (c0, c1, …, then
the reduced ones), so that their order is that of the ranges whatever the scheduler does to loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from spyre.torch_backend.inductor.compat import DefaultHandler, V
from spyre.torch_backend.inductor.graph_to_ir import ATTRIBUTE, DeviceOperation
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.value import Ints, NotExpressible


@dataclass(frozen=True, slots=True)
class Load:
    """Reads a buffer at a host index, elements: Σ stride · symbol + offset.

    ``strides``: per symbol of the iteration.
    """

    buffer: str
    strides: Ints
    offset: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number; ``dtype``: torch dtype name."""

    value: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Body:
    """``ranges``: extents of the result; ``reduced``: of the reduced dims. ``dtype``: torch dtype
    name of the result.
    """

    operation: DeviceOperation
    operands: tuple[Load | Number, ...]
    ranges: Ints
    reduced: Ints
    dtype: str

    @property
    def loads(self) -> tuple[Load, ...]:
        """Operands that are no numbers, in the order the body loads them."""
        return tuple(operand for operand in self.operands if isinstance(operand, Load))


class _Reader(DefaultHandler):  # type: ignore[misc]
    """Collects loads and numbers in the order the body asks for them."""

    def __init__(self, symbols: Sequence[sympy.Symbol]) -> None:
        self.symbols = symbols
        self.found: list[Load | Number] = []
        self.called: list[str] = []

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.called.append(name)

    def load(self, name: str, index: sympy.Expr) -> Any:
        """A buffer's element."""
        self.found.append(_linear(name, index, self.symbols))

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        """A number."""
        self.found.append(Number(float(value), str(dtype).removeprefix("torch.")))


def _linear(name: str, index: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> Load:
    """The index as strides; NotExpressible for one that is not linear."""
    terms = dict(sympy.expand(index).as_coefficients_dict())
    offset = terms.pop(sympy.S.One, 0)
    strides = [terms.pop(symbol, 0) for symbol in symbols]
    if any(terms.values()):
        raise NotExpressible(f"elements {index} of {name}")
    return Load(name, tuple(int(s) for s in strides), int(offset))


def body_of(operation: Any) -> Body:
    """The body of an ir.ComputedBuffer that is one device operation, or a copy.

    NotExpressible for what Inductor lowered in its own way.
    """
    data = operation.data
    ranges = tuple(int(n) for n in data.ranges)
    reduced = tuple(int(n) for n in getattr(data, "reduction_ranges", ()))
    symbols = [sympy.Symbol(f"c{k}", integer=True) for k in range(len(ranges) + len(reduced))]
    reader = _Reader(symbols)
    with V.set_ops_handler(reader):
        if reduced:
            data.inner_fn(symbols[: len(ranges)], symbols[len(ranges) :])
        else:
            data.inner_fn(symbols)
    known = getattr(operation, ATTRIBUTE, None)
    if known is None:
        if reader.called or len(reader.found) != 1:
            raise NotExpressible(f"a body of Inductor's own, which calls {reader.called}")
        known = DeviceOperation(OpKind.POINTWISE, "identity")
    dtype = str(operation.get_dtype()).removeprefix("torch.")
    return Body(known, tuple(reader.found), ranges, reduced, dtype)
