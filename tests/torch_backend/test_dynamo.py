"""Effects of the changes to torch on Dynamo, tracers and TorchScript."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["eager", "aot_eager"])
def compiled(request):
    torch.compiler.reset()
    return lambda function: torch.compile(function, backend=request.param, fullgraph=True)


def test_operations(compiled, card, host):
    assert torch.equal(compiled(lambda x: (x + 1) * x)(card).cpu(), (host + 1) * host)


def test_changed_functions_are_traced(compiled, card, host):
    def function(x):
        made = torch.empty(4, 6, device=x.device).copy_(x)
        return made.to(torch.float16).data + 1

    assert torch.equal(compiled(function)(card).cpu(), host.half() + 1)
    assert torch.equal(compiled(function)(host), host.half() + 1)


def test_modules_and_backward(compiled):
    for device in ("spyre", "cpu"):
        model = torch.nn.Linear(3, 2).to(device)
        compiled(model)(torch.ones(1, 3, device=device)).sum().backward()
        assert torch.equal(model.weight.grad.cpu(), torch.ones(2, 3))


def test_autocast(compiled, card):
    def function(x):
        with torch.autocast("spyre", dtype=torch.float16):
            return x @ x.t()

    assert compiled(function)(card).dtype == torch.float16


def test_streams(card, host):
    def function(x):
        stream = torch.Stream(device="spyre")
        with stream:
            y = x + 1
        stream.synchronize()
        return y

    torch.compiler.reset()
    assert torch.equal(torch.compile(function, backend="eager")(card).cpu(), host + 1)


def test_device_module_where_a_graph_is_broken(card):
    from torch.testing._utils import freeze_rng_state

    def function(x):
        with freeze_rng_state():
            return torch.rand_like(x)

    torch.compiler.reset()
    state = torch.spyre.get_rng_state()
    compiled = torch.compile(function, backend="eager")
    assert torch.equal(compiled(card), function(card))
    assert torch.equal(torch.spyre.get_rng_state(), state)


def test_script():
    @torch.jit.script
    def function(x: torch.Tensor):
        return x.to(torch.float16) + torch.empty(2).fill_(1)

    assert function(torch.ones(2)).tolist() == [2, 2]


def test_symbolic_trace():
    graph = torch.fx.symbolic_trace(lambda x: torch.empty(x.shape[0]).to(x))
    assert "to" in graph.code
    assert graph(torch.ones(3)).shape == (3,)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 4, device="spyre")
        assert x.device == torch.device("spyre:0")
        assert (x @ x.t()).to("cpu").shape == (3, 3)
