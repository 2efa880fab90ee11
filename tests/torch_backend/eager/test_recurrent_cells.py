"""Steps of LSTM and GRU: one program gives the bits of the operations it stands for."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager import recurrent
from spyre.torch_backend.program import LoweringError

CELLS = {"lstm": (torch.nn.LSTMCell, 2), "gru": (torch.nn.GRUCell, 1)}


def steps_of(name, dtype, hidden, bias):
    """States after three steps, and gradients of inputs, first states and weights."""
    make, states = CELLS[name]
    torch.manual_seed(1)
    cell = make(32, hidden, bias=bias).to(dtype).to("spyre")
    x = torch.randn(3, 5, 32).to(dtype).to("spyre").requires_grad_()
    first = tuple(torch.randn(5, hidden).to(dtype).to("spyre") for _ in range(states))
    state = first = tuple(value.requires_grad_() for value in first)
    for k in range(3):
        state = cell(x[k], state if states > 1 else state[0])
        state = state if states > 1 else (state,)
    state[0].sum().backward()
    gradients = [value.grad.cpu() for value in (x, *first, *cell.parameters())]
    return [s.detach().cpu() for s in state] + gradients


def only_operations(monkeypatch):
    """Have formulas computed by operations."""

    def run(name, *_):
        raise LoweringError(name)

    monkeypatch.setattr(recurrent, "run", run)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [64, 128, 48])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", CELLS)
def test_one_program_and_its_operations_give_equal_bits(monkeypatch, name, dtype, hidden, bias):
    at_once = steps_of(name, dtype, hidden, bias)
    only_operations(monkeypatch)
    composed = steps_of(name, dtype, hidden, bias)
    assert all(map(torch.equal, at_once, composed))


@pytest.mark.parametrize("given", [(True, False), (False, True), (True, True)])
def test_gradients_of_either_state(monkeypatch, given):
    cx, cy, *gradients = (torch.randn(5, 24).half().to("spyre") for _ in range(4))
    gradients = [g if is_given else None for g, is_given in zip(gradients, given, strict=True)]
    workspace = torch.rand(5, 96).half().to("spyre")
    backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    found = backward(*gradients, cx, cy, workspace, True)
    only_operations(monkeypatch)
    for ours, theirs in zip(found, backward(*gradients, cx, cy, workspace, True), strict=True):
        assert torch.equal(ours.cpu(), theirs.cpu())


@pytest.mark.parametrize("hidden", [64, 48])
def test_a_step_is_one_launch(hidden):
    """Also where gates begin within a stick."""
    gates = [torch.randn(5, k * hidden).half().to("spyre") for k in (4, 4, 1, 3, 3, 1)]
    aten = torch.ops.aten
    with torch.spyre.counting() as counted:
        hy, cy, workspace = aten._thnn_fused_lstm_cell(*gates[:3])
        aten._thnn_fused_lstm_cell_backward_impl(hy, cy, gates[2], cy, workspace, False)
        hy, workspace = aten._thnn_fused_gru_cell(*gates[3:])
        aten._thnn_fused_gru_cell_backward(hy, workspace, False)
        torch.spyre.synchronize()
    assert counted.launches == 4
