"""Sequences that a graph asks for several times: made once, unless its caller gets them."""

from __future__ import annotations

import pytest
import torch

from spyre.lru_cache import LruCache
from spyre.torch_backend.eager import factories
from spyre.torch_backend.inductor.lowering.decompositions import share_sequences

aten = torch.ops.aten


def graph_of(*calls, results):
    """An FX graph of (operation, arguments, dtype); an argument may be the number of a call."""
    graph = torch.fx.Graph()
    nodes, values = [], []
    for op, arguments, dtype in calls:
        given = [nodes[a.at] if isinstance(a, Call) else a for a in arguments]
        known = [values[a.at] if isinstance(a, Call) else a for a in arguments]
        options = {} if dtype is None else {"dtype": dtype, "device": torch.device("spyre")}
        node = graph.call_function(op, tuple(given), options)
        node.meta["val"] = op(*known, **options)
        nodes.append(node)
        values.append(node.meta["val"])
    graph.output(tuple(nodes[k] for k in results))
    return graph


class Call:
    """The result of call number ``at``."""

    def __init__(self, at):
        self.at = at


def count(graph, op=aten.arange.start_step):
    return sum(node.target is op for node in graph.nodes)


def sequence(end, dtype=torch.float32):
    return (aten.arange.start_step, (0, end), dtype)


def product(left, right):
    return (aten.mul.Tensor, (Call(left), Call(right)), None)


def test_equal_ones_are_made_once():
    calls = sequence(5), sequence(5), sequence(5), product(0, 1), product(2, 3)
    graph = graph_of(*calls, results=[4])
    share_sequences(graph)
    assert count(graph) == 1
    (first,) = (node for node in graph.nodes if node.target is aten.arange.start_step)
    assert [node.args[0] for node in graph.nodes if node.target is aten.mul.Tensor] == [first] * 2


def test_others_are_not():
    calls = sequence(5), sequence(1), sequence(5, torch.int64), product(0, 1), product(2, 3)
    graph = graph_of(*calls, results=[4])
    share_sequences(graph)
    assert count(graph) == 3


def test_what_is_returned_is_nobody_elses():
    view = (aten.unsqueeze.default, (Call(1), 0), None)
    calls = sequence(5), sequence(5), sequence(5), sequence(5), view, product(2, 3)
    graph = graph_of(*calls, results=[0, 4, 5])
    share_sequences(graph)
    assert count(graph) == 3


def read_only(x):
    rows = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)
    return x + rows[:, None] * torch.eye(*x.shape, dtype=x.dtype, device=x.device)


def written(x):
    """To a copy, as the graph is functional; the first write is a kernel's."""
    rows = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)
    rows[2] = 100
    rows.index_put_((torch.tensor([1], device=x.device),), x[0, :1], accumulate=True)
    return x[:, 0] * rows


def returned(x):
    rows = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)
    return x[:, 0] * rows, rows


@pytest.mark.parametrize("function", [read_only, written, returned])
def test_what_stays_on_the_card_stays_as_it_is(function, monkeypatch):
    made = []
    monkeypatch.setattr(factories, "_kept", LruCache(4))
    monkeypatch.setattr(factories, "_asked", LruCache(4))
    monkeypatch.setattr(factories, "_upload_into", noted(made, factories._upload_into))
    x = torch.randn(8, 70).half().to("spyre")
    compiled = torch.compile(function, dynamic=False, fullgraph=True)
    expected = [t.cpu() for t in tensors(function(x))]
    for _ in range(3):
        made.clear()
        found = tensors(compiled(x))
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
        if function is returned:
            found[1].fill_(7)
    assert not made  # one that is returned is a copy
    assert len(factories._kept)


def noted(calls, function):
    def note(*args):
        calls.append(args)
        return function(*args)

    return note


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


HOST_MADE = {
    "arange": lambda x: x[:, torch.arange(3).to(x.device)],
    "arange of floats": lambda x: x + torch.arange(4.0)[1].half().to(x.device),
    "arange in steps": lambda x: x * torch.arange(0, 130, 2).to(x.device).half(),
    "eye": lambda x: x[:, :3].float() @ torch.eye(3).to(x.device),
    "gelu": lambda x: x + torch.nn.functional.gelu(torch.linspace(0, 1, 65)).to(x.device),
    "linspace": lambda x: x + torch.linspace(0, 1, 65).to(x.device),
    "norm": lambda x: x + torch.linalg.vector_norm(torch.ones(5, 1), dim=1).sum().to(x.device),
    "scatter_add": lambda x: x.scatter_add(
        1, torch.arange(3).to(x.device).expand(5, 3), torch.ones(5, 3).to(x)
    ),
    "tril_indices": lambda x: x[:, torch.tril_indices(3, 3)[0].to(x.device)],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", HOST_MADE)
def test_operations_of_the_cpu_in_graphs_of_the_card(name, dynamic, monkeypatch):
    monkeypatch.setenv("CI", "true")  # Inductor refuses fallbacks of decomposed operations then
    x = torch.arange(5 * 65).reshape(5, 65).half() / 64
    torch.compiler.reset()
    found = torch.compile(HOST_MADE[name], dynamic=dynamic)(x.to("spyre")).cpu()
    torch.testing.assert_close(found, HOST_MADE[name](x), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dynamic", [None, True])
def test_graphs_of_the_cpu_that_make_tensors_on_the_card(dynamic):
    def function(c):
        return torch.full((4, 6), 2.0, device="spyre") * c.max()

    c = torch.arange(12.0).reshape(3, 4)
    found = torch.compile(function, dynamic=dynamic)(c)
    assert found.device.type == "spyre"
    assert torch.equal(found.cpu(), torch.full((4, 6), 22.0))
