"""The fused cells of LSTM and GRU, which torch asks every device but the CPU for.

A step, and its backward, is one program; what a recorder looks at, or is no program of the card, is
composed of operations of the device: by the same formula, so with the same bits. Gates: [batch,
4·hidden] in the order input, forget, cell, output (LSTM), [batch, 3·hidden] reset, update, new
(GRU), as in ``torch.nn``. The workspace is what backward needs: activated gates of the LSTM; reset,
update, new, hidden state and the hidden part of the new gate of the GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS
from spyre.torch_backend.eager.elementwise import apply_op
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import tanh
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    Value,
    current_recorder,
    joined,
    narrowed,
    off_lanes,
)

# --- what formulas are made of --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramArithmetic:
    """Values of a program, in ``dtype``."""

    builder: Lowering
    dtype: str

    def add(self, a: Value, b: Value) -> Value:
        return self.builder.pointwise("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.builder.pointwise("sub", a, b)

    def mul(self, *factors: Value) -> Value:
        """The first two first."""
        product, *rest = factors
        for factor in rest:
            product = self.builder.pointwise("mul", product, factor)
        return product

    def rest(self, x: Value) -> Value:
        """1 - x."""
        return self.sub(self.builder.constant(1.0, self.dtype), x)

    def sigmoid(self, x: Value) -> Value:
        return apply_op("sigmoid", self.builder, x, self.dtype)

    def tanh(self, x: Value) -> Value:
        return tanh(self.builder, x, self.dtype)

    def zeros_like(self, x: Value) -> Value:
        return self.builder.broadcast(self.builder.constant(0.0, self.dtype), x.sizes, x.lane_dim)

    def chunks(self, x: Value, count: int) -> list[Value]:
        """As ``x.chunk(count, 1)``, with the sticks along rows that it has."""
        size = x.sizes[1] // count
        if x.lane_dim != 1 or not size % x.view.elements_per_stick:
            return [narrowed(x, 1, k * size, size) for k in range(count)]
        x = off_lanes(self.builder, x, 1)  # some begin within a stick
        return [self.builder.with_lane(narrowed(x, 1, k * size, size), 1) for k in range(count)]

    def joined(self, parts: Sequence[Value]) -> Value:
        return joined(self.builder, parts, 1, self.dtype)


class TensorArithmetic:
    """Tensors, with an operation of the device for each."""

    add, sub, sigmoid, tanh, zeros_like = (
        *map(staticmethod, (torch.add, torch.sub, torch.sigmoid, torch.tanh, torch.zeros_like)),
    )

    @staticmethod
    def mul(*factors: Tensor) -> Tensor:
        product, *rest = factors
        for factor in rest:
            product = product * factor
        return product

    @staticmethod
    def rest(x: Tensor) -> Tensor:
        return 1 - x

    @staticmethod
    def chunks(x: Tensor, count: int) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = x.chunk(count, 1)
        return parts

    @staticmethod
    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([*parts], 1)


Arithmetic = Any
"""One of the two; formulas are over its numbers."""


# --- formulas -------------------------------------------------------------------------------------


def lstm_state(on: Arithmetic, gates: Sequence[Any], cx: Any) -> tuple[list[Any], Any, Any]:
    """The activated gates, the cell state and the hidden state of a step, made in this order."""
    i, f, g, o = gates
    i, f, o = (on.sigmoid(gate) for gate in (i, f, o))
    g = on.tanh(g)
    cy = on.add(on.mul(f, cx), on.mul(i, g))
    return [i, f, g, o], cy, on.mul(o, on.tanh(cy))


def gru_state(
    on: Arithmetic, inputs: Sequence[Any], hiddens: Sequence[Any], hx: Any
) -> tuple[list[Any], Any]:
    """Reset, update and new of a step, and its hidden state."""
    (ir, iz, i_new), (hr, hz, h_new) = inputs, hiddens
    r, z = on.sigmoid(on.add(ir, hr)), on.sigmoid(on.add(iz, hz))
    new = on.tanh(on.add(i_new, on.mul(r, h_new)))
    return [r, z, new], on.add(new, on.mul(z, on.sub(hx, new)))


def _lstm(on: Arithmetic, gates: Any, hidden_gates: Any, cx: Any, *biases: Any) -> tuple[Any, ...]:
    for addend in (hidden_gates, *biases):
        gates = gates if addend is None else on.add(gates, addend)
    activated, cy, hy = lstm_state(on, on.chunks(gates, 4), cx)
    return hy, cy, on.joined(activated)


def _lstm_backward(
    on: Arithmetic, grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any
) -> tuple[Any, ...]:
    i, f, g, o = on.chunks(workspace, 4)
    hyperbolic = on.tanh(cy)
    grad_cell = on.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = on.zeros_like(cy)
    if grad_hy is not None:
        inner = on.mul(grad_hy, o, on.rest(on.mul(hyperbolic, hyperbolic)))
        grad_cell = on.add(grad_cell, inner)
        grad_o = on.mul(grad_hy, hyperbolic, o, on.rest(o))
    grad_i = on.mul(grad_cell, g, i, on.rest(i))
    grad_f = on.mul(grad_cell, cx, f, on.rest(f))
    grad_g = on.mul(grad_cell, i, on.rest(on.mul(g, g)))
    return on.joined([grad_i, grad_f, grad_g, grad_o]), on.mul(grad_cell, f)


def _gru(
    on: Arithmetic, inputs: Any, hiddens: Any, hx: Any, input_bias: Any, hidden_bias: Any
) -> tuple[Any, ...]:
    inputs = inputs if input_bias is None else on.add(inputs, input_bias)
    hiddens = hiddens if hidden_bias is None else on.add(hiddens, hidden_bias)
    parts = on.chunks(hiddens, 3)
    activated, hy = gru_state(on, on.chunks(inputs, 3), parts, hx)
    return hy, on.joined([*activated, hx, parts[2]])


def _gru_backward(on: Arithmetic, grad_hy: Any, workspace: Any) -> tuple[Any, ...]:
    r, z, new, hx, h_new = on.chunks(workspace, 5)
    grad_new = on.mul(grad_hy, on.rest(z), on.rest(on.mul(new, new)))
    grad_z = on.mul(grad_hy, on.sub(hx, new), z, on.rest(z))
    grad_r = on.mul(grad_new, h_new, r, on.rest(r))
    inputs = on.joined([grad_r, grad_z, grad_new])
    hiddens = on.joined([grad_r, grad_z, on.mul(grad_new, r)])
    return inputs, hiddens, on.mul(grad_hy, z)


# --- kernels --------------------------------------------------------------------------------------


def _made(
    name: str, formula: Callable[..., tuple[Any, ...]], *tensors: Tensor | None
) -> tuple[Tensor, ...]:
    """What ``formula`` makes: by one program, or where that is none, or a recorder looks on, by
    operations.
    """
    given = [t for t in tensors if t is not None]
    dtype = given[0].dtype
    alike = all(t.dtype == dtype and t.device == given[0].device for t in given)
    if dtype in FLOATS and alike and given[0].numel() and current_recorder() is None:
        missing = tuple(k for k, tensor in enumerate(tensors) if tensor is None)
        try:
            return run(name, partial(_lowered, formula), given, (missing, name_of(dtype)))
        except LoweringError:
            pass
    return formula(TensorArithmetic, *tensors)


def _lowered(
    formula: Callable[..., tuple[Any, ...]], builder: Lowering, *args: Any
) -> Sequence[Value]:
    """``missing``: which of the formula's numbers are not given."""
    *values, missing, dtype = args
    for place in missing:
        values.insert(place, None)
    return formula(ProgramArithmetic(builder, dtype), *values)


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_lstm_cell: hidden state, cell state, workspace."""
    return _made("lstm_cell", _lstm, input_gates, hidden_gates, cx, input_bias, hidden_bias)


def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """aten::_thnn_fused_lstm_cell_backward_impl: gradients of gates, cell state and bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    gates, grad_cx = _made(
        "lstm_cell_backward", _lstm_backward, grad_hy, grad_cy, cx, cy, workspace
    )
    return gates, grad_cx, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_gru_cell: hidden state, workspace."""
    return _made("gru_cell", _gru, input_gates, hidden_gates, hx, input_bias, hidden_bias)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """aten::_thnn_fused_gru_cell_backward: gradients of both gates, hidden state, both biases."""
    inputs, hiddens, grad_hx = _made("gru_cell_backward", _gru_backward, grad_hy, workspace)
    biases = (inputs.sum(0), hiddens.sum(0)) if has_bias else (None, None)
    return inputs, hiddens, grad_hx, *biases
