"""Hints: preserved by Dynamo, AOTAutograd and decompositions, or refused."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor.codecache import compiled_fx_graph_hash

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.hints import hints_key, scopes_of, spyre_hint


def graphs_of(function, *arguments):
    """The graph Dynamo makes, and those that reach ``inner_compile`` after AOTAutograd."""
    torch._dynamo.reset()
    found = []

    def inner(graph, inputs, **kwargs):
        found.append(graph)
        return graph.forward

    def backend(graph, inputs):
        found.append(graph)
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    torch.compile(function, backend=backend, fullgraph=True)(*arguments)
    return found


def slices(graph):
    """Slices by node, of nodes that compute something."""
    return {
        node.name: [dict(scope.slices) for scope in scopes_of(node)]
        for node in graph.graph.nodes
        if node.op == "call_function"
    }


def nested(a, b, c):
    with spyre_hint(slices={"A": 2}), spyre_hint(slices={"B": 4}):
        y = a + b
        z = y * c
    return z - 1


SMALL = tuple(torch.randn(4, 8) for _ in range(3))


def test_nested_blocks_reach_inductor_outermost_first():
    both = [{"A": 2}, {"B": 4}]
    for graph in graphs_of(nested, *SMALL):
        found = list(slices(graph).values())
        assert found == [both, both, []]


def test_one_block_of_several_dims():
    def function(a):
        with spyre_hint({"A": 2, "B": 4}):
            return a + 1

    for graph in graphs_of(function, SMALL[0]):
        assert list(slices(graph).values()) == [[{"A": 2, "B": 4}]]


def test_the_alias_is_the_same():
    def function(a):
        with spyre_hint(num_tiles_per_dim={"A": 2}):
            return a + 1

    assert list(slices(graphs_of(function, SMALL[0])[-1]).values()) == [[{"A": 2}]]


def test_work_division_is_carried():
    def function(a):
        with spyre_hint(work_div={"A": 8}):
            return a + 1

    nodes = graphs_of(function, SMALL[0])[-1].graph.find_nodes(
        op="call_function", target=torch.ops.aten.add.Tensor
    )
    (scope,) = scopes_of(nodes[0])
    assert scope.work_div == (("A", 8),)
    assert scope.slices == ()


def test_decompositions_keep_the_hint():
    def function(a):
        with spyre_hint({"A": 2}):
            return torch.softmax(a, -1)

    found = slices(graphs_of(function, SMALL[0])[-1])
    assert len(found) >= 4
    assert all(hints == [{"A": 2}] for hints in found.values())


def test_every_entered_block_is_its_own_scope():
    def function(a):
        for _ in range(2):
            with spyre_hint({"A": 2}):
                a = a + 1
        return a

    nodes = graphs_of(function, SMALL[0])[-1].graph.find_nodes(
        op="call_function", target=torch.ops.aten.add.Tensor
    )
    first, second = (scopes_of(node)[0].number for node in nodes)
    assert first < second


def test_backward_operations_have_the_hints_of_their_forward_ones():
    torch._dynamo.reset()
    found = []

    def inner(graph, inputs, **kwargs):
        found.append(graph)
        return graph.forward

    def backend(graph, inputs):
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    def function(a):
        with spyre_hint({"A": 2}):
            return torch.exp(a)

    a = SMALL[0].clone().requires_grad_()
    torch.compile(function, backend=backend, fullgraph=True)(a).sum().backward()
    _, backward = found
    assert list(slices(backward).values()) == [[{"A": 2}]]


def test_eager_code_runs_unchanged():
    assert torch.equal(nested(*SMALL), (SMALL[0] + SMALL[1]) * SMALL[2] - 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"slices": {}},
        {"slices": {"A": 0}},
        {"slices": {"A": 2.0}},
        {"slices": {"A": True}},
        {"slices": {"": 2}},
        {"slices": ["A"]},
        {"slices": {"A": 2}, "num_tiles_per_dim": {"A": 2}},
        {"work_div": {"A": -1}},
    ],
)
def test_wrong_arguments_are_refused_in_eager_code_too(arguments):
    with pytest.raises(SpyreError) as caught:
        spyre_hint(**arguments)
    assert caught.value.code == "SPY975"


def test_wrong_arguments_stop_the_compilation():
    def function(a):
        with spyre_hint({"A": 0}):
            return a + 1

    with pytest.raises(Exception, match="SPY975"):
        graphs_of(function, SMALL[0])


def test_the_key_tells_hints_apart_and_is_the_same_anew():
    def function(count):
        def hinted(a):
            with spyre_hint({"A": count}):
                return a + 1

        return hinted

    keys = [hints_key(graphs_of(function(n), SMALL[0])[-1]) for n in (2, 2, 4)]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    assert hints_key(graphs_of(lambda a: a + 1, SMALL[0])[-1]) == ()


def test_keys_of_inductor_see_the_key_in_meta():
    """They do not see hints themselves; ``graph.meta`` they do."""

    def key(graph):
        return compiled_fx_graph_hash(graph, [], {}, [])[0]

    first, second = (
        graphs_of(nested, *SMALL)[-1],
        graphs_of(lambda a, b, c: (a + b) * c - 1, *SMALL)[-1],
    )
    assert key(first) == key(second)
    first.meta["spyre_hints"] = hints_key(first)
    second.meta["spyre_hints"] = hints_key(second)
    assert key(first) != key(second)
