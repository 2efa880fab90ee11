"""Whole recurrent networks as one program: the bits of the steps that torch makes of them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from spyre.torch_backend.eager import launch, recurrent

NETWORKS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}
DTYPES = (torch.float16, torch.float32, torch.bfloat16)
ROUNDINGS = {torch.float16: 2e-3, torch.bfloat16: 2e-3, torch.float32: 2e-6}
STEPS, ROWS = 4, 3


def network_of(name, dtype, sizes, **more):
    """A network on the card and one of float32 with its weights on the CPU."""
    torch.manual_seed(1)
    host = NETWORKS[name](*sizes, **more).to(dtype).eval()
    card = NETWORKS[name](*sizes, **more).to(dtype).eval()
    card.load_state_dict(host.state_dict())
    return card.to("spyre"), host.float()


def inputs_of(dtype, depth, steps=STEPS, rows=ROWS):
    torch.manual_seed(2)
    return torch.randn(steps, rows, depth).to(dtype)


def flat(result):
    """Outputs and states in a row."""
    outputs, states = result
    return [outputs, *(states if isinstance(states, tuple) else (states,))]


@torch.no_grad()
def found_by(network, *args):
    return flat(network(*args))


def composed(monkeypatch, network, *args):
    """Return the results of torch's composition."""
    with monkeypatch.context() as patched:
        patched.setattr(recurrent, "_launched", lambda *_: None)
        return found_by(network, *args)


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours.cpu(), theirs.cpu())


def launches_of(call):
    with torch.spyre.counting() as counted, torch.no_grad():
        call()
        torch.spyre.synchronize()
    return counted.launches


