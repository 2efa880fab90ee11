"""The fused cells of LSTM and GRU, which torch asks every device but the CPU for.

A step is one program; what a recorder looks at, or is no program of the card, is composed of
operations of the device: the same ones in the same order, so the same bits. Gates: [batch,
4·hidden] in the order input, forget, cell, output (LSTM), [batch, 3·hidden] reset, update, new
(GRU), as in ``torch.nn``. The workspace is what backward needs: activated gates of the LSTM; reset,
update, new, hidden state and the hidden part of the new gate of the GRU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS
from spyre.torch_backend.eager.elementwise import apply_op
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import tangent
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
    joined,
    narrowed,
    off_lanes,
)


def _chunks(low: Lowering, value: Value, count: int) -> list[Value]:
    """As ``value.chunk(count, 1)``, with the sticks along rows that they have."""
    size = value.sizes[1] // count
    if value.lane_dim != 1 or not size % value.view.elements_per_stick:
        return [narrowed(value, 1, k * size, size) for k in range(count)]
    value = off_lanes(low, value, 1)  # some begin within a stick
    return [low.with_lane(narrowed(value, 1, k * size, size), 1) for k in range(count)]


def lstm_state(
    low: Lowering, gates: Sequence[Value], cx: Value, dtype: str
) -> tuple[list[Value], Value, Value]:
    """The activated gates, the cell state and the hidden state of a step, made in this order."""
    i, f, g, o = gates
    i, f, o = (apply_op("sigmoid", low, gate, dtype) for gate in (i, f, o))
    g = tangent(low, g, dtype)
    cy = low.pointwise("add", low.pointwise("mul", f, cx), low.pointwise("mul", i, g))
    hy = low.pointwise("mul", o, tangent(low, cy, dtype))
    return [i, f, g, o], cy, hy


def gru_state(
    low: Lowering, inputs: Sequence[Value], hiddens: Sequence[Value], hx: Value, dtype: str
) -> tuple[list[Value], Value]:
    """Reset, update and new of a step, and its hidden state."""
    (ir, iz, i_new), (hr, hz, h_new) = inputs, hiddens
    r = apply_op("sigmoid", low, low.pointwise("add", ir, hr), dtype)
    z = apply_op("sigmoid", low, low.pointwise("add", iz, hz), dtype)
    new = tangent(low, low.pointwise("add", i_new, low.pointwise("mul", r, h_new)), dtype)
    rest = low.pointwise("mul", z, low.pointwise("sub", hx, new))
    return [r, z, new], low.pointwise("add", new, rest)


def _lstm_step(
    low: Lowering, gates: Value, hidden_gates: Value, cx: Value, *args: Any
) -> tuple[Value, Value, Value]:
    """As `lstm_cell`, in the order of its operations."""
    *biases, dtype = args
    for addend in (hidden_gates, *biases):
        gates = low.pointwise("add", gates, addend)
    activated, cy, hy = lstm_state(low, _chunks(low, gates, 4), cx, dtype)
    return hy, cy, joined(low, activated, 1, dtype)


def _gru_step(
    low: Lowering, inputs: Value, hiddens: Value, hx: Value, *args: Any
) -> tuple[Value, Value]:
    """As `gru_cell`, in the order of its operations."""
    *biases, dtype = args
    if biases:
        inputs, hiddens = (
            low.pointwise("add", gates, bias)
            for gates, bias in zip((inputs, hiddens), biases, strict=True)
        )
    parts = _chunks(low, hiddens, 3)
    activated, hy = gru_state(low, _chunks(low, inputs, 3), parts, hx, dtype)
    return hy, joined(low, [*activated, hx, parts[2]], 1, dtype)


def _one_program(
    name: str, step: LoweringFunction, *tensors: Tensor | None
) -> tuple[Tensor, ...] | None:
    """What ``step`` makes; None where that is no program of the card, or a recorder looks on."""
    given = [t for t in tensors if t is not None]
    dtype = given[0].dtype
    alike = all(t.dtype == dtype and t.device == given[0].device for t in given)
    plain = dtype in FLOATS and alike and len(given) in (3, 5) and given[0].numel()
    if not plain or current_recorder() is not None:
        return None
    try:
        return run(name, step, given, (name_of(dtype),))
    except LoweringError:
        return None


def _sum(input_gates: Tensor, hidden_gates: Tensor, *biases: Tensor | None) -> Tensor:
    total = input_gates + hidden_gates
    for bias in biases:
        total = total if bias is None else total + bias
    return total


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_thnn_fused_lstm_cell: hidden state, cell state, workspace."""
    step = _one_program(
        "lstm_cell", _lstm_step, input_gates, hidden_gates, cx, input_bias, hidden_bias
    )
    if step is not None:
        hy, cy, workspace = step
        return hy, cy, workspace
    i, f, g, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


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
    i, f, g, o = workspace.chunk(4, 1)
    hyperbolic = cy.tanh()
    grad_cell = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(cy)
    if grad_hy is not None:
        grad_cell = grad_cell + grad_hy * o * (1 - hyperbolic * hyperbolic)
        grad_o = grad_hy * hyperbolic * o * (1 - o)
    parts = [
        grad_cell * g * i * (1 - i),
        grad_cell * cx * f * (1 - f),
        grad_cell * i * (1 - g * g),
        grad_o,
    ]
    gates = torch.cat(parts, 1)
    return gates, grad_cell * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """aten::_thnn_fused_gru_cell: hidden state, workspace."""
    step = _one_program(
        "gru_cell", _gru_step, input_gates, hidden_gates, hx, input_bias, hidden_bias
    )
    if step is not None:
        hy, workspace = step
        return hy, workspace
    inputs = input_gates if input_bias is None else input_gates + input_bias
    hiddens = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ir, iz, i_new), (hr, hz, h_new) = inputs.chunk(3, 1), hiddens.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (i_new + r * h_new).tanh()
    return new + z * (hx - new), torch.cat([r, z, new, hx, h_new], 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """aten::_thnn_fused_gru_cell_backward: gradients of both gates, hidden state, both biases."""
    r, z, new, hx, h_new = workspace.chunk(5, 1)
    grad_new = grad_hy * (1 - z) * (1 - new * new)
    grad_z = grad_hy * (hx - new) * z * (1 - z)
    grad_r = grad_new * h_new * r * (1 - r)
    inputs = torch.cat([grad_r, grad_z, grad_new], 1)
    hiddens = torch.cat([grad_r, grad_z, grad_new * r], 1)
    biases = (inputs.sum(0), hiddens.sum(0)) if has_bias else (None, None)
    return inputs, hiddens, grad_hy * z, *biases
