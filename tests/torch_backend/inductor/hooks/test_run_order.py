"""The order of scheduled nodes: bundled ones together, the others as before."""

from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from spyre.torch_backend.inductor.hooks.scheduling import in_few_runs


class Name(msgspec.Struct, frozen=True):
    name: str

    def get_name(self):
        return self.name


class Node(msgspec.Struct, frozen=True):
    number: int
    is_bundled: bool
    needs: tuple[int, ...]

    @property
    def unmet_dependencies(self):
        return [Name(f"buf{k}") for k in self.needs] + [Name("input")]

    def get_outputs(self):
        return [Name(f"buf{self.number}")]


@st.composite
def graphs(draw):
    found = []
    for k in range(draw(st.integers(0, 12))):
        needs = draw(st.sets(st.integers(0, k - 1), max_size=3)) if k else ()
        found.append(Node(k, draw(st.booleans()), tuple(needs)))
    return found


def runs(nodes):
    pairs = zip([None, *nodes], nodes, strict=False)
    return sum(b.is_bundled and not (a and a.is_bundled) for a, b in pairs)


@given(graphs())
def test_dependencies_and_side_effects_keep_their_order(nodes):
    found = in_few_runs(nodes, lambda node: node.is_bundled)
    assert sorted(node.number for node in found) == list(range(len(nodes)))
    place = {node.number: k for k, node in enumerate(found)}
    assert all(place[k] < place[node.number] for node in nodes for k in node.needs)
    others = [node.number for node in found if not node.is_bundled]
    assert others == sorted(others)
    assert runs(found) <= runs(nodes)


def test_what_needs_nothing_does_not_cut_a_run():
    nodes = [Node(0, True, ()), Node(1, False, ()), Node(2, True, (0, 1))]
    assert runs(in_few_runs(nodes, lambda node: node.is_bundled)) == 1