SHAPES = {
    "whole sticks": ((64, 64), {}),
    "parts of sticks": ((20, 24), {}),
    "no bias": ((40, 72), {"bias": False}),
    "layers": ((10, 20), {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "layers of sticks": ((32, 64), {"num_layers": 2, "bidirectional": True}),
    "single elements": ((1, 1), {}),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_one_program_gives_the_bits_of_single_steps(monkeypatch, name, dtype, shape):
    sizes, more = SHAPES[shape]
    network, host = network_of(name, dtype, sizes, **more)
    x = inputs_of(dtype, sizes[0])
    found = found_by(network, x.to("spyre"))
    assert_same(found, composed(monkeypatch, network, x.to("spyre")))
    for ours, theirs in zip(found, found_by(host, x.float()), strict=True):
        assert (ours.float().cpu() - theirs).abs().max() < 4 * ROUNDINGS[dtype]


@pytest.mark.parametrize("sizes", [(16, 64, 20), (16, 24, 16)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_projections(monkeypatch, dtype, sizes):
    depth, width, out = sizes
    more = {"proj_size": out, "num_layers": 2, "bidirectional": True}
    network, host = network_of("lstm", dtype, (depth, width), **more)
    x = inputs_of(dtype, depth)
    found = found_by(network, x.to("spyre"))
    assert_same(found, composed(monkeypatch, network, x.to("spyre")))
    for ours, theirs in zip(found, found_by(host, x.float()), strict=True):
        assert (ours.float().cpu() - theirs).abs().max() < 4 * ROUNDINGS[dtype]


@pytest.mark.parametrize("name", NETWORKS)
def test_states_are_taken_and_left_alone(monkeypatch, name):
    network, _ = network_of(name, torch.float16, (16, 24), num_layers=2)
    x = inputs_of(torch.float16, 16).to("spyre")
    given = [torch.randn(2, ROWS, 24).half().to("spyre") for _ in range(2)]
    before = [state.cpu() for state in given]
    states = tuple(given) if name == "lstm" else given[0]
    assert_same(found_by(network, x, states), composed(monkeypatch, network, x, states))
    assert all(map(torch.equal, before, [state.cpu() for state in given]))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sequence_is_one_launch(name, layers):
    network, _ = network_of(name, torch.float16, (64, 64), num_layers=layers, bidirectional=True)
    x = inputs_of(torch.float16, 64, steps=32).to("spyre")
    state = torch.zeros(2 * layers, ROWS, 64, dtype=torch.float16, device="spyre")
    states = (state, state) if name == "lstm" else state
    assert launches_of(lambda: network(x, states)) == 1


CELLS = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **more: nn.RNNCell(*sizes, nonlinearity="relu", **more),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [64, 24])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_one_launch(monkeypatch, name, width, bias):
    torch.manual_seed(1)
    cell = CELLS[name](20, width, bias=bias).half().to("spyre")
    x, state = inputs_of(torch.float16, 20)[0].to("spyre"), torch.randn(ROWS, width).half()
    states = (state.to("spyre"), -state.to("spyre")) if name == "lstm" else state.to("spyre")

    @torch.no_grad()
    def step():
        made = cell(x, states)
        return made if name == "lstm" else (made,)

    assert launches_of(step) == 1
    found = step()
    monkeypatch.setattr(recurrent, "_launched", lambda *_: None)
    assert_same(found, step())


def test_cells_with_one_bias():
    """Networks never have only one bias, but cells may."""
    x, state = (torch.randn(2, 64).half().to("spyre") for _ in range(2))
    weights = [torch.randn(64, 64).half().to("spyre") for _ in range(2)]
    bias = torch.randn(64).half().to("spyre")
    found = torch.rnn_tanh_cell(x, state, *weights, bias, None)
    assert torch.equal(found.cpu(), torch.rnn_tanh_cell(x, state, *weights, bias, 0 * bias).cpu())


def test_strided_inputs(monkeypatch):
    network, _ = network_of("gru", torch.float16, (64, 64))
    x = inputs_of(torch.float16, 128, steps=8).to("spyre")[::2, :, 64:]
    assert_same(found_by(network, x), composed(monkeypatch, network, x))


def test_unbatched(monkeypatch):
    network, _ = network_of("lstm", torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")[:, 0]
    assert_same(found_by(network, x), composed(monkeypatch, network, x))


@pytest.mark.parametrize("more", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_long_sequences_are_several_programs(monkeypatch, name, more):
    network, _ = network_of(name, torch.float16, (16, 24), **more)
    x = inputs_of(torch.float16, 16, steps=7).to("spyre")
    at_once = found_by(network, x)
    monkeypatch.setattr(recurrent, "MAX_STEPS", 3)
    launch.launch_records.clear()
    assert_same(found_by(network, x), at_once)


def test_large_steps_count_as_several(monkeypatch):
    network, _ = network_of("tanh", torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16, steps=4).to("spyre")
    at_once = found_by(network, x)
    monkeypatch.setattr(recurrent, "FEW_GATES", ROWS * 24)
    monkeypatch.setattr(recurrent, "MAX_STEPS", 6)
    launch.launch_records.clear()
    assert launches_of(lambda: network(x)) == 1 + 2 + 1  # zeros, two of three steps at most, joined
    assert_same(found_by(network, x), at_once)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_inputs_whose_gates_take_too_much_memory(monkeypatch, name):
    monkeypatch.setattr(recurrent, "TERMS_BYTES", 0)
    network, _ = network_of(name, torch.float16, (17, 24))
    x = inputs_of(torch.float16, 17, steps=5).to("spyre")
    assert_same(found_by(network, x), composed(monkeypatch, network, x))


def test_products_in_float32_that_take_too_much_memory(monkeypatch):
    monkeypatch.setattr(recurrent, "is_small_product", lambda *_: False)
    network, _ = network_of("lstm", torch.float32, (16, 32))
    x = inputs_of(torch.float32, 16).to("spyre")
    assert launches_of(lambda: network(x)) > STEPS


@pytest.mark.parametrize("name", NETWORKS)
def test_without_rows(name):
    network, host = network_of(name, torch.float16, (16, 24))
    x = torch.zeros(STEPS, 0, 16)
    for ours, theirs in zip(
        found_by(network, x.half().to("spyre")), found_by(host, x), strict=True
    ):
        assert ours.shape == theirs.shape


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_steps(monkeypatch, name):
    network, _ = network_of(name, torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre").requires_grad_()
    outputs = network(x)[0]
    outputs.sum().backward()
    assert torch.equal(outputs.detach().cpu(), found_by(network, x)[0].cpu())
    gradients = [p.grad.cpu() for p in (x, *network.parameters())]
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_dropout_between_layers():
    network, _ = network_of("gru", torch.float16, (16, 24), num_layers=2, dropout=1.0)
    x = inputs_of(torch.float16, 16).to("spyre")
    kept = found_by(network, x)[0].cpu()
    assert not torch.equal(found_by(network.train(), x)[0].cpu(), kept)
    with torch.inference_mode():
        assert torch.equal(network.eval()(x)[0].cpu(), kept)


@pytest.mark.parametrize("name", NETWORKS)
def test_autocast(name):
    """Everything is cast once, in front of the network."""
    network, _ = network_of(name, torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")
    expected = found_by(network, x)
    with torch.autocast("spyre", torch.float16):
        found = found_by(network.float(), x.float())
    assert_same(found, expected)


def test_gradients_of_autocast_add_up_in_float32():
    network, _ = network_of("tanh", torch.float32, (64, 64))
    x = inputs_of(torch.float32, 64, steps=2).to("spyre")
    with torch.autocast("spyre", torch.float16):
        network(x)[0].sum().backward()
    gradient = network.weight_ih_l0.grad
    assert gradient.dtype is torch.float32
    assert not torch.equal(gradient, gradient.half().float())


def test_a_graph_replays_it():
    network, _ = network_of("lstm", torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")
    found_by(network, x)
    with torch.spyre.graph() as graph:
        outputs = found_by(network, x)[0]
    x.mul_(-1.0)
    graph.replay()
    assert torch.equal(outputs.cpu(), found_by(network, x)[0].cpu())


class Seen(TorchDispatchMode):
    """Names of the operations that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_the_steps():
    network, _ = network_of("lstm", torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")
    with Seen() as seen:
        found_by(network, x)
    assert seen.names.count("_thnn_fused_lstm_cell") == STEPS


def test_forward_derivatives():
    network, host = network_of("tanh", torch.float32, (4, 5))
    x = inputs_of(torch.float32, 4)
    tangents = []
    for module, given in ((network, x.to("spyre")), (host, x)):
        with torch.no_grad(), forward_ad.dual_level():
            outputs = module(forward_ad.make_dual(given, torch.ones_like(given)))[0]
            tangents.append(forward_ad.unpack_dual(outputs).tangent.cpu())
    assert torch.allclose(*tangents, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_python", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_tracers_see_what_they_saw(name, is_python):
    """Traces have the fused cells, or their parts where torch decomposes in Python."""
    network, _ = network_of(name, torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")
    traced = make_fx(lambda x: network(x)[0], tracing_mode="fake", _allow_non_fake_inputs=True)
    with torch.no_grad(), enable_python_dispatcher() if is_python else nullcontext():
        names = {str(node.target) for node in traced(x).graph.nodes}
    assert f"aten.{name}.input" not in names
    assert ("aten.tanh.default" in names) == is_python
    assert (f"aten._thnn_fused_{name}_cell.default" in names) != is_python


def test_fake_tensors():
    network, _ = network_of("gru", torch.float16, (16, 24))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x = torch.empty(STEPS, ROWS, 16, dtype=torch.float16, device="spyre")
        outputs = network(x)[0]
    assert isinstance(outputs, FakeTensor)
    assert outputs.shape == (STEPS, ROWS, 24)


def test_negative_views():
    network, _ = network_of("lstm", torch.float16, (16, 24))
    x = inputs_of(torch.float16, 16).to("spyre")
    assert_same(found_by(network, torch._neg_view(x)), found_by(network, -x))
