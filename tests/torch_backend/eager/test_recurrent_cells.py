"""Steps of LSTM and GRU: one program gives the bits of the operations it stands for."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager import recurrent_cells

CELLS = {"lstm": (torch.nn.LSTMCell, 2), "gru": (torch.nn.GRUCell, 1)}


def steps_of(name, dtype, hidden, bias):
    """Hidden state and gradients of the input after three steps."""
    make, states = CELLS[name]
    torch.manual_seed(1)
    cell = make(32, hidden, bias=bias).to(dtype).to("spyre")
    x = torch.randn(3, 5, 32).to(dtype).to("spyre").requires_grad_()
    state = tuple(torch.randn(5, hidden).to(dtype).to("spyre") for _ in range(states))
    for k in range(3):
        state = cell(x[k], state if states > 1 else state[0])
        state = state if states > 1 else (state,)
    state[0].sum().backward()
    return [s.detach().cpu() for s in state] + [x.grad.cpu()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [64, 128, 48])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", CELLS)
def test_one_program_and_its_operations_give_equal_bits(monkeypatch, name, dtype, hidden, bias):
    at_once = steps_of(name, dtype, hidden, bias)
    monkeypatch.setattr(recurrent_cells, "_one_program", lambda *_: None)
    composed = steps_of(name, dtype, hidden, bias)
    assert all(map(torch.equal, at_once, composed))


@pytest.mark.parametrize("hidden", [64, 48])
def test_a_step_is_one_launch(hidden):
    """Also where gates begin within a stick."""
    gates = [torch.randn(5, k * hidden).half().to("spyre") for k in (4, 4, 1, 3, 3, 1)]
    with torch.spyre.counting() as counted:
        torch.ops.aten._thnn_fused_lstm_cell(*gates[:3])
        torch.ops.aten._thnn_fused_gru_cell(*gates[3:])
        torch.spyre.synchronize()
    assert counted.launches == 2
